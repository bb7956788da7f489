"""The connection of one rank to the others, and detection of lost ranks.

Ranks connect through a `TCPStore` of torch.distributed, then form a gloo process group. A failed
collective operation does not say which rank died, and never ends if a machine is cut off. torchrun
watches only the processes of its own machine. So each rank also holds a TCP connection with
keep-alive to rank 0. The operating system closes it when the process ends, and detects a machine
that is cut off: rank 0 can name the lost rank, and no rank outlives rank 0.
"""

from __future__ import annotations

import datetime
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from coterie.core.errors import CoterieError
from coterie.ranks.launch import LOOPBACK, RankInfo, RankLost

if sys.platform == "linux":
    import fcntl

T = TypeVar("T")
log = logging.getLogger("coterie")
VARIABLE = "GLOO_SOCKET_IFNAME"
GET_ADDRESS = 0x8915  # the request SIOCGIFADDR of Linux
NO_TIMEOUT = datetime.timedelta(days=365)  # client work has no time limit
CONNECT_TIMEOUT = datetime.timedelta(hours=1)
WARN_AFTER = 20.0  # seconds until the log names the missing ranks
POLL = 0.02  # seconds
DIAGNOSIS_TIMEOUT = 10.0  # seconds in which a lost rank's connection must close
LEAVING = b"bye\n"  # sent by a rank that ends because another rank is lost
KEEPALIVE = {"KEEPIDLE": 10, "KEEPINTVL": 5, "KEEPCNT": 3}  # 25 seconds in total
CHECK_NETWORK = f"check the firewall, or set {VARIABLE} to the network interface to use"


# ------------------------------------------------------------------------------ interface
def use_interface(host: str, port: int) -> None:
    """Make gloo use the interface that routes to a host, unless the user has set one."""
    if VARIABLE in os.environ:
        return
    name = interface_towards(host, port)
    if name is not None:
        os.environ[VARIABLE] = name


def interface_towards(host: str, port: int) -> str | None:
    """Return the name of the interface that routes to a host; None if it is unknown."""
    if sys.platform != "linux":
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # sends nothing
            address = probe.getsockname()[0]
    except OSError:
        return None
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if address_of(name) == address), None)


def address_of(interface: str) -> str | None:
    """Return the IPv4 address of an interface; None if it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), GET_ADDRESS, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


# ------------------------------------------------------------------------------ keep-alive
class KeepAliveServer:
    """Rank 0's ends of the keep-alive connections."""

    def __init__(self, host: str) -> None:
        self.server = socket.create_server((host, 0))
        self.port: int = self.server.getsockname()[1]
        self.connections: list[socket.socket] = []
        self.processes: dict[int, str] = {}  # rank → host name and process id
        self.lost: list[int] = []  # ranks that ended unexpectedly, in order
        self.closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.closed:
            try:
                connection, _ = self.server.accept()
            except OSError:  # closed
                return
            enable_keepalive(connection)
            self.connections.append(connection)
            threading.Thread(target=self._watch, args=(connection,), daemon=True).start()

    def _watch(self, connection: socket.socket) -> None:
        """Block until a rank's connection closes."""
        rank = ""
        with connection, connection.makefile("rb") as lines:
            try:
                rank, process = lines.readline().decode().rstrip().split(" ", 1)
                self.processes[int(rank)] = process
                last_line = lines.readline()
            except (OSError, ValueError):  # cut off, or not a rank
                last_line = b""
        if not self.closed and last_line != LEAVING and rank.isdecimal():
            self.lost.append(int(rank))

    def close(self) -> None:
        """Close all connections, which ends all other ranks."""
        self.closed = True
        self.server.close()
        for connection in self.connections:
            shut_down(connection)


class KeepAlive:
    """Another rank's end of its keep-alive connection; the process ends when rank 0 does."""

    def __init__(self, host: str, port: int, rank: int) -> None:
        self.connection = socket.create_connection((host, port), timeout=60)
        self.connection.settimeout(None)
        enable_keepalive(self.connection)
        process = f"{socket.gethostname()}, process {os.getpid()}"
        self.connection.sendall(f"{rank} {process}\n".encode())
        self.closed = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with suppress(OSError):
            self.connection.recv(1)  # rank 0 sends nothing: this returns when it is gone
        if not self.closed:
            os._exit(2)

    def announce_exit(self) -> None:
        """Notify rank 0 that this rank leaves on purpose."""
        self.closed = True
        with suppress(OSError):
            self.connection.sendall(LEAVING)

    def close(self) -> None:
        """Leave at the end of the run."""
        self.announce_exit()
        shut_down(self.connection)


def shut_down(connection: socket.socket) -> None:
    """Close a connection, also for a thread that reads from it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def enable_keepalive(connection: socket.socket) -> None:
    """Let the operating system detect within 25 seconds that the other machine is cut off."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        option = getattr(socket, f"TCP_{name}", None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


