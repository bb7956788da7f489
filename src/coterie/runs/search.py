"""The best settings of a method, found on training rows that are held out; test rows play no part.

    search = ct.search(ct.IFCA(clusters=4), fed, over={"lr": [0.01, 0.1, 1]}, rounds=20)
    search.table      a `SearchCell` for each combination, the best first
    search.best       {"lr": 0.1}
    search.winner     the method with these settings

A cell's score is the accuracy on the held-out rows after its last round, for regression the MSE, as
a mean over the seeds; where scores are equal, the loss decides. `metric="loss"` ranks by the loss
alone, which is surer on few rows. The runs are given no test rows.
"""

from __future__ import annotations

import itertools
import math
import random as python_random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import torch

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, Diverged, Option, unknown_name
from coterie.data import Federation
from coterie.engines.plan import Plan
from coterie.metrics import METRICS, Row, main_metric
from coterie.runs.config import encode, encode_readable
from coterie.runs.files import write_text
from coterie.runs.folder import RunFolder, is_incomplete, lock_folder
from coterie.runs.load import load_run
from coterie.runs.run import Run
from coterie.runs.run_list import is_run_folder
from coterie.runs.start import Job, Model, create_job

SEARCH_FILE = "search.json"  # marks a folder as a search's
WINNER_FILE = "winner.toml"  # the best settings
VALID = 0.2  # share of the training rows that is held out where none is given
Follow = Callable[[str, Run], Callable[[Row], Any]]


class SearchCell(NamedTuple):
    """One combination of values, and how it fared."""

    values: dict[str, Any]
    scores: list[float]  # on the held-out rows, one per seed that did not diverge
    losses: list[float]
    diverged: list[str]  # a sentence per seed that did

    @property
    def mean(self) -> float | None:
        """The mean score; None where a seed diverged: such a cell cannot win."""
        return None if self.diverged else mean(self.scores)

    @property
    def std(self) -> float | None:
        """The standard deviation over the seeds, where there are several."""
        if self.diverged or len(self.scores) < 2:
            return None
        return stdev(self.scores)

    def row(self) -> Row:
        """The cell as plain values."""
        return {**self._asdict(), "mean": self.mean, "std": self.std}


class SearchTrial(NamedTuple):
    """One run of a search."""

    cell: int
    title: str
    method: Algorithm
    fed: Federation
    folder: Path | None
    options: dict[str, Any]


