"""Objects from a user's own Python file, named as `path/to/file.py:Name`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from coterie.errors import CoterieError, unknown


def names_a_file(name: str) -> bool:
    """Whether a name means an object in a Python file, as in `file.py:Net`."""
    return ".py:" in name


def from_file(spec: str) -> Any:
    """Load the object that `path/to/file.py:Name` names. The file is run as Python would run it."""
    path, _, name = spec.rpartition(":")
    if not Path(path).is_file():
        raise CoterieError(
            f"there is no file {path}: give the path of a Python file, then a colon and a name."
        )
    module = _module(Path(path))
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise unknown(f"name in {path}", name, public)
    return getattr(module, name)


def _module(path: Path) -> ModuleType:
    """The module of a file: run once for each content of the file, and kept in `sys.modules`.

    Dataclasses and NamedTuples look their module up there, and so does the reading of checkpoints.
    """
    source = path.read_bytes()
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
