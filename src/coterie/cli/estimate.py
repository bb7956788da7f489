"""--dry-run: what a run would take, counted without training."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from coterie.cli.table import human
from coterie.engine.call import Call
from coterie.engine.fold import Fold, Part
from coterie.metrics import Row
from coterie.params import nbytes
from coterie.runs.run import Run


class Counting:
    """An engine whose clients answer with zeros of the right shape: bytes are counted, nothing is computed."""

    name = "counting"

    def map(self, call: Call, fold: Fold) -> Part:
        tree_map(lambda v: v.zero_(), fold.rows)
        return fold.nothing()._replace(positions=[torch.arange(len(call.ids))])


def traffic(run: Run) -> list[tuple[int, int]] | None:
    """(bytes down, bytes up) of the start and of a first round; None where the method needs real answers."""
    state, found = run.state, []
    engine: Any = Counting()
    try:
        with warnings.catch_warnings(action="ignore"):
            for r in (0, 1):
                ask = replace(run.asker(r), engine=engine, screen=None, medians={})
                method: Any = ask.root.method
                state = method.begin(state, ask) if r == 0 else method.round(state, ask)
                found.append((ask.bytes_down + (run.welcome_bytes if r == 0 else 0), ask.bytes_up))
    except Exception:  # whatever a method does with answers that are all zero
        return None
    return found


def estimate(run: Run) -> Row:
    """Sizes, bytes, memory and plan of a run that has not begun."""
    fed, size = run.fed, sum(p.numel() for p in run.task.module.parameters())
    number = torch.empty((), dtype=run.task.dtype).element_size()
    rows = int(fed.train.sizes.float().mean().ceil())
    widest = max(size // max(fed.train.x[0].numel(), 1), 1)  # as the plan guesses activations
    at_once = min(len(fed), run.cut.workers * (run.cut.chunk if run.cut.vectorise else 1))
    working = at_once * (6 * size + rows * (fed.train.x[0].numel() + 4 * widest)) * number
    memory = {
        "data": sum(
            nbytes(tuple(part)) for part in (fed.train, fed.test, fed.valid) if part is not None
        ),
        "states": nbytes(run.engine.snapshot()) + nbytes(run.state),
        "working": working,
    }
    counted = traffic(run)
    return {
        "method": run.method.name,
        "data": fed.source,
        "clients": len(fed),
        "unseen": fed.unseen,
        "train_rows": len(fed.train.y),
        "test_rows": len(fed.test.y),
        "parameters": size,
        "rounds": run.options.rounds,
        "bytes_start": None if counted is None else counted[0],
        "bytes_round": None if counted is None else counted[1],
        "memory": memory,
        "plan": {"engine": run.options.engine, **run.cut._asdict()},
    }


def told(found: Row) -> str:
    """The estimate as lines of text."""

    def both(pair: tuple[int, int] | None) -> str:
        if pair is None:
            return "not known without training"
        return f"{human(pair[0])} down, {human(pair[1])} up"

    plan, memory = found["plan"], found["memory"]
    how = (
        f"{plan['chunk']} clients at once (vmap)"
        if plan["vectorise"]
        else f"{plan['chunk']} clients in a loop"
    )
    cut = (
        f"{how}, {plan['workers']} threads"
        if plan["engine"] == "vectorised"
        else "one client after another"
    )
    parts = ", ".join(f"{name} {human(size)}" for name, size in memory.items())
    lines = {
        "clients": f"{found['clients']} train, {found['unseen']} unseen",
        "rows": f"{found['train_rows']:,} train, {found['test_rows']:,} test",
        "model": f"{found['parameters']:,} parameters",
        "start": both(found["bytes_start"]),
        "first round": f"{both(found['bytes_round'])}; {found['rounds']} rounds",
        "memory": f"about {human(sum(memory.values()))} ({parts})",
        "plan": f"{plan['engine']}: {cut}",
    }
    return "\n".join(
        [f"{found['method']} on {found['data']}", *(f"  {k:<12} {v}" for k, v in lines.items())]
    )
