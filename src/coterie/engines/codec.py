"""Encoding of pytrees of tensors as bytes: safetensors with a JSON header, without pickle."""

from __future__ import annotations

import dataclasses
import json
import sys
import zlib
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.aggregation.aggregator import PartialAggregate
from coterie.core.contract import Upload

Types = dict[str, type]  # NamedTuples that a pytree may contain, by their encoded name

MAX_DEPTH = 32  # of nested containers

# encoded names of classes that had another name in version 0.2
SAVED_NAMES = {
    "APFLClientState": "Mixed",
    "CFLMGDClientState": "Kept",
    "CFLMGDState": "Moving",
    "CFLState": "Splits",
    "CGPFLState": "Clusters",
    "FedBCDState": "Blocks",
    "FedEMState": "Mixed",
    "FedSoftClientState": "Personal",
    "FedSoftState": "Soft",
    "GroupedState": "Grouped",
    "IFCAState": "Clusters",
    "L2SGDState": "Loopless",
    "MomentumClientState": "Member",
    "PFLTCState": "Clustered",
    "PersonalModel": "Personal",
}


class BadBytes(ValueError):
    """A message that is malformed, or does not fit the run or the limits of its receiver."""


def types_of(method: Any) -> Types:
    """Collect the NamedTuples that a method's states and messages may contain.

    These are the NamedTuples in the modules that define the method and its base classes. If
    several have the same name, the second is encoded as "Name#2" and so on, in method resolution
    order.
    """
    types: Types = {"Upload": Upload}
    for cls in _classes(method):
        for value in vars(sys.modules[cls.__module__]).values():
            if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
                _add(types, value)
    return types


def _classes(method: Any) -> list[type]:
    """The classes of a method and of the methods in its fields, derived classes first."""
    classes = list(type(method).__mro__)
    if dataclasses.is_dataclass(method):
        for f in dataclasses.fields(method):
            value = getattr(method, f.name)
            if dataclasses.is_dataclass(value):
                classes += _classes(value)
    return classes


def _add(types: Types, new: type) -> None:
    if new in types.values():
        return
    name = SAVED_NAMES.get(new.__name__, new.__name__)
    same_name = [n for n in types if n.partition("#")[0] == name]
    if same_name:
        name = f"{name}#{len(same_name) + 1}"
    types[name] = new


# ------------------------------------------------------------------------------ pytrees
def flatten(tree: Any, types: Types) -> tuple[dict[str, Tensor], Any]:
    """Return the leaves by number, and a JSON skeleton that places them."""
    names = {cls: name for name, cls in types.items()}
    leaves: dict[str, Tensor] = {}
    storages: set[int] = set()

    def add_leaf(v: Tensor) -> int:
        leaf = v.detach().contiguous().cpu()
        if leaf.numel() and leaf.untyped_storage().data_ptr() in storages:
            leaf = leaf.clone()  # safetensors rejects tensors that share storage
        storages.add(leaf.untyped_storage().data_ptr())
        leaves[str(len(leaves))] = leaf
        return len(leaves) - 1

    return leaves, _skeleton(tree, names, add_leaf)


def _skeleton(v: Any, names: dict[type, str], add_leaf: Callable[[Tensor], int]) -> Any:
    """Describe a subtree. A nested function would be a cycle that keeps the leaves until `gc`."""
    if isinstance(v, Tensor):
        return add_leaf(v)
    if isinstance(v, dict):
        return {"dict": [[k, _skeleton(x, names, add_leaf)] for k, x in v.items()]}
    if isinstance(v, tuple | list) and (type(v) in names or not hasattr(v, "_fields")):
        items = [_skeleton(x, names, add_leaf) for x in v]
        return {"tuple": items, "type": names.get(type(v))}
    raise TypeError(
        f"Cannot encode a {type(v).__name__}: states and messages may only contain tensors in "
        "dicts, tuples and NamedTuples that are defined in the method's own modules."
    )


def unflatten(leaves: dict[str, Tensor], skeleton: Any, types: Types) -> Any:
    """Rebuild the pytree that `flatten` decomposed.

    Raises:
        BadBytes: If the skeleton is invalid.
    """
    try:
        return _build(skeleton, leaves, types, depth=0)
    except BadBytes:
        raise
    except (KeyError, TypeError, ValueError) as e:
        raise BadBytes(f"its structure is unknown to this method ({type(e).__name__})") from e


def _build(skeleton: Any, leaves: dict[str, Tensor], types: Types, depth: int) -> Any:
    """Rebuild a subtree."""
    if depth > MAX_DEPTH:
        raise BadBytes("its structure is nested too deeply")
    if isinstance(skeleton, int):
        return leaves[str(skeleton)]
    if "dict" in skeleton:
        return {k: _build(x, leaves, types, depth + 1) for k, x in skeleton["dict"]}
    items = [_build(x, leaves, types, depth + 1) for x in skeleton["tuple"]]
    if skeleton["type"] is None:
        return tuple(items)
    return types[skeleton["type"]](*items)


def checksum(head: str, leaves: dict[str, Tensor]) -> int:
    """Compute a checksum of a header and of every leaf with its name, dtype and shape."""
    crc = zlib.crc32(head.encode())
    for name, leaf in leaves.items():
        crc = zlib.crc32(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode(), crc)
        if leaf.numel():
            crc = zlib.crc32(leaf.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc


# ------------------------------------------------------------------------------ messages
def encode(tree: Any, types: Types, **head: Any) -> bytes:
    """Encode a pytree of tensors, with plain values in the header."""
    leaves, skeleton = flatten(tree, types)
    return save(leaves, metadata={"head": json.dumps({"tree": skeleton, **head})})


def decode(raw: bytes, types: Types, limit: int | None = None) -> tuple[Any, dict[str, Any]]:
    """Decode a pytree and its plain values.

    Raises:
        BadBytes: If `raw` is larger than `limit` or not a valid encoding.
    """
    if limit is not None and len(raw) > limit:
        raise BadBytes(f"it has {len(raw)} bytes; at most {limit} are allowed")
    try:
        size = int.from_bytes(raw[:8], "little")
        head = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["head"])
        leaves, skeleton = load(raw), head.pop("tree")
    except Exception as e:  # untrusted bytes can fail anywhere in the parsers
        raise BadBytes(f"it is not a valid message ({type(e).__name__})") from e
    return unflatten(leaves, skeleton, types), head


def encode_part(part: PartialAggregate, types: Types) -> bytes:
    """Encode a partial aggregate for another process."""
    tensors = (part.totals, part.mass, part.accepted, part.updates, part.norms)
    return encode(
        tensors,
        types,
        rejected=part.rejected,
        absent=part.absent,
        clipped=part.clipped,
        bytes_up=part.bytes_up,
        first_contacts=part.first_contacts,
    )


def decode_part(raw: bytes, types: Types) -> PartialAggregate:
    """Decode a partial aggregate from `encode_part`."""
    (totals, mass, accepted, updates, norms), head = decode(raw, types)
    return PartialAggregate(
        totals=totals,
        mass=mass,
        accepted=accepted,
        rejected=[(position, reason) for position, reason in head["rejected"]],
        absent=head["absent"],
        clipped=head["clipped"],
        updates=updates,
        norms=norms,
        bytes_up=head["bytes_up"],
        first_contacts=head["first_contacts"],
    )
