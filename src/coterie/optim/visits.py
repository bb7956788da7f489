"""The rows of steps as tensors: first of one client, then of all clients at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.core.client_data import Step
from coterie.core.task import Batch

Rows = Tensor | slice  # a batch's rows: their numbers among all clients' rows, or a range of each


MOST_STEPS = 4096  # whose rows are drawn at once

T = TypeVar("T")


def in_blocks(steps: Iterator[T], most: int) -> Iterator[list[T]]:
    """The steps, some at a time: there may be very many, or somebody may ask for too many."""
    while block := list(itertools.islice(steps, most)):
        yield block


class Order(NamedTuple):
    """The rows of some steps, of one client; of all clients, each leaf [c, ...]."""

    rows: Tensor | None  # int64 [rows of all steps] one step after another; None: all rows in each
    counts: Tensor | None  # bool [steps] False where a step is padding; None: all count


ALL_ROWS = Order(None, None)


def order_of(steps: list[Step], own: Batch, *, written_out: bool = False) -> Order:
    """The order of some steps on own rows; written_out: also where each step takes all rows."""
    counts = [step.counts for step in steps if step.counts is not None]
    rows = None
    if steps[0].rows is not None or written_out:
        everything = torch.arange(len(own.mask), device=own.mask.device)
        rows = torch.cat([everything if step.rows is None else step.rows for step in steps])
    return Order(rows, torch.stack(counts) if counts else None)


def sizes_of(steps: list[Step], own: Batch) -> tuple[int, ...]:
    """How many rows each step has."""
    return tuple(len(own.mask if step.rows is None else step.rows) for step in steps)


# ------------------------------------------------------------------------------ of all clients
def numbers_among_all(rows: Tensor, each: int) -> Tensor:
    """Rows' numbers [c, m] in their client as numbers in all clients, of `each` rows."""
    return rows + torch.arange(len(rows), device=rows.device)[:, None] * each


def rows_at(v: Tensor, at: Rows) -> Tensor:
    """[c, b, ...] some rows of v [c, m, ...]."""
    if isinstance(at, slice):
        return v[:, at]
    return v.flatten(0, 1).index_select(0, at).unflatten(0, (len(v), -1))


def counted(batch: Batch, counts: Tensor | None, step: int) -> Batch:
    """The batch of a step, all padding where the step does not count."""
    if counts is None:
        return batch
    return batch._replace(mask=batch.mask * counts[:, step, None])
