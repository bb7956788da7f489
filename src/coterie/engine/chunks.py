"""Which clients are worked on at once, and which worker has them.

A chunk is padded to its largest client, so that clients of very different sizes in one chunk would
take the time and memory of as many large ones. Therefore chunks are cut by rows, not by clients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.data.roster import Roster
from coterie.engine.call import Call
from coterie.engine.plan import Plan

LIKE = 0.75  # a client this share of the largest in size, or larger, may be padded to it
SPARE = 1 / 64  # of the plan's rows: padding that takes no longer than a chunk more would


class Chunk(NamedTuple):
    """Clients that are padded to the same length and worked on at once."""

    positions: Tensor  # int64, in the call
    lengths: tuple[int, ...]  # by part of the data: the rows that each client is padded to

    @property
    def rows(self) -> int:
        """Rows with the padding: what the work on this chunk grows with."""
        return len(self.positions) * sum(self.lengths)


def chunks_of_call(call: Call, roster: Roster, plan: Plan) -> list[list[Chunk]]:
    """The chunks of each worker in an exchange, by the rows of all parts that it asks for."""
    parts = [roster.rows.train]
    if call.exam is not None:
        parts.append(getattr(roster.rows, call.exam))
    sizes = torch.stack([part[call.ids] for part in parts])
    return divide_work(call.ids, sizes, plan)


def divide_work(ids: Tensor, sizes: Tensor, plan: Plan) -> list[list[Chunk]]:
    """The chunks of each worker, largest first; it depends on the arguments alone.

    ids: [n] the clients asked.
    sizes: [parts, n] how many rows each of them has in each part of the data that is asked for.
    """
    groups = groups_of_like_size(by_size(ids, sizes), sizes, plan)
    share = sum(group.rows for group in groups) / plan.workers
    chunks = []
    for group in groups:
        pieces = min(count_pieces(group, share, plan), len(group.positions))
        for positions in group.positions.tensor_split(pieces):
            chunks.append(padded_chunk(positions, sizes))
    return equal_shares(chunks, plan.workers)


def by_size(ids: Tensor, sizes: Tensor) -> Tensor:
    """Positions, the largest client first; neighbours stay together, so that rows can be a view."""
    order = ids.argsort(stable=True)
    return order[sizes.sum(0)[order].argsort(stable=True, descending=True)]


def groups_of_like_size(order: Tensor, sizes: Tensor, plan: Plan) -> list[Chunk]:
    """Cut the order of sizes where padding to the largest would take longer than another chunk."""
    groups = []
    while len(order):
        of_parts = sizes[:, order]
        real = of_parts.sum(0)
        padded = of_parts.cummax(1).values.sum(0)  # if this client were the last of its group
        clients = torch.arange(1, len(order) + 1)
        padding = padded * clients - real.cumsum(0)
        fits = (real >= LIKE * padded) | (padding <= SPARE * plan.rows)
        count = len(order)
        if not bool(fits.all()):
            count = int(fits.long().argmin())
        groups.append(padded_chunk(order[:count], sizes))
        order = order[count:]
    return groups


def count_pieces(group: Chunk, share: float, plan: Plan) -> int:
    """Into how many chunks to cut a group: by clients, by rows, and so that no worker has more."""
    clients_at_once = max(1, min(plan.chunk, plan.rows // sum(group.lengths)))
    pieces = max(_ceil(len(group.positions) / clients_at_once), _ceil(group.rows / share))
    if pieces == 1:
        return 1
    return _ceil(pieces / plan.workers) * plan.workers


def padded_chunk(positions: Tensor, sizes: Tensor) -> Chunk:
    """The clients at these positions as one chunk."""
    lengths = sizes[:, positions].amax(1).clamp(min=1)
    return Chunk(positions, tuple(lengths.tolist()))


def equal_shares(chunks: list[Chunk], workers: int) -> list[list[Chunk]]:
    """Give each chunk, the largest first, to the worker that has the fewest rows so far."""
    shares: list[list[Chunk]] = [[] for _ in range(workers)]
    rows = [0] * workers
    for chunk in sorted(chunks, key=lambda c: -c.rows):
        worker = rows.index(min(rows))
        shares[worker].append(chunk)
        rows[worker] += chunk.rows
    return shares


def _ceil(x: float) -> int:
    return -int(-x // 1)
