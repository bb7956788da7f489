"""Every exchange crosses bytes to a site that owns its data and private state: what a network carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coterie.contract import Algorithm, Data, Upload, at_round
from coterie.data.federation import Federation
from coterie.engine.call import Call, Exam, follow
from coterie.engine.codec import BadBytes, Types, decode, encode, types_of
from coterie.engine.evaluate import Evaluation
from coterie.engine.fold import Fold, Part
from coterie.engine.memory import Memory
from coterie.params import nbytes
from coterie.task import Batch, Task

Version = tuple[int, int]  # (round, exchange) of an answer
HEADER = 64 * 1024  # bytes for names, shapes and plain facts


class Site:
    """One client on its own machine. It runs only functions marked @client, on data that never leave it."""

    def __init__(self, root: Evaluation, task: Task, parts: dict[str, Batch], types: Types) -> None:
        self.root, self.task, self.parts, self.types = root, task, parts, types
        self.versions: dict[
            Version, Any
        ] = {}  # private state after the last accepted answer, and after the newest

    def enroll(self, message: bytes) -> None:
        (welcome, client_key), _ = decode(message, self.types)
        data = Data(self.parts["train"], client_key, client_key)
        self.versions = {(0, 0): self.root.method.enroll(self.task, welcome, data)}

    def answer(self, message: bytes) -> bytes:
        (shared, per_client, key, client_key), head = decode(message, self.types)
        version, accepted = tuple(head["version"]), tuple(head["accepted"])
        fn: Any = getattr(follow(at_round(self.root, version[0]), head["path"]), head["name"], None)
        if not getattr(fn, "runs_on_client", False):
            raise PermissionError(f"{head['name']} is not a client function")
        if head["enrolled"] and accepted not in self.versions:
            raise BadBytes(
                f"no private state of round {accepted[0]}, exchange {accepted[1]} is kept here"
            )
        private = self.versions[accepted] if head["enrolled"] else ()
        data: Any = Data(self.parts["train"], key, client_key)
        if head["exam"] is not None:
            data = Exam(data, self.parts[head["exam"]])
        up, after = fn(self.task, shared, per_client, private, data, **head["static"])
        if head["keeps"]:
            self.versions = {accepted: private, version: after}
        return encode(up)


class Wire:
    name = "wire"

    def __init__(self, task: Task, fed: Federation, root: Evaluation) -> None:
        self.task, self.types = task, {"Upload": Upload, **types_of(root.method)}
        memory = Memory(task, fed)
        self.example = memory.example
        parts = lambda i: {p: memory._whole(p, i) for p in memory.parts}
        self.sites = [Site(root, task, parts(i), self.types) for i in range(len(fed.names))]
        self.accepted: list[Version] = [(0, 0)] * len(self.sites)
        self.tamper: Callable[[int, bytes], bytes] = lambda i, reply: (
            reply
        )  # a test's way to send anything

    def enroll(self, method: Algorithm, welcome: Any, ids: Tensor, client_keys: Tensor) -> None:
        for i, client_key in zip(ids.tolist(), client_keys):
            self.sites[i].enroll(encode((welcome, client_key)))

    def map(self, call: Call, fold: Fold) -> Part:
        return fold.all(self._answer(at, call, fold) for at in torch.arange(len(call.ids)))

    def _answer(self, at: Tensor, call: Call, fold: Fold) -> Part:
        i = int(call.ids[at])
        message = encode(
            (call.shared, call.own_rows(at), call.keys[at], call.client_keys[at]),
            path=call.path,
            name=call.name,
            static=call.static,
            version=call.version,
            accepted=self.accepted[i],
            exam=call.exam,
            keeps=call.keeps,
            enrolled=call.enrolled,
        )
        try:
            reply = self.tamper(i, self.sites[i].answer(message))
            up, _ = decode(reply, self.types, limit=nbytes(fold.like) + HEADER)
        except BadBytes as e:
            return fold.nothing([(int(at), f"its upload was not read: {e}")])
        leaves = tree_leaves(up)
        if not all(isinstance(v, Tensor) for v in leaves):
            return fold.nothing([(int(at), "its upload holds something else than tensors")])
        part = fold.digest(at[None], tree_map(lambda v: v[None], up))
        if call.keeps and len(part.accepted):
            self.accepted[i] = call.version
        return part

    def snapshot(self) -> Any:
        """All private states as one table per leaf; a simulation's own checkpoint, nothing a network has."""
        rows = [s.versions[v] for s, v in zip(self.sites, self.accepted) if s.versions]
        return tree_map(lambda *v: torch.stack(v), *rows) if rows and tree_leaves(rows[0]) else ()

    def restore(self, private: Any) -> None:
        for i, site in enumerate(self.sites):
            site.versions = {(0, 0): tree_map(lambda v, i=i: v[i].clone(), private)}
        self.accepted = [(0, 0)] * len(self.sites)
