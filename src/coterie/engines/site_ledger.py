"""What a server knows of its sites, and the messages that follow from it.

The half of a server that does not depend on how bytes travel: `Wire` calls its sites in this
process, `coterie.network` reaches them by a transport.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import START, Call, Phase, Version
from coterie.core.contract import Algorithm
from coterie.engines.codec import BadBytes, Types, decode, encode
from coterie.engines.loop import as_one_row
from coterie.engines.message import Message

HEADER = 64 * 1024  # bytes for names, shapes and plain values
PHASES: tuple[Phase, ...] = ("start", "train", "evaluate")
Reply = bytes | BadBytes | PermissionError | None  # an upload; why a site refused; none came


class SiteLedger:
    """Which private state of each site counts, and which ones a restart may come back to."""

    def __init__(self, sites: int, types: Types) -> None:
        self.types = types
        self.initial_payload = b""
        self.contacted = [False] * sites
        self.accepted: list[Version] = [START] * sites
        self.saved: deque[list[Version]] = deque(maxlen=2)  # `accepted` in the last two snapshots

    def enroll(self, method: Algorithm, initial_payload: Any) -> None:
        """Remember the initial payload, which rides on each site's first message."""
        self.initial_payload = encode(initial_payload, self.types)

    # -- messages
    def message(self, at: Tensor, call: Call, shared: bytes) -> Message:
        """What the client at a position of the call is sent; shared: encoded once for all."""
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
            split=call.split,
            keeps_private=call.keeps_private,
            enrolled=call.enrolled,
        )
        first = call.enrolled and not self.contacted[i]
        return Message(shared, own, self.initial_payload if first else None)

    def _keep(self, i: int) -> list[Version]:
        """The versions that a site must keep: the accepted one, and those of both checkpoints."""
        versions = [self.accepted[i], *(saved[i] for saved in self.saved)]
        return list(dict.fromkeys(versions))

    # -- replies
    def judge(
        self, at: Tensor, call: Call, aggregator: Aggregator, message: Message, reply: Reply
    ) -> PartialAggregate:
        """Aggregate the reply of one site and record its new version."""
        i = int(call.ids[at])
        first_contacts = int(message.initial_payload is not None)
        if (
            isinstance(reply, bytes) and call.enrolled
        ):  # else the initial payload may not have been taken
            self.contacted[i] = True
        if isinstance(reply, BadBytes | PermissionError):
            part = aggregator.reject([(int(at), f"it refused its message: {reply}")])
        elif reply is None:
            part = aggregator.record_absent([int(at)])
        else:
            part = self._digest(at, reply, aggregator)
        if call.keeps_private and len(part.accepted):
            self.accepted[i] = call.version
        return part._replace(first_contacts=first_contacts)

    def _digest(self, at: Tensor, reply: bytes, aggregator: Aggregator) -> PartialAggregate:
        try:
            up, _ = decode(reply, self.types, limit=self.most_bytes(aggregator))
        except BadBytes as e:
            return aggregator.reject([(int(at), f"its upload was not read: {e}")], len(reply))
        if not all(isinstance(v, Tensor) for v in tree_leaves(up)):
            reason = "its upload holds something else than tensors"
            return aggregator.reject([(int(at), reason)], len(reply))
        return aggregator.add(at[None], as_one_row(up))

    def most_bytes(self, aggregator: Aggregator) -> int:
        """The longest reply that is read: what is expected, and some room for its head."""
        return len(encode(aggregator.template, self.types)) + HEADER

    # -- checkpoints
    def snapshot_versions(self) -> dict[str, Tensor]:
        """Which sites were contacted, and which of their versions count."""
        self.saved.append(list(self.accepted))
        contacted = [i for i, known in enumerate(self.contacted) if known]
        return {
            "contacted": torch.tensor(contacted, dtype=torch.long),
            "accepted": _versions_as_tensor(self.accepted),
        }

    def restore_versions(self, snapshot: dict[str, Tensor]) -> None:
        """Be where `snapshot_versions` was."""
        versions = snapshot["accepted"].tolist()
        self.accepted = [Version(r, PHASES[phase], exchange) for r, phase, exchange in versions]
        self.saved.append(list(self.accepted))
        self.contacted = [False] * len(self.accepted)
        for i in snapshot["contacted"].tolist():
            self.contacted[i] = True


def _versions_as_tensor(versions: Iterable[Version]) -> Tensor:
    rows = [(v.round, PHASES.index(v.phase), v.exchange) for v in versions]
    return torch.tensor(rows, dtype=torch.long)
