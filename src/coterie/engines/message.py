"""What a server sends to a site, and how the site reads it.

Nothing that the server says is believed: the head is typed, lengths and counts are limited before
anything is computed, and tensors must have the shapes and types that this run's model has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
from msgspec import Meta
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

from coterie.core.call import Phase, Version
from coterie.core.params import Params, nbytes
from coterie.core.task import Task
from coterie.engines.codec import BadBytes, Types, decode

HEAD_ROOM = 1024 * 1024  # bytes for names, shapes and plain values in each piece of a message


NUMBER_TYPES = (torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


class Message(NamedTuple):
    """What one site is sent; `shared` is encoded once for all sites."""

    shared: bytes
    own: bytes  # the site's row of per_client, its keys, and the head
    initial_payload: bytes | None  # on a site's first message


class Limits(NamedTuple):
    """What a site's owner lets a server ask for at most."""

    centres: int = 64  # models in one stack; a run never has more groups than clients
    leaves: int = 10_000  # tensors in one nest
    message_bytes: int | None = None  # of each piece; none: of two stacks of `centres` models
    versions: int = 8  # private states that a server may want to be kept
    repeats: int = 3  # how often a round may be asked for again by a server that was restarted
    seconds: float | None = 600.0  # for one answer; none: as long as it takes


# ------------------------------------------------------------------------------ the head
Word = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Moment = tuple[Count, Phase, Count]  # a version, before it is one
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Plain = bool | Number | float | Word


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plain values of a message: what to run, and which private states there are."""

    path: Word
    name: Word
    static: Annotated[dict[Word, Plain], Meta(max_length=32)]
    version: Moment
    accepted: Moment
    keep: list[Moment]
    split: Word | None
    keeps_private: bool
    enrolled: bool

    @property
    def asked_at(self) -> Version:
        """The version that the answer will have."""
        return Version(*self.version)

    @property
    def starts_from(self) -> Version:
        """The private state to start from: that of the last answer which the server accepted."""
        return Version(*self.accepted)

    @property
    def kept(self) -> set[Version]:
        """The private states that stay; always the one to start from, which is not yet replaced."""
        return {self.starts_from, *(Version(*v) for v in self.keep)}


class Own(NamedTuple):
    """The piece of a message that is for one site alone."""

    per_client: Any
    key: Tensor
    client_key: Tensor
    head: Head


# ------------------------------------------------------------------------------ reading
class Reader:
    """Reads the pieces of messages; all that is not as this run needs it is BadBytes."""

    def __init__(self, task: Task, types: Types, limits: Limits) -> None:
        trained = (p for p in task.module.named_parameters() if p[1].requires_grad)
        self.model: Params = {name: p.detach() for name, p in trained}
        self.types = types
        self.limits = limits
        self.number_types = {task.dtype, *NUMBER_TYPES}
        self.most_bytes = limits.message_bytes
        if self.most_bytes is None:
            self.most_bytes = 2 * limits.centres * nbytes(self.model) + HEAD_ROOM

    def nest(self, raw: bytes) -> Any:
        """A nest of tensors whose numbers, counts and shapes were checked."""
        return self._read(raw)[0]

    def own(self, raw: bytes) -> Own:
        """The head, and what is for this site alone."""
        content, plain = self._read(raw)
        try:
            head = msgspec.convert(plain, Head)
        except (msgspec.ValidationError, UnicodeEncodeError) as e:  # half of a surrogate pair
            raise BadBytes("its head is not one of a message") from e
        if len(head.keep) > self.limits.versions:
            raise BadBytes(f"it names more than {self.limits.versions} private states to keep")
        if not isinstance(content, tuple) or len(content) != 3:
            raise BadBytes("it does not hold a site's own values and its two keys")
        per_client, key, client_key = content
        for k in (key, client_key):
            if not isinstance(k, Tensor) or k.dtype != torch.int64 or k.dim():
                raise BadBytes("a key is not one whole number")
        return Own(per_client, key, client_key, head)

    def _read(self, raw: bytes) -> tuple[Any, dict[str, Any]]:
        content, plain = decode(raw, self.types, limit=self.most_bytes)
        leaves = tree_leaves(content)
        if len(leaves) > self.limits.leaves:
            raise BadBytes(f"it holds more than {self.limits.leaves} tensors")
        for leaf in leaves:
            self._check_numbers(leaf)
        self._check_models(content)
        return content, plain

    def _check_numbers(self, leaf: Tensor) -> None:
        """Refuse tensors that would spoil a private state, or that are large and empty."""
        if leaf.dtype not in self.number_types:
            raise BadBytes(f"it holds a tensor of type {leaf.dtype}")
        if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise BadBytes("it holds numbers that are not finite")
        if not leaf.numel() and max(leaf.shape) > self.limits.centres:
            raise BadBytes("it holds an empty tensor that counts as many models")

    def _check_models(self, nest: Any) -> None:
        """Refuse models, wherever they stand in the nest, that are not like this run's model."""
        if isinstance(nest, Tensor):
            return
        if not isinstance(nest, dict):
            for part in nest:
                self._check_models(part)
        elif self.model.keys() & nest.keys():
            self._check_model(nest)
        else:
            for part in nest.values():
                self._check_models(part)

    def _check_model(self, model: dict[str, Any]) -> None:
        """One model, or a stack: leaves [K, ...], or [1, ...] where all K share a leaf."""
        if model.keys() != self.model.keys():
            raise BadBytes("it holds a model of other layers")
        for name, leaf in model.items():
            if not isinstance(leaf, Tensor) or leaf.dtype != self.model[name].dtype:
                raise BadBytes("it holds a model of other types")
        if all(leaf.shape == self.model[name].shape for name, leaf in model.items()):
            return
        for name, leaf in model.items():
            if leaf.dim() == 0 or leaf.shape[1:] != self.model[name].shape:
                raise BadBytes("it holds a model of other shapes")
        counts = {len(leaf) for leaf in model.values()}
        if 0 in counts or max(counts) > self.limits.centres:
            raise BadBytes(f"it holds a stack of 0 models, or of more than {self.limits.centres}")
        if len(counts - {1}) > 1:
            raise BadBytes("it holds a stack of models whose layers differ in number")


def form(nest: Any) -> tuple[Any, list[tuple[Iterable[int], torch.dtype]]]:
    """The structure of a nest of tensors, with the shape and type of each."""
    leaves, structure = tree_flatten(nest)
    return structure, [(tuple(v.shape), v.dtype) for v in leaves]
