"""The best settings of a method, found on training rows that are held out; test rows play no part.

    found = ct.search(ct.IFCA(clusters=4), fed, over={"lr": [0.01, 0.1, 1], "local_steps": [5, 10]}, rounds=20)
    found.table      a `Cell` for each combination, the best first
    found.best       {"lr": 0.1, "local_steps": 10}
    found.winner     the method with these settings

A cell's score is the accuracy on the held-out rows after its last round, for regression the MSE, as a mean over the
seeds; where scores are equal, the loss decides. The runs are given no test rows at all.
"""

from __future__ import annotations

import itertools
import json
import math
import random as chance
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import quote

import torch

from coterie.contract import Algorithm
from coterie.data import Federation
from coterie.runs.folder import RunFolder, write_whole
from coterie.runs.run import Run, model_fingerprint
from coterie.engine.vectorised import Plan
from coterie.errors import CoterieError, Diverged, unknown
from coterie.metrics import Row, to_json
from coterie.result import Model, prepare, reopen

VALID = 0.2  # share of the training rows that is held out where none is given
MARK = "search.json"  # tells a folder that a search made
Follow = Callable[[str, Run], Callable[[Row], Any]]


class Cell(NamedTuple):
    """One combination of values, and how it fared."""

    values: dict[str, Any]
    scores: list[float]  # on the held-out rows, a number per seed that did not diverge
    losses: list[float]
    diverged: list[str]  # a sentence per seed that did

    @property
    def mean(self) -> float | None:
        """None where a seed diverged: such a cell cannot win."""
        return None if self.diverged else mean(self.scores)

    @property
    def std(self) -> float | None:
        return stdev(self.scores) if not self.diverged and len(self.scores) > 1 else None

    def row(self) -> Row:
        return {**self._asdict(), "mean": self.mean, "std": self.std}


class Job(NamedTuple):
    """One run of a search."""

    cell: int
    title: str
    method: Algorithm
    fed: Federation
    folder: Path | None
    options: dict[str, Any]


class Search:
    """A search whose every run has been checked; `go` trains what is not done yet and fills `table`."""

    def __init__(
        self,
        method: Algorithm,
        fed: Federation | Callable[[int], Federation],
        model: Model = None,
        *,
        over: Mapping[str, Sequence[Any]],
        random: int | None = None,
        seeds: int = 1,
        out: str | Path | None = None,
        plan: Plan | None = None,
        **options: Any,
    ) -> None:
        self.method, self.fed, self.model, self.over = method, fed, model, over
        self.out, self.plan = None if out is None else Path(out), plan
        self.options: dict[str, Any] = {"valid": VALID, "seed": 0, **options}
        self.seeds = range(self.options["seed"], self.options["seed"] + seeds)
        self.cells = cells(method, over, random, self.options["seed"])
        self.metric = ""
        self.table: list[Cell] = []
        if seeds < 1:
            raise CoterieError(f"seeds is {seeds}: it must be ≥ 1.")
        if self.out is not None and not (self.out / MARK).exists() and holds_something(self.out):
            raise CoterieError(f"{self.out} exists and holds no search: choose another --out.")
        for job in self.jobs():
            run = prepare(job.method, job.fed, model, cut=plan, **job.options)
            if begun(job.folder):
                refuse_other(job.folder, run)
            self.metric = "mse" if job.fed.kind == "regression" else "accuracy"

    def jobs(self) -> Iterator[Job]:
        """Every run, those on the same data together."""
        for seed in self.seeds:
            fed = blind(self.fed(seed) if callable(self.fed) else self.fed, self.options["valid"], seed)
            for i, values in enumerate(self.cells):
                name = ",".join(f"{k}={told(v)}" for k, v in values.items())
                title = f"{name} seed {seed}" if len(self.seeds) > 1 else name
                folder = None if self.out is None else self.out / quote(name, safe="=,") / f"seed-{seed}"
                method = replace(self.method, **values)  # type: ignore[type-var]
                yield Job(i, title, method, fed, folder, {**self.options, "seed": seed})

    def open(self, job: Job) -> Run:
        """A run from where it stopped, or a new one."""
        if begun(job.folder):
            return reopen(job.folder, job.fed, self.model, job.method)
        return prepare(job.method, job.fed, self.model, out=job.folder, cut=self.plan, **job.options)

    def go(self, follow: Follow | None = None) -> Search:
        """Train each run to its end. One that diverges does not stop the others."""
        self.note()
        found = [Cell(values, [], [], []) for values in self.cells]
        for job in self.jobs():
            run, cell = self.open(job), found[job.cell]
            try:
                run.go(None if follow is None else follow(job.title, run))
            except Diverged as e:
                cell.diverged.append(f"{job.title}: {e}")
                continue
            last = next(row for row in reversed(run.history) if "valid_loss" in row)
            score, loss = last[f"valid_{self.metric}"], last["valid_loss"]
            if None in (score, loss) or not math.isfinite(score + loss):  # None: as a folder keeps it
                cell.diverged.append(f"{job.title}: the loss on the held-out rows is not finite.")
                continue
            cell.scores.append(score)
            cell.losses.append(loss)
        sign = -1 if self.metric == "accuracy" else 1
        self.table = sorted(found, key=lambda c: (sign * c.mean, mean(c.losses)) if c.mean is not None else (math.inf,))
        self.note()
        return self

    def note(self) -> None:
        """What was asked and what was found, in the folder."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            asked = {"method": self.method.name, "over": self.over, "metric": f"valid_{self.metric}"}
            document = to_json({**asked, "cells": [cell.row() for cell in self.table]})
            text = json.dumps(document, indent=1, ensure_ascii=False)
            write_whole(self.out / MARK, text + "\n")

    # ---- what was found
    @property
    def best(self) -> dict[str, Any]:
        """The winner's values."""
        if self.table[0].mean is None:
            raise Diverged(f"every cell of {self.method.name} diverged, such as {self.table[0].diverged[0]}")
        return self.table[0].values

    @property
    def winner(self) -> Algorithm:
        return replace(self.method, **self.best)  # type: ignore[type-var]

    @property
    def edges(self) -> list[str]:
        """Each best value at the end of its grid, where the field's limits leave room beyond it."""
        limits = {f.name: {f.metadata.get("least"), f.metadata.get("most")} for f in fields(self.method)}  # type: ignore[arg-type]
        found = []
        for name, value in self.best.items():
            numbers = [v for v in self.over[name] if type(v) in (int, float)]
            if len(numbers) > 1 and value in (min(numbers), max(numbers)) and value not in limits[name]:
                found.append(f"{name} {told(value)} is the {'smallest' if value == min(numbers) else 'largest'} tried")
        return found


