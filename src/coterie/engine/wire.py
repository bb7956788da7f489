"""Every exchange crosses bytes to a site that owns its data and private state.

What a network carries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coterie.contract import Algorithm, Data, at_round
from coterie.data.federation import Federation
from coterie.engine.call import START, Call, Exam, Phase, Version, follow
from coterie.engine.codec import BadBytes, Types, decode, encode, types_of
from coterie.engine.evaluate import Evaluation
from coterie.engine.fold import Fold, Part
from coterie.engine.loop import as_one_row
from coterie.engine.simulated import SimulatedClients
from coterie.task import Batch, Task

HEADER = 64 * 1024  # bytes for names, shapes and plain values
PHASES: tuple[Phase, ...] = ("start", "train", "evaluate")


class Message(NamedTuple):
    """What one site is sent; `shared` is encoded once for all sites."""

    shared: bytes
    own: bytes  # the site's row of per_client, its keys, and the head
    welcome: bytes | None  # on a site's first message


class Site:
    """One client on its own machine.

    It runs only functions marked @client, on data that never leave it.
    """

    def __init__(self, root: Evaluation, task: Task, parts: dict[str, Batch], types: Types) -> None:
        self.root, self.task, self.parts, self.types = root, task, parts, types
        self.versions: dict[Version, Any] = {}  # the private states that the server may still name

    def answer(self, message: Message) -> bytes:
        """Run the function that the message names; its upload as bytes."""
        shared, _ = decode(message.shared, self.types)
        (per_client, key, client_key), head = decode(message.own, self.types)
        train = Data(self.parts["train"], key, client_key)
        if message.welcome is not None:
            self._enroll(message.welcome, train)
        version, accepted = Version(*head["version"]), Version(*head["accepted"])
        private: Any = ()
        if head["enrolled"]:
            if accepted not in self.versions:
                raise BadBytes(f"no private state of {tuple(accepted)} is kept here")
            private = self.versions[accepted]
        data: Any = train
        if head["exam"] is not None:
            data = Exam(train, self.parts[head["exam"]])
        fn = self._function(head["path"], head["name"], version.round)
        up, after = fn(self.task, shared, per_client, private, data, **head["static"])
        if head["keeps_private"]:
            keep = {Version(*v) for v in head["keep"]}
            self.versions = {v: state for v, state in self.versions.items() if v in keep}
            self.versions[version] = after
        return encode(up, self.types)

    def _enroll(self, welcome: bytes, data: Data) -> None:
        content, _ = decode(welcome, self.types)
        data = data._replace(key=data.client_key)
        self.versions = {START: self.root.method.enroll(self.task, content, data)}

    def _function(self, path: str, name: str, round: int) -> Any:
        fn = getattr(follow(at_round(self.root, round), path), name, None)
        if not hasattr(fn, "declaration"):
            raise PermissionError(f"{name} is not a client function")
        return fn


class Wire:
    """The engine whose clients are sites behind bytes."""

    def __init__(self, task: Task, fed: Federation, root: Evaluation) -> None:
        self.task = task
        self.fed = fed
        self.types = types_of(root.method)
        clients = SimulatedClients(task, fed)
        self.sites = []
        for i in range(fed.total):
            parts = {name: clients.rows(name, i) for name in clients.parts}
            self.sites.append(Site(root, task, parts, self.types))
        self.welcome = b""
        self.contacted = [False] * len(self.sites)
        self.accepted: list[Version] = [START] * len(self.sites)
        self.saved: deque[list[Version]] = deque(maxlen=2)  # `accepted` in the last two snapshots
        # a test's way to change or withhold (None) an answer
        self.tamper: Callable[[int, bytes], bytes | None] = lambda i, reply: reply

    def enroll(self, method: Algorithm, welcome: Any) -> None:
        """Remember the welcome, which rides on each site's first message."""
        self.welcome = encode(welcome, self.types)

    def map(self, call: Call, fold: Fold) -> Part:
        """Send every client of the call its message, and fold the replies."""
        shared = encode(call.shared, self.types)
        positions = torch.arange(len(call.ids))
        part = fold.merge(self._exchange(at, call, fold, shared) for at in positions)
        return fold.complete(part)

    def _exchange(self, at: Tensor, call: Call, fold: Fold, shared: bytes) -> Part:
        i = int(call.ids[at])
        message = self._message(at, call, shared)
        welcomed = int(message.welcome is not None)
        reply = self._reply(i, message)
        if reply is not None and call.enrolled:  # else the welcome may not have come through
            self.contacted[i] = True
        if isinstance(reply, BadBytes):
            part = fold.refuse([(int(at), f"its upload was not read: {reply}")])
        elif reply is None:
            part = fold.missing([int(at)])
        else:
            part = self._digest(at, reply, fold)
        if call.keeps_private and len(part.accepted):
            self.accepted[i] = call.version
        return part._replace(welcomed=welcomed)

    def _message(self, at: Tensor, call: Call, shared: bytes) -> Message:
        i = int(call.ids[at])
        own = encode(
            (call.per_client_rows(at), call.keys[at], call.client_keys[at]),
            self.types,
            path=call.path,
            name=call.name,
            static=call.static,
            version=call.version,
            accepted=self.accepted[i],
            keep=self._keep(i),
            exam=call.exam,
            keeps_private=call.keeps_private,
            enrolled=call.enrolled,
        )
        first = call.enrolled and not self.contacted[i]
        return Message(shared, own, self.welcome if first else None)

    def _keep(self, i: int) -> list[Version]:
        """The versions that a site must keep: the accepted one, and those of both checkpoints."""
        versions = [self.accepted[i], *(saved[i] for saved in self.saved)]
        return list(dict.fromkeys(versions))

    def _reply(self, i: int, message: Message) -> bytes | BadBytes | None:
        """The site's reply; None if none came."""
        try:
            return self.tamper(i, self.sites[i].answer(message))
        except BadBytes as e:
            return e

    def _digest(self, at: Tensor, reply: bytes, fold: Fold) -> Part:
        try:
            up, _ = decode(reply, self.types, limit=self._most_bytes(fold))
        except BadBytes as e:
            return fold.refuse([(int(at), f"its upload was not read: {e}")], len(reply))
        if not all(isinstance(v, Tensor) for v in tree_leaves(up)):
            reason = "its upload holds something else than tensors"
            return fold.refuse([(int(at), reason)], len(reply))
        return fold.digest(at[None], as_one_row(up))

    def _most_bytes(self, fold: Fold) -> int:
        """The longest reply that is read: what is expected, and some room for its head."""
        return len(encode(fold.like, self.types)) + HEADER

    # -- checkpoints
    def snapshot(self) -> Any:
        """The accepted versions, and the sites' states.

        A real network's sites keep these themselves.
        """
        self.saved.append(list(self.accepted))
        contacted = [i for i, known in enumerate(self.contacted) if known]
        states = tuple(self.sites[i].versions[self.accepted[i]] for i in contacted)
        return {
            "contacted": torch.tensor(contacted, dtype=torch.long),
            "accepted": _versions_as_tensor(self.accepted),
            "states": states,
        }

    def restore(self, snapshot: Any) -> None:
        """Be where `snapshot` was taken."""
        versions = snapshot["accepted"].tolist()
        self.accepted = [Version(r, PHASES[phase], exchange) for r, phase, exchange in versions]
        self.saved.append(list(self.accepted))
        self.contacted = [False] * len(self.sites)
        for i, state in zip(snapshot["contacted"].tolist(), snapshot["states"], strict=True):
            self.contacted[i] = True
            state = tree_map(lambda v: v.clone(), state)
            self.sites[i].versions = {self.accepted[i]: state}


def _versions_as_tensor(versions: Iterable[Version]) -> Tensor:
    rows = [(v.round, PHASES.index(v.phase), v.exchange) for v in versions]
    return torch.tensor(rows, dtype=torch.long)
