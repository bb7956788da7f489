"""Every exchange crosses bytes to a site that owns its data and private state.

What a network carries: the server's half. A site's half is site.py, and message.py what is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coterie.contract import Algorithm
from coterie.data.federation import Federation
from coterie.engine.call import START, Call, Phase, Version
from coterie.engine.codec import BadBytes, decode, encode, types_of
from coterie.engine.evaluate import Evaluation
from coterie.engine.fold import Fold, Part
from coterie.engine.loop import as_one_row
from coterie.engine.message import Limits, Message
from coterie.engine.simulated import SimulatedClients
from coterie.engine.site import Agreement, Site
from coterie.task import Task

HEADER = 64 * 1024  # bytes for names, shapes and plain values
# What a report asks the clients of a simulation, whose owner is the one who reads it.
QUESTIONS = frozenset(name for name, fn in vars(Evaluation).items() if hasattr(fn, "declaration"))
PHASES: tuple[Phase, ...] = ("start", "train", "evaluate")


class Wire:
    """The engine whose clients are sites behind bytes."""

    def __init__(
        self, task: Task, fed: Federation, root: Evaluation, minimum_rows: int = 1
    ) -> None:
        self.task = task
        self.fed = fed
        self.types = types_of(root.method)
        clients = SimulatedClients(task, fed)
        agreement = Agreement(
            root=root,
            task=task,
            types=self.types,
            clients=len(fed),
            limits=simulation_limits(fed.total),
            minimum_rows=minimum_rows,
            allowed=QUESTIONS,
        )
        self.sites = []
        for i in range(fed.total):
            parts = {name: clients.rows(name, i) for name in clients.parts}
            self.sites.append(Site(agreement, parts))
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
        if isinstance(reply, bytes) and call.enrolled:  # else the welcome may not have been taken
            self.contacted[i] = True
        if isinstance(reply, BadBytes | PermissionError):
            part = fold.refuse([(int(at), f"it refused its message: {reply}")])
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

    def _reply(self, i: int, message: Message) -> bytes | BadBytes | PermissionError | None:
        """The site's reply; None if none came."""
        try:
            return self.tamper(i, self.sites[i].answer(message))
        except (BadBytes, PermissionError) as e:
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
        for site in self.sites:
            site.forget()
        for i, state in zip(snapshot["contacted"].tolist(), snapshot["states"], strict=True):
            self.contacted[i] = True
            state = tree_map(lambda v: v.clone(), state)
            self.sites[i].versions = {self.accepted[i]: state}


def simulation_limits(clients: int) -> Limits:
    """Sites that share a process with their server need no limits on bytes, time and budget."""
    return Limits(
        centres=max(Limits().centres, clients),
        message_bytes=2**40,
        repeats=2**40,
        seconds=None,
    )


def _versions_as_tensor(versions: Iterable[Version]) -> Tensor:
    rows = [(v.round, PHASES.index(v.phase), v.exchange) for v in versions]
    return torch.tensor(rows, dtype=torch.long)