# ------------------------------------------------------------------------------ connection
class RankConnection:
    """This rank's connection to all others.

    Rank 0 serves the store, unless torchrun does; the other ranks wait for it.
    """

    def __init__(self, info: RankInfo) -> None:
        self.info = info
        self.is_connected = False
        self.error: CoterieError | None = None
        self.server: KeepAliveServer | None = None  # rank 0
        self.keepalive: KeepAlive | None = None  # other ranks
        self.sets_interface = VARIABLE not in os.environ
        use_interface(info.host, info.port or 1)
        self.tcp_store = open_store(info)
        self.store = PrefixStore(f"coterie/{info.attempt}", self.tcp_store)
        if info.is_server:
            interface = os.environ.get(VARIABLE, "").split(",")[0]
            address = info.host  # that the other ranks can reach
            if interface:
                address = address_of(interface) or LOOPBACK
            self.server = KeepAliveServer(address)
            self.store.set("keepalive", f"{address} {self.server.port}")
        else:
            address, port = self.store.get("keepalive").decode().split()
            try:
                self.keepalive = KeepAlive(address, int(port), info.rank)
            except OSError as e:
                problem = f"rank {info.rank} cannot reach rank 0 at {address}:{port}"
                self.store.set(f"failed/{info.rank}", problem)
                raise CoterieError(problem, CHECK_NETWORK) from e

    @property
    def is_healthy(self) -> bool:
        """Whether all ranks are connected."""
        return self.is_connected and self.error is None

    @property
    def port(self) -> int:
        """The port of the store."""
        port: int = self.tcp_store.port
        return port

    def connect(self) -> None:
        """Wait for all ranks, then form the process group.

        Raises:
            CoterieError: A rank cannot reach rank 0, or did not start within an hour.
        """
        if self.is_connected:
            return
        if self.server is not None:
            self._wait_for_ranks(self.server)
            self.store.set("all connected", "yes")
        while not self.store.check(["all connected"]):
            time.sleep(POLL)
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
        self.run(
            lambda: dist.init_process_group(
                backend,
                store=PrefixStore("group", self.store),
                rank=self.info.rank,
                world_size=self.info.size,
                timeout=NO_TIMEOUT,
            )
        )
        self.is_connected = True

    def _wait_for_ranks(self, server: KeepAliveServer) -> None:
        started = time.monotonic()
        is_logged = False
        while missing := [r for r in range(1, self.info.size) if r not in server.processes]:
            for rank in missing:
                if self.store.check([f"failed/{rank}"]):
                    raise CoterieError(self.store.get(f"failed/{rank}").decode(), CHECK_NETWORK)
            waited = time.monotonic() - started
            if waited > CONNECT_TIMEOUT.total_seconds():
                raise CoterieError(
                    f"rank {missing[0]} did not connect within an hour", "start all ranks"
                )
            if waited > WARN_AFTER and not is_logged:
                log.info("waiting for rank %s", ", ".join(map(str, missing)))
                is_logged = True
            time.sleep(POLL)

    # -- communication
    def run(self, work: Callable[[], T]) -> T:
        """Run a communication with the other ranks.

        Rank 0 runs it in a thread, so that Ctrl-C and the loss of a machine that never closes its
        connections interrupt it. Another rank ends its process if the communication fails, because
        rank 0 reports the reason.

        Args:
            work: Calls functions of torch.distributed.

        Returns:
            What `work` returns.

        Raises:
            RankLost: A rank ended; raised at rank 0.
        """
        if self.error is not None:
            raise self.error
        if self.server is None:
            assert self.keepalive is not None
            try:
                return work()
            except RuntimeError:
                self.keepalive.announce_exit()
                os._exit(2)
        results: list[T] = []
        errors: list[Exception] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(work())
            except Exception as e:
                errors.append(e)
            done.set()

        threading.Thread(target=run, daemon=True).start()
        while not done.wait(1.0):
            if self.server.lost and not done.wait(1.0):
                break
        if results:
            return results[0]
        if errors and not isinstance(errors[0], RuntimeError):
            raise errors[0]
        end = time.monotonic() + DIAGNOSIS_TIMEOUT
        while not self.server.lost and time.monotonic() < end:
            time.sleep(POLL)
        self.error = RankLost("the connection between the ranks broke", CHECK_NETWORK)
        if self.server.lost:
            self.error = RankLost(f"{self.name(self.server.lost[0])} ended before the run did")
        raise self.error

    def name(self, rank: int) -> str:
        """Return a rank with its host and process id, for messages."""
        name = f"rank {rank}"
        if self.server is not None and rank in self.server.processes:
            name += f" ({self.server.processes[rank]})"
        return name

    def close(self) -> None:
        """Close the keep-alive connections; at rank 0 this ends all other ranks."""
        if self.sets_interface:
            os.environ.pop(VARIABLE, None)  # another group may use another interface
        for end in (self.server, self.keepalive):
            if end is not None:
                end.close()


def open_store(info: RankInfo) -> TCPStore:
    """Serve the store at rank 0, unless torchrun does; connect to it at other ranks."""
    serves = info.is_server and not info.has_store
    try:
        return TCPStore(info.host, info.port, None, serves, CONNECT_TIMEOUT, wait_for_workers=False)
    except RuntimeError as e:
        raise CoterieError(
            f"rank {info.rank} cannot connect at {info.host}:{info.port}",
            "give an address of the machine of rank 0, and a free port",
        ) from e
