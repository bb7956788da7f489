"""What the folder of one run has to show, while another process may be training it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from coterie.core.errors import CoterieError
from coterie.metrics import Row, main_metric
from coterie.reporting.live.tail import RowTail
from coterie.runs import checkpoint, latecomers
from coterie.runs.folder import RunFolder, round_of
from coterie.runs.latecomers import Latecomer

LOG_BYTES = 20_000  # of the end of a log that are read
LOG_LINES = 8  # that are kept
MOST_EVALUATIONS = 400  # whose sites' scores are kept

Stamp = tuple[int, int, int]  # by which a file that was written again is known


class RunFiles:
    """The config, rows, sites' scores and log of a run; `poll` reads what is new.

    Nothing is written or locked, and no Python file that the folder names is run.
    """

    def __init__(self, path: Path) -> None:
        """An error in one sentence where the folder is none of a run."""
        self.path = path
        self.folder, self.config = RunFolder.open(path)
        self.tail = RowTail(path / "metrics.jsonl", len(self.names))
        self.metric = main_metric(self.config.roster.kind)
        self.site_scores: dict[int, np.ndarray] = {}  # by round of the evaluation, [N]
        self.stopped_early = False  # as `stop_after` asked
        self.log: list[str] = []  # its last lines
        self.latecomers: dict[str, Latecomer] = {}  # of a network: who came when it had begun
        self._config_stamp: Stamp | None = None
        self._log_stamp: Stamp | None = None
        self._latecomers_stamp: Stamp | None = None
        self._checkpoints: set[Path] = set()  # that need not be read again

    @property
    def names(self) -> list[str]:
        """The clients that train."""
        roster = self.config.roster
        return roster.names[: len(roster.names) - roster.unseen]

    @property
    def rows(self) -> list[Row]:
        """A row per round so far."""
        return self.tail.rows

    def poll(self) -> bool:
        """Read what is new; whether anything was."""
        checkpoints = self.folder.checkpoints()  # before the rows, which are written first
        news = [self._poll_config(), self.tail.poll(), self._poll_log(), self._poll_latecomers()]
        self._forget_undone_rounds()
        for file in reversed(checkpoints):
            has_rows = round_of(file) < len(self.rows)
            if has_rows and file not in self._checkpoints:
                self._read_scores(file)
                self._checkpoints.add(file)
                news.append(True)
        self._checkpoints &= set(checkpoints)
        return any(news)

    def _poll_config(self) -> bool:
        """Read the config again where it was replaced: a run may go on for more rounds."""
        stamp = stamp_of(self.path / "config.json")
        if stamp == self._config_stamp:
            return False
        self._config_stamp = stamp
        try:
            self.config = self.folder.config()
        except CoterieError:
            return False  # the one before stands
        return True

    def _poll_log(self) -> bool:
        file = self.path / "log.txt"
        stamp = stamp_of(file)
        if stamp == self._log_stamp:
            return False
        self._log_stamp = stamp
        self.log = last_lines(file)
        return True

    def _poll_latecomers(self) -> bool:
        stamp = stamp_of(self.path / latecomers.FILE)
        if stamp == self._latecomers_stamp:
            return False
        self._latecomers_stamp = stamp
        self.latecomers = latecomers.read_latecomers(self.path)
        return True

    def _read_scores(self, file: Path) -> None:
        """Read the sites' scores of a checkpoint, which are those of the last evaluation."""
        try:
            saved = checkpoint.read_part(file, "scores")
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return  # gone already, or damaged
        self.stopped_early = bool(saved.head.get("stopped"))
        evaluated = self._last_evaluation(round_of(file))
        scores = saved.trees["scores"].get(self.metric)
        if evaluated is None or scores is None or len(scores) != len(self.names):
            return
        self.site_scores[evaluated] = scores.double().numpy()
        if len(self.site_scores) > MOST_EVALUATIONS:
            rounds = sorted(self.site_scores)
            del self.site_scores[rounds[len(rounds) // 2]]

    def _last_evaluation(self, round: int) -> int | None:
        """The last round up to this one with scores on test rows."""
        for row in reversed(self.rows[: round + 1]):
            if self.metric in row:
                return int(row["round"])
        return None

    def _forget_undone_rounds(self) -> None:
        """Forget the scores of rounds that are made again since the run went back."""
        done = len(self.rows) - 1
        for round in [round for round in self.site_scores if round > done]:
            del self.site_scores[round]


def stamp_of(file: Path) -> Stamp | None:
    """By what to know whether a file was written again; None where there is none."""
    try:
        about = os.stat(file)
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def last_lines(file: Path) -> list[str]:
    """The last lines of a log."""
    try:
        with open(file, "rb") as log:
            size = os.fstat(log.fileno()).st_size
            log.seek(max(0, size - LOG_BYTES))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()[-LOG_LINES:]
