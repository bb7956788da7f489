"""A run's folder: what it was asked, what it measured, and where it can go on from.

config.json      method, data, model, options, plan and fingerprints
metrics.jsonl    a row per round
checkpoints/     the last two, each one safetensors file
log.txt          who was refused and why, warnings

Files are written beside their place and then renamed: a kill at any point leaves whole files only.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError

from coterie.engine.codec import Types
from coterie.errors import CoterieError
from coterie.metrics import Row
from coterie.runs import checkpoint
from coterie.runs.config import FORMAT, RoundRow, RunConfig, decode, encode, encode_readable

log = logging.getLogger("coterie")
START_ANEW = "the run cannot be resumed; start it anew"


def write_file(path: Path, text: str) -> None:
    """Replace a file by a new one as a whole, or leave it as it was."""
    beside = path.with_suffix(path.suffix + ".new")
    try:
        with open(beside, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    except OSError as e:
        beside.unlink(missing_ok=True)
        raise write_error(e, path) from e


def write_error(e: OSError, path: Path) -> CoterieError:
    """Why a file was not written, in one sentence."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        what = f"the disk is full, {path} was not written"
        return CoterieError(what, "free some space, then resume or try again")
    what = f"{path} cannot be written ({e.strerror or e})"
    return CoterieError(what, "check the folder and its permissions")


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handler: logging.Handler | None = None

    @staticmethod
    def create(path: str | Path, config: RunConfig) -> RunFolder:
        """A new folder with its config; refused where there is one already."""
        folder = RunFolder(Path(path))
        if folder.path.exists() and not _was_being_made(folder.path):
            raise CoterieError(f"{path} exists", "choose another folder, or resume it")
        try:
            (folder.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise write_error(e, folder.path) from e
        write_file(folder.path / "config.json", encode_readable(config))
        (folder.path / "metrics.jsonl").touch()
        return folder

    @staticmethod
    def open(path: str | Path) -> tuple[RunFolder, RunConfig]:
        """A run's folder and its config."""
        folder = RunFolder(Path(path))
        return folder, folder.config()

    def config(self) -> RunConfig:
        """What the run was asked."""
        file = self.path / "config.json"
        try:
            raw = file.read_bytes()
        except OSError as e:
            raise self._not_a_run() from e
        self._check_format(raw)
        return decode(raw, RunConfig, str(file), START_ANEW)

    def _check_format(self, raw: bytes) -> None:
        """Refuse folders of other versions."""
        file = self.path / "config.json"
        head = decode(raw, dict[str, msgspec.Raw], str(file), START_ANEW)
        if "coterie" in head and "format" not in head:
            raise CoterieError(
                f"{self.path} is a run of coterie 0.1, whose folders this version does not read",
                "finish and export it with version 0.1, or train it anew",
            )
        version = decode(head.get("format", msgspec.Raw(b"0")), int, str(file), START_ANEW)
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
            return CoterieError(f"{self.path} holds several runs", f"give one of {some}")
        what = f"{self.path} is not a run folder: it has no config.json that can be read"
        return CoterieError(f"{what}.")

    # -- the log
    def __enter__(self) -> RunFolder:
        self.handler = logging.FileHandler(self.path / "log.txt", encoding="utf-8", delay=True)
        self.handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(self.handler)
        log.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        if self.handler is not None:
            log.removeHandler(self.handler)
            self.handler.close()

    # -- metrics
    def append(self, row: Row) -> None:
        """Write the row of one more round."""
        try:
            with open(self.path / "metrics.jsonl", "ab") as f:
                f.write(encode(row) + b"\n")
        except OSError as e:
            raise write_error(e, self.path / "metrics.jsonl") from e

    def rows(self, until: int | None = None) -> list[Row]:
        """The rows up to a round; a last line that a kill left incomplete is left out."""
        file = self.path / "metrics.jsonl"
        rows: list[Row] = []
        lines = file.read_bytes().splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                row: Row = json.loads(line)
                msgspec.convert(row, RoundRow)
            except (ValueError, RecursionError):
                if number < len(lines):
                    raise CoterieError(
                        f"line {number} of {file} is damaged, and not by a kill",
                        "put the file back, or start the run anew",
                    ) from None
                break
            if until is None or row["round"] <= until:
                rows.append(row)
        return rows

    def rewind(self, rows: list[Row], rounds: int) -> None:
        """Be ready to go on after these rows, up to this number of rounds."""
        text = b"".join(encode(row) + b"\n" for row in rows).decode()
        write_file(self.path / "metrics.jsonl", text)
        config = self.config()
        done = rows[-1]["round"] if rows else 0
        rounds = max(rounds, done)
        if config.options.rounds != rounds:
            config.options = config.options.with_rounds(rounds)
            write_file(self.path / "config.json", encode_readable(config))

    # -- checkpoints
    def save(self, round: int, trees: dict[str, Any], head: dict[str, Any], types: Types) -> None:
        """Write a checkpoint; the two newest are kept."""
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
        """The checkpoint files, newest first."""
        return sorted((self.path / "checkpoints").glob("*.safetensors"), reverse=True)

    def latest(self, types: Types, *names: str) -> checkpoint.Checkpoint | None:
        """The newest undamaged checkpoint, with the trees of these names; None if there is none."""
        files = self.checkpoints()
        for file in files:
            try:
                return checkpoint.read(file, types, names)
            except (OSError, SafetensorError, ValueError, KeyError, TypeError) as e:
                log.warning(
                    "checkpoint %s is damaged (%s): falling back to the one before.", file.name, e
                )
        if files:
            raise CoterieError(f"no checkpoint in {self.path} is whole", START_ANEW)
        return None


def _was_being_made(path: Path) -> bool:
    """Whether a folder is empty, or was being made when the run was killed."""
    if not path.is_dir():
        return False
    names = {p.name for p in path.iterdir()}
    return names <= {"checkpoints", "config.json.new"} and not any((path / "checkpoints").glob("*"))


def runs_in(base: Path) -> list[Path]:
    """The run folders at or below a folder, in the order in which they were made."""
    if (base / "config.json").exists():
        return [base]
    files = [file for depth in ("*", "*/*") for file in base.glob(f"{depth}/config.json")]
    files.sort(key=lambda file: (file.stat().st_mtime_ns, file))
    return [file.parent for file in files] or [base]
