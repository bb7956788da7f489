"""The cost model that chooses between plain steps and the dual form.

It counts operations from shapes and never measures time, so a run makes the same choice on any
machine and `--dry-run` can print it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from coterie.core.client_data import Drawn
from coterie.core.params import Params
from coterie.core.task import Task
from coterie.optim.steps import ProximalTerm, Solver

MEMORY_COST = 18  # multiplications that take as long as one memory access, measured
MAX_BLOCK = 4096  # samples: a Gram matrix has as many numbers squared, per client
MAX_RELATIVE_WORK = 0.85  # of plain steps; a smaller saving may take longer in practice


class DualForm(NamedTuple):
    """The dual form with a block size.

    A block has the samples of a few steps in the order of use, or all samples of the client; see
    `optim/dual.py`.
    """

    rows: int | None  # samples in the largest block; None: all samples, in one block for all steps
    work: float  # relative to plain steps


def choose_form(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Drawn,
    solver: Solver,
    proximal: ProximalTerm | None,
) -> DualForm | None:
    """Choose the dual form if it is possible and takes less work than plain steps.

    The choice, and whether a cached Gram matrix would help, is recorded in `task.execution`.

    Args:
        task: Model and loss.
        w: The model that steps start from.
        u: The momentum that steps start from; None without momentum or if it is 0.
        batches: The batches.
        solver: Step size and momentum.
        proximal: Proximal term and weight decay.

    Returns:
        The cheapest dual form, or None for plain steps.
    """
    if task.first is None:
        task.execution.record_form("plain: the model does not begin with a linear layer")
        return None
    if not batches.sizes.batches:
        return None
    shapes = make_shapes(task, w, u, batches, solver, proximal)
    best = min(dual_forms(shapes), key=lambda form: form.work, default=DualForm(None, 1.0))
    if best.work >= MAX_RELATIVE_WORK:
        task.execution.record_form("plain: the dual form would not take less work")
        return None
    task.execution.record_form(describe(best, shapes))
    if best.rows is None and shapes.gram_is_kept:
        task.execution.wants_gram = True
    return best


def low_rank_pays(s: TrainingShapes, centres: int) -> bool:
    """Whether a first layer that is only summed takes less work as a `LowRankUpdate`.

    Written out, it is picked, written, compared with its start and summed. A low-rank update needs
    XXᵀ·S for its norm, a product of thin matrices, and with several centres the samples of each
    one's clients are gathered. Clients with few samples save a quarter of the round; clients with
    as many samples as the layer has outputs save nothing.
    """
    written = MEMORY_COST * 6 * s.d * s.h
    gathered = 2 * s.n * s.d if centres > 1 else 0
    move = 2 * s.n * s.n * s.h + MEMORY_COST * (4 * s.n * s.h + gathered)
    return move < MAX_RELATIVE_WORK * written


def describe(form: DualForm, shapes: TrainingShapes) -> str:
    """Describe the form and its work."""
    block = f"all {shapes.n} samples of a client in one block"
    if form.rows is not None:
        block = f"blocks of {form.rows} samples"
    return f"dual, {block}: {form.work:.2f} of the work of plain steps"


# ------------------------------------------------------------------------------ counting
class TrainingShapes(NamedTuple):
    """The shapes that the work of a local training depends on."""

    d: int  # inputs of the first layer
    h: int  # outputs of the first layer
    n: int  # samples of the client
    steps: int
    batch: float  # mean batch size
    origins: int  # tensors like the weights that steps start from: start, centre, momentum
    results: int  # the weights, and the momentum if it is needed
    has_momentum: bool
    is_pulled: bool  # by a proximal term or l2
    gram_is_kept: bool  # cached, so it takes no work

    @property
    def visited(self) -> float:
        """Total number of samples over all steps."""
        return self.steps * self.batch


def make_shapes(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Drawn,
    solver: Solver,
    proximal: ProximalTerm | None,
) -> TrainingShapes:
    """The shapes of a local training."""
    assert task.first is not None
    h, d = w[task.first.weight].shape
    has_momentum = solver.beta is not None
    has_centre = proximal is not None and proximal.centre is not None and proximal.centre is not w
    return TrainingShapes(
        d=d,
        h=h,
        n=len(batches.own.mask),
        steps=batches.sizes.batches,
        batch=batches.sizes.rows / batches.sizes.batches,
        origins=1 + (u is not None) + has_centre,
        results=1 + (has_momentum and solver.keeps_momentum),
        has_momentum=has_momentum,
        is_pulled=proximal is not None,
        gram_is_kept=isinstance(batches.gram, Tensor),
    )


def dual_forms(s: TrainingShapes) -> Iterator[DualForm]:
    """Yield candidate forms: all samples at once, and blocks of two batches and more."""
    plain = plain_work(s)
    if s.n <= MAX_BLOCK:
        yield DualForm(None, own_rows_work(s) / plain)
    largest = int(min(s.visited, MAX_BLOCK) // s.batch)
    steps = 2
    while steps <= largest:
        rows = math.ceil(steps * s.batch)
        yield DualForm(rows, in_order_work(s, rows) / plain)
        steps = min(math.ceil(1.4 * steps), max(largest, steps + 1))


def plain_work(s: TrainingShapes) -> float:
    """Two products with the weights per step, and passes over the weights and their gradient.

    Both products read the weights; the gradient is written, read, scaled and added. Momentum and
    the proximal term take about as many passes each.
    """
    passes = 7 * (1 + s.has_momentum + s.is_pulled)
    step = 2 * s.batch * s.d * s.h + MEMORY_COST * passes * s.d * s.h
    return s.steps * (step + shared_work(s))


def own_rows_work(s: TrainingShapes) -> float:
    """All samples of the client as one block."""
    gram = 0.0 if s.gram_is_kept else 0.75 * s.n * s.n * s.d
    gathered = 2 * s.batch * (s.n + 2 * s.h)  # rows of the Gram matrix, outputs and sums
    if s.batch == s.n:
        gathered = 0.0
    step = s.batch * s.n * s.h + MEMORY_COST * (gathered + sums_passes(s) * s.n * s.h)
    return gram + first_and_last(s, s.n) + s.steps * (step + shared_work(s))


def in_order_work(s: TrainingShapes, rows: int) -> float:
    """Blocks of so many samples in the order of use: sums are half full on average.

    So is the Gram matrix, but its products are small and take longer.
    """
    blocks = -(-s.visited // rows)
    gram = 0.75 * rows * rows * s.d
    gathered = MEMORY_COST * 2 * rows * s.d
    step = s.batch * rows * s.h / 2 + MEMORY_COST * sums_passes(s) * rows * s.h
    return blocks * (gram + gathered + first_and_last(s, rows)) + s.steps * (step + shared_work(s))


def first_and_last(s: TrainingShapes, rows: int) -> float:
    """One product per tensor that a block starts from, and one per tensor that it writes."""
    products = s.origins + s.results
    passes = 2 * s.origins + 3 * s.results
    return products * rows * s.d * s.h + MEMORY_COST * passes * s.d * s.h


def shared_work(s: TrainingShapes) -> float:
    """Work on the first layer's outputs in a step, forward and backward, in any form."""
    return MEMORY_COST * 12 * s.batch * s.h


def sums_passes(s: TrainingShapes) -> int:
    """Passes over the sums per step: one read; momentum and the proximal term update them."""
    return 1 + 5 * s.has_momentum + 2 * s.is_pulled
