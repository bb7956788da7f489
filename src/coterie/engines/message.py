"""Messages from the server to a site, and their validation at the site.

A site does not trust the server: the header has a schema, lengths and counts are limited before
anything is computed, and models must have the shapes and dtypes of this run's model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from coterie.core.call import Phase, Version
from coterie.core.params import Params, nbytes
from coterie.core.task import Task
from coterie.core.trees import tree_flatten, tree_leaves
from coterie.engines.codec import BadBytes, Types, decode

HEADER_BYTES = 1024 * 1024  # for names, shapes and plain values in each piece of a message
NUMBER_TYPES = (torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


class Message(NamedTuple):
    """The message to one site; `shared` is encoded once for all sites."""

    shared: bytes
    own: bytes  # the site's row of per_client, its random keys and the header
    initial_payload: bytes | None  # only in a site's first message


class Limits(NamedTuple):
    """Limits that the owner of a site sets for requests of the server."""

    centres: int = 64  # cluster models in one stack
    leaves: int = 10_000  # tensors in one pytree
    message_bytes: int | None = None  # per piece; None: the size of two stacks of `centres` models
    versions: int = 8  # private states that a server may ask the site to keep
    repeats: int = 3  # times that a restarted server may repeat a round
    seconds: float | None = 600.0  # time limit of one reply; None: unlimited


# ------------------------------------------------------------------------------ header
Word = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
VersionFields = tuple[Count, Phase, Count]  # the fields of a Version
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Plain = bool | Number | float | Word


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plain values of a message: the function to run and the versions of private states."""

    path: Word  # of the function's object, from `Evaluation`: "" is the evaluation itself
    name: Word  # of the function
    static: Annotated[dict[Word, Plain], Meta(max_length=32)]  # its keyword arguments
    version: VersionFields
    accepted: VersionFields
    keep: list[VersionFields]
    split: Word | None
    keeps_private: bool
    enrolled: bool

    @property
    def call_version(self) -> Version:
        """The version of the private state after this call."""
        return Version(*self.version)

    @property
    def start_version(self) -> Version:
        """The private state to start from: that of the last update that the server accepted."""
        return Version(*self.accepted)

    @property
    def versions_to_keep(self) -> set[Version]:
        """The private states to keep: those the server names and the one to start from."""
        return {self.start_version, *(Version(*v) for v in self.keep)}


class Own(NamedTuple):
    """The part of a message that only one site gets."""

    per_client: Any
    key: Tensor
    client_key: Tensor
    head: Head


# ------------------------------------------------------------------------------ reading
class Reader:
    """Decodes and validates the parts of messages.

    Args:
        task: The run's model; models in messages must have its layers, shapes and dtypes.
        types: The NamedTuples that messages may contain.
        limits: Limits on the size of messages.
    """

    def __init__(self, task: Task, types: Types, limits: Limits) -> None:
        self.model: Params = task.travelling(task.module)
        self.types = types
        self.limits = limits
        self.number_types = {task.dtype, *NUMBER_TYPES}
        self.max_bytes = limits.message_bytes
        if self.max_bytes is None:
            self.max_bytes = 2 * limits.centres * nbytes(self.model) + HEADER_BYTES

    def tree(self, raw: bytes) -> Any:
        """Decode a pytree of tensors and check its values, number of tensors and shapes.

        Raises:
            BadBytes: If any check fails.
        """
        return self._read(raw)[0]

    def own(self, raw: bytes) -> Own:
        """Decode the part that only this site gets.

        Raises:
            BadBytes: If the header or the content is invalid.
        """
        content, plain = self._read(raw)
        try:
            head = msgspec.convert(plain, Head)
        except (
            msgspec.ValidationError,
            UnicodeEncodeError,  # a lone surrogate
        ) as e:
            raise BadBytes("its header is invalid") from e
        if len(head.keep) > self.limits.versions:
            raise BadBytes(f"it asks to keep more than {self.limits.versions} private states")
        if not isinstance(content, tuple) or len(content) != 3:
            raise BadBytes("it does not contain per-client values and two keys")
        per_client, key, client_key = content
        for k in (key, client_key):
            if not isinstance(k, Tensor) or k.dtype != torch.int64 or k.dim():
                raise BadBytes("a random key is not a single int64")
        return Own(per_client, key, client_key, head)

    def count_models(self, tree: Any) -> int:
        """Return the number of models in a decoded pytree, at least 1: those that a call scores."""
        if isinstance(tree, Tensor):
            return 1
        if not isinstance(tree, dict):
            return max([1, *map(self.count_models, tree)])
        if not self.model.keys() <= tree.keys():
            return max([1, *map(self.count_models, tree.values())])
        is_stack = any(leaf.shape != self.model[name].shape for name, leaf in tree.items())
        return max(len(leaf) for leaf in tree.values()) if is_stack else 1

    def _read(self, raw: bytes) -> tuple[Any, dict[str, Any]]:
        content, plain = decode(raw, self.types, limit=self.max_bytes)
        leaves = tree_leaves(content)
        if len(leaves) > self.limits.leaves:
            raise BadBytes(f"it contains more than {self.limits.leaves} tensors")
        for leaf in leaves:
            self._check_numbers(leaf)
        self._check_models(content)
        return content, plain

    def _check_numbers(self, leaf: Tensor) -> None:
        """Reject values that would corrupt a private state, and empty tensors with large shapes."""
        if leaf.dtype not in self.number_types:
            raise BadBytes(f"it contains a tensor of dtype {leaf.dtype}")
        if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise BadBytes("it contains numbers that are not finite")
        if not leaf.numel() and max(leaf.shape) > self.limits.centres:
            raise BadBytes("it contains an empty tensor of a large shape")

    def _check_models(self, tree: Any) -> None:
        """Reject models anywhere in the pytree that differ from this run's model."""
        if isinstance(tree, Tensor):
            return
        if not isinstance(tree, dict):
            for part in tree:
                self._check_models(part)
        elif self.model.keys() & tree.keys():
            self._check_model(tree)
        else:
            for part in tree.values():
                self._check_models(part)

    def _check_model(self, model: dict[str, Any]) -> None:
        """Check one model or a stack: leaves [K, ...], or [1, ...] where all K share a leaf."""
        if model.keys() != self.model.keys():
            raise BadBytes("it contains a model with other layers")
        for name, leaf in model.items():
            if not isinstance(leaf, Tensor) or leaf.dtype != self.model[name].dtype:
                raise BadBytes("it contains a model with other dtypes")
        if all(leaf.shape == self.model[name].shape for name, leaf in model.items()):
            return
        for name, leaf in model.items():
            if leaf.dim() == 0 or leaf.shape[1:] != self.model[name].shape:
                raise BadBytes("it contains a model with other shapes")
        counts = {len(leaf) for leaf in model.values()}
        if 0 in counts or max(counts) > self.limits.centres:
            raise BadBytes(
                f"it contains a stack of {max(counts)} models; expected 1 to {self.limits.centres}"
            )
        if len(counts - {1}) > 1:
            raise BadBytes("it contains a stack whose layers have different numbers of models")


def form(tree: Any) -> tuple[Any, list[tuple[Iterable[int], torch.dtype]]]:
    """Return the structure of a pytree, with the shape and dtype of each tensor."""
    leaves, structure = tree_flatten(tree)
    return structure, [(tuple(v.shape), v.dtype) for v in leaves]
