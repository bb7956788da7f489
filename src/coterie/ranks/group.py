"""What ranks say to each other, by torch.distributed: gloo, and nccl for sums that are on a GPU.

Rank 0 speaks first: it tells all others what to do, hears whether they could, and then takes their
answers. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from coterie.core.errors import CoterieError
from coterie.ranks.connection import Connection
from coterie.ranks.place import Place, RankLost

What = Literal["open", "enroll", "map", "snapshot", "restore", "end"]
WORDS: tuple[What, ...] = ("open", "enroll", "map", "snapshot", "restore", "end")


class Message(NamedTuple):
    """What rank 0 tells another rank."""

    what: What
    common: bytes  # for all
    own: bytes  # for this rank


class Outcome(NamedTuple):
    """Whether a rank could do what it was told, and how many bytes it will send."""

    is_well: bool = True
    size: int = 0


class Group:
    """The ranks of one command."""

    def __init__(self, place: Place) -> None:
        """Rank 0 opens the place where all meet; the others come there, and wait for it."""
        self.place = place
        self.connection = Connection(place)
        self.is_pending = False  # whether the ranks are at work on what they were told
        self.outcomes: list[Outcome] = []  # of what rank 0 told last

    @property
    def port(self) -> int:
        """Where the other ranks find rank 0."""
        return self.connection.port

    def connect(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait for all ranks, and connect to them; check: raises if one will never come."""
        self.connection.connect(check)

    def close(self) -> bool:
        """Leave; rank 0 ends all others. Whether they end by themselves."""
        is_idle = self.connection.is_well and not self.is_pending
        if is_idle and self.place.is_server:
            with suppress(RankLost):  # all is done
                self.tell("end")
                self.hear_outcomes()
        self.connection.close()
        if is_idle and self.connection.is_well:
            dist.destroy_process_group()
        return is_idle

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
        self.connection.do(send)

    def hear_outcomes(self, answers_follow: bool = False) -> None:
        """Wait until all ranks have done what they were told; raise what one of them met."""
        self.outcomes = self.connection.do(lambda: self._exchange_outcomes(Outcome()))
        if all(outcome.is_well for outcome in self.outcomes):
            self.is_pending = answers_follow
            return
        for rank, raw in enumerate(self.gather(), start=1):
            if self.outcomes[rank].is_well:
                continue
            status, _, sentence = raw.decode().partition(" ")
            if status == "2":
                raise CoterieError(f"{self.connection.name(rank)}: {sentence}")
            raise RuntimeError(f"{self.connection.name(rank)}: {sentence}")

    def gather(self) -> list[bytes]:
        """What all other ranks send, by rank, after their outcomes were heard."""

        def receive() -> list[bytes]:
            answers = []
            for rank, outcome in enumerate(self.outcomes[1:], start=1):
                answer = torch.empty(outcome.size, dtype=torch.uint8)
                if outcome.size:
                    dist.recv(answer, rank)
                answers.append(as_bytes(answer))
            return answers

        answers = self.connection.do(receive)
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

        return self.connection.do(receive)

    def answer(self, answer: bytes, sums: Any = ()) -> None:
        """Send rank 0 an answer, after sums to which all ranks contribute.

        If another rank has failed, rank 0 wants neither.
        """
        outcomes = self.connection.do(lambda: self._exchange_outcomes(Outcome(size=len(answer))))
        if all(outcome.is_well for outcome in outcomes):
            self.reduce(sums)
        self._send(answer)

    def agree_to_end(self) -> None:
        """Let rank 0 know that this rank expects its end."""
        self.connection.expect_end()
        self.answer(b"")

    def fail(self, sentence: str, status: int) -> None:
        """Tell rank 0 why there is no answer; status: with which the command should exit."""
        reason = f"{status} {sentence}".encode()
        failed = Outcome(is_well=False, size=len(reason))
        self.connection.do(lambda: self._exchange_outcomes(failed))
        self._send(reason)

    def _send(self, raw: bytes) -> None:
        if raw:
            self.connection.do(lambda: dist.send(as_tensor(raw), 0))

    # -- all
    def _exchange_outcomes(self, mine: Outcome) -> list[Outcome]:
        """How it went at every rank, by rank."""
        table = torch.zeros(self.place.size, 2, dtype=torch.long)
        table[self.place.rank] = torch.tensor([not mine.is_well, mine.size])
        dist.all_reduce(table)
        return [Outcome(not failed, size) for failed, size in table.tolist()]

    def reduce(self, tree: Any) -> Any:
        """The sum over all ranks of each tensor, at rank 0; added as `halved` does in one process.

        Tensors of one kind travel together.
        """
        leaves, structure = tree_flatten(tree)
        kinds = dict.fromkeys((v.dtype, v.device) for v in leaves)

        def add_up() -> list[Tensor]:
            sums: dict[int, Tensor] = {}
            for kind in kinds:
                places = [i for i, v in enumerate(leaves) if (v.dtype, v.device) == kind]
                flat = torch.cat([leaves[i].reshape(-1) for i in places])
                self._add_halves(flat, 0, self.place.size)
                pieces = flat.split([leaves[i].numel() for i in places])
                for i, piece in zip(places, pieces):
                    sums[i] = piece.view(leaves[i].shape).clone()  # aligned as any other tensor
            return [sums[i] for i in range(len(leaves))]

        return tree_unflatten(self.connection.do(add_up), structure)

    def _add_halves(self, flat: Tensor, first: int, end: int) -> None:
        """Leave the sum over the ranks from `first` to before `end` at the first of them."""
        if end - first == 1:
            return
        middle = first + (end - first) // 2
        rank = self.place.rank
        if rank < middle:
            self._add_halves(flat, first, middle)
        else:
            self._add_halves(flat, middle, end)
        if rank == middle:
            dist.send(flat, first)
        if rank == first:
            other = torch.empty_like(flat)
            dist.recv(other, middle)
            flat += other


def as_tensor(raw: bytes) -> Tensor:
    """Bytes to send."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def as_bytes(tensor: Tensor) -> bytes:
    """Bytes that were received."""
    return tensor.numpy().tobytes()
