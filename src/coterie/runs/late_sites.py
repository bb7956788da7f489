"""latecomers.json: sites that joined a network after its run had started. They do not train."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coterie.runs.files import write_text

FILE = "latecomers.json"


class LateSite(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one late site."""

    group: int | None  # None: the method has no groups, or the site failed before
    round: int  # after which it was last assigned
    time: str
    fault: str = ""  # why it has no group or model


def read_late_sites(folder: Path) -> dict[str, LateSite]:
    """Return the late sites of a run by name; empty if the file is missing or damaged."""
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
    """Describe the state of a late site in a sentence."""
    if late.fault:
        return f"came later and could not join: {late.fault}"
    if late.group is None:
        return f"came later, and has the model of round {late.round}"
    return f"came later: group {late.group}, with the model of round {late.round}"
