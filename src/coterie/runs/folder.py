"""A run's folder: what it was asked, what it measured, and where it can go on from.

config.json      the method, data, model, options, plan and fingerprints
metrics.jsonl    a row per round
checkpoints/     the last two, each one safetensors file, written beside and then renamed: a kill at any point
                 leaves whole files only
log.txt          who was refused and why, warnings
"""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from coterie.engine.codec import BadBytes, Types, checksum, flatten, unflatten
from coterie.errors import CoterieError
from coterie.metrics import Row, to_json

log = logging.getLogger("coterie")


def write_whole(path: Path, text: str) -> None:
    """Replace a file by a whole new one, or leave it as it was."""
    beside = path.with_suffix(path.suffix + ".new")
    try:
        with open(beside, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    except OSError as e:
        beside.unlink(missing_ok=True)
        raise explained(e, path) from e


def explained(e: OSError, path: Path) -> CoterieError:
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return CoterieError(f"the disk is full, {path} was not written: free some space, then resume or try again.")
    return CoterieError(f"{path} cannot be written ({e.strerror or e}): check the folder and its permissions.")


def _unmade(path: Path) -> bool:
    """Whether a folder is empty, or was being made when the run was killed."""
    here = {p.name for p in path.iterdir()} if path.is_dir() else {""}
    return here <= {"checkpoints", "config.json.new"} and not any((path / "checkpoints").glob("*"))


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.handler: logging.Handler | None = None

    @staticmethod
    def create(path: str | Path, config: dict[str, Any]) -> RunFolder:
        folder = RunFolder(Path(path))
        if folder.path.exists() and not _unmade(folder.path):
            raise CoterieError(f"{path} exists: choose another --out, or go on with it by `coterie resume {path}`.")
        try:
            (folder.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise explained(e, folder.path) from e
        write_whole(folder.path / "config.json", json.dumps(to_json(config), indent=1, ensure_ascii=False))
        (folder.path / "metrics.jsonl").touch()
        return folder

    @staticmethod
    def open(path: str | Path) -> tuple[RunFolder, dict[str, Any]]:
        folder = RunFolder(Path(path))
        try:
            config = json.loads((folder.path / "config.json").read_text(encoding="utf-8"))
            if not isinstance(config, dict):
                raise ValueError
        except OSError as e:
            if not folder.path.exists():
                raise CoterieError(f"there is no folder {path}: give the folder of a run.") from e
            if inside := sorted(p.parent for depth in ("*", "*/*") for p in folder.path.glob(f"{depth}/config.json")):
                some = ", ".join(map(str, inside[:5])) + (", …" if len(inside) > 5 else "")
                raise CoterieError(f"{path} holds several runs: give one of {some}.") from e
            raise CoterieError(f"{path} is not a run folder: it has no config.json that can be read.") from e
        except (ValueError, RecursionError) as e:
            raise CoterieError(f"{path}/config.json is damaged: the run cannot be resumed; start it anew.") from e
        return folder, config

    # ---- the log
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

    # ---- metrics
    def append(self, row: Row) -> None:
        try:
            with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as f:
                f.write(json.dumps(to_json(row)) + "\n")
        except OSError as e:
            raise explained(e, self.path / "metrics.jsonl") from e

    def rows(self, until: int | None = None) -> list[Row]:
        """The rows up to a round; a last line cut short by a kill is left out."""
        found: list[Row] = []
        lines = (self.path / "metrics.jsonl").read_bytes().splitlines()
        for i, line in enumerate(lines):
            try:
                row = json.loads(line)
                row["round"], row["seconds"], row["bytes_down"], row["bytes_up"], row["refused"]
            except (ValueError, LookupError, TypeError, RecursionError):
                if i + 1 < len(lines):
                    what = f"line {i + 1} of {self.path / 'metrics.jsonl'} is damaged, and not by a kill"
                    raise CoterieError(f"{what}: put the file back, or start the run anew.") from None
                break
            if until is None or row["round"] <= until:
                found.append(row)
        return found

    def rewind(self, rows: list[Row], rounds: int) -> None:
        """Be ready to go on after these rows, up to so many rounds."""
        write_whole(self.path / "metrics.jsonl", "".join(json.dumps(to_json(r)) + "\n" for r in rows))
        _, config = RunFolder.open(self.path)
        if config["options"]["rounds"] != rounds:
            config["options"]["rounds"] = rounds
            write_whole(self.path / "config.json", json.dumps(config, indent=1, ensure_ascii=False))

    # ---- checkpoints
    def save(self, round: int, tree: Any, head: dict[str, Any]) -> None:
        leaves, skeleton = flatten(tree)
        facts = {"tree": skeleton, "round": round, "crc": checksum(leaves), **head}
        path = self.path / "checkpoints" / f"{round:06d}.safetensors"
        beside = path.with_suffix(".new")
        try:
            save_file(leaves, beside, metadata={"head": json.dumps(to_json(facts))})
            for f in (beside, self.path / "metrics.jsonl"):
                _sync(f)
            os.replace(beside, path)
            _sync(path.parent)
        except (OSError, SafetensorError) as e:
            beside.unlink(missing_ok=True)
            full = isinstance(e, OSError) or "No space left" in str(e)
            known = e if isinstance(e, OSError) else OSError(errno.ENOSPC if full else errno.EIO, str(e))
            raise explained(known, path) from e
        for old in self.checkpoints()[2:]:
            old.unlink(missing_ok=True)

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        return sorted((self.path / "checkpoints").glob("*.safetensors"), reverse=True)

    def latest(self, types: Types) -> tuple[Any, dict[str, Any]] | None:
        """The newest checkpoint that is whole; None where there is none yet."""
        found = self.checkpoints()
        for path in found:
            try:
                return _read(path, types)
            except (BadBytes, OSError, SafetensorError, ValueError, KeyError, TypeError) as e:
                log.warning("checkpoint %s is damaged (%s): falling back to the one before.", path.name, e)
        if found:
            raise CoterieError(f"no checkpoint in {self.path} is whole: the run cannot be resumed; start it anew.")
        return None


def _read(path: Path, types: Types) -> tuple[Any, dict[str, Any]]:
    with safe_open(path, framework="pt") as f:
        head = json.loads(f.metadata()["head"])
        leaves = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    leaves = {k: leaves[k] for k in sorted(leaves, key=int)}
    if checksum(leaves) != head["crc"]:
        raise BadBytes("its checksum does not fit")
    return unflatten(leaves, head["tree"], types), head


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
