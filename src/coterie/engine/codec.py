"""Nests of tensors as bytes: safetensors with a JSON head. Nothing in them is executed, nothing is pickled."""

from __future__ import annotations

import dataclasses
import json
import sys
import zlib
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

Types = dict[str, type]


class BadBytes(ValueError):
    """Bytes that are not what they should be."""


def types_of(method: Any) -> Types:
    """The NamedTuples that a method's own modules know: what its states and messages may be made of."""
    found: Types = {}
    for cls in type(method).__mro__:
        for value in vars(sys.modules[cls.__module__]).values():
            if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
                found[value.__name__] = value
    if dataclasses.is_dataclass(method):
        for f in dataclasses.fields(method):
            if dataclasses.is_dataclass(getattr(method, f.name)):
                found |= types_of(getattr(method, f.name))
    return found


def flatten(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """(leaves by number, the JSON skeleton that says where each belongs)"""
    leaves: dict[str, Tensor] = {}
    seen: set[int] = set()

    def bare(v: Any) -> Any:
        if isinstance(v, Tensor):
            t = v.detach().contiguous().cpu()
            t = (
                t.clone() if t.numel() and t.untyped_storage().data_ptr() in seen else t
            )  # no aliases in a file
            seen.add(t.untyped_storage().data_ptr())
            leaves[str(len(leaves))] = t
            return len(leaves) - 1
        if isinstance(v, dict):
            return {"dict": [[k, bare(x)] for k, x in v.items()]}
        if isinstance(v, tuple | list):
            return {
                "tuple": [bare(x) for x in v],
                "type": type(v).__name__ if hasattr(v, "_fields") else None,
            }
        raise TypeError(
            f"a {type(v).__name__} cannot be sent or saved: only tensors in dicts, tuples and NamedTuples"
        )

    return leaves, bare(tree)


def unflatten(leaves: dict[str, Tensor], skeleton: Any, types: Types) -> Any:
    def build(s: Any) -> Any:
        if isinstance(s, int):
            return leaves[str(s)]
        if "dict" in s:
            return {k: build(x) for k, x in s["dict"]}
        items = [build(x) for x in s["tuple"]]
        return types[s["type"]](*items) if s["type"] else tuple(items)

    try:
        return build(skeleton)
    except (KeyError, TypeError, ValueError, RecursionError) as e:
        raise BadBytes(
            f"its structure is not one that this method knows ({type(e).__name__}: {e})"
        ) from e


def checksum(leaves: dict[str, Tensor]) -> int:
    crc = 0
    for t in leaves.values():
        crc = zlib.crc32(t.reshape(-1).view(torch.uint8).numpy().data if t.numel() else b"", crc)
    return crc


def encode(tree: Any, **head: Any) -> bytes:
    """A nest of tensors, and plain facts beside it."""
    leaves, skeleton = flatten(tree)
    return save(leaves, metadata={"head": json.dumps({"tree": skeleton, **head})})


def decode(raw: bytes, types: Types, limit: int | None = None) -> tuple[Any, dict[str, Any]]:
    """(the nest, the plain facts); BadBytes if they are anything else."""
    if limit is not None and len(raw) > limit:
        raise BadBytes(f"it has {len(raw)} bytes where at most {limit} are expected")
    try:
        size = int.from_bytes(raw[:8], "little")
        head = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["head"])
        leaves, skeleton = load(raw), head.pop("tree")
    except Exception as e:  # whatever strangers send
        raise BadBytes(f"it is not a message ({type(e).__name__})") from e
    return unflatten(leaves, skeleton, types), head
