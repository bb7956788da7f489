"""Which form of local steps takes less work: counted from shapes, never timed.

So the same run takes the same form again, on any machine, and `--dry-run` can say which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from coterie.client_data import Drawn
from coterie.local.pull import Pull
from coterie.params import Params
from coterie.task import Task

A_NUMBER = 18  # multiplications that take as long as reading or writing a number: measured
MOST_ROWS = 4096  # of a block: its Gram matrix has as many numbers squared, for each client


class Form(NamedTuple):
    """The dual form with the blocks that take the least work."""

    rows: int | None  # of a block at most, in the order of use; None: all rows, for all steps
    work: float  # as a share of that of plain steps


class Shapes(NamedTuple):
    """What the work of a local training depends on."""

    d: int  # inputs of the first layer
    h: int  # outputs of the first layer
    n: int  # rows of the client
    steps: int
    batch: float  # rows of a step, on average
    origins: int  # tensors like the weights that steps begin with: start, centre, momentum
    results: int  # the weights, and the momentum

    @property
    def is_simple(self) -> bool:
        """Whether there is neither momentum nor pull."""
        return self.origins == 1


def dual_pays(
    task: Task, w: Params, batches: Drawn, has_momentum: bool, pull: Pull | None
) -> Form | None:
    """The dual form, if it is possible and takes less work than plain steps; else None."""
    if task.first is None or not batches.sizes:
        return None
    shapes = shapes_of(task, w, batches, has_momentum, pull)
    plain = plain_work(shapes)
    forms = []
    if shapes.n <= MOST_ROWS:
        forms.append(Form(None, own_rows_work(shapes) / plain))
    for rows in block_sizes(shapes):
        forms.append(Form(rows, in_order_work(shapes, rows) / plain))
    best = min(forms, key=lambda form: form.work, default=None)
    if best is None or best.work >= 1:
        return None
    return best


def shapes_of(
    task: Task, w: Params, batches: Drawn, has_momentum: bool, pull: Pull | None
) -> Shapes:
    """The shapes of a local training."""
    assert task.first is not None
    h, d = w[task.first.weight].shape
    has_centre = pull is not None and pull.centre is not None
    return Shapes(
        d=d,
        h=h,
        n=len(batches.own.mask),
        steps=len(batches.sizes),
        batch=sum(batches.sizes) / len(batches.sizes),
        origins=1 + has_momentum + has_centre,
        results=1 + has_momentum,
    )


def plain_work(s: Shapes) -> float:
    """Two products with the weights in each step, and passes over the weights and their gradient.

    Passes: the weights are read in both products, the gradient is written, read, scaled and added;
    momentum and pull take about as many again, each.
    """
    passes = 7 * s.origins
    return s.steps * (2 * s.batch * s.d * s.h + A_NUMBER * passes * s.d * s.h)


def own_rows_work(s: Shapes) -> float:
    """All rows of the client as one block."""
    gram = s.n * s.n * s.d
    gathered = 2 * s.batch * (s.n + 2 * s.h)  # rows of the Gram matrix, outputs and sums
    if s.batch == s.n:
        gathered = 0.0
    step = s.batch * s.n * s.h + A_NUMBER * (gathered + sums_passes(s) * s.n * s.h)
    return gram + beginning_and_end(s, s.n) + s.steps * step


def in_order_work(s: Shapes, rows: int) -> float:
    """Blocks of so many rows, in the order of use: half a Gram matrix, and sums half filled."""
    visited = s.steps * s.batch
    blocks = -(-visited // rows)
    gram = rows * rows * s.d / 2
    gathered = 2 * rows * s.d
    begin = beginning_and_end(s, rows) + A_NUMBER * gathered
    step = s.batch * rows * s.h / 2 + A_NUMBER * sums_passes(s) * rows * s.h
    return blocks * (gram + begin) + s.steps * step


def beginning_and_end(s: Shapes, rows: int) -> float:
    """A product with each tensor that a block begins with, and one for each that it writes."""
    products = s.origins + s.results
    passes = 2 * s.origins + 3 * s.results
    return products * rows * s.d * s.h + A_NUMBER * passes * s.d * s.h


def sums_passes(s: Shapes) -> int:
    """Passes over the sums of all rows in a step: they are read; momentum and pull change them."""
    if s.is_simple:
        return 1
    return 2 + 5 * (s.results - 1)


def block_sizes(s: Shapes) -> Iterator[int]:
    """Sizes worth counting: two batches, and half as many again each time."""
    rows = 2 * s.batch
    while rows <= min(MOST_ROWS, s.steps * s.batch):
        yield round(rows)
        rows *= 1.5
    if s.steps * s.batch <= MOST_ROWS:
        yield round(s.steps * s.batch)
