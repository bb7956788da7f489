"""Robust means: what the clients of a centre agree on, though some of them may be hostile.

    rule       what it is                                                proposed by
    mean       the weighted mean: one client can move it anywhere
    median     the median of each coordinate                             Yin et al. 2018
    trimmed    the mean of each coordinate without its extremes          Yin et al. 2018
    geometric  the point with the least sum of distances to all values   Pillutla et al. 2022
    krum       the mean of the clients with the nearest neighbours       Blanchard et al. 2017
    mixing     each is replaced by the mean of its nearest, then trimmed Allouah et al. 2023

* Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning: towards optimal
  statistical rates. ICML 2018.
* Pillutla, Kakade, Harchaoui: Robust aggregation for federated learning. IEEE Transactions on
  Signal Processing 70, 2022.
* Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries: Byzantine tolerant
  gradient descent. NIPS 2017.
* Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by mixing: a recipe for optimal
  Byzantine ML under heterogeneity. AISTATS 2023.

Ours, not the papers': weights, for which an integer weight counts as so many equal clients (except
in `krum`, which counts clients); trimming cuts a client on the edge in part; `krum` looks at one
neighbour more, for the reason given there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from coterie.aggregation.blocks import Members, as_table, centres_by_members
from coterie.aggregation.coordinates import mean, median, trimmed
from coterie.clustering.typical import max_hostile
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.params import Params

RULES = ("mean", "median", "trimmed", "geometric", "krum", "mixing")

# Of the geometric median: how short its last step is, and how far distances are smoothed, as a
# share of the median distance of the members.
PRECISION = 1e-6
MOST_PASSES = 100  # over the members' values
# That krum and mixing compare with each other: distances take 8 bytes for each pair of them.
MOST_COMPARED = 5000
SAME_SCORE = 1e-9  # scores of krum that differ by less than this share of them count as equal

OfBlock = Callable[[Tensor, Tensor], Tensor]  # (rows [m, c], weight [m, k]) -> [k, c]


def robust_means(rule: str, values: Params, weight: Tensor, share: float) -> Params:
    """A robust mean of the clients' values for each centre, leaves [K, ...].

    values: leaves [n, ...]; all leaves of one row belong to one client. They may be memory-mapped:
        they are read in blocks of a fixed size and never copied as a whole.
    weight: [n, K], at least 0. A centre's members are the clients with a positive weight for it;
        a centre without members gets zeros.
    share: the share of a centre's members that may be hostile, at least 0 and below 0.5. `trimmed`
        cuts off this share of a centre's mass at either end, so it holds out if the hostile ones
        have no more than this share of its weight. `krum` leaves out this share of its members,
        rounded up. `median` and `geometric` hold out up to half of the weight, whatever it is.
    """
    check(rule, share)
    means = {n: v.new_zeros(weight.shape[1], *v.shape[1:]) for n, v in values.items()}
    tables = {n: as_table(v) for n, v in means.items()}
    for centres, index in centres_by_members(weight):
        members = Members(values, index)
        weights = weight[index][:, centres].double()
        if rule == "geometric":
            weights = geometric_weights(members, weights)
        if rule == "krum":
            weights = krum_weights(members, weights, share)
        of_block = rule_of_block(rule, share)
        if rule == "mixing":
            of_block = after_mixing(mixing_matrix(members, share), of_block)
        for block in members.blocks():
            made = of_block(block.rows, weights).to(block.rows.dtype)
            tables[block.leaf][centres, block.columns] = made
    return means


def check(rule: str, share: float) -> None:
    """Refuse a rule that does not exist, and a share of hostile clients that none withstands."""
    if rule not in RULES:
        raise unknown_name("robust rule", rule, RULES)
    if not 0 <= share < 0.5:
        raise CoterieError(
            f"the share of hostile clients is {share}",
            "give a number from 0 to below 0.5; no rule withstands a majority",
        )


def rule_of_block(rule: str, share: float) -> OfBlock:
    """How the means of one block of coordinates are made.

    `geometric` and `krum` are plain means with weights of their own.
    """
    if rule == "median":
        return median
    if rule in ("trimmed", "mixing"):
        return functools.partial(trimmed, share=share)
    return mean


# ------------------------------------------------------------------------------ geometric median
def geometric_weights(members: Members, weight: Tensor) -> Tensor:
    """[m, k] weights whose mean is the weighted geometric median, over all leaves together.

    Smoothed Weiszfeld steps minimise Σ_i w_i √(‖z − x_i‖² + ν²), from the coordinate-wise median:
    from the mean, which may lie far away, there would be many steps. Each step is one pass over the
    members' values. The last one is shorter than PRECISION times the median distance from the
    start, which also gives ν; both do not depend on what a hostile minority sends.
    """
    distances = distances_from(members, weight, median)
    scale = median(distances, weight).diagonal()  # centre k's weights with its own distances
    nu = (PRECISION * scale).clamp(min=1e-150)  # 0 if half of the members are the same
    pulls = pulls_of(distances, weight, nu)
    moving = torch.ones_like(scale, dtype=torch.bool)
    for _ in range(MOST_PASSES):
        distances = distances_from(members, pulls, mean)
        new = pulls_of(distances, weight, nu)
        step = ((new - pulls).abs() * distances).sum(0)  # no shorter than the way between means
        pulls = torch.where(moving, new, pulls)  # so that no centre depends on another
        moving &= step > PRECISION * scale
        if not moving.any():
            break
    return pulls


def pulls_of(distances: Tensor, weight: Tensor, nu: Tensor) -> Tensor:
    """[m, k] the members' weights in the next step: w_i / √(d_i² + ν²), with sum 1."""
    pulls = weight / torch.hypot(distances, nu)
    return pulls / pulls.sum(0)


