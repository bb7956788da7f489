"""One exchange under secure sums, between a server and sites.

1. The server sends the call. A site runs the client function, keeps the upload as integers
   (`aggregation/fixed_point.py`) and replies with its keys for a secure sum.
2. If clients choose clusters: a secure sum of the members of each cluster. The server publishes
   these numbers, and a site whose cluster has too few members sends zeros for it.
3. A secure sum of the integers (`privacy/secure_sum.py`).

`SecureSite` is the site's half and `collect_secure` the server's, independent of the transport.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.aggregation.fixed_point import TOO_LARGE, FixedPoint, Integers
from coterie.aggregation.steps import UpdateChunk
from coterie.core.call import Call
from coterie.core.contract import Upload
from coterie.core.errors import SiteRefusal
from coterie.engines.codec import BadBytes, encode
from coterie.engines.coordinator import SiteCoordinator, UploadOrRefusal
from coterie.engines.loop import add_axis
from coterie.engines.message import Head, Message
from coterie.engines.site import Site
from coterie.privacy.secure_sum import Identity, SecureSum, SumClient, SumFailed, run_secure_sum

log = logging.getLogger("coterie")
MEMBERS, SUMS = b"members", b"sums"
# stage, what each site is sent → replies; a missing one is None. The stage "call" sends messages.
SendStage = Callable[[str, dict[str, Message] | dict[str, bytes]], dict[str, UploadOrRefusal]]


# ------------------------------------------------------------------------------ the site
class SecureSite:
    """Lets the uploads of a site leave it only in secure sums.

    The updates of one round can be summed again, if the server lost the sum, but only over the same
    sites: the difference of two sums would be the update of a site.

    Args:
        site: Runs client functions.
        identity: The site's registered key.
        run: Identifies the run.
        clients: The number of clients of the run.
        min_clients: The fewest clients in a sum.
    """

    def __init__(
        self, site: Site, identity: Identity, run: bytes, *, clients: int, min_clients: int
    ) -> None:
        self.site = site
        self.identity = identity
        self.run = run
        self.clients = clients
        self.min_clients = min_clients
        self.exchange = b""
        self.fixed_point: FixedPoint | None = None
        self.integers: Integers | None = None  # the upload, until its sum is revealed
        self.purpose = SUMS
        self.sum: SumClient | None = None
        # whose vectors were in the sums of training, by round and function
        self.summed: dict[bytes, frozenset[str]] = {}
        self.training = b""  # the round and function of the present sum, if it is one of training

    def begin(self, message: Message) -> bytes:
        """Run the call, keep its upload, and return the keys for the first sum."""
        self.sum = self.integers = None
        return self.site.run(message, self._keep)

    def answer(self, stage: str, payload: bytes) -> bytes:
        """Answer a later stage.

        Raises:
            SiteRefusal: If it would reveal more than a sum.
        """
        if stage == "keys":
            return self._second_sum(payload)
        if self.sum is None or self.integers is None or self.fixed_point is None:
            raise SiteRefusal("this site takes part in no secure sum now")
        if stage == "shares":
            return self.sum.share(payload)
        if stage == "masked":
            content = self.integers.members if self.purpose == MEMBERS else self.integers
            vector = self.fixed_point.flatten(content).cpu().numpy().view(np.uint64)
            return self.sum.mask(payload, vector)
        if stage != "reveal":
            raise SiteRefusal("there is no such stage of a secure sum")
        reply = self.sum.reveal(payload)
        survived, self.sum = self.sum.survived, None
        if self.training and self.summed.setdefault(self.training, survived) != survived:
            raise SiteRefusal("the updates of this round were summed before, over other sites")
        if self.purpose == SUMS:
            self.integers = None
        return reply

    def _keep(self, upload: Upload, fn: Any, head: Head) -> bytes:
        updates = add_axis(upload)
        fixed_point = FixedPoint(upload, fn.declaration, self.clients, self.min_clients)
        chunk = fixed_point.client(UpdateChunk(torch.zeros(1, dtype=torch.long), updates, {}))
        if chunk.rejected:
            raise SiteRefusal(TOO_LARGE)
        self.fixed_point = fixed_point
        self.integers = fixed_point.encode(updates)
        self.exchange = msgspec.msgpack.encode([self.run, head.version, head.path, head.name])
        self.training = b""
        if head.keeps_private and fn.declaration.max_calls(fn.__self__) == 1:
            called = [head.call_version.round, head.path, head.name]
            self.training = msgspec.msgpack.encode(called)
        return self._open(MEMBERS if counts_members(self.integers) else SUMS)

    def _second_sum(self, payload: bytes) -> bytes:
        """Hide the upload for clusters with too few members, and return keys for its sum."""
        if self.integers is None or self.fixed_point is None or self.sum is not None:
            raise SiteRefusal("this site takes part in no secure sum now")
        if self.purpose != MEMBERS:
            raise SiteRefusal("the members of the clusters were counted already")
        try:
            counts = msgspec.msgpack.decode(payload, type=dict[str, list[int]])
        except (msgspec.DecodeError, UnicodeError) as e:
            raise SiteRefusal("the members of the clusters are malformed") from e
        own = self.integers.members
        sizes = {name: len(of_clusters) for name, of_clusters in counts.items()}
        if sizes != {name: len(v) for name, v in own.items()}:
            raise SiteRefusal("the members of the clusters are malformed")
        members = {name: torch.tensor(counts[name]) for name in own}
        hidden = self.fixed_point.hidden(members)
        self.integers = self.fixed_point.hide(self.integers, hidden)
        return self._open(SUMS)

    def _open(self, purpose: bytes) -> bytes:
        self.purpose = purpose
        self.sum = SumClient(self.identity, self.exchange + purpose, self.min_clients)
        return self.sum.publish()


def counts_members(integers: Integers) -> bool:
    """Whether clients choose among clusters, so that some may have few members."""
    return any(len(v) > 1 for v in integers.members.values())


# ------------------------------------------------------------------------------ the server
def collect_secure(
    coordinator: SiteCoordinator,
    call: Call,
    aggregator: Aggregator,
    names: list[str] | tuple[str, ...],
    send: SendStage,
    run: bytes = b"wire",
) -> PartialAggregate:
    """Run a call on its clients and return the aggregate of their sum.

    Args:
        coordinator: Makes the messages, and tracks the sites' versions.
        call: The exchange.
        aggregator: Under secure sums, with a `fixed_point`.
        names: The name of each client, by id.
        send: Reaches the sites.
        run: As in `SecureSite`.
    """
    fixed_point = aggregator.fixed_point
    assert fixed_point is not None
    position = {names[i]: at for at, i in enumerate(call.ids.tolist())}
    shared = encode(call.shared, coordinator.types)
    messages = {
        name: coordinator.message(torch.tensor(at), call, shared) for name, at in position.items()
    }
    replies = send("call", messages)
    keys = {name: reply for name, reply in replies.items() if isinstance(reply, bytes)}
    if call.enrolled:
        for name in keys:  # the site has the initial payload
            coordinator.contacted[int(call.ids[position[name]])] = True
    rejected = [
        (position[name], f"it refused the message: {reply}")
        for name, reply in replies.items()
        if isinstance(reply, BadBytes | SiteRefusal)
    ]

    def send_stage(stage: str, payloads: dict[str, bytes]) -> dict[str, bytes]:
        answers = send(stage, payloads)
        for name, answer in answers.items():
            if isinstance(answer, BadBytes | SiteRefusal):
                log.warning("%s refused a stage of a secure sum: %s.", name, answer)
        return {name: answer for name, answer in answers.items() if isinstance(answer, bytes)}

    exchange = msgspec.msgpack.encode([run, call.version, call.path, call.name])
    zeros = fixed_point.zeros()

    def secure_sum(published: dict[str, bytes], purpose: bytes, like: Any) -> SecureSum:
        return run_secure_sum(
            published,
            send_stage,
            context=exchange + purpose,
            size=len(fixed_point.flatten(like)),
            min_clients=fixed_point.min_clients,
        )

    try:
        received = 0
        if counts_members(zeros):
            counted = secure_sum(keys, MEMBERS, zeros.members)
            members = fixed_point.unflatten(as_tensor(counted.total), zeros.members)
            received = counted.bytes_up
            counts = msgspec.msgpack.encode({name: v.tolist() for name, v in members.items()})
            keys = send_stage("keys", dict.fromkeys(counted.clients, counts))
        result = secure_sum(keys, SUMS, zeros)
    except SumFailed as e:
        log.warning("the secure sum of %s() failed: %s.", call.name, e)
        result = SecureSum(np.zeros(len(fixed_point.flatten(zeros)), dtype=np.uint64), [], 0)
    integers = fixed_point.unflatten(as_tensor(result.total), zeros)
    accepted = torch.tensor([position[name] for name in result.clients], dtype=torch.long)
    if call.keeps_private:
        for i in call.ids[accepted].tolist():
            coordinator.accepted[i] = call.version
    refused = {at for at, _ in rejected}
    absent = sorted(set(position.values()) - refused - set(accepted.tolist()))
    part = aggregator.add_integers(accepted, integers, received + result.bytes_up)
    first = sum(message.initial_payload is not None for message in messages.values())
    return aggregator.finish(
        part._replace(rejected=sorted(rejected), absent=absent, first_contacts=first)
    )


def as_tensor(total: np.ndarray) -> Tensor:
    """A sum modulo 2⁶⁴ as signed integers."""
    return torch.from_numpy(total.view(np.int64).copy())
