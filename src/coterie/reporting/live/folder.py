"""The runs of a folder: one run, or those of a comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.metrics import Row
from coterie.reporting.live.files import RunFiles
from coterie.reporting.live.snapshot import (
    Score,
    SiteReport,
    Snapshot,
    State,
    state_of,
    take_snapshot,
)
from coterie.reporting.overview import describe_data, describe_title
from coterie.reporting.source import Source, by_label, labelled, plain_config
from coterie.runs.planned import has_begun, runs_in
from coterie.runs.search_folder import MARK

Reports = Callable[[], Mapping[str, SiteReport]]


@dataclass(frozen=True)
class RunLine:
    """One run of several, in a line."""

    key: str
    label: str
    seed: int
    state: State
    round: int
    rounds: int
    scores: list[Score]
    sizes: list[int] | None  # of its groups


@dataclass(frozen=True)
class Board:
    """All that a page shows: one run, and a line for each where there are several."""

    title: str
    data: str  # a sentence about the data
    runs: list[RunLine]
    chosen: Snapshot
    problem: str  # a sentence on why nothing can be read; "" where it can


class WatchedFolder:
    """A folder that is looked at again and again; nothing in it is changed."""

    def __init__(
        self, base: str | Path, reports: Reports = dict, clock: Callable[[], float] = time.time
    ) -> None:
        """An error in one sentence where there is no run.

        reports: called at each look, what a server of sites knows of each site by its name.
        clock: gives the seconds since 1970.
        """
        self.base = Path(base)
        self.clock = clock
        self.problem = ""
        self.runs: dict[str, RunFiles] = {}  # by folder below the base
        self._ask_reports = reports
        self._reports: Mapping[str, SiteReport] = {}
        self._states: list[State] = []
        if (self.base / MARK).exists():
            what = f"{self.base} is a search, of many short runs"
            raise CoterieError(what, "watch one of the folders in it")
        self._find_runs()
        self.poll()

    def poll(self) -> bool:
        """Read what is new; whether a page would look different."""
        problem = self.problem
        try:
            news = [self._find_runs()]
            self.problem = ""
        except (CoterieError, OSError) as e:
            news = [False]
            self.problem = str(e)
        news += [files.poll() for files in self.runs.values()]
        now = self.clock()
        states = [state_of(files, now) for files in self.runs.values()]
        reports = self._ask_reports()
        news += [states != self._states, reports != self._reports, problem != self.problem]
        self._states = states
        self._reports = dict(reports)
        return any(news)

    def _find_runs(self) -> bool:
        """Open the runs that are new; whether there are any."""
        found = False
        for path in runs_in(self.base):
            key = "."
            if path != self.base:
                key = path.relative_to(self.base).as_posix()
            if key not in self.runs and (has_begun(path) or path == self.base):
                self.runs[key] = RunFiles(path)
                found = True
        return found

    def board(self, key: str = "") -> Board:
        """What a page shows; key: the run to show in full, else the one that is being trained."""
        sources = labelled([source_of(files) for files in self.runs.values()])
        by_key = dict(zip(self.runs, sources))
        if key not in self.runs:
            key = self._busiest()
        now = self.clock()
        chosen = take_snapshot(self.runs[key], by_key[key], key, now, self._reports)
        methods = by_label(sources)
        lines = [line_of(files, by_key[key], key, now) for key, files in self.runs.items()]
        return Board(
            title=describe_title(methods),
            data=describe_data(methods[by_key[key].label]),
            runs=lines,
            chosen=chosen,
            problem=self.problem,
        )

    def _busiest(self) -> str:
        """The run that is being trained, else the one that had news last."""
        order = {"training": 2, "silent": 1, "ended": 1, "waiting": 0}
        keys = list(self.runs)
        states = dict(zip(keys, self._states))
        return max(keys, key=lambda key: (order[states[key]], self.runs[key].tail.written))


def source_of(files: RunFiles) -> Source:
    """A run as the report knows it."""
    return Source(plain_config(files.config), files.rows, files.path)


def line_of(files: RunFiles, source: Source, key: str, now: float) -> RunLine:
    """A run in a line."""
    return RunLine(
        key=key,
        label=source.label,
        seed=source.seed,
        state=state_of(files, now),
        round=len(files.rows) - 1,
        rounds=files.config.options.rounds,
        scores=[Score(r["round"], r[files.metric]) for r in files.rows if files.metric in r],
        sizes=last_sizes(files.rows),
    )


def last_sizes(rows: list[Row]) -> list[int] | None:
    """The sizes of the groups after the last round."""
    if not rows:
        return None
    sizes: list[int] | None = rows[-1].get("sizes")
    return sizes
