"""Who answered a network's server, and when: a line of JSON for each exchange.

With it a network run can be run again in one process: the same answers count, and no others. A
server that was restarted asks some exchanges again; then the last line counts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from coterie.core.call import Call, Phase, Version
from coterie.core.errors import CoterieError


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exchange. It holds nothing of any row or model."""

    time: str  # when it began, by the server's clock
    epoch: int
    sequence: int
    version: tuple[int, Phase, int]
    function: str
    seconds: float
    bytes_down: int
    bytes_up: int
    answered: dict[str, float]  # by client: seconds until the answer came
    refused: dict[str, str]  # whose answer was refused, or who refused the message, and why
    absent: dict[str, str]  # who gave no answer, and why


def append(file: Path, entry: Entry) -> None:
    """Write one more line; it is on the disk before the run goes on."""
    append_lines(file, msgspec.json.encode(entry) + b"\n")


def append_lines(file: Path, lines: bytes) -> None:
    """Write whole lines at the end of a file; they are on the disk when this returns."""
    with open(file, "a+b") as f:
        if f.tell():
            f.seek(-1, os.SEEK_END)
            if f.read(1) != b"\n":  # a kill left half a line
                f.write(b"\n")
        f.write(lines)
        f.flush()
        os.fsync(f.fileno())


def read(file: str | Path) -> list[Entry]:
    """All entries; lines that a kill left incomplete are left out."""
    try:
        lines = Path(file).read_bytes().splitlines()
    except OSError as e:
        raise CoterieError(
            f"the diary {file} cannot be read ({e.strerror})", "give the diary.jsonl of a run"
        ) from e
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except (msgspec.DecodeError, UnicodeError) as e:
            if not is_cut(line):
                raise CoterieError(
                    f"line {number} of the diary {file} is damaged ({e})", "put the file back"
                ) from e
    return entries


def is_cut(line: bytes) -> bool:
    """Whether a line was being written when the server was killed."""
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


class Diary:
    """What became of each client's answer, by version and function."""

    def __init__(self, entries: list[Entry]) -> None:
        self.outcomes: dict[tuple[Version, str, str], bool | str | None] = {}
        for entry in entries:
            asked = Version(*entry.version), entry.function
            for name in entry.answered:
                self.outcomes[*asked, name] = True
            for name, reason in entry.refused.items():
                self.outcomes[*asked, name] = reason
            for name in entry.absent:
                self.outcomes[*asked, name] = None

    def outcome(self, call: Call, client: str) -> bool | str | None:
        """True: it was accepted. A reason: it was refused. None: there was no answer."""
        return self.outcomes.get((call.version, call.name, client))
