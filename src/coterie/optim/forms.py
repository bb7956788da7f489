"""Which form of local steps takes less work: counted from shapes, never timed.

So the same run takes the same form again, on any machine, and `--dry-run` can say which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from coterie.core.client_data import Drawn
from coterie.core.params import Params
from coterie.core.task import Task
from coterie.optim.gram import is_kept, wish_for_gram
from coterie.optim.pull import Pull, Solver

A_NUMBER = 18  # multiplications that take as long as reading or writing a number: measured
MOST_ROWS = 4096  # of a block: its Gram matrix has as many numbers squared, for each client
WORTH_IT = 0.85  # of the work of plain steps; what saves less may take longer


class Form(NamedTuple):
    """The dual form with the blocks that take the least work."""

    rows: int | None  # of a block at most, in the order of use; None: all rows, for all steps
    work: float  # as a share of that of plain steps


def dual_pays(
    task: Task, w: Params, u: Params | None, batches: Drawn, solver: Solver, pull: Pull | None
) -> Form | None:
    """The dual form, if it is possible and takes less work than plain steps; else None.

    u: the momentum that steps begin with; None: none, or 0.
    """
    if task.first is None:
        note("plain: the model has no linear layer that takes the rows themselves")
        return None
    if not batches.sizes.batches:
        return None
    shapes = shapes_of(task, w, u, batches, solver, pull)
    best = min(dual_forms(shapes), key=lambda form: form.work, default=Form(None, 1.0))
    if best.work >= WORTH_IT:
        note("plain: the dual form would not take less work")
        return None
    note(describe(best, shapes))
    if best.rows is None and shapes.gram_is_kept:
        wish_for_gram()
    return best


def move_pays(s: Shapes, centres: int) -> bool:
    """Whether a first layer that is only added up takes less work as a `LowRankUpdate`.

    Written out, it is picked, written, compared with its start and added up. A move needs XXᵀ·S for
    its length, a product of thin matrices, and where there are several centres the rows of each
    one's clients are gathered. Clients of few rows gain a quarter of the whole round; those with
    as many rows as the layer has outputs, nothing.
    """
    written = A_NUMBER * 6 * s.d * s.h
    gathered = 2 * s.n * s.d if centres > 1 else 0
    move = 2 * s.n * s.n * s.h + A_NUMBER * (4 * s.n * s.h + gathered)
    return move < WORTH_IT * written


def describe(form: Form, shapes: Shapes) -> str:
    """The form and its work, in words."""
    block = f"all {shapes.n} rows of a client in one block"
    if form.rows is not None:
        block = f"blocks of {form.rows} rows"
    return f"dual, {block}: {form.work:.2f} of the work of plain steps"


# ------------------------------------------------------------------------------ what was chosen
_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)


@contextmanager
def noted_forms() -> Iterator[list[str]]:
    """A list to which each choice of a form is added, in words, while the context is open."""
    notes: list[str] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def note(sentence: str) -> None:
    """Tell whoever listens which form was chosen, and why."""
    notes = _notes.get()
    if notes is not None and sentence not in notes:
        notes.append(sentence)


# ------------------------------------------------------------------------------ counting
class Shapes(NamedTuple):
    """What the work of a local training depends on."""

    d: int  # inputs of the first layer
    h: int  # outputs of the first layer
    n: int  # rows of the client
    steps: int
    batch: float  # rows of a step, on average
    origins: int  # tensors like the weights that steps begin with: start, centre, momentum
    results: int  # the weights, and the momentum where it is asked for
    has_momentum: bool
    is_pulled: bool  # by a centre or l2
    gram_is_kept: bool  # from round to round, so that it takes no work

    @property
    def visited(self) -> float:
        """The rows of all steps."""
        return self.steps * self.batch


def shapes_of(
    task: Task, w: Params, u: Params | None, batches: Drawn, solver: Solver, pull: Pull | None
) -> Shapes:
    """The shapes of a local training."""
    assert task.first is not None
    h, d = w[task.first.weight].shape
    has_momentum = solver.beta is not None
    has_centre = pull is not None and pull.centre is not None and pull.centre is not w
    return Shapes(
        d=d,
        h=h,
        n=len(batches.own.mask),
        steps=batches.sizes.batches,
        batch=batches.sizes.rows / batches.sizes.batches,
        origins=1 + (u is not None) + has_centre,
        results=1 + (has_momentum and solver.keeps_momentum),
        has_momentum=has_momentum,
        is_pulled=pull is not None,
        gram_is_kept=is_kept(batches.gram),
    )


def dual_forms(s: Shapes) -> Iterator[Form]:
    """Forms worth considering: all rows at once, and blocks from two batches upwards."""
    plain = plain_work(s)
    if s.n <= MOST_ROWS:
        yield Form(None, own_rows_work(s) / plain)
    largest = int(min(s.visited, MOST_ROWS) // s.batch)
    steps = 2
    while steps <= largest:
        rows = math.ceil(steps * s.batch)
        yield Form(rows, in_order_work(s, rows) / plain)
        steps = min(math.ceil(1.4 * steps), max(largest, steps + 1))


def plain_work(s: Shapes) -> float:
    """Two products with the weights in each step, and passes over the weights and their gradient.

    The weights are read by both products; the gradient is written, read, scaled and added. Momentum
    and pull take about as many passes again, each.
    """
    passes = 7 * (1 + s.has_momentum + s.is_pulled)
    step = 2 * s.batch * s.d * s.h + A_NUMBER * passes * s.d * s.h
    return s.steps * (step + work_beside(s))


def own_rows_work(s: Shapes) -> float:
    """All rows of the client as one block."""
    gram = 0.0 if s.gram_is_kept else 0.75 * s.n * s.n * s.d
    gathered = 2 * s.batch * (s.n + 2 * s.h)  # rows of the Gram matrix, outputs and sums
    if s.batch == s.n:
        gathered = 0.0
    step = s.batch * s.n * s.h + A_NUMBER * (gathered + sums_passes(s) * s.n * s.h)
    return gram + first_and_last(s, s.n) + s.steps * (step + work_beside(s))


def in_order_work(s: Shapes, rows: int) -> float:
    """Blocks of so many rows, in the order of use: sums are half full on average.

    So is the Gram matrix, but its products are small and take longer.
    """
    blocks = -(-s.visited // rows)
    gram = 0.75 * rows * rows * s.d
    gathered = A_NUMBER * 2 * rows * s.d
    step = s.batch * rows * s.h / 2 + A_NUMBER * sums_passes(s) * rows * s.h
    return blocks * (gram + gathered + first_and_last(s, rows)) + s.steps * (step + work_beside(s))


def first_and_last(s: Shapes, rows: int) -> float:
    """A product with each tensor that a block begins with, and one for each that it writes."""
    products = s.origins + s.results
    passes = 2 * s.origins + 3 * s.results
    return products * rows * s.d * s.h + A_NUMBER * passes * s.d * s.h


def work_beside(s: Shapes) -> float:
    """What any form does in a step with the outputs of the first layer, there and back."""
    return A_NUMBER * 12 * s.batch * s.h


def sums_passes(s: Shapes) -> int:
    """Passes over the sums of all rows in a step: they are read; momentum and pull change them."""
    return 1 + 5 * s.has_momentum + 2 * s.is_pulled
