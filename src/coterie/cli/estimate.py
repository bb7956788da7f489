"""--dry-run: what a run would take, counted without training."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from coterie.engine.call import Call
from coterie.engine.dry_run import DryRun
from coterie.engine.fold import Fold, Part
from coterie.engine.plan import rows_and_activations
from coterie.metrics import Row
from coterie.params import nbytes
from coterie.reporting.text import format_bytes
from coterie.runs.run import Run
from coterie.runs.start import Job


class Counting:
    """An engine whose clients answer with zeros of the right shape: nothing is computed."""

    def enroll(self, method: Any, welcome: Any) -> None:
        """Nobody is contacted."""

    def map(self, call: Call, fold: Fold) -> Part:
        """Zeros from every client."""
        for table in tree_leaves((fold.tables, fold.moved)):
            table.zero_()
        everyone = torch.arange(len(call.ids))
        part = fold.missing([])._replace(accepted=everyone)
        return fold.complete(part)._replace(bytes_up=fold.answer_bytes * len(everyone))

    def snapshot(self) -> Any:
        """Nothing."""
        return ()

    def restore(self, snapshot: Any) -> None:
        """Nothing."""


def traffic(job: Job) -> list[tuple[int, int]] | None:
    """(bytes down, bytes up) of the start and of a first round; None where answers are needed.

    Everyone is sent the welcome at the start, with the first evaluation.
    """
    counts = []
    roster = job.fed.roster
    try:
        with warnings.catch_warnings(action="ignore"):
            run = Run(job.method, job.task, roster, Counting(), job.options)
            for r in (0, 1):
                ask = replace(run.asker(r), screen=None, usual={})
                method: Any = ask.root.method
                if r == 0:
                    run.state = method.begin(run.state, ask)
                else:
                    run.state = method.round(run.state, ask)
                welcomes = run.welcome_bytes * len(roster) if r == 0 else 0
                counts.append((ask.bytes_down + welcomes, ask.bytes_up))
    except Exception:  # whatever a method does with answers that are all zero
        return None
    return counts


def estimate(job: Job) -> Row:
    """Sizes, bytes, memory and plan of a run that has not begun."""
    fed = job.fed
    bytes_start, bytes_round = traffic(job) or (None, None)
    return {
        "method": job.method.name,
        "data": fed.source,
        "clients": len(fed),
        "unseen": fed.unseen,
        "train_rows": len(fed.train.y),
        "test_rows": len(fed.test.y),
        "parameters": parameters(job),
        "rounds": job.options.rounds,
        "bytes_start": bytes_start,
        "bytes_round": bytes_round,
        "memory": memory(job),
        "plan": {"engine": job.options.engine, **asdict(job.plan)},
    }


def parameters(job: Job) -> int:
    """The number of parameters of the model."""
    return sum(p.numel() for p in job.task.module.parameters())


def memory(job: Job) -> dict[str, int]:
    """Bytes of the data, of what server and clients keep, and of the work on a round."""
    fed = job.fed
    at_once = job.plan.workers
    if job.plan.vectorise:
        at_once *= job.plan.chunk
    at_once = min(len(fed), at_once)
    number = torch.empty((), dtype=job.task.dtype).element_size()
    numbers = 6 * parameters(job) + rows_and_activations(job.task, fed.roster)
    state, welcome = job.method.start(job.task, len(fed), job.options.seed)
    return {
        "data": sum(nbytes(tuple(part)) for part in (fed.train, fed.test, fed.valid or ())),
        "states": nbytes(state) + private_bytes(job, welcome) * len(fed),
        "working": at_once * numbers * number,
    }


def private_bytes(job: Job, welcome: Any) -> int:
    """Bytes of one client's private state."""
    return nbytes(DryRun(job.task, job.fed.roster, job.method, welcome).private)


def as_text(estimated: Row) -> str:
    """The estimate as lines of text."""
    plan = estimated["plan"]
    sizes = estimated["memory"]
    first_round = describe_traffic(estimated["bytes_round"])
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    lines = {
        "clients": f"{estimated['clients']} train, {estimated['unseen']} unseen",
        "rows": f"{estimated['train_rows']:,} train, {estimated['test_rows']:,} test",
        "model": f"{estimated['parameters']:,} parameters",
        "start": describe_traffic(estimated["bytes_start"]),
        "first round": f"{first_round}; {estimated['rounds']} rounds",
        "memory": f"about {format_bytes(sum(sizes.values()))} ({parts})",
        "plan": f"{plan['engine']}: {describe_plan(plan)}",
    }
    title = f"{estimated['method']} on {estimated['data']}"
    return "\n".join([title, *(f"  {name:<12} {text}" for name, text in lines.items())])


def describe_traffic(pair: tuple[int, int] | None) -> str:
    """Bytes down and up, in words."""
    if pair is None:
        return "not known without training"
    return f"{format_bytes(pair[0])} down, {format_bytes(pair[1])} up"


def describe_plan(plan: Row) -> str:
    """How many clients are worked on at once, in words."""
    if plan["engine"] != "vectorised":
        return "one client after another"
    if plan["vectorise"]:
        return f"{plan['chunk']} clients at once (vmap), {plan['workers']} threads"
    return f"{plan['chunk']} clients in a loop, {plan['workers']} threads"
