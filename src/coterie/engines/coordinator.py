"""The server side of the site protocol, independent of the transport.

`Wire` calls its sites in this process; `coterie.network` reaches them over a network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import START, Call, Phase, Version
from coterie.core.contract import Algorithm
from coterie.core.errors import SiteRefusal
from coterie.core.trees import tree_leaves
from coterie.engines.codec import BadBytes, Types, decode, encode
from coterie.engines.loop import add_axis
from coterie.engines.message import Message

HEADER = 64 * 1024  # bytes for names, shapes and plain values of an upload
PHASES: tuple[Phase, ...] = ("start", "train", "evaluate")
UploadOrRefusal = bytes | BadBytes | SiteRefusal | None  # an upload, a site's refusal, or no answer


class SiteCoordinator:
    """Makes messages for sites, aggregates their replies, and tracks their state versions.

    A site's private state is identified by the version of the last accepted call. Sites also keep
    the versions of the last two checkpoints, so that the server can restart from either.
    """

    def __init__(self, sites: int, types: Types) -> None:
        self.types = types
        self.initial_payload = b""
        self.contacted = [False] * sites  # whether a site has the initial payload
        self.accepted: list[Version] = [START] * sites
        self.saved: deque[list[Version]] = deque(maxlen=2)  # `accepted` in the last two snapshots

    def enroll(self, method: Algorithm, initial_payload: Any) -> None:
        """Store the initial payload, which is part of each site's first message."""
        self.initial_payload = encode(initial_payload, self.types)

    # -- messages
    def messages(self, call: Call) -> list[Message]:
        """Return the messages to all clients of a call, which share the encoded payload."""
        shared = encode(call.shared, self.types)
        return [self.message(at, call, shared) for at in torch.arange(len(call.ids))]

    def message(self, at: Tensor, call: Call, shared: bytes) -> Message:
        """Return the message to one client.

        Args:
            at: Position of the client in the call.
            call: The call.
            shared: The encoded shared payload, the same for all clients.
        """
        i = int(call.ids[at])
        own = encode(
            (call.per_client_rows(at), call.keys[at], call.client_keys[at]),
            self.types,
            path=call.path,
            name=call.name,
            static=call.static,
            version=call.version,
            accepted=self.accepted[i],
            keep=self._kept_versions(i),
            split=call.split,
            keeps_private=call.keeps_private,
            enrolled=call.enrolled,
        )
        first = call.enrolled and not self.contacted[i]
        return Message(shared, own, self.initial_payload if first else None)

    def _kept_versions(self, i: int) -> list[Version]:
        """Return the versions that a site must keep: the accepted and both checkpointed ones."""
        versions = [self.accepted[i], *(saved[i] for saved in self.saved)]
        return list(dict.fromkeys(versions))

    # -- replies
    def add_reply(
        self,
        at: Tensor,
        call: Call,
        aggregator: Aggregator,
        message: Message,
        reply: UploadOrRefusal,
    ) -> PartialAggregate:
        """Aggregate the reply of one site; if it is accepted, record the site's new version."""
        i = int(call.ids[at])
        first_contacts = int(message.initial_payload is not None)
        if isinstance(reply, bytes) and call.enrolled:  # the site has the initial payload
            self.contacted[i] = True
        if isinstance(reply, BadBytes | SiteRefusal):
            part = aggregator.reject([(int(at), f"it refused the message: {reply}")])
        elif reply is None:
            part = aggregator.record_absent([int(at)])
        else:
            part = self._add_upload(at, reply, aggregator)
        if call.keeps_private and len(part.accepted):
            self.accepted[i] = call.version
        return part._replace(first_contacts=first_contacts)

    def _add_upload(self, at: Tensor, reply: bytes, aggregator: Aggregator) -> PartialAggregate:
        try:
            up, _ = decode(reply, self.types, limit=self.max_reply_bytes(aggregator))
        except BadBytes as e:
            return aggregator.reject([(int(at), f"its upload cannot be read: {e}")], len(reply))
        if not all(isinstance(v, Tensor) for v in tree_leaves(up)):
            reason = "its upload contains something other than tensors"
            return aggregator.reject([(int(at), reason)], len(reply))
        return aggregator.add(at[None], add_axis(up))

    def max_reply_bytes(self, aggregator: Aggregator) -> int:
        """Return the size limit of a reply: the expected upload, plus space for its header."""
        return len(encode(aggregator.template, self.types)) + HEADER

    # -- checkpoints
    def snapshot_versions(self) -> dict[str, Tensor]:
        """Return the contacted sites and the accepted versions of all."""
        self.saved.append(list(self.accepted))
        contacted = [i for i, known in enumerate(self.contacted) if known]
        return {
            "contacted": torch.tensor(contacted, dtype=torch.long),
            "accepted": _versions_as_tensor(self.accepted),
        }

    def restore_versions(self, snapshot: dict[str, Tensor]) -> None:
        """Restore the versions from a snapshot."""
        versions = snapshot["accepted"].tolist()
        self.accepted = [Version(r, PHASES[phase], exchange) for r, phase, exchange in versions]
        self.saved.append(list(self.accepted))
        self.contacted = [False] * len(self.accepted)
        for i in snapshot["contacted"].tolist():
            self.contacted[i] = True


def _versions_as_tensor(versions: Iterable[Version]) -> Tensor:
    rows = [(v.round, PHASES.index(v.phase), v.exchange) for v in versions]
    return torch.tensor(rows, dtype=torch.long)
