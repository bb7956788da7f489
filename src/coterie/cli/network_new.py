"""`coterie network new`: an app for those who already run Flower."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.network.flower_setup import flower_version, write_app


@dataclass(frozen=True, kw_only=True)
class NewFlags:
    """The flags of `coterie network new`."""

    debug: bool = setting(False, "show tracebacks", switch=True)


def new(words: list[str], argv: list[str]) -> int:
    """`coterie network new DIR`"""
    about = "An app for stock SuperLinks and SuperNodes, of Flower's public interfaces alone."
    read_flags("coterie network new DIR", NewFlags, about, argv)
    if len(words) != 1 or not words[0]:
        raise CoterieError("new needs one folder, as in `coterie network new app`.")
    flower_version()
    folder = Path(words[0])
    write_app(folder)
    print(f"an app for `flwr run` is in {folder}; its README.md says how sites take part")
    return 0