class Search:
    """A search whose every run has been checked; `run` trains what is left and fills `table`."""

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
        metric: str | None = None,
        **options: Any,
    ) -> None:
        self.method, self.fed, self.model, self.over = method, fed, model, over
        self.out = None if out is None else Path(out)
        self.plan = plan
        self.options: dict[str, Any] = {"valid": VALID, "seed": 0, **options}
        first = self.options["seed"]
        self.seeds = range(first, first + seeds)
        self.cells = combinations(method, over, random, first)
        self.metric = metric or ""
        self.table: list[SearchCell] = []
        if seeds < 1:
            raise CoterieError(f"seeds is {seeds}: it must be ≥ 1.")
        if self.out is not None:
            ensure_search_folder(self.out)
        for trial in self.trials():
            job = self._check(trial)
            if trial.folder is not None and is_run_folder(trial.folder):
                check_same_search(trial.folder, job)
            self.metric = self.metric or main_metric(trial.fed.kind)
            refuse_other_metric(self.metric, trial.fed)

    def trials(self) -> Iterator[SearchTrial]:
        """Every run, those on the same data together."""
        for seed in self.seeds:
            fed = self.fed(seed) if callable(self.fed) else self.fed
            fed = without_test_rows(fed, self.options["valid"], seed)
            for number, values in enumerate(self.cells):
                name = ",".join(f"{k}={format_flag(v)}" for k, v in values.items())
                yield SearchTrial(
                    cell=number,
                    title=f"{name} seed {seed}" if len(self.seeds) > 1 else name,
                    method=replace(self.method, **values),  # type: ignore[type-var]
                    fed=fed,
                    folder=self._folder(name, seed),
                    options={**self.options, "seed": seed},
                )

    def _folder(self, name: str, seed: int) -> Path | None:
        if self.out is None:
            return None
        return self.out / quote(name, safe="=,") / f"seed-{seed}"

    def _check(self, trial: SearchTrial) -> Job:
        return create_job(trial.method, trial.fed, self.model, plan=self.plan, **trial.options)

    def open(self, trial: SearchTrial) -> Run:
        """A run from where it stopped, or a new one."""
        if trial.folder is not None and is_run_folder(trial.folder):
            return load_run(trial.folder, trial.fed, self.model, trial.method)
        return self._check(trial).start(trial.folder)

    def run(self, follow: Follow | None = None) -> Search:
        """Train each run to its end; one that diverges does not stop the others."""
        if self.out is None:
            return self._train(follow)
        self.out.mkdir(parents=True, exist_ok=True)
        with lock_folder(self.out):
            return self._train(follow)

    def _train(self, follow: Follow | None) -> Search:
        self._write_table()
        cells = [SearchCell(values, [], [], []) for values in self.cells]
        for trial in self.trials():
            cell, run = cells[trial.cell], self.open(trial)
            try:
                run.train(None if follow is None else follow(trial.title, run))
            except Diverged as e:
                cell.diverged.append(f"{trial.title}: {e}")
                continue
            self._score(cell, trial, run)
        self.table = sorted(cells, key=self._rank)
        self._write_table()
        return self

    def _score(self, cell: SearchCell, trial: SearchTrial, run: Run) -> None:
        """Note the last scores of a run on the held-out rows."""
        last = next(row for row in reversed(run.history) if "valid_loss" in row)
        score, loss = last[f"valid_{self.metric}"], last["valid_loss"]
        if None in (score, loss) or not math.isfinite(score + loss):  # files keep infinity as null
            cell.diverged.append(f"{trial.title}: the loss on the held-out rows is not finite.")
            return
        cell.scores.append(score)
        cell.losses.append(loss)

    def _rank(self, cell: SearchCell) -> tuple[float, ...]:
        """The place of a cell in the table: the best score first, then the lower loss."""
        if cell.mean is None:
            return (math.inf,)
        score = -cell.mean if METRICS[self.metric].higher_is_better else cell.mean
        return score, mean(cell.losses)

    def _write_table(self) -> None:
        """Write what was asked, and what came of it, to the folder."""
        if self.out is None:
            return
        document = {
            "method": self.method.name,
            "over": self.over,
            "metric": f"valid_{self.metric}",
            "cells": [cell.row() for cell in self.table],
        }
        write_text(self.out / SEARCH_FILE, encode_readable(document))

    # -- what came of it
    @property
    def best(self) -> dict[str, Any]:
        """The winner's values."""
        if self.table[0].mean is None:
            example = self.table[0].diverged[0]
            raise Diverged(f"every cell of {self.method.name} diverged, such as {example}")
        return self.table[0].values

    @property
    def winner(self) -> Algorithm:
        """The method with the best values."""
        return replace(self.method, **self.best)  # type: ignore[type-var]

    @property
    def edges(self) -> list[str]:
        """Each best value at the end of its grid, where the setting's limits leave room beyond."""
        limits = {}
        for f in fields(self.method):  # type: ignore[arg-type]
            limits[f.name] = (f.metadata.get("ge"), f.metadata.get("le"))
        sentences = []
        for name, value in self.best.items():
            numbers = [v for v in self.over[name] if type(v) in (int, float)]
            if len(numbers) < 2 or value in limits[name]:
                continue
            if value == min(numbers):
                sentences.append(f"{name} {format_flag(value)} is the smallest tried")
            elif value == max(numbers):
                sentences.append(f"{name} {format_flag(value)} is the largest tried")
        return sentences


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
    metric: str | None = None,
    **options: Any,
) -> Search:
    """Try every combination of the values in `over`, or `random` of them, and rank them.

    They are ranked on held-out training rows.
    fed: the data, or a function that gives those of a seed.  seeds: number of runs per cell.
    out: a folder; the same search with the same folder goes on where it stopped.
    follow: called with a title and a run, gives what to call with each of its rows.
    metric: what they are ranked by, "loss" or the default: accuracy, for regression MSE.
    options: as in `run`; `valid`, the share of the training rows held out, is 0.2 unless given.
    """
    made = Search(
        method,
        fed,
        model,
        over=over,
        random=random,
        seeds=seeds,
        out=out,
        plan=plan,
        metric=metric,
        **options,
    )
    return made.run(follow)


