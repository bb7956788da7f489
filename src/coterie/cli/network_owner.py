"""`coterie network pause`, `unpause` and `leave`: what a site's owner wants of its node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.network.participation import Participation, find_participation

ABOUT = {
    "pause": "Let a site's node take part in nothing until `unpause`. It stays connected\n"
    "and keeps its group; the server goes on without it if the quorum allows.",
    "unpause": "Let a site's node take part again.",
    "leave": "Let a site take part in nothing any more. Its node tells the server, which then no\n"
    "longer waits for it, and ends. Its files stay: remove the folder if nobody needs them.",
}


@dataclass(frozen=True, kw_only=True)
class OwnerFlags:
    """The flags of `coterie network pause`, `unpause` and `leave`."""

    state: str = setting("coterie-site", "folder of the site's private states, as its node has it")
    debug: bool = setting(False, "show tracebacks", switch=True)


def pause(words: list[str], argv: list[str]) -> int:
    """`coterie network pause`"""
    participation = read_presence("pause", words, argv)
    participation.pause()
    print(f"the site in {participation.folder} is paused; `coterie network unpause` ends that")
    return 0


def unpause(words: list[str], argv: list[str]) -> int:
    """`coterie network unpause`"""
    participation = read_presence("unpause", words, argv)
    before = participation.wish
    participation.unpause()
    if before == "left":
        print(f"the site in {participation.folder} may take part again: start its node")
    else:
        print(f"the site in {participation.folder} takes part")
    return 0


def leave(words: list[str], argv: list[str]) -> int:
    """`coterie network leave`"""
    participation = read_presence("leave", words, argv)
    participation.leave()
    print(f"the site in {participation.folder} leaves; its node tells the server, and ends")
    return 0


def read_presence(command: str, words: list[str], argv: list[str]) -> Participation:
    """The site that a command is about."""
    flags = read_flags(f"coterie network {command}", OwnerFlags, ABOUT[command], argv)
    if words:
        raise CoterieError(f"{command} takes no names", "give the folder of the site as --state")
    return find_participation(Path(flags.state))
