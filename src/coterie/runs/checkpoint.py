"""Checkpoints: several trees of tensors in one safetensors file.

The head is JSON: plain values, and for each tree its structure and checksum. The head has a
checksum too. `read` verifies all of them, `read_part` those of what it reads, so no flipped
bit goes unnoticed.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from coterie.engines.codec import BadBytes, Types, checksum, flatten, unflatten
from coterie.runs.config import encode
from coterie.runs.files import temporary_path


class Checkpoint(NamedTuple):
    """The content of a checkpoint."""

    trees: dict[str, Any]
    head: dict[str, Any]


def write(
    path: Path, trees: dict[str, Any], head: dict[str, Any], types: Types, metrics: Path
) -> None:
    """Write a checkpoint atomically, after flushing it and the metrics to disk.

    Args:
        path: The checkpoint.
        trees: Trees of tensors, by name.
        head: Plain values.
        types: The NamedTuples that the trees may contain.
        metrics: The run's metrics.jsonl, which must not be older than the checkpoint.
    """
    leaves: dict[str, Tensor] = {}
    described = {}
    for name, tree in trees.items():
        numbered, skeleton = flatten(tree, types)
        described[name] = {"tree": skeleton, "checksum": checksum(name, numbered)}
        leaves |= {f"{name}/{number}": leaf for number, leaf in numbered.items()}
    text = encode({**head, "trees": described}).decode()
    metadata = {"head": text, "checksum": str(zlib.crc32(text.encode()))}
    unfinished = temporary_path(path)
    try:
        save_file(leaves, unfinished, metadata=metadata)
        for file in (unfinished, metrics):
            _sync(file)
        os.replace(unfinished, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as e:
        unfinished.unlink(missing_ok=True)
        raise _as_os_error(e) from e


def read(path: Path, types: Types, names: Sequence[str] = ()) -> Checkpoint:
    """Read the head and the trees of these names (default: all).

    The checksums of the other trees are verified, too.

    Raises:
        BadBytes: If a checksum does not fit.
        SafetensorError: If the file is not in safetensors format, such as a truncated one.
        KeyError: If the head or a part of it is missing.
    """
    with safe_open(path, framework="pt") as f:
        head, described = _read_head(f)
        trees = {}
        for name in described:
            leaves = _read_leaves(f, name, described[name])
            if not names or name in names:
                trees[name] = unflatten(leaves, described[name]["tree"], types)
    return Checkpoint(trees, head)


def read_part(path: Path, name: str) -> Checkpoint:
    """Read the head and one tree of plain tensors, without reading the other trees."""
    with safe_open(path, framework="pt") as f:
        head, described = _read_head(f)
        leaves = _read_leaves(f, name, described[name])
        return Checkpoint({name: unflatten(leaves, described[name]["tree"], {})}, head)


def _read_head(f: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plain values, and the structure and checksum of each tree."""
    metadata = f.metadata() or {}
    text = metadata["head"]
    if str(zlib.crc32(text.encode())) != metadata["checksum"]:
        raise BadBytes("the checksum of its head does not fit")
    head = json.loads(text)
    described = head.pop("trees")
    return head, described


def _read_leaves(f: Any, name: str, described: dict[str, Any]) -> dict[str, Tensor]:
    """Read the leaves of one tree and verify its checksum."""
    all_leaves = f.keys()
    numbers = sorted(
        (key.partition("/")[2] for key in all_leaves if key.startswith(f"{name}/")), key=int
    )
    # clone: tensors in the file are not aligned, which can change the last bit of sums
    leaves = {number: f.get_tensor(f"{name}/{number}").clone() for number in numbers}
    if checksum(name, leaves) != described["checksum"]:
        raise BadBytes(f"the checksum of its {name} does not fit")
    return leaves


def _as_os_error(e: OSError | SafetensorError) -> OSError:
    if isinstance(e, OSError):
        return e
    full = "No space left" in str(e)
    return OSError(errno.ENOSPC if full else errno.EIO, str(e))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
