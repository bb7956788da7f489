"""What is shown while a run goes on, on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.cli.spelling import spell_record, spell_warning
from coterie.metrics import METRICS, Row
from coterie.metrics.scores import find_main_metric
from coterie.runs.run import Run

MOST_LEFT_OUT = 5  # clients kept out of training that are named


class Watcher:
    """Shows runs, and log lines from `level` on; `quiet` shows nothing but errors."""

    def __init__(
        self, quiet: bool = False, level: int = logging.INFO, repeats: bool = False
    ) -> None:
        """repeats: whether a line that was shown is shown again, as in a log of several days."""
        self.quiet = quiet
        self.level = level
        self.repeats = repeats
        self.console = Console(stderr=True)
        self.shown: set[str] = set()
        self.bar: Progress | None = None
        if self.console.is_terminal and not quiet:
            self.bar = new_bar(self.console)

    def note(self, line: str) -> None:
        """Show a line, unless all is quiet."""
        if not self.quiet:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def warn(self, line: str) -> None:
        """Show a warning in one line."""
        self.note(f"warning: {' '.join(line.split())}")

    def warn_once(self, line: str) -> None:
        """Show a warning, unless it was shown: all runs on the same data give the same."""
        if line not in self.shown:
            self.shown.add(line)
            self.warn(line)

    def log(self, record: logging.LogRecord) -> None:
        """Show a log line; what is no warning only once, as all runs on the same data log it."""
        line = spell_record(record)
        if record.levelno >= logging.WARNING:
            self.warn(line)
        elif self.repeats:
            self.note(line)
        elif line not in self.shown:
            self.shown.add(line)
            self.note(line)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """While it is open, warnings and log lines are one line each and do not break the bar."""
        handler = LogHandler(self.level, self.log)
        log = logging.getLogger("coterie")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: self.warn_once(spell_warning(message))
            try:
                if self.bar is not None:
                    self.bar.start()
                yield
            finally:
                if self.bar is not None:
                    self.bar.stop()
                log.removeHandler(handler)

    def follow(self, title: str, run: Run) -> Callable[[Row], None]:
        """What to call with each row of a run."""
        if self.quiet:
            return lambda row: None
        if self.bar is not None:
            return follow_in_bar(self.bar, title, run)
        return LineFollower(self, title, run)


class LogHandler(logging.Handler):
    """Hands each log record to a function."""

    def __init__(self, level: int, handle: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(level)
        self.function = handle

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on one record."""
        self.function(record)


# ------------------------------------------------------------------------------ bars
def new_bar(console: Console) -> Progress:
    """A bar with the round, the last scores and the time that is left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("{task.fields[scores]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
    )


def follow_in_bar(bar: Progress, title: str, run: Run) -> Callable[[Row], None]:
    """Move a bar with each row; the last scores and groups stay beside it."""
    task = bar.add_task(title, total=run.options.rounds, completed=max(run.round, 0), scores="")
    latest: Row = {}

    def show(row: Row) -> None:
        latest.update(row)
        bar.update(task, completed=row["round"], scores=brief(latest))

    return show


# ------------------------------------------------------------------------------ lines
class LineFollower:
    """Shows a line per evaluation, but not more than one a second."""

    def __init__(self, watcher: Watcher, title: str, run: Run) -> None:
        self.watcher = watcher
        self.title = title
        self.rounds = run.options.rounds
        self.last_time = time.monotonic()
        self.last_round = run.round
        line = f"{title}  {self.rounds} rounds with {len(run.roster)} clients"
        left_out = run.roster.names[len(run.roster) :]
        if 0 < len(left_out) <= MOST_LEFT_OUT:
            line += f", without {', '.join(left_out)}"
        watcher.note(line)

    def __call__(self, row: Row) -> None:
        """Show a row, if it is time for a line."""
        now = time.monotonic()
        seconds = now - self.last_time
        is_last = row["round"] == self.rounds
        if not is_last and ("loss" not in row or seconds < 1):
            return
        pace = seconds / max(row["round"] - self.last_round, 1)
        parts = [self.title, f"round {row['round']}/{self.rounds}", brief(row)]
        self.watcher.note("  ".join([*parts, f"{pace:.2g} s/round"]))
        self.last_time = now
        self.last_round = row["round"]


def brief(row: Row) -> str:
    """accuracy 0.912  groups 60 60 60 60  ari 1.00"""
    from coterie.reporting.comparison_table import list_sizes  # not loaded to answer

    parts = []
    metric = find_main_metric([row])
    if metric is not None:
        parts.append(f"{metric} {METRICS[metric].format_value(row[metric])}")
    if "sizes" in row:
        parts.append(f"groups {list_sizes(row['sizes'])}")
    if "ari" in row:
        parts.append(f"ari {METRICS['ari'].format_value(row['ari'])}")
    return "  ".join(parts)
