"""Nests of tensors as bytes.

Safetensors with a JSON head. Nothing in them is executed or pickled.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import zlib
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.aggregation.aggregator import PartialAggregate
from coterie.core.contract import Upload

Types = dict[
    str, type
]  # the NamedTuples that a nest may be made of, by the name they are sent under

MOST_DEPTH = 32  # of a nest in a nest


# names under which version 0.2 saved the states of methods
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
    """Bytes that are not what they should be."""


def types_of(method: Any) -> Types:
    """The NamedTuples that a method's states and messages may be made of.

    They are those of the modules that define the method and its base classes. Of several with one
    name, the second is sent as "Name#2", and so on, in the order of Python's method resolution.
    """
    types: Types = {"Upload": Upload}
    for cls in _classes(method):
        for value in vars(sys.modules[cls.__module__]).values():
            if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
                _add(types, value)
    return types


def _classes(method: Any) -> list[type]:
    """The classes of a method and of the methods among its fields, derived ones first."""
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


# ------------------------------------------------------------------------------ nests
def flatten(tree: Any, types: Types) -> tuple[dict[str, Tensor], Any]:
    """(leaves by number, the JSON skeleton that says where each belongs)."""
    names = {cls: name for name, cls in types.items()}
    leaves: dict[str, Tensor] = {}
    storages: set[int] = set()

    def add_leaf(v: Tensor) -> int:
        leaf = v.detach().contiguous().cpu()
        if leaf.numel() and leaf.untyped_storage().data_ptr() in storages:
            leaf = leaf.clone()  # no aliases in a file
        storages.add(leaf.untyped_storage().data_ptr())
        leaves[str(len(leaves))] = leaf
        return len(leaves) - 1

    def skeleton(v: Any) -> Any:
        if isinstance(v, Tensor):
            return add_leaf(v)
        if isinstance(v, dict):
            return {"dict": [[k, skeleton(x)] for k, x in v.items()]}
        if isinstance(v, tuple | list) and (type(v) in names or not hasattr(v, "_fields")):
            return {"tuple": [skeleton(x) for x in v], "type": names.get(type(v))}
        raise TypeError(
            f"a {type(v).__name__} cannot be sent or saved: only tensors in dicts, tuples and the "
            "NamedTuples of the method's own modules can"
        )

    return leaves, skeleton(tree)


def unflatten(leaves: dict[str, Tensor], skeleton: Any, types: Types) -> Any:
    """The nest that `flatten` took apart; BadBytes if the skeleton is none."""

    def build(s: Any, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise BadBytes("its structure is too deep")
        if isinstance(s, int):
            return leaves[str(s)]
        if "dict" in s:
            return {k: build(x, depth + 1) for k, x in s["dict"]}
        items = [build(x, depth + 1) for x in s["tuple"]]
        if s["type"] is None:
            return tuple(items)
        return types[s["type"]](*items)

    try:
        return build(skeleton, depth=0)
    except BadBytes:
        raise
    except (KeyError, TypeError, ValueError) as e:
        raise BadBytes(
            f"its structure is not one that this method knows ({type(e).__name__})"
        ) from e


def checksum(head: str, leaves: dict[str, Tensor]) -> int:
    """A checksum of a head and of every leaf with its name, type and shape."""
    crc = zlib.crc32(head.encode())
    for name, leaf in leaves.items():
        crc = zlib.crc32(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode(), crc)
        if leaf.numel():
            crc = zlib.crc32(leaf.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc


# ------------------------------------------------------------------------------ messages
def encode(tree: Any, types: Types, **head: Any) -> bytes:
    """A nest of tensors as bytes, with plain values beside it."""
    leaves, skeleton = flatten(tree, types)
    return save(leaves, metadata={"head": json.dumps({"tree": skeleton, **head})})


def decode(raw: bytes, types: Types, limit: int | None = None) -> tuple[Any, dict[str, Any]]:
    """(the nest, the plain values); BadBytes if the bytes are anything else."""
    if limit is not None and len(raw) > limit:
        raise BadBytes(f"it has {len(raw)} bytes where at most {limit} are expected")
    try:
        size = int.from_bytes(raw[:8], "little")
        head = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["head"])
        leaves, skeleton = load(raw), head.pop("tree")
    except Exception as e:  # strangers send anything
        raise BadBytes(f"it is not a message ({type(e).__name__})") from e
    return unflatten(leaves, skeleton, types), head


def encode_part(part: PartialAggregate, types: Types) -> bytes:
    """A complete part as bytes, for another process to absorb."""
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
    """The part that `encode_part` wrote."""
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
