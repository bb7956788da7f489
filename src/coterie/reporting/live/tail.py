"""The rows of a metrics.jsonl that another process is writing."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path

from coterie.metrics import Row
from coterie.metrics.clusters import is_valid_assignment
from coterie.runs.config import check_row

WATCHED = 30  # times that rows came, over which a pace is measured
FEWEST_WATCHED = 3  # rounds


class RowTail:
    """The rows of a file so far; each `poll` reads only what was added since the last one.

    A last line that is not yet complete waits for the next poll. A file that was replaced, as when
    a run goes on from an earlier checkpoint, is read anew.
    """

    def __init__(self, path: Path, clients: int) -> None:
        """clients: how many a row of groups must have."""
        self.path = path
        self.clients = clients
        self.rows: list[Row] = []
        self.written = 0.0  # when the file was last written, in seconds since 1970
        # (rounds so far, when they were written), as far as this process saw them come
        self.watched: deque[tuple[int, float]] = deque(maxlen=WATCHED)
        self.problem = ""  # a sentence on why rows are missing
        self._is_damaged = False
        self._file: tuple[int, int] | None = None  # device and number of the file that was read
        self._read_bytes = 0

    def poll(self) -> bool:
        """Read what is new; whether anything was."""
        before = self.problem
        try:
            has_news = self._read_on()
        except OSError as e:
            has_news = False
            self.problem = f"{self.path} cannot be read ({e.strerror})."
        if has_news and self.rows:
            self.watched.append((len(self.rows), self.written))
        return has_news or self.problem != before

    def pace(self) -> float | None:
        """The seconds that a round takes, all told; None where too few were watched."""
        if len(self.watched) < 2:
            return None
        (first, began), (last, ended) = self.watched[0], self.watched[-1]
        if last - first < FEWEST_WATCHED:
            return None
        return max(0.0, ended - began) / (last - first)

    def _read_on(self) -> bool:
        with open(self.path, "rb") as file:
            about = os.fstat(file.fileno())
            self.written = about.st_mtime
            identity = (about.st_dev, about.st_ino)
            is_new = identity != self._file or about.st_size < self._read_bytes
            if is_new:
                self._begin_anew()
            self._file = identity
            if self._is_damaged:
                return False
            self.problem = ""
            if about.st_size == self._read_bytes:
                return is_new
            file.seek(self._read_bytes)
            return self._add_lines(file.read()) or is_new

    def _begin_anew(self) -> None:
        self._read_bytes = 0
        self._is_damaged = False
        self.rows = []
        self.watched.clear()

    def _add_lines(self, added: bytes) -> bool:
        complete = added[: added.rfind(b"\n") + 1]
        for line in complete.splitlines():
            row = self._read_row(line)
            if row is None:
                self._meet_other_line()
                return True
            self.rows.append(row)
        self._read_bytes += len(complete)
        return bool(complete)

    def _meet_other_line(self) -> None:
        """Read the file anew, as it may have been written over; else it is damaged."""
        if self._read_bytes:
            self._begin_anew()
            return
        self._is_damaged = True
        self.problem = f"line {len(self.rows) + 1} of {self.path} is damaged."

    def _read_row(self, line: bytes) -> Row | None:
        """A row that follows those before it; None if the line is anything else."""
        try:
            row: Row = json.loads(line)
            check_row(row)
        except (ValueError, RecursionError):
            return None
        if not is_valid_assignment(row, self.clients):
            return None
        if row["round"] != len(self.rows):
            return None
        return row
