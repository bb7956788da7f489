"""Progress on stderr: a bar on a terminal, plain lines elsewhere; warnings and log lines."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.cli.messages import format_record, format_warning
from coterie.metrics import METRICS, Row
from coterie.metrics.scores import find_main_metric
from coterie.runs.run import OnRound, Run

MAX_HELD_OUT = 5  # clients kept out of training that are listed by name


class ProgressDisplay:
    """Shows the progress of runs, warnings and log lines.

    Args:
        quiet: Show nothing but errors.
        level: Show log lines from this level.
        repeats: Show a log line again if it occurs again, as a log of several days needs. Otherwise
            each line that is no warning appears once: all runs on the same data log the same.
    """

    def __init__(
        self, quiet: bool = False, level: int = logging.INFO, repeats: bool = False
    ) -> None:
        self.quiet = quiet
        self.level = level
        self.repeats = repeats
        self.console = Console(stderr=True)
        self.shown: set[str] = set()
        self.bar: Progress | None = None
        if self.console.is_terminal and not quiet:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(20),
                TextColumn("round {task.completed}/{task.total}"),
                TextColumn("{task.fields[scores]}"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                console=self.console,
            )

    def note(self, line: str) -> None:
        """Show a line, unless quiet."""
        if not self.quiet:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def warn(self, line: str) -> None:
        """Show a warning in one line."""
        self.note(f"warning: {' '.join(line.split())}")

    def _warn_once(self, line: str) -> None:
        if line not in self.shown:
            self.shown.add(line)
            self.warn(line)

    def _log(self, record: logging.LogRecord) -> None:
        line = format_record(record)
        if record.levelno >= logging.WARNING:
            self.warn(line)
        elif self.repeats:
            self.note(line)
        elif line not in self.shown:
            self.shown.add(line)
            self.note(line)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this context, show warnings and log lines, one line each, above the bar."""
        handler = LogHandler(self.level, self._log)
        log = logging.getLogger("coterie")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: self._warn_once(
                format_warning(message)
            )
            try:
                if self.bar is not None:
                    self.bar.start()
                yield
            finally:
                if self.bar is not None:
                    self.bar.stop()
                log.removeHandler(handler)

    def follow(self, title: str, run: Run) -> OnRound:
        """Return a function that shows each row of a run's metrics."""
        if self.quiet:
            return lambda row, run: None
        if self.bar is not None:
            return follow_in_bar(self.bar, title, run)
        return LineFollower(self, title, run)


class LogHandler(logging.Handler):
    """Passes each log record to a function."""

    def __init__(self, level: int, handle: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(level)
        self.function = handle

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on one record."""
        self.function(record)


def follow_in_bar(bar: Progress, title: str, run: Run) -> OnRound:
    """Return a function that advances a bar with each row and shows the latest scores beside it."""
    task = bar.add_task(title, total=run.options.rounds, completed=max(run.round, 0), scores="")
    latest: Row = {}

    def show(row: Row, run: Run) -> None:
        latest.update(row)
        bar.update(task, completed=row["round"], scores=format_scores(latest))

    return show


class LineFollower:
    """Shows one line per evaluation, at most one per second."""

    def __init__(self, display: ProgressDisplay, title: str, run: Run) -> None:
        self.display = display
        self.title = title
        self.rounds = run.options.rounds
        self.last_time = time.monotonic()
        self.last_round = run.round
        line = f"{title}  {self.rounds} rounds with {len(run.roster)} clients"
        held_out = run.roster.names[len(run.roster) :]
        if 0 < len(held_out) <= MAX_HELD_OUT:
            line += f", without {', '.join(held_out)}"
        display.note(line)

    def __call__(self, row: Row, run: Run) -> None:
        """Show a row of metrics, if a line is due."""
        now = time.monotonic()
        seconds = now - self.last_time
        is_last = row["round"] == self.rounds
        if not is_last and ("loss" not in row or seconds < 1):
            return
        pace = seconds / max(row["round"] - self.last_round, 1)
        parts = [self.title, f"round {row['round']}/{self.rounds}", format_scores(row)]
        self.display.note("  ".join([*parts, f"{pace:.2g} s/round"]))
        self.last_time = now
        self.last_round = row["round"]


def format_scores(row: Row) -> str:
    """accuracy 0.912  groups 60 60 60 60  ari 1.00"""
    from coterie.reporting.comparison import list_sizes  # slow to load

    parts = []
    metric = find_main_metric([row])
    if metric is not None:
        parts.append(f"{metric} {METRICS[metric].format_value(row[metric])}")
    if "sizes" in row:
        parts.append(f"groups {list_sizes(row['sizes'])}")
    if "ari" in row:
        parts.append(f"ari {METRICS['ari'].format_value(row['ari'])}")
    return "  ".join(parts)
