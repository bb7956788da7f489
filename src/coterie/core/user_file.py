"""Objects from a user's own Python file, named as `path/to/file.py:Name`.

Such a file is run, so that a user must have named it. Where it is the folder of a run that names
it, the user confirms the hash of its content first.
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

DIGITS = 12  # of a hash that are shown, and that must at least be given


def is_file_spec(name: str) -> bool:
    """Whether a name means an object in a Python file, as in `file.py:Net`."""
    return ".py:" in name


def load_object(spec: str, trust: Sequence[str] | None = None) -> Any:
    """Load the object that `path/to/file.py:Name` names. The file is run as Python would run it.

    trust: hashes of content that may be run; None: the user has named this file.
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
    """The content of the file that `path/to/file.py:Name` names."""
    path = spec.rpartition(":")[0]
    if not Path(path).is_file():
        raise CoterieError(
            f"there is no file {path}: give the path of a Python file, then a colon and a name."
        )
    return Path(path).read_bytes()


def _module(path: Path, source: bytes) -> ModuleType:
    """The module of a file: run once for each content of the file, and kept in `sys.modules`.

    Dataclasses and NamedTuples look their module up there, and so does the reading of checkpoints.
    """
    name = _module_name(path, source)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # not by the module's loader: a bytecode file may be stale where a file has just changed
        exec(compile(source, str(path), "exec"), vars(module))
    except Exception as e:
        del sys.modules[name]
        raise CoterieError(f"{path} cannot be loaded: {type(e).__name__}: {e}.") from e
    return module


def _module_name(path: Path, source: bytes) -> str:
    """A name that no other module has: a file called statistics.py must not replace Python's."""
    digest = hashlib.blake2b(str(path.resolve()).encode() + b"\0" + source, digest_size=8)
    return f"coterie_user_{digest.hexdigest()}_{path.stem}"


# ------------------------------------------------------------------------------ trust
class UntrustedFile(CoterieError):
    """Python files that nobody has named or confirmed, by path the first digits of their hash."""

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
    """Refuse the files among these names that nobody has named in this process or confirmed.

    recorded: by file, the hash that it had when the run was made.
    Returns the files that have changed since.
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
            note = " and has changed since the run was made"
        raise UntrustedFile(files, where, note)
    return changed


def _may_run(path: Path, source: bytes, trust: Sequence[str]) -> bool:
    """Whether this content is confirmed, or was run in this process because a user named it."""
    if _module_name(path, source) in sys.modules:
        return True
    return any(full_hash(source).startswith(digits) for digits in trust)


def file_hashes(specs: Sequence[str | None]) -> dict[str, str]:
    """By file, the hash of each of these names that means one."""
    named = [spec for spec in specs if spec is not None and is_file_spec(spec)]
    return {spec.rpartition(":")[0]: full_hash(read_source(spec)) for spec in named}


def full_hash(source: bytes) -> str:
    """The SHA-256 of a content, in hexadecimal digits."""
    return hashlib.sha256(source).hexdigest()


def short_hash(source: bytes) -> str:
    """As many digits of the hash as a user must confirm."""
    return full_hash(source)[:DIGITS]


def read_hashes(trust: str | Sequence[str]) -> list[str]:
    """Hashes that a user gives, several with commas between; refused where they are too short."""
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
