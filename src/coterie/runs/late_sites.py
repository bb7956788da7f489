"""latecomers.json: sites that came when a network's run had begun. They do not train in it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coterie.runs.files import write_text

FILE = "latecomers.json"


class LateSite(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one site."""

    group: int | None  # None: the method has no groups, or the fault came first
    round: int  # after which it was last assigned
    time: str
    fault: str = ""  # why it has no group or no model


def read_late_sites(folder: Path) -> dict[str, LateSite]:
    """All latecomers of a run by name; none where the file is missing or damaged."""
    try:
        raw = (folder / FILE).read_bytes()
        return msgspec.json.decode(raw, type=dict[str, LateSite])
    except (OSError, msgspec.DecodeError, UnicodeError):
        return {}


def write_late_sites(folder: Path, latecomers: dict[str, LateSite]) -> None:
    """Replace the file."""
    text = msgspec.json.format(msgspec.json.encode(latecomers), indent=1).decode()
    write_text(folder / FILE, text + "\n")


def describe_late_site(late: LateSite) -> str:
    """What became of a latecomer, in words."""
    if late.fault:
        return f"came later and could not join: {late.fault}"
    if late.group is None:
        return f"came later, and has the model of round {late.round}"
    return f"came later: group {late.group}, with the model of round {late.round}"