def distances_from(members: Members, weight: Tensor, of_block: OfBlock) -> Tensor:
    """[m, k] the distance of each member from the centres' means or medians."""
    squares = torch.zeros_like(weight)
    for block in members.blocks():
        rows = block.rows.double()
        for k, point in enumerate(of_block(rows, weight)):
            squares[:, k] += (rows - point).square_().sum(1)
    return squares.sqrt()


# ------------------------------------------------------------------------------ multi-Krum
def krum_weights(members: Members, weight: Tensor, share: float) -> Tensor:
    """[m, k] the weights of the m − f members that have the nearest neighbours; 0 for the others.

    f = ⌈share · m⌉ members may be hostile. The score of a member is the sum of its squared
    distances, over all leaves together, to its m − f − 1 nearest neighbours. Krum's authors take
    one neighbour less; then f clients of m = 2f + 1 that all send the same would have score 0 and
    win. Members with the same score share the last places, so that their order does not matter.
    """
    m = len(weight)
    hostile = max_hostile(share, m)
    if m < 3 or hostile == 0:
        return weight
    chosen = m - hostile
    nearest = squared_distances(members).topk(chosen, dim=1, largest=False)  # with itself, at 0
    scores = nearest.values.sum(1)
    return weight * places(scores, chosen)[:, None]


def places(scores: Tensor, chosen: int) -> Tensor:
    """[m] 1 for the `chosen` lowest scores, a part of 1 for those that share the last places."""
    last = scores.kthvalue(chosen).values
    margin = SAME_SCORE * last
    sure = scores < last - margin
    tied = (scores - last).abs() <= margin
    left = chosen - sure.sum()
    return sure.double() + tied.double() * left / tied.sum()


# ------------------------------------------------------------------------------ mixing
def mixing_matrix(members: Members, share: float) -> Tensor:
    """[m, m] in each row equal shares of the member itself and its nearest, m − f in all.

    Where groups of honest clients differ, no single one of them is near the honest mean, and a
    hostile one that is nearer hides among them. The means of the nearest all are near it.
    """
    m = len(members.clients)
    chosen = m - max_hostile(share, m)
    nearest = squared_distances(members).topk(chosen, dim=1, largest=False).indices
    matrix = torch.zeros(m, m, dtype=torch.float64, device=nearest.device)
    return matrix.scatter_(1, nearest, 1 / chosen)


def after_mixing(matrix: Tensor, of_block: OfBlock) -> OfBlock:
    """The rule on mixed rows."""
    return lambda rows, weight: of_block(matrix @ rows.double(), weight)


def squared_distances(members: Members) -> Tensor:
    """[m, m] ‖x_i − x_j‖², from inner products.

    They are taken about the median: there the clients that agree are short vectors, so that no
    digits cancel, also if others are far away.
    """
    m = len(members.clients)
    if m > MOST_COMPARED:
        raise CoterieError(
            f"krum and mixing compare every two clients of a centre, and one has {m} of them",
            f"take another rule, such as trimmed, for more than {MOST_COMPARED}",
        )
    products = torch.zeros(m, m, dtype=torch.float64, device=members.clients.device)
    equal = torch.ones(m, 1, dtype=torch.float64, device=members.clients.device)
    for block in members.blocks():
        centred = block.rows.double() - median(block.rows, equal).double()
        products.addmm_(centred, centred.T)
    products = (products + products.T) / 2
    squares = products.diagonal()
    distances = (squares[:, None] + squares - 2 * products).clamp_(min=0)
    return distances.fill_diagonal_(0)
