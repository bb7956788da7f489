"""`--ranks`: how a command gets its ranks, and what a process does that is one of them.

Rank 0 is the process of the command. It starts the others with its own words, unless torchrun has
started all.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from coterie.cli.own_files import OwnFiles
from coterie.core.errors import CoterieError
from coterie.ranks.place import Place, on_this_machine, place_in
from coterie.runs.folder import RunFolder
from coterie.runs.options import Options

if TYPE_CHECKING:
    from coterie.ranks.share import Share
    from coterie.ranks.team import Team

NO_WORK = {"--dry-run", "--help", "-h"}  # flags with which nothing is trained


def launched() -> Place | None:
    """The place of this process among ranks that torchrun has started."""
    return place_in(os.environ)


def is_other_rank() -> bool:
    """Whether this process is a rank other than 0."""
    place = launched()
    return place is not None and not place.is_server


# ------------------------------------------------------------------------------ what is asked
def with_launched_ranks(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a command with as many ranks as torchrun has started."""
    place = launched()
    if place is None:
        return options
    asked = options.get("ranks", place.size)
    if asked != place.size:
        raise CoterieError(
            f"--ranks is {asked}, and torchrun has started {place.size} processes",
            "leave out --ranks",
        )
    return {**options, "ranks": place.size}


def cores_of_rank(options: dict[str, Any]) -> int | None:
    """How many processors a rank may use; None without ranks."""
    ranks = options.get("ranks", Options.ranks)
    if ranks == 1:
        return None
    return (launched() or on_this_machine(ranks)).cores


def ranks_of(folders: Sequence[Path]) -> int:
    """With how many ranks the runs of these folders were begun, and so must go on."""
    numbers = {folder: RunFolder(folder).config().options.ranks for folder in folders}
    first, *others = numbers
    for other in others:
        if numbers[other] != numbers[first]:
            raise CoterieError(
                f"{first} was begun with ranks {numbers[first]}, and {other} with {numbers[other]}",
                "resume them one by one",
            )
    place = launched()
    if place is not None and place.size != numbers[first]:
        raise CoterieError(
            f"{first} was begun with {numbers[first]} ranks, and torchrun has started {place.size}",
            f"start {numbers[first]}, which give the same bits",
        )
    return numbers[first]


# ------------------------------------------------------------------------------ rank 0
@contextmanager
def team_of(ranks: int, words: Sequence[str]) -> Iterator[Team | None]:
    """The ranks of a command while it is open; None if there is one alone.

    The server's own sums are made by as many threads as in one process: the other ranks wait.
    """
    if ranks == 1:
        yield None
        return
    from coterie.ranks.team import Team  # some builds of torch cannot load it

    team = Team(launched() or on_this_machine(ranks), words, starts_others=launched() is None)
    if launched() is not None:
        treat_end_as_interrupt()
    try:
        yield team
    finally:
        team.close()


def treat_end_as_interrupt() -> None:
    """Let torchrun's request to end finish the round and save, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Ctrl-C is ignored, as in the background of a shell
            raise KeyboardInterrupt
        handler(number, frame)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


# ------------------------------------------------------------------------------ the other ranks
def serve_rank(flags: Sequence[str], read_words: Callable[[], OwnFiles]) -> int:
    """Be a rank other than 0; read_words: reads the command, and so loads the files it names."""
    if NO_WORK & {*flags}:
        return 0
    from coterie.cli import describe_error
    from coterie.ranks.opening import open_share
    from coterie.ranks.team import serve  # some builds of torch cannot load it

    place = launched()
    assert place is not None
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # rank 0 says all
    torch.set_num_threads(place.cores)

    def make_share(about: str) -> Share:
        own = read_words()
        return open_share(about, place, own.load_model(), own.trust)

    with warnings.catch_warnings(action="ignore"):
        serve(place, make_share, describe_error, debug="--debug" in flags)
    return 0
