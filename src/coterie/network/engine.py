"""The network engine: its clients are sites on other machines.

A call becomes one message per site. The replies that arrive in time are aggregated; the log
`diary.jsonl` and the audit record what happened to each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call, Version, pick_clients
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.data.roster import Roster
from coterie.engines.codec import BadBytes, Types
from coterie.engines.coordinator import SiteCoordinator, UploadOrRefusal
from coterie.engines.message import Message
from coterie.engines.replay import ExchangeRecord, append_record
from coterie.network.audit import now_as_text
from coterie.network.packets import CallClient, Done, Refused, SecureStage, WriteModel
from coterie.network.transport import ExchangeResult, Messenger, failure_reason
from coterie.runs.files import create_file, write_error
from coterie.runs.run import Run

NO_SINGLE_MODEL = "a client of this method has no single model"
DROPPED_OUT = "it dropped out of the secure sum"
FINAL_EXCHANGE = 1_000_000  # exchange in which sites write models, after all others of a round


class NetworkEngine(SiteCoordinator):
    """Sends each client its message and aggregates the replies that arrive in time.

    Args:
        roster: Names of the sites.
        types: NamedTuple classes that messages may contain.
        messenger: Reaches the sites.
        folder: Folder of the run, for diary.jsonl; None: write none.
    """

    def __init__(
        self, roster: Roster, types: Types, messenger: Messenger, folder: Path | None = None
    ) -> None:
        super().__init__(roster.total, types)
        # sites keep their START state until there are two checkpoints: a server that is killed
        # before the first one starts again from the beginning
        self.saved.append(list(self.accepted))
        self.federation = None  # the sites have the data
        self.roster = roster
        self.messenger = messenger
        self.folder = folder

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Send a call to its clients and aggregate their replies.

        Replies are aggregated in the order of the call, not of their arrival, so that sums do not
        depend on the network.
        """
        if aggregator.fixed_point is not None:
            return self._map_secure(call, aggregator)
        started = now_as_text()
        messages = self.messages(call)
        names = [self.roster.names[i] for i in call.ids.tolist()]
        pieces = as_pieces(messages, names)
        result = self.exchange(call, pieces)
        parts = []
        for at, name, message in zip(torch.arange(len(names)), names, messages):
            reply = self._read_upload(name, result)
            parts.append(self.add_reply(at, call, aggregator, message, reply))
        part = aggregator.finish(aggregator.merge(parts))
        self._log(started, call, names, pieces, result, part)
        return part

    def _map_secure(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run a call whose uploads leave the sites only in a secure sum."""
        from coterie.engines.secure_exchange import collect_secure  # loads cryptography

        started, began = now_as_text(), self.messenger.clock()
        names = [self.roster.names[i] for i in call.ids.tolist()]
        first: list[tuple[dict[str, dict[str, bytes]], ExchangeResult]] = []

        def send(
            stage: str, messages: dict[str, Message] | dict[str, bytes]
        ) -> dict[str, UploadOrRefusal]:
            if stage == "call":
                calls = [message for message in messages.values() if isinstance(message, Message)]
                pieces = as_pieces(calls, list(messages))
                result = self.exchange(call, pieces)
                first.append((pieces, result))
            else:
                pieces = {
                    name: {"payload": payload}
                    for name, payload in messages.items()
                    if isinstance(payload, bytes)
                }
                result = self.messenger.exchange(SecureStage(stage), pieces)
            return {name: self._read_upload(name, result) for name in pieces}

        experiment = self.messenger.experiment.encode()
        part = collect_secure(self, call, aggregator, self.roster.names, send, run=experiment)
        pieces, result = first[0]
        seconds = self.messenger.clock() - began
        result = result._replace(seconds=seconds)  # of all stages
        self._log(started, call, names, pieces, result, part)
        return part

    def exchange(self, call: Call, pieces: dict[str, dict[str, bytes]]) -> ExchangeResult:
        """Send the messages of a call and wait for the replies.

        The call itself is for subclasses: `PeerNetwork` overrides this and needs it.
        """
        result = self.messenger.exchange(CallClient(), pieces)
        self.messenger.log_absent(result)
        return result

    def _read_upload(self, name: str, result: ExchangeResult) -> UploadOrRefusal:
        """Return a site's upload, its refusal as BadBytes, or None if it is absent or failed."""
        arrival = result.arrived.get(name)
        if arrival is None:
            return None
        if isinstance(arrival.reply.body, Refused):
            return BadBytes(failure_reason(arrival.reply))
        if failure_reason(arrival.reply) is not None:
            return None
        if not isinstance(arrival.reply.body, Done) or arrival.pieces.keys() != {"upload"}:
            return b""  # a reply without an upload: `add_reply` rejects it as unreadable
        return arrival.pieces["upload"]

    # -- logs
    def _log(
        self,
        started: str,
        call: Call,
        names: list[str],
        pieces: dict[str, dict[str, bytes]],
        result: ExchangeResult,
        part: PartialAggregate,
    ) -> None:
        """Append the exchange to diary.jsonl and to the audit."""
        failures = result.failures()
        # uploads that the server rejected, and messages that a site refused
        rejected = {names[at]: reason for at, reason in part.rejected}
        arrived = result.arrived
        entry = ExchangeRecord(
            time=started,
            epoch=result.number.epoch,
            sequence=result.number.sequence,
            version=call.version,
            function=call.name,
            seconds=round(result.seconds, 3),
            # pieces only, once per site; `bytes_out` of the audit counts heads and repeats, too
            bytes_down=sum(len(raw) for of_site in pieces.values() for raw in of_site.values()),
            bytes_up=sum(arrival.bytes for arrival in arrived.values()),
            answered={names[at]: arrived[names[at]].seconds for at in part.accepted.tolist()},
            refused=rejected,
            # with the sites that replied `Failed`
            absent={names[at]: failures.get(names[at], DROPPED_OUT) for at in part.absent},
        )
        self.messenger.audit.record(
            result.audit_records(
                entry.time, call.version.phase, call.name, call.version.round, rejected
            )
        )
        if self.folder is None:
            return
        file = self.folder / "diary.jsonl"
        try:
            create_file(file)
            append_record(file, entry)
        except OSError as e:
            raise write_error(e, file) from e

    def finish(self, run: Run) -> dict[str, str]:
        """Make every site write its own model, which exists only at the site.

        Returns:
            Site → why it did not write one.
        """
        evaluation = run.round_context(max(run.round, 0), "evaluate").root
        method: Algorithm = evaluation.method
        if type(method).model is Algorithm.model:
            return dict.fromkeys(run.roster.names, NO_SINGLE_MODEL)
        shared, per_client = method.use(run.state)
        ids = run.all_clients
        call = Call(
            fn=evaluation.personal_model,
            path="",
            ids=ids,
            shared=shared,
            per_client=pick_clients(per_client, ids),
            static={},
            keys=run.client_keys[ids],  # fixed: a repeated request writes the same model
            client_keys=run.client_keys[ids],
            version=Version(max(run.round, 0), "evaluate", FINAL_EXCHANGE),
            keeps_private=False,
        )
        names = [run.roster.names[i] for i in ids.tolist()]
        pieces = as_pieces(self.messages(call), names)
        grace = self.messenger.policy.deadline  # wait for disconnected sites, too: the last chance
        return self.messenger.exchange(WriteModel(), pieces, grace=grace).failures()

    # -- checkpoints
    def snapshot(self) -> Any:
        """Return the accepted versions; the private states are at the sites."""
        return self.snapshot_versions()

    def restore(self, snapshot: Any) -> None:
        """Restore the engine from a snapshot."""
        if "states" in snapshot:
            raise CoterieError("this run is not a network run", "use `coterie resume`")
        self.restore_versions(snapshot)


def as_pieces(messages: list[Message], names: list[str]) -> dict[str, dict[str, bytes]]:
    """Return the pieces of each site's message by name, without empty ones."""
    return {
        name: {piece: raw for piece, raw in message._asdict().items() if raw is not None}
        for name, message in zip(names, messages, strict=True)
    }
