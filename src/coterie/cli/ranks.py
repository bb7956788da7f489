"""`--ranks`: launch the ranks of a command, and run this process as one of them.

`coterie run --ranks 2` starts itself twice through torchrun (`coterie.ranks.launch`). On several
machines the user starts torchrun. Either way each process finds its rank in its environment: rank 0
runs the command, the others serve it.
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

from coterie.cli.commands import skip_cleanup_at_exit
from coterie.cli.run_flags import UserCode
from coterie.core.errors import CoterieError
from coterie.ranks.launch import (
    RankInfo,
    exit_with_launcher,
    launch_ranks,
    local_ranks,
    rank_from_environment,
)
from coterie.runs.config import restore_roster
from coterie.runs.folder import RunFolder
from coterie.runs.options import Options, check_ranks

if TYPE_CHECKING:
    from coterie.ranks.engine import RankServer
    from coterie.ranks.shard import RankShard

NO_TRAINING = {"--dry-run", "--help", "-h"}  # flags with which nothing is trained


def this_rank() -> RankInfo | None:
    """Return the rank of this process, or None if torchrun did not start it."""
    return rank_from_environment(os.environ)


def is_other_rank() -> bool:
    """Whether this process is a rank other than 0."""
    info = this_rank()
    return info is not None and not info.is_server


# ------------------------------------------------------------------------------ options
def with_launched_ranks(options: dict[str, Any]) -> dict[str, Any]:
    """Set the option `ranks` to the number of processes that torchrun started."""
    info = this_rank()
    if info is None:
        return options
    asked = options.get("ranks", info.size)
    if asked != info.size:
        raise CoterieError(
            f"--ranks is {asked}, and torchrun started {info.size} processes", "omit --ranks"
        )
    return {**options, "ranks": info.size}


def cores_of_rank(options: dict[str, Any]) -> int | None:
    """Return the number of processors for one rank; None without ranks."""
    ranks = options.get("ranks", Options.ranks)
    if ranks == 1:
        return None
    return (this_rank() or local_ranks(ranks)).cores


def ranks_of(folders: Sequence[Path]) -> int:
    """Return the number of ranks of the runs in these folders; resume needs the same number.

    Raises:
        CoterieError: The numbers differ, or a run has fewer clients than ranks.
    """
    numbers = {}
    for folder in folders:
        config = RunFolder(folder).config()
        check_ranks(restore_roster(config.roster, f"{folder}/config.json"), config.options)
        numbers[folder] = config.options.ranks
    first, *others = numbers
    for other in others:
        if numbers[other] != numbers[first]:
            raise CoterieError(
                f"{first} has {numbers[first]} ranks, and {other} has {numbers[other]}",
                "resume them one by one",
            )
    info = this_rank()
    if info is not None and info.size != numbers[first]:
        raise CoterieError(
            f"{first} has {numbers[first]} ranks, and torchrun started {info.size}",
            f"start {numbers[first]}, which give the same bits",
        )
    return numbers[first]


# ------------------------------------------------------------------------------ launcher
def needs_launch(ranks: int) -> bool:
    """Whether this process must start the ranks of its command."""
    return ranks > 1 and this_rank() is None


def launch_command(ranks: int, argv: Sequence[str]) -> int:
    """Run the same command on several ranks; return the exit status of rank 0.

    Args:
        ranks: Number of processes.
        argv: The arguments of the command, starting with its name.
    """
    return launch_ranks(ranks, ["-m", "coterie", *argv])


# ------------------------------------------------------------------------------ rank 0
@contextmanager
def rank_server(ranks: int) -> Iterator[RankServer | None]:
    """Connect rank 0 to the other ranks of the command; yield None if there is only one rank."""
    info = this_rank()
    if ranks == 1 or info is None:
        yield None
        return
    from coterie.ranks.engine import RankServer  # some builds of torch cannot import it

    exit_with_launcher()
    skip_cleanup_at_exit()  # gloo threads may abort the shutdown of Python
    server = RankServer(info)
    handle_sigterm(info)
    try:
        yield server
    finally:
        server.close()


def handle_sigterm(info: RankInfo) -> None:
    """Handle SIGTERM of torch's agent.

    The user's torchrun sends it for Ctrl-C: finish the round and save. Our own launcher passes on
    Ctrl-C as SIGINT, and sends SIGTERM only after another rank failed, which rank 0 then reports.
    """

    def ignore(number: int, frame: FrameType | None) -> None:
        pass

    def interrupt(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Ctrl-C is ignored, as in the background of a shell
            raise KeyboardInterrupt
        handler(number, frame)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ignore if info.is_ours else interrupt)


# ------------------------------------------------------------------------------ other ranks
def serve_rank(flags: Sequence[str], read_command: Callable[[], UserCode]) -> int:
    """Run this process as a rank other than 0.

    Args:
        flags: Flags of the command.
        read_command: Reads the command, and so loads the Python files that it names.
    """
    if NO_TRAINING & {*flags}:
        return 0
    from coterie.cli.messages import describe_error
    from coterie.ranks import shard  # some builds of torch cannot import it

    info = this_rank()
    assert info is not None
    skip_cleanup_at_exit()  # gloo threads may abort the shutdown of Python
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # rank 0 logs
    torch.set_num_threads(info.cores)

    def load(config: str) -> RankShard:
        own = read_command()
        return shard.load_shard(config, info, own.load_model(), own.trust)

    with warnings.catch_warnings(action="ignore"):
        shard.serve_rank(info, load, describe_error, debug="--debug" in flags)
    return 0
