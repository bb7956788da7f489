"""Which share of the clients is whose: of each worker of a process, or of each rank.

A chunk never has clients of two shares, and sums are added share by share (see `halved`). So a
share comes to the same bits wherever its clients are simulated: what a thread has in one process, a
rank of one thread has among ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.data.roster import Roster

T = TypeVar("T")
ALIGNED = 16  # bytes


class Shares(NamedTuple):
    """The clients of each share: of like size, which are worked on at once; then neighbours."""

    clients: list[Tensor]  # by share: int64, sorted ids in the whole federation
    owner: Tensor  # int64 [total] the share of each client
    local: Tensor  # int64 [total] its id among the clients of its share
    training: int  # clients that train; the ids of unseen ones begin here

    def positions(self, ids: Tensor) -> list[Tensor]:
        """By share: at which positions of `ids` its clients stand."""
        owner = self.owner[ids]
        return [(owner == share).nonzero()[:, 0] for share in range(len(self.clients))]

    def training_clients(self, share: int) -> Tensor:
        """The clients of a share that train."""
        mine = self.clients[share]
        return mine[mine < self.training]


def divide(roster: Roster, ranks: int, workers: int = 1) -> Shares:
    """The clients of each rank, with about as many rows each.

    It depends on row counts and numbers alone. A rank has as many shares as workers, which are
    those of one process with as many workers in all, unless there are fewer clients.
    """
    if len(roster) < ranks * workers:
        workers = 1
    training = equal_shares(roster.rows.train[: len(roster)], ranks * workers)
    unseen = equal_shares(roster.rows.train[len(roster) :], ranks * workers)
    clients = []
    for first in range(0, ranks * workers, workers):
        end = first + workers
        later = [some + len(roster) for some in unseen[first:end]]
        clients.append(torch.cat([*training[first:end], *later]).sort().values)
    owner = torch.zeros(roster.total, dtype=torch.long)
    local = torch.zeros(roster.total, dtype=torch.long)
    for share, mine in enumerate(clients):
        owner[mine] = share
        local[mine] = torch.arange(len(mine))
    return Shares(clients, owner, local, len(roster))


def equal_shares(rows: Tensor, shares: int) -> list[Tensor]:
    """Divide clients, the largest first, into shares of about as many rows each."""
    order = rows.argsort(stable=True, descending=True)
    return [order[run].sort().values for run in cut_by_rows(rows[order], shares)]


def cut_by_rows(rows: Tensor, shares: int) -> list[Tensor]:
    """Cut clients into runs of about as many rows each.

    They are cut as `halved` adds: the four shares of one process are the two shares of each of two
    ranks. No run is empty, unless there are fewer clients than shares.
    """
    n = len(rows)
    if shares == 1:
        return [torch.arange(n)]
    left = shares // 2
    before = rows.cumsum(0) - rows / 2  # a client belongs where the middle of its rows is
    end = int((before < int(rows.sum()) * left / shares).sum())
    end = max(end, min(left, n // 2))  # at least one client for each share on the left
    end = min(end, n - min(shares - left, n - n // 2))  # and on the right
    right = cut_by_rows(rows[end:], shares - left)
    return cut_by_rows(rows[:end], left) + [run + end for run in right]


def halved(parts: Sequence[T], add: Callable[[T, T], T]) -> T:
    """Add the sum of the first half to that of the second, each added in the same way."""
    if len(parts) == 1:
        return parts[0]
    left = len(parts) // 2
    return add(halved(parts[:left], add), halved(parts[left:], add))


# ------------------------------------------------------------------------------ some of all clients
class Among(NamedTuple):
    """Which of all clients a process has, where other processes have the others."""

    clients: Tensor  # int64, ids in the whole federation
    roster: Roster  # of all clients

    def starts(self, part: str, item_bytes: int, power: int = 1) -> Tensor:
        """Where each client's rows begin, so that they are aligned as in a store of all clients.

        Products of matrices may differ in the last bit where memory is aligned in another way.
        item_bytes: of a row.  power: 2 where n rows take n² items.
        """
        of_all = getattr(self.roster.rows, part) ** power
        wanted = (of_all.cumsum(0) - of_all)[self.clients]
        sizes = of_all[self.clients]
        dense = sizes.cumsum(0) - sizes
        period = ALIGNED // math.gcd(ALIGNED, item_bytes)  # items after which bytes are aligned
        shift = (wanted - dense) % period
        gaps = shift.diff(prepend=shift.new_zeros(1)) % period
        return dense + gaps.cumsum(0)
