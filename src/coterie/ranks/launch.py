"""Launch the ranks of a command on this machine with torchrun, and read a rank's environment.

`coterie run --ranks 2` calls `launch_ranks`: torch's elastic agent starts the same command twice,
watches both processes and stops them. A process that torchrun started, by us or by the user on
several machines, finds its rank with `rank_from_environment`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from coterie.core.errors import CoterieError

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RUN_ID = "coterie"  # torchrun's job id of ranks that `launch_ranks` started
LOOPBACK = "127.0.0.1"
FINISH_ROUND = 7 * 24 * 3600  # seconds that rank 0 has to finish its round after Ctrl-C
PARENT_POLL = 0.5  # seconds between checks that the launcher is alive


class RankLost(CoterieError):
    """A rank ended before the run did."""


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """The rank of this process, and the address at which all ranks connect."""

    rank: int
    size: int  # number of ranks
    host: str = LOOPBACK  # address of the store through which ranks connect
    port: int = 0  # 0: any free port
    local_rank: int = 0  # rank among those on this machine
    local_size: int = 1  # number of ranks on this machine
    attempt: str = "0"  # number of restarts by torchrun
    has_store: bool = False  # torchrun already serves the store
    is_ours: bool = False  # started by `launch_ranks`, not by the user's torchrun

    @property
    def is_server(self) -> bool:
        """Whether this process runs the server."""
        return self.rank == 0

    @property
    def cores(self) -> int:
        """Number of processors of this machine for one rank."""
        return max(1, len(os.sched_getaffinity(0)) // self.local_size)


def local_ranks(ranks: int) -> RankInfo:
    """Return rank 0 of `ranks` processes on this machine."""
    return RankInfo(rank=0, size=ranks, local_size=ranks)


def rank_from_environment(environment: Mapping[str, str]) -> RankInfo | None:
    """Return the rank that torchrun assigned to this process.

    Args:
        environment: Environment variables of the process.

    Returns:
        The rank, or None if torchrun did not start this process or started only one.

    Raises:
        CoterieError: A variable is not a number.
    """
    if not all(name in environment for name in TORCHRUN_VARIABLES):
        return None
    rank, size = _read_number(environment, "RANK"), _read_number(environment, "WORLD_SIZE")
    if size < 2:
        return None
    return RankInfo(
        rank=rank,
        size=size,
        host=environment["MASTER_ADDR"],
        port=_read_number(environment, "MASTER_PORT"),
        local_rank=_read_number(environment, "LOCAL_RANK", rank),
        local_size=_read_number(environment, "LOCAL_WORLD_SIZE", 1),
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        is_ours=environment.get("TORCHELASTIC_RUN_ID") == RUN_ID,
    )


def _read_number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise CoterieError(
            f"the environment variable {name} is {text!r}, and must be a number", "use torchrun"
        )
    return int(text)


# ------------------------------------------------------------------------------ launcher
def launch_ranks(ranks: int, command: Sequence[str]) -> int:
    """Run a Python command on several ranks of this machine until all of them end.

    Ctrl-C is passed on to the ranks: rank 0 finishes its round and saves. A second Ctrl-C ends all
    ranks. If one rank fails, torch's agent stops the others.

    Args:
        ranks: Number of processes.
        command: Arguments of the Python interpreter, such as ["-m", "coterie", "run", "ifca"].

    Returns:
        The exit status of rank 0, which prints its own errors.

    Raises:
        CoterieError: A rank was killed and rank 0 could not report it.
    """
    # some builds of torch cannot import these
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # rank 0 reports errors
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=RUN_ID,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{LOOPBACK}:0",
        local_addr=LOOPBACK,
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(
            log_dir=os.devnull, redirects=dict.fromkeys(range(1, ranks), Std.OUT)
        ),
        signals_to_handle="SIGINT",  # others end this process, and with it all ranks
        shutdown_timeout=FINISH_ROUND,
    )
    variables = {
        "OMP_NUM_THREADS": str(local_ranks(ranks).cores),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # a broken connection is reported as one sentence
    }
    with _restored_process(variables):
        try:
            elastic_launch(config, sys.executable)(*command)
        except SignalException:
            return 130
        except ChildFailedError as e:
            return _exit_status(e.failures)
    return 0


@contextmanager
def _restored_process(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables; restore them and the SIGINT handler that torch replaces."""
    environment = dict(os.environ)
    handler = signal.getsignal(signal.SIGINT)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _exit_status(failures: Mapping[int, object]) -> int:
    """Return the exit status of rank 0; raise if a signal ended it before it reported an error."""
    codes = {rank: int(failure.exitcode) for rank, failure in failures.items()}  # type: ignore[attr-defined]
    if codes.get(0, 0) > 0:
        return codes[0]
    stopped = (-signal.SIGTERM, 2)  # by the agent, or because another rank is lost
    first = min((rank for rank in codes if codes[rank] not in stopped), default=0)
    how = f"exit status {codes[first]}"
    if codes[first] < 0:
        how = f"signal {-codes[first]}"
    raise CoterieError(
        f"rank {first} ended before the run did ({how})",
        "continue from the last checkpoint with `coterie resume RUN`",
    )


def exit_with_launcher() -> None:
    """End this process when its launcher is gone, whatever ended the launcher."""
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(PARENT_POLL)
        os._exit(2)

    threading.Thread(target=watch, daemon=True).start()
