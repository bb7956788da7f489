"""How an engine runs local training, and what local training reports back to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Execution:
    """Options of the engine for the solvers of `ct.optim`, and what the solvers report back.

    The engine attaches one to the task that it passes to client functions
    (`Task.with_execution`), so every solver call sees it without a further argument.
    """

    low_rank: bool = False  # whether uploads may hold a `LowRankUpdate` in place of a tensor
    max_steps: int | None = None  # of one solver call, in dry runs that measure memory
    # reported by solvers
    wants_gram: bool = False  # a cached Gram matrix would save work
    solver_forms: list[str] = field(default_factory=list)  # chosen forms of local steps, and why
    in_batched_op: bool = False  # inside `batch_clients`; an exception there would abort torch

    def limit_steps(self, steps: Iterable[T]) -> Iterator[T]:
        """The steps, or the first `max_steps` of them."""
        return itertools.islice(steps, self.max_steps)

    def record_form(self, description: str) -> None:
        """Record which form of local steps a solver chose, once."""
        if description not in self.solver_forms:
            self.solver_forms.append(description)
