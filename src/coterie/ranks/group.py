"""All ranks, connected by torch.distributed: gloo, and nccl for sums that are on a GPU.

Rank 0 speaks first: it tells all others what to do, hears whether they could, and then takes their
answers. Nothing is pickled.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.utils._pytree import tree_flatten, tree_unflatten

from coterie.errors import CoterieError
from coterie.network.peers.interface import VARIABLE, address_of, use_interface
from coterie.ranks.lifeline import Lifeline, Lifelines
from coterie.ranks.place import LOOPBACK, Place, RankLost

T = TypeVar("T")
What = Literal["open", "enroll", "map", "snapshot", "restore", "end"]
WORDS: tuple[What, ...] = ("open", "enroll", "map", "snapshot", "restore", "end")
FOR_EVER = datetime.timedelta(days=365)  # lifelines tell who is gone, however long work takes
PATIENCE = datetime.timedelta(hours=1)  # until all ranks must have come
PAUSE = 0.02  # seconds between looks for those who come
TO_BE_NOTICED = 10.0  # seconds until a lifeline tells who has broken a connection


class Message(NamedTuple):
    """What rank 0 tells another rank."""

    what: What
    common: bytes  # for all
    own: bytes  # for this rank


class Group:
    """The ranks of one command."""

    def __init__(self, place: Place) -> None:
        """Rank 0 opens the place where all meet; the others come there, and wait for it."""
        self.place = place
        self.is_connected = False
        self.is_pending = False  # whether the ranks are at work on what they were told
        self.fault: CoterieError | None = None
        self.lifelines: Lifelines | None = None
        self.lifeline: Lifeline | None = None
        use_interface(place.host, place.port or 1)
        self.tcp_store = TCPStore(
            place.host,
            place.port,
            None,
            place.is_server and not place.has_store,
            PATIENCE,
            wait_for_workers=False,
        )
        self.store = PrefixStore(f"coterie/{place.attempt}", self.tcp_store)
        if place.is_server:
            address = own_address(place)
            self.lifelines = Lifelines(address)
            self.store.set("lifeline", f"{address} {self.lifelines.port}")
        else:
            address, port = self.store.get("lifeline").decode().split()
            self.lifeline = Lifeline(address, int(port), place.rank, at_end=lambda: os._exit(2))

    @property
    def port(self) -> int:
        """Where the others find the place."""
        port: int = self.tcp_store.port
        return port

    def connect(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait for all ranks, and connect to them; check: raises if one will never come."""
        if self.is_connected:
            return
        if self.lifelines is not None:
            self._wait_for_all(self.lifelines, check)
            self.store.set("all are here", "yes")
        while not self.store.check(["all are here"]):
            time.sleep(PAUSE)
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
        self._do(
            lambda: dist.init_process_group(
                backend,
                store=PrefixStore("group", self.store),
                rank=self.place.rank,
                world_size=self.place.size,
                timeout=FOR_EVER,
            )
        )
        self.is_connected = True

    def _wait_for_all(self, lifelines: Lifelines, check: Callable[[], None]) -> None:
        end = time.monotonic() + PATIENCE.total_seconds()
        others = range(1, self.place.size)
        while missing := [rank for rank in others if rank not in lifelines.here]:
            check()
            if time.monotonic() > end:
                raise CoterieError(
                    f"rank {missing[0]} did not come within {PATIENCE.total_seconds():g} seconds",
                    "start all ranks",
                )
            time.sleep(PAUSE)

    # -- rank 0
    def tell(self, what: What, common: bytes = b"", own: Sequence[bytes] = ()) -> None:
        """Tell all other ranks what to do; own: by rank, what is for it alone."""
        own = own or [b""] * self.place.size

        def send() -> None:
            sizes = [WORDS.index(what), len(common), *map(len, own)]
            dist.broadcast(torch.tensor(sizes), 0)
            if common:
                dist.broadcast(as_tensor(common), 0)
            for rank in range(1, self.place.size):
                if own[rank]:
                    dist.send(as_tensor(own[rank]), rank)

        self.is_pending = True
        self._do(send)

    def hear_outcomes(self, answers_follow: bool = False) -> None:
        """Wait until all ranks have done what they were told; raise what one of them met."""
        if not self._do(lambda: any_is_set(False)):
            self.is_pending = answers_follow
            return
        for rank, raw in enumerate(self.gather(), start=1):
            status, _, sentence = raw.decode().partition(" ")
            if not sentence:
                continue
            if status == "2":
                raise CoterieError(f"{self._name(rank)}: {sentence}")
            raise RuntimeError(f"{self._name(rank)}: {sentence}")

    def gather(self) -> list[bytes]:
        """What all other ranks send, by rank."""

        def receive() -> list[bytes]:
            sizes = torch.zeros(self.place.size, dtype=torch.long)
            dist.reduce(sizes, 0)
            answers = [torch.empty(int(n), dtype=torch.uint8) for n in sizes[1:]]
            for rank, answer in enumerate(answers, start=1):
                if answer.numel():
                    dist.recv(answer, rank)
            return [as_bytes(answer) for answer in answers]

        answers = self._do(receive)
        self.is_pending = False
        return answers

    # -- the other ranks
    def listen(self) -> Message:
        """Wait for the next message of rank 0."""

        def receive() -> Message:
            sizes = torch.zeros(self.place.size + 2, dtype=torch.long)
            dist.broadcast(sizes, 0)
            word, length = int(sizes[0]), int(sizes[1])
            common = torch.empty(length, dtype=torch.uint8)
            if length:
                dist.broadcast(common, 0)
            own = torch.empty(int(sizes[2 + self.place.rank]), dtype=torch.uint8)
            if own.numel():
                dist.recv(own, 0)
            return Message(WORDS[word], as_bytes(common), as_bytes(own))

        return self._do(receive)

    def report_outcome(self, sentence: str = "", status: int = 0) -> bool:
        """Tell rank 0 how it went; whether it went well everywhere, so that an answer is due."""
        if not self._do(lambda: any_is_set(bool(sentence))):
            return True
        self.send(f"{status} {sentence}".encode())
        return False

    def send(self, answer: bytes) -> None:
        """Send an answer to rank 0."""

        def send() -> None:
            sizes = torch.zeros(self.place.size, dtype=torch.long)
            sizes[self.place.rank] = len(answer)
            dist.reduce(sizes, 0)
            if answer:
                dist.send(as_tensor(answer), 0)

        self._do(send)

    # -- all
    def reduce(self, tree: Any) -> Any:
        """The sum over all ranks of each tensor, at rank 0; the order of sums is always the same.

        Tensors of one kind travel together.
        """
        leaves, structure = tree_flatten(tree)
        kinds = dict.fromkeys((v.dtype, v.device) for v in leaves)

        def add_up() -> list[Tensor]:
            sums: dict[int, Tensor] = {}
            for kind in kinds:
                places = [i for i, v in enumerate(leaves) if (v.dtype, v.device) == kind]
                flat = torch.cat([leaves[i].reshape(-1) for i in places])
                dist.reduce(flat, 0)
                pieces = flat.split([leaves[i].numel() for i in places])
                for i, piece in zip(places, pieces):
                    sums[i] = piece.view(leaves[i].shape).clone()  # aligned as any other tensor
            return [sums[i] for i in range(len(leaves))]

        return tree_unflatten(self._do(add_up), structure)

    # -- faults and the end
    def _do(self, work: Callable[[], T]) -> T:
        """Speak with the other ranks; RankLost if one of them is gone.

        At rank 0 it is done in a thread, so that Ctrl-C, and the loss of a machine that never
        closed its connections, are noticed at once.
        """
        if self.fault is not None:
            raise self.fault
        if self.lifelines is None:
            return self._do_or_leave(work)
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
            if self.lifelines.lost and not done.wait(1.0):
                break
        if results:
            return results[0]
        if errors and not isinstance(errors[0], RuntimeError):
            raise errors[0]
        self.fault = self._why(self.lifelines)
        raise self.fault

    def _do_or_leave(self, work: Callable[[], T]) -> T:
        """What a rank other than 0 does; where the connection breaks, rank 0 tells why."""
        assert self.lifeline is not None
        try:
            return work()
        except RuntimeError:
            self.lifeline.say_farewell()
            os._exit(2)

    def _why(self, lifelines: Lifelines) -> CoterieError:
        """Who is gone, as the lifelines tell it."""
        end = time.monotonic() + TO_BE_NOTICED
        while not lifelines.lost and time.monotonic() < end:
            time.sleep(PAUSE)
        if not lifelines.lost:
            return RankLost(
                "the connection between the ranks broke",
                f"see to firewalls between them, or name the network interface as {VARIABLE}",
            )
        return RankLost(f"{self._name(lifelines.lost[0])} has ended before the run did")

    def _name(self, rank: int) -> str:
        name = f"rank {rank}"
        if self.lifelines is not None and rank in self.lifelines.here:
            name += f" ({self.lifelines.here[rank]})"
        return name

    def close(self) -> None:
        """Leave; rank 0 ends all others."""
        if self.lifelines is not None:
            if self.is_connected and not self.is_pending and self.fault is None:
                self.tell("end")
                self.is_pending = False
            self.lifelines.close()
        if self.lifeline is not None:
            self.lifeline.close()
        if self.is_connected and not self.is_pending and self.fault is None:
            dist.destroy_process_group()


def own_address(place: Place) -> str:
    """The address of rank 0 that the others can reach."""
    interface = os.environ.get(VARIABLE, "").split(",")[0]
    if interface:
        return address_of(interface) or LOOPBACK
    return place.host


def any_is_set(mine: bool) -> bool:
    """Whether any rank has set its flag."""
    flag = torch.tensor([int(mine)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def as_tensor(raw: bytes) -> Tensor:
    """Bytes to send."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def as_bytes(tensor: Tensor) -> bytes:
    """Bytes that were received."""
    return tensor.numpy().tobytes()
