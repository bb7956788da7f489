"""A plain PyTorch loop over the clients, in our own environment and with our batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from contenders.answering import read_request, serve
from contenders.cases_of_problems import case_of, run_at_start, to_arrays
from contenders.problems import Arrays, Problem


class PlainLoop:
    packages = ("torch", "numpy")

    def __init__(self, problem: Problem, threads: int) -> None:
        self.problem = problem
        self.case = case_of(problem)
        self.run = run_at_start(problem, self.case)

    def prepare(self, threads: int) -> Callable[[], Any]:
        torch.set_num_threads(threads)
        return self.case.plain(self.case, self.run)

    def models(self, result: Any) -> list[Arrays]:
        return to_arrays(result)

    def counts(self) -> dict[str, Any]:
        """Steps as the module sees them: passes with a gradient."""
        sizes: list[int] = []

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            if torch.is_grad_enabled():
                sizes.append(len(output))

        def counted() -> nn.Module:
            module = self.case.model()
            module.register_forward_hook(note)
            return module

        watched = dataclasses.replace(self.case, model=counted)
        work = watched.plain(watched, self.run)
        with FlopCounterMode(display=False) as counter:
            work()
        return {"products": counter.get_total_flops(), "steps": len(sizes), "rows": sum(sizes)}


if __name__ == "__main__":
    serve(read_request(), PlainLoop)
