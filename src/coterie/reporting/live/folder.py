"""The runs of a watched folder: one run, or the runs of a comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.data.roster import natural_key
from coterie.reporting.live.run_files import RunFiles
from coterie.reporting.live.snapshot import (
    Score,
    SiteReport,
    Snapshot,
    State,
    run_state,
    take_snapshot,
)
from coterie.reporting.overview import describe_data, name_data
from coterie.reporting.run_records import (
    Methods,
    RunRecord,
    group_by_label,
    label_runs,
    record_of_config,
)
from coterie.reporting.text import join_names
from coterie.runs.run_list import find_runs, is_run_folder
from coterie.runs.search import SEARCH_FILE

MOST_TITLED = 5  # methods in the title

SiteReports = Callable[[], Mapping[str, SiteReport]]


@dataclass(frozen=True)
class RunLine:
    """One of several runs, as a line of a table."""

    key: str
    label: str
    seed: int
    state: State
    round: int
    rounds: int
    scores: list[Score]
    sizes: list[int] | None  # of its groups


@dataclass(frozen=True)
class Dashboard:
    """Everything that the page shows: one run in full, and a line per run if there are several."""

    title: str
    data: str  # a sentence about the data
    runs: list[RunLine]
    chosen: Snapshot
    problem: str  # a sentence that says why nothing can be read; "" if there is no problem


@dataclass(frozen=True)
class WaitingDashboard:
    """Everything that the page shows while a server waits for its sites."""

    title: str
    start_condition: str  # a sentence that says when the run starts
    sites: Mapping[str, SiteReport]  # by name

    @property
    def names(self) -> list[str]:
        """The names of the sites in natural order."""
        return sorted(self.sites, key=natural_key)

    @property
    def heading(self) -> str:
        """How many sites are connected."""
        connected = sum(report.is_healthy for report in self.sites.values())
        if connected == len(self.sites):
            return f"All {connected} sites are connected: agreeing on columns and model"
        return f"Waiting for sites: {connected} of {len(self.sites)} are connected"


class WatchedFolder:
    """A folder of runs that is polled; nothing in it is changed.

    Args:
        base: The folder of a run, or of a comparison.
        reports: Called at each poll; returns what a network's server knows about each site.
        clock: Returns the seconds since 1970.

    Raises:
        CoterieError: There is no run in the folder.
    """

    def __init__(
        self, base: str | Path, reports: SiteReports = dict, clock: Callable[[], float] = time.time
    ) -> None:
        self.base = Path(base)
        self.clock = clock
        self.problem = ""
        self.runs: dict[str, RunFiles] = {}  # by folder, relative to the base
        self._get_reports = reports
        self._reports: Mapping[str, SiteReport] = {}
        self._states: list[State] = []
        if (self.base / SEARCH_FILE).exists():
            what = f"{self.base} is a search, which consists of many short runs"
            raise CoterieError(what, "watch one of the folders in it")
        self._find_runs()
        self.poll()

    def poll(self) -> bool:
        """Read what changed; return whether the page would look different."""
        previous_problem = self.problem
        try:
            changed = [self._find_runs()]
            self.problem = ""
        except (CoterieError, OSError) as e:
            changed = [False]
            self.problem = str(e)
        changed += [files.poll() for files in self.runs.values()]
        now = self.clock()
        states = [run_state(files, now) for files in self.runs.values()]
        reports = dict(self._get_reports())
        changed.append(states != self._states)
        changed.append(reports != self._reports)
        changed.append(self.problem != previous_problem)
        self._states = states
        self._reports = reports
        return any(changed)

    def _find_runs(self) -> bool:
        """Open the runs that are new; return whether there are any."""
        found = False
        for path in find_runs(self.base):
            key = path.relative_to(self.base).as_posix()  # "." for the folder itself
            if key not in self.runs and (is_run_folder(path) or path == self.base):
                self.runs[key] = RunFiles(path)
                found = True
        return found

    def dashboard(self, key: str = "") -> Dashboard:
        """Return what the page shows.

        Args:
            key: The run to show in full; by default the one that is being trained.
        """
        sources = label_runs(
            [record_of_config(run.config, run.rows, run.path) for run in self.runs.values()]
        )
        by_key = dict(zip(self.runs, sources))
        if key not in self.runs:
            key = self._most_active()
        now = self.clock()
        methods = group_by_label(sources)
        return Dashboard(
            title=describe_title(methods),
            data=describe_data(methods[by_key[key].label]),
            runs=[summarise(self.runs[k], source, k, now) for k, source in by_key.items()],
            chosen=take_snapshot(self.runs[key], by_key[key], key, now, self._reports),
            problem=self.problem,
        )

    def _most_active(self) -> str:
        """Return the run that is being trained, else the one that changed last."""
        order = {"training": 2, "silent": 1, "ended": 1, "waiting": 0}
        states = dict(zip(self.runs, self._states))
        return max(self.runs, key=lambda key: (order[states[key]], self.runs[key].tail.written))


def describe_title(methods: Methods) -> str:
    """Name the methods and the data."""
    who = f"{len(methods)} methods"
    if len(methods) <= MOST_TITLED:
        who = join_names(list(methods))
    return f"{who} on {name_data(next(iter(methods.values()))[0])}"


def summarise(files: RunFiles, source: RunRecord, key: str, now: float) -> RunLine:
    """Summarise a run in a line."""
    rows = files.rows
    return RunLine(
        key=key,
        label=source.label,
        seed=source.seed,
        state=run_state(files, now),
        round=len(rows) - 1,
        rounds=files.config.options.rounds,
        scores=[Score(row["round"], row[files.metric]) for row in rows if files.metric in row],
        sizes=rows[-1].get("sizes") if rows else None,
    )
