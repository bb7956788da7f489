"""Exchange logs of network runs, and their replay in one process.

The server appends a line of JSON per exchange to the run's `diary.jsonl`: who answered, and when. A
replay runs the loop engine and accepts exactly the same answers. A restarted server repeats some
exchanges; then the last line counts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import torch

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call, Phase, Version
from coterie.core.errors import CoterieError
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.engines.loop import Loop, run_one_by_one


class ExchangeRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exchange of a network run. It contains nothing of samples or models."""

    time: str  # start, by the server's clock
    epoch: int
    sequence: int
    version: tuple[int, Phase, int]
    function: str
    seconds: float
    bytes_down: int
    bytes_up: int
    answered: dict[str, float]  # by client: seconds until the accepted update arrived
    refused: dict[str, str]  # by client: why its update, or the message to it, was rejected
    absent: dict[str, str]  # by client: why it did not answer


def append_record(file: Path, record: ExchangeRecord) -> None:
    """Append a record and sync it to disk."""
    append_lines(file, msgspec.json.encode(record) + b"\n")


def append_lines(file: Path, lines: bytes) -> None:
    """Append whole lines to a file and sync it to disk."""
    with open(file, "a+b") as f:
        if f.tell():
            f.seek(-1, os.SEEK_END)
            if f.read(1) != b"\n":  # a killed process left half a line
                f.write(b"\n")
        f.write(lines)
        f.flush()
        os.fsync(f.fileno())


def read_log(file: str | Path) -> list[ExchangeRecord]:
    """Read an exchange log, skipping lines that a killed server left incomplete.

    Raises:
        CoterieError: If the file cannot be read or a line is damaged.
    """
    try:
        lines = Path(file).read_bytes().splitlines()
    except OSError as e:
        raise CoterieError(
            f"the exchange log {file} cannot be read ({e.strerror})",
            "give the diary.jsonl of a run",
        ) from e
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(msgspec.json.decode(line, type=ExchangeRecord))
        except (msgspec.DecodeError, UnicodeError) as e:
            if not is_incomplete(line):
                raise CoterieError(
                    f"line {number} of the exchange log {file} is damaged ({e})",
                    "restore the file from a backup",
                ) from e
    return records


def is_incomplete(line: bytes) -> bool:
    """Whether the server was killed while it wrote this line."""
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


class ExchangeOutcomes:
    """The outcome of each client's answer, by version and function. A later record wins."""

    def __init__(self, records: list[ExchangeRecord]) -> None:
        self.outcomes: dict[tuple[Version, str, str], bool | str | None] = {}
        for record in records:
            asked = Version(*record.version), record.function
            for name in record.answered:
                self.outcomes[*asked, name] = True
            for name, reason in record.refused.items():
                self.outcomes[*asked, name] = reason
            for name in record.absent:
                self.outcomes[*asked, name] = None

    def find(self, call: Call, client: str) -> bool | str | None:
        """True if it was accepted, a reason if it was rejected, None without an answer."""
        return self.outcomes.get((call.version, call.name, client))


class Replay(Loop):
    """The loop engine with the outcomes of an exchange log."""

    def __init__(self, task: Task, fed: Federation, outcomes: ExchangeOutcomes) -> None:
        super().__init__(task, fed)
        self.outcomes = outcomes

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run the call on the clients whose answers were accepted, in order."""
        new = self.begin_call(call)
        partials = []
        for position in range(len(call.ids)):
            name = self.roster.names[int(call.ids[position])]
            outcome = self.outcomes.find(call, name)
            if outcome is True:
                alone = torch.tensor([position])
                partials.append(run_one_by_one(self, self.task, call, aggregator, alone))
            elif outcome is None:
                partials.append(aggregator.record_absent([position]))
            else:
                partials.append(aggregator.reject([(position, str(outcome))]))
        return aggregator.finish(aggregator.merge(partials))._replace(first_contacts=new)
