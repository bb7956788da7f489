"""What is seen while a run goes on: a bar on a terminal, plain lines elsewhere; all of it on stderr."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from coterie.cli.spelling import spell_record, spell_warning
from coterie.metrics import Row
from coterie.reporting.old_table import sizes
from coterie.runs.run import Run


class Watcher:
    """Shows runs, and log lines from `level` on; `quiet` shows nothing but what must be said."""

    def __init__(self, quiet: bool = False, level: int = logging.INFO) -> None:
        self.quiet, self.level, self.console = quiet, level, Console(stderr=True)
        self.heard: set[str] = set()
        self.bar: Progress | None = None
        if self.console.is_terminal and not quiet:
            columns = [
                TextColumn("{task.description}"),
                BarColumn(20),
                TextColumn("round {task.completed}/{task.total}"),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            ]
            self.bar = Progress(*columns, console=self.console)

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def note(self, line: str) -> None:
        if not self.quiet:
            self.say(line)

    def hear(self, record: logging.LogRecord) -> None:
        """Warnings as often as they come, other lines once: the data of every run say the same."""
        line = spell_record(record)
        if record.levelno >= logging.WARNING:
            self.warn(line)
        elif line not in self.heard:
            self.heard.add(line)
            self.note(line)

    def warn(self, line: str) -> None:
        self.note(f"warning: {' '.join(line.split())}")

    @contextmanager
    def __call__(self) -> Iterator[Watcher]:
        """While it is open, warnings and log lines are one line each and do not break the bar."""
        handler, log = _Lines(self.level, self.hear), logging.getLogger("coterie")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: self.warn(spell_warning(message))
            try:
                if self.bar is not None:
                    self.bar.start()
                yield self
            finally:
                if self.bar is not None:
                    self.bar.stop()
                log.removeHandler(handler)

    def follow(self, title: str, run: Run) -> Callable[[Row], None]:
        """What to call with each row of a run."""
        if self.quiet:
            return lambda row: None
        return _Follower(self, title, run)


class _Lines(logging.Handler):
    def __init__(self, level: int, hear: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(level)
        self.hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self.hear(record)


class _Follower:
    """The bar or the lines of one run: a line per evaluation, but not more than one a second."""

    def __init__(self, watcher: Watcher, title: str, run: Run) -> None:
        self.watcher, self.title, self.rounds = watcher, title, run.options.rounds
        self.seen: Row = {}  # the last evaluation and the last groups
        self.told_at, self.told_round = time.monotonic(), run.round
        self.task: TaskID | None = None
        if watcher.bar is not None:
            done = max(run.round, 0)
            self.task = watcher.bar.add_task(title, total=self.rounds, completed=done, facts="")
        else:
            out = run.roster.names[len(run.roster) :]
            without = f", without {', '.join(out)}" if 0 < len(out) <= 5 else ""
            watcher.say(f"{title}  {self.rounds} rounds with {len(run.roster)} clients{without}")

    def __call__(self, row: Row) -> None:
        self.seen |= row
        if self.watcher.bar is not None and self.task is not None:
            self.watcher.bar.update(self.task, completed=row["round"], facts=brief(self.seen))
            return
        since, rounds = time.monotonic() - self.told_at, max(row["round"] - self.told_round, 1)
        if row["round"] == self.rounds or ("loss" in row and since >= 1):
            pace = f"{since / rounds:.2g} s/round"
            self.watcher.say(
                "  ".join([self.title, f"round {row['round']}/{self.rounds}", brief(row), pace])
            )
            self.told_at, self.told_round = time.monotonic(), row["round"]


def brief(row: Row) -> str:
    """accuracy 0.912  groups 60 60 60 60  ari 1.00"""
    parts = [f"{name} {row[name]:.3g}" for name in ("mse",) if name in row]
    parts += [f"accuracy {row['accuracy']:.3f}"] if "accuracy" in row else []
    parts += [f"groups {sizes(row['sizes'])}"] if "sizes" in row else []
    parts += [f"ari {row['ari']:.2f}"] if "ari" in row else []
    return "  ".join(parts)
