"""Objects from a user's Python file, named as `path/to/file.py:Name`.

Loading runs the file, so the user must have named it. If the folder of a run names it, the user
confirms the hash of its content first.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from coterie.core.errors import CoterieError, Option, unknown_name

DIGITS = 12  # digits of a hash that are shown, and required


def is_file_spec(name: str) -> bool:
    """Whether a name refers to an object in a Python file, as in `file.py:Net`."""
    return ".py:" in name


def load_object(spec: str, trust: Sequence[str] | None = None) -> Any:
    """Run a Python file and return an object from it.

    Args:
        spec: `path/to/file.py:Name`.
        trust: Hashes of contents that may be run. None means that the user named this file.

    Raises:
        CoterieError: If the file cannot be loaded or has no such name.
        UntrustedFile: If the content is not trusted.
    """
    path, _, name = spec.rpartition(":")
    source = read_source(spec)
    if trust is not None and not _may_run(Path(path), source, trust):
        raise UntrustedFile({path: short_hash(source)})
    module = _module(Path(path), source)
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise unknown_name(f"name in {path}", name, public)
    return getattr(module, name)


def read_source(spec: str) -> bytes:
    """The content of the file in `path/to/file.py:Name`."""
    path = spec.rpartition(":")[0]
    if not Path(path).is_file():
        raise CoterieError(
            f"there is no file {path}: give the path of a Python file, then a colon and a name."
        )
    return Path(path).read_bytes()


def _module(path: Path, source: bytes) -> ModuleType:
    """The module of a file, run once per content and stored in `sys.modules`.

    Dataclasses, NamedTuples and the reading of checkpoints look their modules up there.
    """
    name = _module_name(path, source)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # not by the module's loader: bytecode may be stale if the file has just changed
        exec(compile(source, str(path), "exec"), vars(module))
    except Exception as e:
        del sys.modules[name]
        raise CoterieError(f"{path} cannot be loaded: {type(e).__name__}: {e}.") from e
    return module


def _module_name(path: Path, source: bytes) -> str:
    """A unique name: a file called statistics.py must not replace Python's."""
    digest = hashlib.blake2b(str(path.resolve()).encode() + b"\0" + source, digest_size=8)
    return f"coterie_user_{digest.hexdigest()}_{path.stem}"


# ------------------------------------------------------------------------------ trust
class UntrustedFile(CoterieError):
    """Python files that the user has neither named nor confirmed.

    Args:
        files: By path, the first digits of the hash.
        where: What names the files.
        note: Added to the message.
    """

    def __init__(self, files: Mapping[str, str], where: str = "the run", note: str = "") -> None:
        file = "file"
        it = "it"
        if len(files) > 1:
            file = "files"
            it = "them"
        super().__init__(
            f"{where} names the Python {file} {' and '.join(files)}, which would be run{note}",
            f"look at {it}, then confirm {it} with {{}}",
            options=[Option("trust", ",".join(files.values()))],
            where=where,
        )


def check_trust(
    specs: Sequence[str], trust: Sequence[str], where: str, recorded: Mapping[str, str]
) -> list[str]:
    """Raise `UntrustedFile` for files that the user has neither named nor confirmed.

    Args:
        specs: Names, of which some refer to files.
        trust: Confirmed hashes.
        where: What names the files, for the message.
        recorded: By file, the hash that it had when the run was created.

    Returns:
        The files that have changed since.
    """
    files: dict[str, str] = {}
    changed: list[str] = []
    for spec in filter(is_file_spec, specs):
        path = spec.rpartition(":")[0]
        source = read_source(spec)
        if recorded.get(path, full_hash(source)) != full_hash(source):
            changed.append(path)
        if not _may_run(Path(path), source, trust):
            files[path] = short_hash(source)
    if files:
        note = ""
        if set(changed) & set(files):
            note = " and has changed since the run was created"
        raise UntrustedFile(files, where, note)
    return changed


def _may_run(path: Path, source: bytes, trust: Sequence[str]) -> bool:
    """Whether this content is confirmed, or was already run in this process."""
    if _module_name(path, source) in sys.modules:
        return True
    return any(full_hash(source).startswith(digits) for digits in trust)


def file_hashes(specs: Sequence[str | None]) -> dict[str, str]:
    """The hashes of the files among these names, by path."""
    named = [spec for spec in specs if spec is not None and is_file_spec(spec)]
    return {spec.rpartition(":")[0]: full_hash(read_source(spec)) for spec in named}


def full_hash(source: bytes) -> str:
    """The SHA-256 of a content as hexadecimal digits."""
    return hashlib.sha256(source).hexdigest()


def short_hash(source: bytes) -> str:
    """The first digits of the hash, enough for a user to confirm."""
    return full_hash(source)[:DIGITS]


def read_hashes(trust: str | Sequence[str]) -> list[str]:
    """Parse hashes given by the user, separated by commas.

    Raises:
        CoterieError: If one is too short or not hexadecimal.
    """
    if isinstance(trust, str):
        trust = [part for part in trust.split(",") if part]
    hashes = [text.strip().lower() for text in trust]
    for text in hashes:
        if not re.fullmatch(rf"[0-9a-f]{{{DIGITS},64}}", text):
            raise CoterieError(
                f"trust is {text!r}: it must be the hash of a file, at least {DIGITS} hexadecimal "
                "digits."
            )
    return hashes
