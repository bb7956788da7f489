"""`coterie network pause`, `unpause` and `leave`: what a site's owner wants of its node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.network.presence import Presence, presence_in

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
    presence = read_presence("pause", words, argv)
    presence.pause()
    print(f"the site in {presence.folder} is paused; `coterie network unpause` ends that")
    return 0


def unpause(words: list[str], argv: list[str]) -> int:
    """`coterie network unpause`"""
    presence = read_presence("unpause", words, argv)
    before = presence.wish
    presence.unpause()
    if before == "left":
        print(f"the site in {presence.folder} may take part again: start its node")
    else:
        print(f"the site in {presence.folder} takes part")
    return 0


def leave(words: list[str], argv: list[str]) -> int:
    """`coterie network leave`"""
    presence = read_presence("leave", words, argv)
    presence.leave()
    print(f"the site in {presence.folder} leaves; its node tells the server, and ends")
    return 0


def read_presence(command: str, words: list[str], argv: list[str]) -> Presence:
    """The site that a command is about."""
    flags = read_flags(f"coterie network {command}", OwnerFlags, ABOUT[command], argv)
    if words:
        raise CoterieError(f"{command} takes no names", "give the folder of the site as --state")
    return presence_in(Path(flags.state))