def search(
    method: Algorithm,
    fed: Federation | Callable[[int], Federation],
    model: Model = None,
    *,
    over: Mapping[str, Sequence[Any]],
    random: int | None = None,
    seeds: int = 1,
    out: str | Path | None = None,
    plan: Plan | None = None,
    follow: Follow | None = None,
    **options: Any,
) -> Search:
    """Try every combination of the values in `over`, or `random` of them, and rank them on held-out training rows.

    fed: the data, or a function that gives those of a seed.  seeds: so many runs per cell, from `seed` on.
    out: a folder; the same search with the same folder goes on where it stopped, and may have more values.
    follow: called with a title and a run, gives what to call with each of its rows.
    options: as in `run`; `valid`, the share of the training rows held out, is 0.2 unless given.
    """
    asked: dict[str, Any] = {"over": over, "random": random, "seeds": seeds, "out": out, "plan": plan, **options}
    return Search(method, fed, model, **asked).go(follow)


# ---------------------------------------------------------------------------------------------- parts
def cells(method: Algorithm, over: Mapping[str, Sequence[Any]], random: int | None, seed: int) -> list[Row]:
    """The grid, or some of its cells drawn at random, in the grid's order."""
    known = [f.name for f in fields(method)]  # type: ignore[arg-type]
    if not over:
        raise CoterieError("a search needs values to try: give some, such as lr=0.01,0.1,1.")
    for name, values in over.items():
        if name not in known:
            raise unknown(f"setting of {method.name}", name, known)
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise CoterieError(f"the values to try for {name} are {values!r}: give a list with at least one.")
    grid = [dict(zip(over, combination)) for combination in itertools.product(*over.values())]
    if random is None:
        return grid
    if random < 1:
        raise CoterieError(f"random is {random}: it must be ≥ 1.")
    drawn = chance.Random(seed).sample(range(len(grid)), min(random, len(grid)))
    return [grid[i] for i in sorted(drawn)]


def blind(fed: Federation, share: float, seed: int) -> Federation:
    """The same clients with some training rows held out, and without their test rows."""
    fed = fed if fed.valid is not None else fed.with_valid(share, seed)
    if fed.valid is None or not len(fed.valid.y):
        raise CoterieError("a search looks at the valid part, and there is none: set valid to a share such as 0.2.")
    x, y, sizes = fed.test
    return replace(fed, test=fed.test._replace(x=x[:0], y=y[:0], sizes=torch.zeros_like(sizes)))


def begun(folder: Path | None) -> TypeGuard[Path]:
    return folder is not None and (folder / "config.json").exists()


def refuse_other(folder: Path, run: Run) -> None:
    """A folder goes on only with the data and settings that it began with."""
    _, config = RunFolder.open(folder)
    asked = to_json({
        "options": asdict(run.options),
        "settings": asdict(run.method),  # type: ignore[call-overload]
        "fingerprint": {"data": run.fed.fingerprint(), "model": model_fingerprint(run.task)},
    })  # fmt: skip
    had = {**config, "settings": config.get("method", {}).get("settings")}
    for part, values in asked.items():
        before = had.get(part) or {}
        for k, value in values.items():
            if before.get(k) != value:
                what = f"other {k}" if part == "fingerprint" else f"{k} {told(before.get(k))}, not {told(value)}"
                raise CoterieError(f"{folder} was begun with {what}: choose another --out.")


def holds_something(path: Path) -> bool:
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def told(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(told, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
