"""Clusters among the clients' sketches, from sums over clients alone.

Under secure sums the server never sees a sketch. Each client remembers its own, and

1. the sums of all sketches s_i and of s_i s_iᵀ give their mean and principal directions;
2. the server draws many starts of K centres in the space of the first K − 1 directions, and each
   Lloyd iteration of all starts is one exchange: a client adds its own coordinates to the nearest
   centre of each start;
3. the start with the smallest total squared distance wins, and each client knows the nearest of
   its centres.

A method that uses this has the client function `assign_sketch = sketch_sums.assign_sketch`, and a
`SecureClientState` as its clients' private state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.contract import Ask, Data, Sums, Upload, Weight, client
from coterie.core.task import Task

SKETCH_SIZE = 256
MAX_CLUSTERS = 20  # of clusters="auto"
FOLDS = 5
STARTS = 30
ITERATIONS = 12
FAR = 1e3  # a centre that no sketch of norm 1 is nearest to


class SecureClientState(NamedTuple):
    """What a client remembers under secure sums."""

    inner: Any  # its private state without secure sums
    group: Tensor  # its own cluster, int64 [], −1: none yet; or its weight in each cluster [K]
    sketch: Tensor  # of its last sketched update
    losses: Tensor  # float64 [folds, MAX_CLUSTERS], on held-out rows; −1: not measured


class Space(NamedTuple):
    """The principal directions of the sketches."""

    mean: Tensor  # [sketch]
    basis: Tensor  # [sketch, q], columns of norm 1, the largest variance first
    spread: Tensor  # [q], standard deviations along them


def initial_client_state(
    inner: Any, group: Tensor, task: Task, size: int = SKETCH_SIZE
) -> SecureClientState:
    """The initial state of a client; size: the length of sketches."""
    numbers = sum(v.numel() for v in task.init(0).values())
    return SecureClientState(
        inner=inner,
        group=group,
        sketch=torch.zeros(max(min(size, numbers), min(SKETCH_SIZE, numbers)), dtype=task.dtype),
        losses=torch.full((FOLDS, MAX_CLUSTERS), -1.0, dtype=torch.float64),
    )


# ------------------------------------------------------------------------------ one client
def remember_sketch(
    direction: Tensor, private: SecureClientState
) -> tuple[Upload, SecureClientState]:
    """Upload s and s sᵀ of a sketch, to be summed, and remember s."""
    size = private.sketch.shape[-1]
    s = F.pad(direction, (0, size - direction.shape[-1])).to(private.sketch.dtype)
    values = {"first": s, "second": s[:, None] * s}
    return Upload({"moments": values}, torch.ones_like(s[:1]), {}), private._replace(sketch=s)


@client(
    weight=Weight(),
    when=lambda method: getattr(method, "starts_from_updates", True),
    rounds="start",
    secure="only",
    max_calls=lambda method: ITERATIONS * (1 + FOLDS * MAX_CLUSTERS),
)
def assign_sketch(
    method: Any, task: Task, shared: Any, per_client: Any, private: SecureClientState, data: Data
) -> tuple[Upload, SecureClientState]:
    """Add the client's coordinates to the nearest centre of each start.

    Args:
        shared: mean [sketch], basis [sketch, q], used [R, q] (1 for directions that a start uses)
            and centres [R, K, q] of R starts.
    """
    mean, basis, used, centres = shared
    z = coordinates(private.sketch, mean, basis)
    distances = (used[:, None] * (z - centres) ** 2).sum(-1)  # [R, K]
    nearest = F.one_hot(distances.argmin(-1), centres.shape[1]).to(z.dtype)
    values = {
        "sums": nearest[..., None] * (used[:, None] * z),
        "mass": nearest,
        "cost": distances.amin(-1),
    }
    return Upload({"lloyd": values}, torch.ones_like(z[:1]), {}), private


def coordinates(sketch: Tensor, mean: Tensor, basis: Tensor) -> Tensor:
    """The coordinates of a sketch in a space, [q]."""
    return (sketch - mean) @ basis


def nearest_centre(sketch: Tensor, mean: Tensor, basis: Tensor, centres: Tensor) -> Tensor:
    """The centre [K, p] nearest to a sketch in the first p directions, int64 []."""
    z = coordinates(sketch, mean, basis)[: centres.shape[1]]
    return ((z - centres) ** 2).sum(-1).argmin()


# ------------------------------------------------------------------------------ the server
def principal_space(sums: Sums, directions: int) -> Space:
    """The mean and the principal directions of sketches, from their summed moments."""
    n = float(sums.mass["moments"][0])
    dtype = sums.totals["moments"]["first"].dtype
    first, second = (sums.totals["moments"][k][0].double() / n for k in ("first", "second"))
    covariance = second - first[:, None] * first
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)  # ascending
    basis = vectors.flip(1)[:, :directions]
    # eigenvectors have no sign: let their largest component be positive
    basis = basis * basis.gather(0, basis.abs().argmax(0, keepdim=True)).sign()
    spread = values.flip(0)[:directions].clamp(min=0).sqrt()
    return Space(*(v.to(dtype).contiguous() for v in (first, basis, spread)))


def cluster_sketches(
    method: Any, space: Space, numbers: list[int], clients: Tensor, ask: Ask
) -> dict[int, Tensor]:
    """Find K centres among the remembered sketches, for several K ≥ 2 at once.

    Args:
        method: A method with the client function `assign_sketch`.
        space: The principal directions, at least max(numbers) − 1 of them.
        numbers: The numbers of centres to find.
        clients: The clients that remember a sketch.
        ask: The exchanges of round 0.

    Returns:
        For each K the centres [K, K − 1], in the first directions of the space.
    """
    most, q = max(numbers), len(space.spread)
    counts = torch.tensor(numbers).repeat_interleave(STARTS)  # [R], centres of each start
    used = (torch.arange(q) < counts[:, None] - 1).to(space.spread)  # [R, q]
    is_centre = torch.arange(most) < counts[:, None]  # [R, K]
    rng = ask.rng("starts")

    def draw() -> Tensor:
        drawn = torch.randn(len(counts), most, q, generator=rng, dtype=torch.float64)
        scaled = 1.5 * drawn.to(space.spread) * space.spread * used[:, None]
        return torch.where(is_centre[..., None], scaled, FAR)

    centres = draw()
    for iteration in range(ITERATIONS):
        sums = ask(method.assign_sketch, clients, shared=(space.mean, space.basis, used, centres))
        found = {name: v[0] for name, v in sums.totals["lloyd"].items()}
        mass = found["mass"].round()
        if iteration == ITERATIONS - 1:
            break
        means = found["sums"] / mass.clamp(min=1)[..., None]
        updated = torch.where((mass > 0)[..., None], means, draw())
        updated = torch.where(is_centre[..., None], updated, FAR)
        if torch.equal(updated, centres):
            break
        centres = updated
    best = {}
    for place, k in enumerate(numbers):
        costs = found["cost"][place * STARTS : (place + 1) * STARTS]
        best[k] = centres[place * STARTS + int(costs.argmin()), :k, : k - 1].contiguous()
    return best
