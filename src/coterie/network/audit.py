"""The audit log: one record in audit.jsonl per site and exchange, without any data.

The records also feed the counters of the server's metrics and the state of each site on its page.
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
from coterie.runs.files import create_file, write_error

FILE = "audit.jsonl"
MAX_BYTES = 50_000_000  # of the file, before it is renamed to audit-1.jsonl and begins anew
AuditResult = Literal["accepted", "refused", "absent"]


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request to one site, and its result."""

    time: str  # start of the exchange, by the server's clock
    epoch: int  # number of starts of the server
    sequence: int  # number of the exchange since then
    round: int | None  # None: the request is not part of a round
    phase: str
    function: str
    site: str
    bytes_out: int
    bytes_in: int
    seconds: float | None  # until the reply arrived; None: no reply
    result: AuditResult
    reason: str = ""  # why it was not accepted


@dataclass
class AuditTotals:
    """Counters over all records of this process."""

    exchanges: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    answers: Counter[str] = field(default_factory=Counter)  # by result, "absent" included
    refusals: Counter[str] = field(default_factory=Counter)  # by reason


class LastContact(msgspec.Struct, frozen=True):
    """The last record of a site, and the Unix time of its last reply."""

    record: AuditRecord
    answered: float | None


class Audit:
    """The audit log of a server. Records are buffered until the run has a folder."""

    def __init__(self) -> None:
        self.totals = AuditTotals()
        self.last: dict[str, LastContact] = {}  # by site
        self.file: Path | None = None
        self._unwritten: list[AuditRecord] = []
        self._lock = threading.Lock()  # the page reads from another thread

    def open(self, folder: Path) -> None:
        """Write all records into a run's folder from now on."""
        self.file = folder / FILE
        create_file(self.file)
        self._write()

    def record(self, records: Sequence[AuditRecord]) -> None:
        """Add the records of one exchange."""
        with self._lock:
            self.totals.exchanges += 1
            for record in records:
                self.totals.bytes_out += record.bytes_out
                self.totals.bytes_in += record.bytes_in
                self.totals.answers[record.result] += 1
                if record.result == "refused":
                    self.totals.refusals[record.reason] += 1
                answered = self.last[record.site].answered if record.site in self.last else None
                if record.bytes_in:
                    answered = time.time()
                self.last[record.site] = LastContact(record, answered)
        self._unwritten += records
        self._write()

    def by_site(self) -> dict[str, LastContact]:
        """Return the last contact with each site."""
        with self._lock:
            return dict(self.last)

    def _write(self) -> None:
        if self.file is None or not self._unwritten:
            return
        try:
            if self.file.exists() and self.file.stat().st_size > MAX_BYTES:
                number = len(list(self.file.parent.glob("audit-*.jsonl"))) + 1
                self.file.rename(self.file.with_name(f"audit-{number}.jsonl"))
            append_lines(self.file, msgspec.json.Encoder().encode_lines(self._unwritten))
        except OSError as e:
            raise write_error(e, self.file) from e
        self._unwritten = []


def now_as_text() -> str:
    """Return the current time as text."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
