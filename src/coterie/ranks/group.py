"""Messages between ranks over torch.distributed (gloo; nccl for sums on a GPU).

Rank 0 sends a message to all ranks, collects a status from each, then receives their results. The
status comes first so that rank 0 can report an error of another rank, and no rank waits for a sum
to which another does not contribute. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.trees import tree_flatten, tree_unflatten
from coterie.ranks.connection import RankConnection
from coterie.ranks.launch import RankInfo, RankLost

MessageKind = Literal["open", "enroll", "map", "snapshot", "restore", "end"]
KINDS: tuple[MessageKind, ...] = ("open", "enroll", "map", "snapshot", "restore", "end")


class RankMessage(NamedTuple):
    """A message of rank 0 to another rank."""

    kind: MessageKind
    common: bytes  # the same for all ranks
    own: bytes  # for this rank only


class RankStatus(NamedTuple):
    """Whether a rank succeeded, and the size of the result that it sends next."""

    ok: bool = True
    size: int = 0  # bytes


class RankGroup:
    """The ranks of one command."""

    def __init__(self, info: RankInfo) -> None:
        self.info = info
        self.connection = RankConnection(info)
        self.is_pending = False  # ranks are working on the last message
        self.statuses: list[RankStatus] = []  # by rank, for the last message

    @property
    def port(self) -> int:
        """The port at which the other ranks connect."""
        return self.connection.port

    def connect(self) -> None:
        """Wait for all ranks and form the process group."""
        self.connection.connect()

    def close(self) -> None:
        """Leave the group; rank 0 ends all other ranks."""
        is_idle = self.connection.is_healthy and not self.is_pending
        if is_idle and self.info.is_server:
            with suppress(RankLost):  # the run is complete
                self.send("end")
                self.wait_for_statuses()
        self.connection.close()
        if is_idle and self.connection.is_healthy:
            dist.destroy_process_group()

    # -- rank 0
    def send(self, kind: MessageKind, common: bytes = b"", own: Sequence[bytes] = ()) -> None:
        """Send a message to all other ranks.

        Args:
            kind: What the ranks do.
            common: Content for all ranks.
            own: Content per rank, indexed by rank.
        """
        own = own or [b""] * self.info.size

        def send() -> None:
            sizes = [KINDS.index(kind), len(common), *map(len, own)]
            dist.broadcast(torch.tensor(sizes), 0)
            if common:
                dist.broadcast(as_tensor(common), 0)
            for rank in range(1, self.info.size):
                if own[rank]:
                    dist.send(as_tensor(own[rank]), rank)

        self.is_pending = True
        self.connection.run(send)

    def wait_for_statuses(self, results_follow: bool = False) -> None:
        """Wait until all ranks have handled the last message.

        Raises:
            CoterieError: A rank reports an error of the user.
            RuntimeError: A rank reports a bug.
        """
        self.statuses = self.connection.run(lambda: self._exchange_statuses(RankStatus()))
        if all(status.ok for status in self.statuses):
            self.is_pending = results_follow
            return
        for rank, raw in enumerate(self.gather(), start=1):
            if self.statuses[rank].ok:
                continue
            exit_status, _, reason = raw.decode().partition(" ")
            if exit_status == "2":
                raise CoterieError(f"{self.connection.name(rank)}: {reason}")
            raise RuntimeError(f"{self.connection.name(rank)}: {reason}")

    def gather(self) -> list[bytes]:
        """Receive the results of all other ranks, in the order of ranks."""

        def receive() -> list[bytes]:
            results = []
            for rank, status in enumerate(self.statuses[1:], start=1):
                result = torch.empty(status.size, dtype=torch.uint8)
                if status.size:
                    dist.recv(result, rank)
                results.append(as_bytes(result))
            return results

        results = self.connection.run(receive)
        self.is_pending = False
        return results

    # -- other ranks
    def receive(self) -> RankMessage:
        """Wait for the next message of rank 0."""

        def receive() -> RankMessage:
            sizes = torch.zeros(self.info.size + 2, dtype=torch.long)
            dist.broadcast(sizes, 0)
            kind, length = int(sizes[0]), int(sizes[1])
            common = torch.empty(length, dtype=torch.uint8)
            if length:
                dist.broadcast(common, 0)
            own = torch.empty(int(sizes[2 + self.info.rank]), dtype=torch.uint8)
            if own.numel():
                dist.recv(own, 0)
            return RankMessage(KINDS[kind], as_bytes(common), as_bytes(own))

        return self.connection.run(receive)

    def reply(self, result: bytes, sums: Any = ()) -> None:
        """Send a result to rank 0, after sums to which all ranks contribute.

        If another rank failed, rank 0 reads neither.
        """
        statuses = self.connection.run(
            lambda: self._exchange_statuses(RankStatus(size=len(result)))
        )
        if all(status.ok for status in statuses):
            self.reduce(sums)
        self._send_to_server(result)

    def confirm_end(self) -> None:
        """Notify rank 0 that this rank expects the connection to close."""
        assert self.connection.keepalive is not None
        self.connection.keepalive.announce_exit()
        self.reply(b"")

    def report_error(self, reason: str, exit_status: int) -> None:
        """Send an error to rank 0, which raises it.

        Args:
            reason: One sentence.
            exit_status: Exit status of the command: 2 for an error of the user, 1 for a bug.
        """
        raw = f"{exit_status} {reason}".encode()
        failed = RankStatus(ok=False, size=len(raw))
        self.connection.run(lambda: self._exchange_statuses(failed))
        self._send_to_server(raw)

    def _send_to_server(self, raw: bytes) -> None:
        if raw:
            self.connection.run(lambda: dist.send(as_tensor(raw), 0))

    # -- all ranks
    def _exchange_statuses(self, own: RankStatus) -> list[RankStatus]:
        table = torch.zeros(self.info.size, 2, dtype=torch.long)
        table[self.info.rank] = torch.tensor([not own.ok, own.size])
        dist.all_reduce(table)
        return [RankStatus(not failed, size) for failed, size in table.tolist()]

    def reduce(self, tree: Any) -> Any:
        """Sum each tensor of a pytree over all ranks.

        The order of additions is that of `pairwise_sum` in one process, so that bits are equal.
        Tensors of one dtype and device travel together.

        Args:
            tree: Tensors; the same structure and shapes at every rank.

        Returns:
            The same pytree; at rank 0 it holds the sums.
        """
        leaves, structure = tree_flatten(tree)
        kinds = dict.fromkeys((v.dtype, v.device) for v in leaves)

        def add_up() -> list[Tensor]:
            sums: dict[int, Tensor] = {}
            for kind in kinds:
                indices = [i for i, v in enumerate(leaves) if (v.dtype, v.device) == kind]
                flat = torch.cat([leaves[i].reshape(-1) for i in indices])
                self._add_halves(flat, 0, self.info.size)
                pieces = flat.split([leaves[i].numel() for i in indices])
                for i, piece in zip(indices, pieces):
                    sums[i] = piece.view(leaves[i].shape).clone()  # aligned as any other tensor
            return [sums[i] for i in range(len(leaves))]

        return tree_unflatten(self.connection.run(add_up), structure)

    def _add_halves(self, flat: Tensor, first: int, end: int) -> None:
        """Leave the sum over ranks first … end - 1 at rank `first`."""
        if end - first == 1:
            return
        middle = first + (end - first) // 2
        rank = self.info.rank
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
    """Return bytes as a tensor that can be sent."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def as_bytes(tensor: Tensor) -> bytes:
    """Return a received tensor as bytes."""
    return tensor.numpy().tobytes()
