"""A run's folder: config, metrics, checkpoints and log.

config.json      method, data, model, options, plan and fingerprints
metrics.jsonl    a row per round
checkpoints/     the last two, each one safetensors file
log.txt          rejected updates, warnings
*.csv            tables of groups and clients, written after the last round
diverged.txt     why training stopped, if it diverged
.lock            locked while a process trains in the folder
network.json     in a network: what the sites agreed on, and the number of starts
diary.jsonl      in a network: which site answered when

config.json is written last: a folder without it is incomplete and can be created again.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError

from coterie.core.errors import CoterieError, Diverged
from coterie.engines.codec import BadBytes, Types
from coterie.metrics import Row
from coterie.runs import checkpoint
from coterie.runs.config import (
    FORMAT,
    RunConfig,
    check_options,
    decode,
    decode_config,
    decode_metrics_row,
    encode,
    encode_readable,
)
from coterie.runs.files import (
    LOCK,
    create_file,
    hold_lock,
    is_temporary,
    make_private_folder,
    write_error,
    write_text,
)

log = logging.getLogger("coterie")
LOG_BYTES = 10_000_000  # of log.txt, before it begins anew
NETWORK = "network.json"
DIVERGED = "diverged.txt"
RESTART = "the run cannot be resumed; start it again"


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def create(
        path: str | Path, config: RunConfig, before: Callable[[], object] = lambda: None
    ) -> RunFolder:
        """Create the folder of a new run.

        Args:
            path: A folder that does not exist, or is incomplete.
            config: The content of config.json.
            before: Called before config.json is written.
        """
        folder = RunFolder(Path(path))
        with create_folder(folder.path):
            make_private_folder(folder.path / "checkpoints")
            create_file(folder.path / "metrics.jsonl")
            before()
            write_text(folder.path / "config.json", encode_readable(config))
        return folder

    @staticmethod
    def open(path: str | Path) -> tuple[RunFolder, RunConfig]:
        """Open an existing folder and read its config."""
        folder = RunFolder(Path(path))
        return folder, folder.config()

    def config(self) -> RunConfig:
        """Read and check config.json."""
        file = self.path / "config.json"
        try:
            raw = file.read_bytes()
        except OSError as e:
            raise self._not_a_run() from e
        self._check_format(raw)
        config = decode_config(raw, RunConfig, str(file), RESTART)
        check_options(config, raw, str(file), RESTART)
        return config

    def _check_format(self, raw: bytes) -> None:
        """Raise an error for folders of versions that this one cannot read."""
        file = self.path / "config.json"
        head = decode(raw, dict[str, msgspec.Raw], str(file), RESTART)
        if "coterie" in head and "format" not in head:
            raise CoterieError(
                f"{self.path} is a run of coterie 0.1, whose folders this version does not read",
                "finish and export it with version 0.1, or train it again",
            )
        version = decode(head.get("format", msgspec.Raw(b"0")), int, str(file), RESTART)
        if version > FORMAT:
            raise CoterieError(f"{self.path} was made by a later version", "update coterie")

    def _not_a_run(self) -> CoterieError:
        if not self.path.exists():
            return CoterieError(f"there is no folder {self.path}", "give the folder of a run")
        inside = sorted(
            file.parent for depth in ("*", "*/*") for file in self.path.glob(f"{depth}/config.json")
        )
        if inside:
            some = ", ".join(map(str, inside[:5])) + (", …" if len(inside) > 5 else "")
            return CoterieError(f"{self.path} contains several runs", f"give one of {some}")
        what = f"{self.path} is not a run folder: it has no config.json that can be read"
        if is_incomplete(self.path):
            remedy = f"run it again with --out {shlex.quote(str(self.path))}"
            return CoterieError(f"{what}; if its command was stopped before training", remedy)
        return CoterieError(f"{what}.")

    # -- the log
    @contextmanager
    def log_file(self) -> Iterator[None]:
        """Within this context, append log lines to log.txt."""
        handler = LogFile(
            self.path / "log.txt", encoding="utf-8", delay=True, maxBytes=LOG_BYTES, backupCount=1
        )
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(handler)
            handler.close()

    # -- training
    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold the folder's lock, write its log and remove temporary files of a killed process.

        If training diverges, diverged.txt records it.
        """
        with lock_folder(self.path), self.log_file():
            (self.path / DIVERGED).unlink(missing_ok=True)
            for folder in (self.path, self.path / "checkpoints"):
                for file in folder.iterdir():
                    if is_temporary(file) or file.suffix == ".new":  # as earlier versions wrote
                        file.unlink(missing_ok=True)
            try:
                yield
            except Diverged as e:
                write_text(self.path / DIVERGED, f"{e}\n")
                raise

    @property
    def has_diverged(self) -> bool:
        """Whether the last training in this folder diverged."""
        return (self.path / DIVERGED).exists()

    # -- metrics
    def append(self, row: Row) -> None:
        """Append the row of a round to metrics.jsonl."""
        try:
            with open(self.path / "metrics.jsonl", "ab") as f:
                f.write(encode(row) + b"\n")
        except OSError as e:
            raise write_error(e, self.path / "metrics.jsonl") from e

    def rows(self, until: int | None = None) -> list[Row]:
        """Read metrics.jsonl; an incomplete last line, left by a killed process, is ignored.

        Args:
            until: The last round to return; None: all.

        Raises:
            CoterieError: If the file is damaged.
        """
        file = self.path / "metrics.jsonl"
        rows: list[Row] = []
        lines = file.read_bytes().splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                row: Row = decode_metrics_row(line)
            except (ValueError, RecursionError):
                if number < len(lines):
                    raise self._damaged_metrics(f"line {number}") from None
                break
            if until is None or row["round"] <= until:
                rows.append(row)
        number = len(rows) if until is None else until + 1
        if [row["round"] for row in rows] != list(range(number)):
            raise self._damaged_metrics(f"the list of rounds up to {number - 1}")
        return rows

    def _damaged_metrics(self, what: str) -> CoterieError:
        return CoterieError(
            f"{what} of {self.path / 'metrics.jsonl'} is damaged",
            "restore the file, or start the run again",
        )

    def rewind(self, rows: list[Row], rounds: int) -> None:
        """Drop rounds and checkpoints after these rows, and store the number of rounds."""
        done = -1
        if rows:
            done = rows[-1]["round"]
        for file in self.checkpoints():
            if checkpoint_round(file) > done:  # damaged: the run continues from the one before
                file.unlink(missing_ok=True)
        text = b"".join(encode(row) + b"\n" for row in rows).decode()
        write_text(self.path / "metrics.jsonl", text)
        config = self.config()
        rounds = max(rounds, done)
        if config.options.rounds != rounds:
            config.options = config.options.with_rounds(rounds)
            write_text(self.path / "config.json", encode_readable(config))

    # -- checkpoints
    def save(self, round: int, trees: dict[str, Any], head: dict[str, Any], types: Types) -> None:
        """Write a checkpoint and keep the two newest."""
        path = self.path / "checkpoints" / f"{round:06d}.safetensors"
        try:
            checkpoint.write(
                path, trees, {**head, "round": round}, types, self.path / "metrics.jsonl"
            )
        except OSError as e:
            raise write_error(e, path) from e
        for old in self.checkpoints()[2:]:
            old.unlink(missing_ok=True)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint files, newest first."""
        return sorted((self.path / "checkpoints").glob("*.safetensors"), reverse=True)

    def latest(self, types: Types, *names: str) -> checkpoint.Checkpoint | None:
        """Read the newest undamaged checkpoint.

        Args:
            types: The NamedTuples that it may contain.
            *names: The trees to return; none: all.

        Returns:
            None if there are no checkpoints.

        Raises:
            CoterieError: If all are damaged.
        """
        tried: set[Path] = set()
        while untried := [file for file in self.checkpoints() if file not in tried]:
            file = untried[0]
            tried.add(file)
            try:
                found = checkpoint.read(file, types, names)
                if f"{found.head['round']:06d}" != file.stem:
                    raise BadBytes(f"it is of round {found.head['round']}")
                return found
            except FileNotFoundError:
                continue  # deleted meanwhile by a process that trains here
            except (OSError, SafetensorError, ValueError, KeyError, TypeError) as e:
                log.warning("checkpoint %s is damaged (%s): trying an earlier one.", file.name, e)
        if tried:
            raise CoterieError(f"every checkpoint in {self.path} is damaged", RESTART)
        return None


class LogFile(RotatingFileHandler):
    """A log file that ignores write errors, such as a full disk; older lines go to log.txt.1."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            if self.stream is None:
                create_file(Path(self.baseFilename))
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Leave out the line."""


def checkpoint_round(checkpoint: Path) -> int:
    """Return the round of a checkpoint file; −1 for other names.

    The checkpoint of a given start, before round 0, is of round −1, too: "-00001.safetensors".
    """
    try:
        return int(checkpoint.stem)
    except ValueError:
        return -1


# ------------------------------------------------------------------------------ making folders
def lock_folder(path: Path) -> AbstractContextManager[None]:
    """Hold the lock of a folder; raise `FolderBusy` if another process trains there."""
    return hold_lock(path / LOCK, f"another process is training {path}")


@contextmanager
def create_folder(path: Path) -> Iterator[None]:
    """Create a folder and hold its lock; raise an error if it is not empty.

    If several processes create the same folder at once, one succeeds.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            ensure_free(path)
        with lock_folder(path):
            ensure_free(path)  # another process may have held the lock until now
            yield
    except OSError as e:
        raise write_error(e, path) from e


