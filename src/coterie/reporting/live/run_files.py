"""Reads the files of a run folder while another process writes them.

Nothing is locked or written, and no Python file that the folder names is executed.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from coterie.core.errors import CoterieError
from coterie.metrics import Row, main_metric
from coterie.metrics.clusters import is_valid_assignment
from coterie.runs import checkpoint, late_sites
from coterie.runs.config import decode_metrics_row
from coterie.runs.folder import RunFolder, checkpoint_round
from coterie.runs.late_sites import LateSite

LOG_BYTES = 20_000  # read from the end of the log
LOG_LINES = 8  # kept
MAX_EVALUATIONS = 400  # evaluations whose per-site scores are kept
PACE_POLLS = 30  # polls with new rows over which the pace is measured
MIN_PACE_ROUNDS = 3

Stamp = tuple[int, int, int]  # inode, size and modification time: changes when a file is rewritten


class RunFiles:
    """The config, metrics, per-site scores and log of one run.

    Args:
        path: The run folder.

    Raises:
        CoterieError: The folder does not contain a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder, self.config = RunFolder.open(path)
        self.tail = MetricsTail(path / "metrics.jsonl", len(self.names))
        self.metric = main_metric(self.config.roster.kind)
        self.site_scores: dict[int, np.ndarray] = {}  # by round of the evaluation, [N]
        self.stopped_early = False  # by the option `stop_after`, or because the method has finished
        self.log: list[str] = []  # its last lines
        self.late_sites: dict[str, LateSite] = {}  # sites of a network that joined late
        self._stamps: dict[str, Stamp | None] = {}  # by file name; None: no such file
        self._checkpoints: set[Path] = set()  # already read

    @property
    def names(self) -> list[str]:
        """Names of the training clients."""
        roster = self.config.roster
        return roster.names[: len(roster.names) - roster.unseen]

    @property
    def rows(self) -> list[Row]:
        """One row of metrics per round so far."""
        return self.tail.rows

    def poll(self) -> bool:
        """Read what changed since the last poll.

        Returns:
            Whether anything changed.
        """
        checkpoints = self.folder.checkpoints()  # listed before the rows, which are written first
        changed = [self._poll_config(), self.tail.poll(), self._poll_log(), self._poll_late_sites()]
        for round in [round for round in self.site_scores if round >= len(self.rows)]:
            del self.site_scores[round]  # the run was resumed from an earlier checkpoint
        for file in reversed(checkpoints):
            has_rows = checkpoint_round(file) < len(self.rows)
            if has_rows and file not in self._checkpoints:
                self._read_scores(file)
                self._checkpoints.add(file)
                changed.append(True)
        self._checkpoints &= set(checkpoints)
        return any(changed)

    def _poll_config(self) -> bool:
        """Read the config again if it was replaced: a run may be extended by more rounds."""
        if not self._has_changed("config.json"):
            return False
        try:
            self.config = self.folder.config()
        except CoterieError:
            return False  # keep the previous one
        return True

    def _poll_log(self) -> bool:
        if not self._has_changed("log.txt"):
            return False
        self.log = read_last_lines(self.path / "log.txt")
        return True

    def _poll_late_sites(self) -> bool:
        if not self._has_changed(late_sites.FILE):
            return False
        self.late_sites = late_sites.read_late_sites(self.path)
        return True

    def _has_changed(self, name: str) -> bool:
        """Whether a file was written, created or removed since the last poll."""
        try:
            status = os.stat(self.path / name)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            stamp = None
        if self._stamps.get(name) == stamp:
            return False
        self._stamps[name] = stamp
        return True

    def _read_scores(self, file: Path) -> None:
        """Read the per-site scores of a checkpoint, which are those of the last evaluation."""
        try:
            saved = checkpoint.read_part(file, "scores")
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return  # removed meanwhile, or damaged
        self.stopped_early = bool(saved.head.get("stopped"))
        rows = self.rows[: checkpoint_round(file) + 1]
        evaluated = [int(row["round"]) for row in rows if self.metric in row]
        scores = saved.trees["scores"].get(self.metric)
        if not evaluated or scores is None or len(scores) != len(self.names):
            return
        self.site_scores[evaluated[-1]] = scores.double().numpy()
        if len(self.site_scores) > MAX_EVALUATIONS:
            rounds = sorted(self.site_scores)
            del self.site_scores[rounds[len(rounds) // 2]]


def read_last_lines(file: Path) -> list[str]:
    """Return the last lines of a log file; none if it cannot be read."""
    try:
        with open(file, "rb") as log:
            size = os.fstat(log.fileno()).st_size
            log.seek(max(0, size - LOG_BYTES))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()[-LOG_LINES:]


class MetricsTail:
    """The rows of a metrics.jsonl that another process appends to.

    Each `poll` reads only the bytes that were added. An incomplete last line waits for the next
    poll. A file that was replaced, as when a run is resumed from an earlier checkpoint, is read
    from its beginning.

    Args:
        path: The file.
        clients: Number of clients that a row of cluster assignments must have.
    """

    def __init__(self, path: Path, clients: int) -> None:
        self.path = path
        self.clients = clients
        self.rows: list[Row] = []
        self.written = 0.0  # modification time of the file, in seconds since 1970
        self.problem = ""  # a sentence that explains why rows are missing
        # (number of rows, modification time) at the polls that found new rows
        self._progress: deque[tuple[int, float]] = deque(maxlen=PACE_POLLS)
        self._is_damaged = False
        self._file: tuple[int, int] | None = None  # device and inode of the file
        self._read_bytes = 0

    def poll(self) -> bool:
        """Read new rows; return whether rows or `problem` changed."""
        before = self.problem
        try:
            has_news = self._read_new_rows()
        except OSError as e:
            has_news = False
            self.problem = f"{self.path} cannot be read ({e.strerror})."
        if has_news and self.rows:
            self._progress.append((len(self.rows), self.written))
        return has_news or self.problem != before

    def seconds_per_round(self) -> float | None:
        """Return the observed time per round; None if too few rounds were observed."""
        if len(self._progress) < 2:
            return None
        (first, start), (last, end) = self._progress[0], self._progress[-1]
        if last - first < MIN_PACE_ROUNDS:
            return None
        return max(0.0, end - start) / (last - first)

    def _read_new_rows(self) -> bool:
        with open(self.path, "rb") as file:
            status = os.fstat(file.fileno())
            self.written = status.st_mtime
            identity = (status.st_dev, status.st_ino)
            is_new = identity != self._file or status.st_size < self._read_bytes
            if is_new:
                self._reset()
            self._file = identity
            if self._is_damaged:
                return False
            self.problem = ""
            if status.st_size == self._read_bytes:
                return is_new
            file.seek(self._read_bytes)
            return self._add_lines(file.read()) or is_new

    def _reset(self) -> None:
        self._read_bytes = 0
        self._is_damaged = False
        self.rows = []
        self._progress.clear()

    def _add_lines(self, added: bytes) -> bool:
        complete = added[: added.rfind(b"\n") + 1]
        for line in complete.splitlines():
            row = self._parse_row(line)
            if row is None:
                self._handle_invalid_line()
                return True
            self.rows.append(row)
        self._read_bytes += len(complete)
        return bool(complete)

    def _handle_invalid_line(self) -> None:
        """Read the file from its beginning, in case it was overwritten; else it is damaged."""
        if self._read_bytes:
            self._reset()
            return
        self._is_damaged = True
        self.problem = f"line {len(self.rows) + 1} of {self.path} is damaged."

    def _parse_row(self, line: bytes) -> Row | None:
        """Return the row that continues the ones read so far; None for any other line."""
        try:
            row: Row = decode_metrics_row(line)
        except (ValueError, RecursionError):
            return None
        if not is_valid_assignment(row, self.clients) or row["round"] != len(self.rows):
            return None
        return row
