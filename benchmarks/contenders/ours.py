"""Coterie, vectorised on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from contenders.answering import read_request, serve
from contenders.cases_of_problems import case_of, run_at_start, to_arrays
from contenders.problems import Arrays, Problem
from coterie.core.contract import Data, Repeat
from coterie.core.trees import tree_map
from plain_loops import centres_of
from timing import cores


class InThisThread:
    """Stands in for the engine's pool: the counter of products sees one thread alone."""

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(work, items)


class Ours:
    packages = ("coterie", "torch", "numpy")

    def __init__(self, problem: Problem, threads: int) -> None:
        torch.set_num_threads(cores())
        self.problem = problem
        self.run = run_at_start(problem, case_of(problem))
        self.state = self.run.state
        self.round = self.run.round
        self.snapshot = tree_map(torch.clone, self.run.engine.snapshot())

    def prepare(self, threads: int) -> Callable[[], Any]:
        self.run.state = self.state
        self.run.round = self.round
        self.run.engine.restore(tree_map(torch.clone, self.snapshot))
        return self.run.step

    def models(self, result: Any) -> list[Arrays]:
        return to_arrays(centres_of(self.run))

    def counts(self) -> dict[str, Any]:
        engine: Any = self.run.engine
        pool = engine.pool
        engine.pool = InThisThread()
        work = self.prepare(cores())
        engine.solver_forms.clear()
        with FlopCounterMode(display=False) as counter:
            work()
        engine.pool = pool
        return {
            "products": counter.get_total_flops(),
            "form": "; ".join(engine.solver_forms),
            "workers": engine.plan.workers,
            **self.steps(),
        }

    def steps(self) -> dict[str, Any]:
        """Steps and rows of all clients, for methods that take them as settings say."""
        if self.problem.method not in ("FedAvg", "IFCA"):
            return {}
        steps = rows = 0
        for i in range(self.problem.clients):
            key = self.run.client_keys[i]
            own = Data(self.run.engine.rows("train", i), key, key)
            batches = own.batches(self.run.method)
            if isinstance(batches, Repeat):
                steps += batches.times
                rows += batches.times * len(batches.batch.mask)
            else:
                steps += batches.sizes.batches
                rows += batches.sizes.rows
        return {"steps": steps, "rows": rows}


if __name__ == "__main__":
    serve(read_request(), Ours)
