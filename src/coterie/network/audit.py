"""What a server asked of whom: a line of audit.jsonl per site and exchange, without any data.

The same lines are counted, for the metrics of a server, and remembered by site, for its page.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from coterie.engines.replay import append_lines
from coterie.runs.files import write_error

FILE = "audit.jsonl"
AuditResult = Literal["accepted", "refused", "absent"]


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one site was asked, and what came of it."""

    time: str  # when the exchange began, by the server's clock
    epoch: int  # how often the server was started
    sequence: int  # number of the exchange since then
    round: int | None  # None: before the first round, or when all are done
    phase: str
    function: str
    site: str
    bytes_out: int
    bytes_in: int
    seconds: float | None  # until its answer came; None: there is none
    result: AuditResult
    reason: str = ""  # why it was not accepted


@dataclass
class AuditTotals:
    """Sums over all lines of this process."""

    exchanges: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    answers: Counter[str] = field(default_factory=Counter)  # by result
    refusals: Counter[str] = field(default_factory=Counter)  # by reason


class LastContact(msgspec.Struct, frozen=True):
    """The last line of a site, and when it last answered, in seconds since 1970."""

    line: AuditRecord
    answered: float | None


class Audit:
    """The lines of a server; those of before the run has a folder are kept until it has one."""

    def __init__(self) -> None:
        self.totals = AuditTotals()
        self.last: dict[str, LastContact] = {}  # by site
        self.file: Path | None = None
        self._unwritten: list[AuditRecord] = []
        self._lock = threading.Lock()  # a page looks while the run goes on

    def keep_in(self, folder: Path) -> None:
        """Write all lines into a run's folder from now on."""
        self.file = folder / FILE
        self._write()

    def record(self, lines: Sequence[AuditRecord]) -> None:
        """Take the lines of one exchange."""
        with self._lock:
            self.totals.exchanges += 1
            for line in lines:
                self._count(line)
        self._unwritten += lines
        self._write()

    def by_site(self) -> dict[str, LastContact]:
        """The last line of each site."""
        with self._lock:
            return dict(self.last)

    def _count(self, line: AuditRecord) -> None:
        self.totals.bytes_out += line.bytes_out
        self.totals.bytes_in += line.bytes_in
        self.totals.answers[line.result] += 1
        if line.result == "refused":
            self.totals.refusals[line.reason] += 1
        answered = None
        if line.site in self.last:
            answered = self.last[line.site].answered
        if line.bytes_in:
            answered = time.time()
        self.last[line.site] = LastContact(line, answered)

    def _write(self) -> None:
        if self.file is None or not self._unwritten:
            return
        try:
            append_lines(self.file, msgspec.json.Encoder().encode_lines(self._unwritten))
        except OSError as e:
            raise write_error(e, self.file) from e
        self._unwritten = []


def now_as_text() -> str:
    """The time, as lines have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
