"""Time rounds of Coterie and of a plain loop, interleaved, from the same state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.trees import tree_map
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from plain_loops import Model, centres_of
from workloads import Case

ENOUGH = 12.0  # seconds of rounds for each contender of a case


def warm(case: Case, rounds: int = 2) -> Run:
    run = prepare_run(case.method, case.fed, case.model, rounds=10**6, eval_every=10**6)
    for _ in run.rounds():
        if run.round == rounds:
            return run
    raise AssertionError


class Took(NamedTuple):
    """Return the seconds of one round."""

    wall: float
    processor: float  # of all threads together


def timed_round(work: Callable[[], list[Model]]) -> tuple[Took, list[Model]]:
    began = time.perf_counter(), time.process_time()
    models = work()
    return Took(time.perf_counter() - began[0], time.process_time() - began[1]), models


def has_enough(took: list[Took]) -> bool:
    """Whether one more round would take too long; the first always runs."""
    return bool(took) and sum(t.wall for t in took) + took[-1].wall > ENOUGH


def cores() -> int:
    return len(os.sched_getaffinity(0))


def compare(case: Case, repeats: int, threads: set[int]) -> float:
    """Print a line about a case; return the ratio of the processor times.

    threads: numbers of threads on which the loop runs.
    """
    run = warm(case)
    state, at = run.state, run.round
    snapshot = tree_map(torch.clone, run.engine.snapshot())
    contenders = ["coterie"] + [f"{t} thread{'s' * (t > 1)}" for t in sorted(threads)]
    took: dict[str, list[Took]] = {who: [] for who in contenders}
    results: dict[str, Tensor] = {}
    for _ in range(repeats):
        for who in contenders:
            if has_enough(took[who]):
                continue
            torch.set_num_threads(cores() if who == "coterie" else int(who.split()[0]))
            run.state, run.round = state, at
            run.engine.restore(tree_map(torch.clone, snapshot))
            work = case.plain(case, run)
            if who == "coterie":
                work = lambda: (run.step(), centres_of(run))[1]
            seconds, models = timed_round(work)
            took[who].append(seconds)
            flat = [torch.cat([v.flatten() for v in m.values()]) for m in models]
            results[who] = torch.stack(flat)
    wall = {who: min(t.wall for t in times) for who, times in took.items()}
    processor = {who: min(t.processor for t in times) for who, times in took.items()}
    best = min(contenders[1:], key=wall.__getitem__)
    off = float((results["coterie"] - results[best]).norm() / results[best].norm())
    ratio = processor["1 thread"] / processor["coterie"]
    print(
        f"{case.name:62s} {wall['coterie']:8.3f} s   plain {wall[best]:8.3f} s ({best})   "
        f"{wall[best] / wall['coterie']:6.1f}x   target {case.target}x   "
        f"processor time {ratio:.2f}x   differ {off:.0e}",
        flush=True,
    )
    return ratio


def timed(work: Callable[[], object], repeats: int) -> float:
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)
