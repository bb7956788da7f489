"""Robust means: weighted means per cluster that tolerate a minority of hostile clients.

    rule       definition                                                proposed by
    mean       the weighted mean; one client can move it anywhere
    median     the median of each coordinate                             Yin et al. 2018
    trimmed    the mean of each coordinate without its extremes          Yin et al. 2018
    geometric  the point with the least sum of distances to all values   Pillutla et al. 2022
    krum       the mean of the clients with the nearest neighbours       Blanchard et al. 2017
    mixing     trimmed mean of the means of each client's neighbours     Allouah et al. 2023

* Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning: towards optimal
  statistical rates. ICML 2018.
* Pillutla, Kakade, Harchaoui: Robust aggregation for federated learning. IEEE Transactions on
  Signal Processing 70, 2022.
* Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries: Byzantine tolerant
  gradient descent. NIPS 2017.
* Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by mixing: a recipe for optimal
  Byzantine ML under heterogeneity. AISTATS 2023.

Differences from the papers: clients have weights, and an integer weight counts as that many equal
clients (except in `krum`, which counts clients); trimming cuts a client on the edge in part; `krum`
uses one neighbour more, see `krum_weights`.

The clients' values may be memory-mapped and far larger than memory, so they are read in blocks of
coordinates. A block holds about the same number of values for any number of members.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.hostile import max_hostile
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.params import Params

RULES = ("mean", "median", "trimmed", "geometric", "krum", "mixing")

# Geometric median: the length of the last step and the smoothing of distances, relative to the
# median distance of the members.
PRECISION = 1e-6
MAX_PASSES = 100  # over the members' values
MAX_COMPARED = 5000  # members in krum and mixing: distances take 8 bytes per pair
SAME_SCORE = 1e-9  # scores of krum with a smaller relative difference count as equal
# Cumulative weights with a smaller relative difference count as equal: weights are often float32,
# and a rounding error would keep a trace of a value that is cut off, possibly a huge one.
SAME_MASS = 1e-6
READ_NUMBERS = 2**23  # read at once: from a disk, a few numbers cost as much as a page
BLOCK_NUMBERS = 2**20  # sorted and multiplied at once: they stay in the processor's cache

BlockMean = Callable[[Tensor, Tensor], Tensor]  # (rows [m, c], weight [m, k]) -> [k, c]


def robust_means(rule: str, values: Params, weight: Tensor, share: float) -> Params:
    """Compute a robust mean of the clients' values for each centre.

    Args:
        rule: One of `RULES`.
        values: Leaves of shape [n, ...]; row i of every leaf belongs to client i. They may be
            memory-mapped: they are read in blocks and never copied as a whole.
        weight: [n, K], not negative. The members of a centre are the clients with a positive
            weight for it; a centre without members gets zeros.
        share: The share of a centre's members that may be hostile, in [0, 0.5). `trimmed` cuts
            off this share of the mass at either end, so it tolerates hostile clients with at most
            this share of the weight. `krum` drops this share of the members, rounded up. `median`
            and `geometric` tolerate up to half of the weight for any share.

    Returns:
        Leaves of shape [K, ...].

    Raises:
        CoterieError: If the rule does not exist, the share is out of range, or `krum` or `mixing`
            would compare more than `MAX_COMPARED` members.
    """
    check_rule(rule, share)
    means = {n: v.new_zeros(weight.shape[1], *v.shape[1:]) for n, v in values.items()}
    tables = {n: as_table(v) for n, v in means.items()}
    for centres, index in group_by_members(weight):
        members = Members(values, index)
        weights = weight[index][:, centres].double()
        block_mean: BlockMean = mean  # geometric and krum are means with their own weights
        if rule == "geometric":
            weights = geometric_weights(members, weights)
        elif rule == "krum":
            weights = krum_weights(members, weights, share)
        elif rule == "median":
            block_mean = median
        elif rule == "trimmed":
            block_mean = functools.partial(trimmed_mean, share=share)
        elif rule == "mixing":
            block_mean = mix_and_trim(mixing_matrix(members, share), share)
        for block in members.blocks():
            tables[block.leaf][centres, block.columns] = block_mean(block.rows, weights).to(
                block.rows.dtype
            )
    return means


def check_rule(rule: str, share: float) -> None:
    """Raise a CoterieError for an unknown_name rule or a share of hostile clients out of range."""
    if rule not in RULES:
        raise unknown_name("robust rule", rule, RULES)
    if not 0 <= share < 0.5:
        raise CoterieError(
            f"the share of hostile clients is {share}",
            "give a number from 0 to below 0.5; no rule tolerates a majority",
        )


# ------------------------------------------------------------------------------ blocks
class Block(NamedTuple):
    """Some coordinates of one leaf, for all members."""

    leaf: str
    columns: slice  # of the leaf, flattened to [members, numbers]
    rows: Tensor  # [members, columns], a copy


class Members(NamedTuple):
    """The members of a centre: some rows of the table of all clients' values."""

    values: Params  # leaves [clients, ...]
    clients: Tensor  # int64 [members]

    def blocks(self) -> Iterator[Block]:
        """Yield all coordinates of all leaves, block by block."""
        read = max(1, READ_NUMBERS // len(self.clients))
        width = max(1, BLOCK_NUMBERS // len(self.clients))
        for name, leaf in self.values.items():
            table = as_table(leaf)
            for first in range(0, table.shape[1], read):
                piece = table[:, first : first + read].index_select(0, self.clients)
                for rows in piece.split(width, 1):
                    yield Block(name, slice(first, first + rows.shape[1]), rows)
                    first += rows.shape[1]


def as_table(leaf: Tensor) -> Tensor:
    """Reshape [n, ...] to [n, numbers], without a copy if the leaf is contiguous."""
    return leaf.detach().reshape(len(leaf), math.prod(leaf.shape[1:]))


def group_by_members(weight: Tensor) -> Iterator[tuple[list[int], Tensor]]:
    """Yield (centres, members) for centres with the same members, so that these are read once.

    Args:
        weight: [n, K]. A centre without a positive weight is skipped.
    """
    centres: dict[bytes, list[int]] = {}
    is_member = (weight > 0).cpu()
    for k in range(weight.shape[1]):
        centres.setdefault(is_member[:, k].numpy().tobytes(), []).append(k)
    for same in centres.values():
        members = is_member[:, same[0]].nonzero()[:, 0]
        if len(members):
            yield same, members.to(weight.device)


# ------------------------------------------------------------------------------ one block
# Each function takes rows [members, columns] and float64 weights [members, centres], all positive,
# and returns [centres, columns]. One sort of the rows serves all centres.
def mean(rows: Tensor, weight: Tensor) -> Tensor:
    """Σ_i w_i x_i / Σ_i w_i, in float64."""
    share = weight / weight.sum(0)
    return share.T @ rows.double()


# ------------------------------------------------------------------------------ medians
def median(rows: Tensor, weight: Tensor) -> Tensor:
    """Weighted median: half of the weight lies on either side.

    If a whole interval halves the mass, the result is its middle. So equal weights give the
    ordinary median, and a weight of 3 is the same as three rows of weight 1.
    """
    columns = rows.T.contiguous()
    if has_equal_weights(weight):
        ordered = sort_rows(columns)
        members = len(weight)
        middle = midpoint(ordered[:, (members - 1) // 2], ordered[:, members // 2])
        return middle.expand(weight.shape[1], -1)
    order = argsort_rows(columns)
    return torch.stack([weighted_median(columns, order, w) for w in weight.T])


def weighted_median(columns: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    """The median for one centre, [columns]; columns and order are [columns, members]."""
    mass = weight.take(order).cumsum(1)  # up to and with each member, in ascending order
    half = mass[:, -1:] / 2
    margin = SAME_MASS * half
    last = len(weight) - 1
    lower = torch.searchsorted(mass, half - margin)  # the first to reach half of the mass
    upper = torch.searchsorted(mass, half + margin).clamp(max=last)  # the first to exceed it
    a = columns.gather(1, order.gather(1, lower))
    b = columns.gather(1, order.gather(1, upper))
    return midpoint(a, b)[:, 0]


def midpoint(a: Tensor, b: Tensor) -> Tensor:
    """(a + b) / 2, also where the sum would overflow."""
    return a / 2 + b / 2


# ------------------------------------------------------------------------------ trimmed means
def trimmed_mean(rows: Tensor, weight: Tensor, share: float) -> Tensor:
    """The weighted mean after `share` of the mass is cut off at either end.

    A member on the edge is cut in part. With equal weights and an integer share · members this is
    the classical trimmed mean.
    """
    columns = rows.T.contiguous()
    weight = weight / weight.sum(0)
    if has_equal_weights(weight):
        middle = mean_of_sorted(sort_rows(columns), weight[:, 0], share)
        return middle.expand(weight.shape[1], -1)
    order = argsort_rows(columns)
    ordered = columns.gather(1, order)
    return torch.stack([mean_of_sorted(ordered, w.take(order), share) for w in weight.T])


def mean_of_sorted(ordered: Tensor, weight: Tensor, share: float) -> Tensor:
    """The trimmed mean for one centre, [columns].

    Args:
        ordered: [columns, members], sorted.
        weight: Weights with sum 1, like `ordered`; [members] if equal in every column.
    """
    kept = kept_mass(weight, share)
    total = kept.sum(-1).to(ordered.dtype)
    kept = kept.to(ordered.dtype)
    if kept.dim() == 1:
        return ordered @ kept / total
    return (ordered * kept).sum(1) / total


def kept_mass(weight: Tensor, share: float) -> Tensor:
    """The part of each weight that is not cut off, [..., members], for sorted values."""
    low, high = share, 1 - share
    margin = SAME_MASS * (high - low)
    mass = weight.cumsum(-1)
    mass.masked_fill_((mass - low).abs_() <= margin, low)
    mass.masked_fill_((mass - high).abs_() <= margin, high)
    inside = mass.clamp_(low, high)
    kept = inside.clone()
    kept[..., 0] -= low
    kept[..., 1:] -= inside[..., :-1]
    return kept


# ------------------------------------------------------------------------------ sorting
def has_equal_weights(weight: Tensor) -> bool:
    """Whether all members have the same weight, for every centre."""
    return bool((weight == weight[:1]).all())


def sort_rows(columns: Tensor) -> Tensor:
    """Sort each row. On CPUs NumPy is about ten times faster than torch."""
    if columns.device.type == "cpu":
        return torch.from_numpy(np.sort(columns.numpy(), axis=1))
    return columns.sort(1).values


def argsort_rows(columns: Tensor) -> Tensor:
    """The indices that sort each row."""
    if columns.device.type == "cpu":
        return torch.from_numpy(np.argsort(columns.numpy(), axis=1))
    return columns.argsort(1)


# ------------------------------------------------------------------------------ geometric median
def geometric_weights(members: Members, weight: Tensor) -> Tensor:
    """Weights [m, k] whose mean is the weighted geometric median over all leaves.

    Smoothed Weiszfeld steps minimise Σ_i w_i √(‖z − x_i‖² + ν²). They start from the
    coordinate-wise median; from the mean, which may be far away, many more would be needed. Each
    step is one pass over the values. The iteration stops at a step shorter than PRECISION times the
    median distance from the start, which also gives ν; a hostile minority cannot change either.
    """
    distances = distances_to_centres(members, weight, median)
    scale = median(distances, weight).diagonal()  # centre k's weights with its own distances
    nu = (PRECISION * scale).clamp(min=1e-150)  # 0 if half of the members are the same
    current = weiszfeld_weights(distances, weight, nu)
    moving = torch.ones_like(scale, dtype=torch.bool)
    for _ in range(MAX_PASSES):
        distances = distances_to_centres(members, current, mean)
        new = weiszfeld_weights(distances, weight, nu)
        step = ((new - current).abs() * distances).sum(0)  # at least the distance between the means
        current = torch.where(moving, new, current)  # centres stop independently
        moving &= step > PRECISION * scale
        if not moving.any():
            break
    return current


def weiszfeld_weights(distances: Tensor, weight: Tensor, nu: Tensor) -> Tensor:
    """Weights [m, k] of the next step: w_i / √(d_i² + ν²), normalised."""
    raw = weight / torch.hypot(distances, nu)
    return raw / raw.sum(0)


def distances_to_centres(members: Members, weight: Tensor, block_mean: BlockMean) -> Tensor:
    """Distances [m, k] of the members to the mean or median of each centre."""
    squares = torch.zeros_like(weight)
    for block in members.blocks():
        rows = block.rows.double()
        for k, point in enumerate(block_mean(rows, weight)):
            squares[:, k] += (rows - point).square_().sum(1)
    return squares.sqrt()


# ------------------------------------------------------------------------------ multi-Krum
def krum_weights(members: Members, weight: Tensor, share: float) -> Tensor:
    """Weights [m, k] of the m − f members with the lowest score; 0 for the others.

    f = ⌈share · m⌉ members may be hostile. The score of a member is the sum of its squared
    distances over all leaves to its m − f − 1 nearest neighbours. The paper uses one neighbour
    less; then f of m = 2f + 1 clients that send the same value would have score 0 and win. Members
    with equal scores share the last places, so that their order does not matter.
    """
    m = len(weight)
    hostile = max_hostile(share, m)
    if m < 3 or hostile == 0:
        return weight
    chosen = m - hostile
    # the nearest include the member itself, at distance 0
    # the nearest include the member itself, at distance 0
    nearest = squared_distances(members).topk(chosen, dim=1, largest=False)
    scores = nearest.values.sum(1)
    return weight * select_lowest(scores, chosen)[:, None]


def select_lowest(scores: Tensor, chosen: int) -> Tensor:
    """1 for the `chosen` lowest scores, a fraction for ties on the last places, [m]."""
    last = scores.kthvalue(chosen).values
    margin = SAME_SCORE * last
    sure = scores < last - margin
    tied = (scores - last).abs() <= margin
    left = chosen - sure.sum()
    return sure.double() + tied.double() * left / tied.sum()


# ------------------------------------------------------------------------------ mixing
def mixing_matrix(members: Members, share: float) -> Tensor:
    """Row-stochastic matrix [m, m] that averages each member with its nearest, m − f in all.

    If honest clients differ, none of them is near the honest mean, and a hostile client can hide
    among them. The neighbourhood means are all near it.
    """
    m = len(members.clients)
    chosen = m - max_hostile(share, m)
    nearest = squared_distances(members).topk(chosen, dim=1, largest=False).indices
    matrix = torch.zeros(m, m, dtype=torch.float64, device=nearest.device)
    return matrix.scatter_(1, nearest, 1 / chosen)


def mix_and_trim(matrix: Tensor, share: float) -> BlockMean:
    """A trimmed mean over mixed rows."""
    return lambda rows, weight: trimmed_mean(matrix @ rows.double(), weight, share)


def squared_distances(members: Members) -> Tensor:
    """‖x_i − x_j‖² [m, m], computed from inner products.

    Values are centred at their median: clients that agree become short vectors there, so no digits
    cancel even if other clients are far away.
    """
    m = len(members.clients)
    if m > MAX_COMPARED:
        raise CoterieError(
            f"krum and mixing compare all pairs of clients, and a centre has {m} clients",
            f"use another rule, such as trimmed, for more than {MAX_COMPARED} clients",
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
