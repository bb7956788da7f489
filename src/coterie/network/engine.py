"""The engine whose clients are sites on other machines."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import torch

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call, Version, pick_clients
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.data.roster import Roster
from coterie.engines.codec import BadBytes, Types, encode
from coterie.engines.coordinator import Reply, SiteCoordinator
from coterie.engines.message import Message
from coterie.engines.replay import ExchangeRecord, append_record
from coterie.network.audit import AuditRecord, AuditResult
from coterie.network.packets import CallClient, Done, Refused, WriteModel
from coterie.network.transport import Messenger
from coterie.network.waiting import Arrival, ExchangeResult, reason_of
from coterie.runs.files import write_error
from coterie.runs.run import Run

LAST = 1_000_000  # the exchange in which models are written: after all others of its round


class NetworkEngine(SiteCoordinator):
    """Sends every client its message, and folds the replies that come in time."""

    def __init__(
        self, roster: Roster, types: Types, messenger: Messenger, folder: Path | None = None
    ) -> None:
        super().__init__(roster.total, types)
        # a server that dies before its first checkpoint begins anew
        self.saved.append(list(self.accepted))
        self.roster = roster
        self.federation = None  # the sites have the data
        self.messenger = messenger
        self.folder = folder  # of the run, where the diary is kept
        self.entries: list[ExchangeRecord] = []  # of this process

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Send every client of the call its message, and fold the replies.

        They are folded in the order of the call, whoever was first, so that sums do not depend on
        the network.
        """
        began = datetime.datetime.now(datetime.UTC)
        shared = encode(call.shared, self.types)
        positions = torch.arange(len(call.ids))
        messages = [self.message(at, call, shared) for at in positions]
        names = [self.roster.names[i] for i in call.ids.tolist()]
        pieces = dict(zip(names, map(as_pieces, messages)))
        outcome = self.exchange(call, pieces)
        parts = []
        for at, name, message in zip(positions, names, messages):
            reply = self._reply(name, outcome)
            parts.append(self.add_reply(at, call, aggregator, message, reply))
        part = aggregator.finish(aggregator.merge(parts))
        self._write_diary(began, call, names, pieces, outcome, part)
        return part

    def exchange(self, call: Call, pieces: dict[str, dict[str, bytes]]) -> ExchangeResult:
        """Send the messages of a call, and wait for the replies."""
        outcome = self.messenger.exchange(CallClient(), pieces)
        self.messenger.log_absent(outcome)
        return outcome

    def _reply(self, name: str, outcome: ExchangeResult) -> Reply:
        """What a site sent, as the ledger takes it."""
        arrival = outcome.arrived.get(name)
        if arrival is None:
            return None
        if isinstance(arrival.reply.answer, Refused):
            return BadBytes(reason_of(arrival.reply))
        if reason_of(arrival.reply) is not None:
            return None
        if not isinstance(arrival.reply.answer, Done) or arrival.pieces.keys() != {"upload"}:
            return b""  # which is no upload, and is refused as such
        return arrival.pieces["upload"]

    # -- the diary
    def _write_diary(
        self,
        began: datetime.datetime,
        call: Call,
        names: list[str],
        pieces: dict[str, dict[str, bytes]],
        outcome: ExchangeResult,
        part: PartialAggregate,
    ) -> None:
        refused = {names[at]: reason for at, reason in part.rejected}
        absent = {names[at]: why_absent(outcome, names[at]) for at in part.absent}
        arrived = outcome.arrived
        entry = ExchangeRecord(
            time=began.isoformat(timespec="milliseconds"),
            epoch=outcome.number.epoch,
            sequence=outcome.number.sequence,
            version=call.version,
            function=call.name,
            seconds=round(outcome.seconds, 3),
            bytes_down=sum(len(raw) for of_site in pieces.values() for raw in of_site.values()),
            bytes_up=sum(arrival.bytes for arrival in arrived.values()),
            answered={
                names[at]: round(arrived[names[at]].seconds, 3) for at in part.accepted.tolist()
            },
            refused=refused,
            absent=absent,
        )
        self.entries.append(entry)
        self.messenger.audit.record([audit_line(name, entry, outcome) for name in names])
        if self.folder is None:
            return
        file = self.folder / "diary.jsonl"
        try:
            append_record(file, entry)
        except OSError as e:
            raise write_error(e, file) from e

    # -- the end
    def finish(self, run: Run) -> dict[str, str]:
        """Let every site write its own model; by name, why one did not.

        Personal models exist at their sites alone.
        """
        ask = run.round_context(max(run.round, 0), "evaluate")
        method: Algorithm = ask.root.method
        if type(method).model is Algorithm.model:
            return dict.fromkeys(run.roster.names, "a client of this method has no single model")
        shared, per_client = method.use(run.state)
        ids = run.all_clients
        call = Call(
            fn=ask.root.personal_model,
            path="",
            ids=ids,
            shared=shared,
            per_client=pick_clients(per_client, ids),
            static={},
            keys=run.client_keys[ids],
            client_keys=run.client_keys[ids],
            version=Version(max(run.round, 0), "evaluate", LAST),
            keeps_private=False,
        )
        encoded = encode(shared, self.types)
        pieces = {
            run.roster.names[int(ids[at])]: as_pieces(self.message(at, call, encoded))
            for at in torch.arange(len(ids))
        }
        deadline = (
            self.messenger.waiting.deadline
        )  # also for those who are away: it is the last chance
        outcome = self.messenger.exchange(WriteModel(), pieces, grace=deadline)
        faults = {name: reason_of(arrival.reply) for name, arrival in outcome.arrived.items()}
        said = {name: reason for name, reason in faults.items() if reason is not None}
        return outcome.absent | said

    # -- checkpoints
    def snapshot(self) -> Any:
        """The accepted versions; the states themselves are at the sites."""
        return self.snapshot_versions()

    def restore(self, snapshot: Any) -> None:
        """Be where `snapshot` was taken."""
        if "states" in snapshot:
            raise CoterieError("this run was not one of a network", "resume it where it was run")
        self.restore_versions(snapshot)


def as_pieces(message: Message) -> dict[str, bytes]:
    """The pieces of a message by name, without those that are not there."""
    return {name: raw for name, raw in message._asdict().items() if raw is not None}


def audit_line(name: str, entry: ExchangeRecord, outcome: ExchangeResult) -> AuditRecord:
    """What the audit keeps of a question to one site."""
    arrival = outcome.arrived.get(name)
    result: AuditResult = "accepted"
    if name in entry.refused:
        result = "refused"
    if name in entry.absent:
        result = "absent"
    version = Version(*entry.version)
    return AuditRecord(
        time=entry.time,
        epoch=entry.epoch,
        sequence=entry.sequence,
        round=version.round,
        phase=version.phase,
        function=entry.function,
        site=name,
        bytes_out=outcome.bytes_out.get(name, 0),
        bytes_in=arrival.bytes if arrival else 0,
        seconds=round(arrival.seconds, 3) if arrival else None,
        result=result,
        reason=entry.refused.get(name) or entry.absent.get(name) or "",
    )


def why_absent(outcome: ExchangeResult, name: str) -> str:
    """Why there is no answer of a site."""
    arrival: Arrival | None = outcome.arrived.get(name)
    if arrival is None:
        return outcome.absent[name]
    return reason_of(arrival.reply) or "no answer"