# ------------------------------------------------------------------------------ parts
def refuse_other_metric(metric: str, fed: Federation) -> None:
    """Refuse a metric that runs on these data do not have."""
    known = (main_metric(fed.kind), "loss")
    if metric not in known:
        raise unknown_name("metric", metric, known)


def combinations(
    method: Algorithm, over: Mapping[str, Sequence[Any]], random: int | None, seed: int
) -> list[Row]:
    """All combinations of the values, or some drawn at random, in the same order."""
    known = [f.name for f in fields(method)]  # type: ignore[arg-type]
    if not over:
        raise CoterieError("a search needs values to try: give some, such as lr=0.01,0.1,1.")
    for name, values in over.items():
        if name not in known:
            raise unknown_name(f"setting of {method.name}", name, known)
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise CoterieError(
                f"the values to try for {name} are {values!r}: give a list with at least one."
            )
    grid = [dict(zip(over, values)) for values in itertools.product(*over.values())]
    if random is None:
        return grid
    if random < 1:
        raise CoterieError(f"random is {random}: it must be ≥ 1.")
    drawn = python_random.Random(seed).sample(range(len(grid)), min(random, len(grid)))
    return [grid[i] for i in sorted(drawn)]


def without_test_rows(fed: Federation, valid: float, seed: int) -> Federation:
    """The same clients with some training rows held out, and no test rows."""
    if fed.valid is None:
        fed = fed.with_valid(valid, seed)
    if fed.valid is None or not len(fed.valid.y):
        raise CoterieError(
            "a search looks at the valid part, and there is none",
            "hold out a share of the training rows, such as {}",
            options=[Option("valid", "0.2")],
        )
    x, y, sizes = fed.test
    return replace(fed, test=fed.test._replace(x=x[:0], y=y[:0], sizes=torch.zeros_like(sizes)))


# ------------------------------------------------------------------------------ the folder
def ensure_search_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a search."""
    if (folder / SEARCH_FILE).exists() or not folder.exists() or is_incomplete(folder):
        return
    raise CoterieError(f"{folder} exists and holds no search", "choose another folder")


def check_same_search(folder: Path, job: Job) -> None:
    """Refuse a folder that was begun with other data, settings or options."""
    _, config = RunFolder.open(folder)
    asked = job.config()
    same = {
        "data": config.fingerprint.fits_data(job.fed.fingerprint()),
        "model": config.fingerprint.model == asked.fingerprint.model,
    }
    for what, is_same in same.items():
        if not is_same:
            raise CoterieError(f"{folder} was begun with other {what}", "choose another folder")
    old = {**_plain(config.options), **_plain(config.method.settings)}
    new = {**_plain(asked.options), **_plain(asked.method.settings)}
    for name, value in new.items():
        if old.get(name) != value:
            raise CoterieError(
                f"{folder} was begun with {name} {format_flag(old.get(name))}, "
                f"not {format_flag(value)}",
                "choose another folder",
            )


def _plain(value: Any) -> dict[str, Any]:
    """A structure as a JSON file would keep it."""
    plain: dict[str, Any] = msgspec.json.decode(encode(value))
    return plain


def format_flag(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(format_flag, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
