"""Hyper-parameter search on a validation split; test samples are not used.

    search = ct.search(ct.IFCA(clusters=4), fed, over={"lr": [0.01, 0.1, 1]}, rounds=20)
    search.table      a `SearchCell` for each combination, the best first
    search.best       {"lr": 0.1}
    search.winner     the method with these settings

A cell's score is the accuracy (for regression, the MSE) on the validation split after the last
round, averaged over seeds; the loss breaks ties. `metric="loss"` ranks by the loss alone, which
has less variance with few samples. The runs get no test samples.
"""

from __future__ import annotations

import itertools
import math
import random as python_random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
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
from coterie.runs.files import make_private_folder, write_text
from coterie.runs.folder import RunFolder, is_incomplete, lock_folder
from coterie.runs.load import load_run
from coterie.runs.run import OnRound, Run
from coterie.runs.run_list import is_run_folder
from coterie.runs.start import Job, Model, create_job

SEARCH_FILE = "search.json"  # marks a folder as a search's
WINNER_FILE = "winner.toml"  # the best settings
VALID = 0.2  # default share of the training samples in the validation split
Follow = Callable[[str, Run], OnRound]


class SearchCell(NamedTuple):
    """One combination of values and its scores."""

    values: dict[str, Any]
    scores: list[float]  # on the validation split, one per seed that did not diverge
    losses: list[float]
    diverged: list[str]  # a sentence per seed that did

    @property
    def mean(self) -> float | None:
        """The mean score; None if a seed diverged: such a cell cannot win."""
        return None if self.diverged else mean(self.scores)

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds; None with one seed."""
        if self.diverged or len(self.scores) < 2:
            return None
        return stdev(self.scores)

    def row(self) -> Row:
        """Return the cell as plain values."""
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
    """A search in progress. The constructor checks every run, `run` trains them.

    Args:
        method: The method; its other settings stay as they are.
        fed: The data, or a function from a seed to the data.
        model: The model, as in `ct.run`.
        over: By setting, the values to try.
        random: Try this many combinations, drawn at random; None: all.
        seeds: Number of runs per combination.
        out: A folder; the same search with the same folder continues where it stopped.
        plan: How clients are vectorised, as in `ct.run`.
        metric: "loss", or by default accuracy (for regression, MSE).
        **options: As in `ct.run`.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
        >>> search = ct.Search(ct.FedAvg(), fed, over={"lr": [0.01, 0.1]}, rounds=2)
        >>> [cell.values for cell in search.run().table]
        [{'lr': 0.1}, {'lr': 0.01}]
    """

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
        if options.get("dp") is not None:
            raise CoterieError(
                "a search compares scores that have no noise: search on public data, then train "
                "with dp."
            )
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
            check_metric(self.metric, trial.fed)

    def trials(self) -> Iterator[SearchTrial]:
        """Yield every run, grouped by seed, because runs of one seed share the data."""
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
        """Resume a run from its folder, or start it."""
        if trial.folder is not None and is_run_folder(trial.folder):
            return load_run(trial.folder, trial.fed, self.model, trial.method)
        return self._check(trial).create_run(trial.folder)

    def run(self, follow: Follow | None = None) -> Search:
        """Train all runs and fill `table`; a run that diverges does not stop the others.

        Args:
            follow: Called with a title and a `Run`; returns a function that is called with each
                row of metrics.

        Returns:
            The search itself.
        """
        if self.out is None:
            return self._train(follow)
        make_private_folder(self.out)
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
        """Add the last validation scores of a run to its cell."""
        last = next(row for row in reversed(run.history) if "valid_loss" in row)
        score, loss = last[f"valid_{self.metric}"], last["valid_loss"]
        if None in (score, loss) or not math.isfinite(score + loss):  # files keep infinity as null
            cell.diverged.append(f"{trial.title}: the validation loss is not finite.")
            return
        cell.scores.append(score)
        cell.losses.append(loss)

    def _rank(self, cell: SearchCell) -> tuple[float, ...]:
        """Return the sort key of a cell: the best score first, then the lower loss."""
        if cell.mean is None:
            return (math.inf,)
        score = -cell.mean if METRICS[self.metric].higher_is_better else cell.mean
        return score, mean(cell.losses)

    def _write_table(self) -> None:
        """Write the grid and the results so far to search.json."""
        if self.out is None:
            return
        document = {
            "method": self.method.name,
            "over": self.over,
            "metric": f"valid_{self.metric}",
            "cells": [cell.row() for cell in self.table],
        }
        write_text(self.out / SEARCH_FILE, encode_readable(document))

    # -- results
    @property
    def best(self) -> dict[str, Any]:
        """The best values, by setting. Raises `Diverged` if every cell diverged."""
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
        """A sentence for each best value at an end of its grid that could be extended."""
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
    """Search for the best settings of a method on a validation split.

    Args:
        method: The method; its other settings stay as they are.
        fed: The data, or a function from a seed to the data.
        model: The model, as in `ct.run`.
        over: By setting, the values to try. Every combination is one cell.
        random: Try this many combinations, drawn at random; None: all.
        seeds: Number of runs per cell.
        out: A folder; the same search with the same folder continues where it stopped.
        plan: How clients are vectorised, as in `ct.run`.
        follow: Called with a title and a `Run`; returns a function that is called with each row
            of metrics.
        metric: "loss", or by default accuracy (for regression, MSE).
        **options: As in `ct.run`; `valid`, the share of the validation split, is 0.2 by default.

    Returns:
        The finished search, with `table`, `best` and `winner`.

    Raises:
        CoterieError: If a setting or a value is wrong, before anything is trained.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
        >>> search = ct.search(ct.FedAvg(), fed, over={"lr": [0.01, 0.1]}, rounds=2)
        >>> search.best, search.winner.lr
        ({'lr': 0.1}, 0.1)
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
def check_metric(metric: str, fed: Federation) -> None:
    """Raise an error for a metric that these data do not have."""
    known = (main_metric(fed.kind), "loss")
    if metric not in known:
        raise unknown_name("metric", metric, known)