def ensure_free(path: Path, remedy: str = "choose another folder, or resume it") -> None:
    """Raise an error if a folder exists, unless it is empty or incomplete.

    The error says so if a process is training there.
    """
    if not path.exists() or is_incomplete(path):
        return
    ensure_not_training(path)
    raise CoterieError(f"{path} exists", remedy)


def ensure_not_training(path: Path) -> None:
    """Raise `FolderBusy` if another process is training in a folder."""
    if not (path / LOCK).exists():
        return
    # OSError: the folder cannot be written, so no process trains there; FolderBusy is no OSError
    with suppress(OSError), lock_folder(path):
        pass


def is_incomplete(path: Path) -> bool:
    """Return whether a folder is empty, or its command was killed while creating it."""
    if not path.is_dir():
        return False
    return all(map(_may_precede_config, path.iterdir()))


def _may_precede_training(path: Path) -> bool:
    """Return whether a file in checkpoints/ may exist before training."""
    return is_temporary(path) or (path.suffix == ".safetensors" and checkpoint_round(path) < 0)


def _may_precede_config(path: Path) -> bool:
    """Return whether a file of a run folder may exist before config.json is written."""
    if path.name == "checkpoints":
        return path.is_dir() and all(map(_may_precede_training, path.iterdir()))
    if path.name == "metrics.jsonl":
        return path.is_file() and not path.stat().st_size
    return path.name in (LOCK, NETWORK, "config.json.new") or is_temporary(path)