def combinations(
    method: Algorithm, over: Mapping[str, Sequence[Any]], random: int | None, seed: int
) -> list[Row]:
    """Return all combinations of the values, or some drawn at random, in grid order."""
    known = [f.name for f in fields(method)]  # type: ignore[arg-type]
    if not over:
        raise CoterieError("a search needs values to try: give some, such as lr=0.01,0.1,1.")
    for name, values in over.items():
        if name not in known:
            raise unknown_name(f"hyper-parameter of {method.name}", name, known)
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
    """Return the federation with a validation split and without test samples."""
    if fed.valid is None:
        fed = fed.with_valid(valid, seed)
    if fed.valid is None or not len(fed.valid.y):
        raise CoterieError(
            "a search needs a validation split, and there is none",
            "hold out a share of the training rows, such as {}",
            options=[Option("valid", "0.2")],
        )
    x, y, sizes = fed.test
    return replace(fed, test=fed.test._replace(x=x[:0], y=y[:0], sizes=torch.zeros_like(sizes)))


# ------------------------------------------------------------------------------ the folder
def ensure_search_folder(folder: Path) -> None:
    """Raise an error if a folder contains something else than a search."""
    if (folder / SEARCH_FILE).exists() or not folder.exists() or is_incomplete(folder):
        return
    raise CoterieError(f"{folder} exists and is not a search", "choose another folder")


def check_same_search(folder: Path, job: Job) -> None:
    """Raise an error if a folder's run has other data, settings or options."""
    _, config = RunFolder.open(folder)
    asked = job.config()
    same = {
        "data": config.fingerprint.fits_data(job.fed.fingerprint()),
        "model": config.fingerprint.model == asked.fingerprint.model,
    }
    for what, is_same in same.items():
        if not is_same:
            raise CoterieError(f"{folder} was begun with other {what}", "choose another folder")
    # an option or setting that the version of the run did not have counts as its default
    defaults = {f.name: f.default for f in fields(job.method)}  # type: ignore[arg-type]
    old = {**defaults, **_plain(asdict(config.options)), **_plain(config.method.settings)}
    new = {**_plain(asdict(asked.options)), **_plain(asked.method.settings)}
    for name, value in new.items():
        if old.get(name) != value:
            raise CoterieError(
                f"{folder} was begun with {name} {format_flag(old.get(name))}, "
                f"not {format_flag(value)}",
                "choose another folder",
            )


def _plain(value: Any) -> dict[str, Any]:
    """Return a structure as JSON represents it."""
    plain: dict[str, Any] = msgspec.json.decode(encode(value))
    return plain


def format_flag(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(format_flag, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
