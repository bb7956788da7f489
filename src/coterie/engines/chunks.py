"""Which clients are worked on at once, and in which order.

A chunk is padded to its largest client, so that clients of very different sizes in one chunk would
take the time and memory of as many large ones. Therefore chunks are cut by rows, not by clients.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.call import Call
from coterie.data.roster import Roster
from coterie.data.shards import Shards
from coterie.engines.plan import Plan

LIKE = 0.75  # a client this share of the largest in size, or larger, may be padded to it
NUMBERS_OF_A_PLACE = 8  # a row's place in the store, target, mask, weight, key of a random order
SPARE = 1 / 64  # of the plan's rows: padding that takes no longer than a chunk more would


class Chunk(NamedTuple):
    """Clients that are padded to the same length and worked on at once."""

    positions: Tensor  # int64, in the call
    lengths: tuple[int, ...]  # by part of the data: the rows that each client is padded to

    @property
    def rows(self) -> int:
        """Rows with the padding: what the work on this chunk grows with."""
        return len(self.positions) * sum(self.lengths)


def chunks_of_call(call: Call, roster: Roster, plan: Plan, shares: Shards) -> list[list[Chunk]]:
    """The chunks of each share in an exchange, by the rows of all parts that it asks for."""
    parts = [roster.rows.train]
    if call.split is not None:
        parts.append(getattr(roster.rows, call.split))
    sizes = torch.stack([part[call.ids] for part in parts])
    plan = plan_of_call(call, roster, plan)
    chunks = []
    for positions in shares.positions(call.ids):
        of_share = divide_work(call.ids[positions], sizes[:, positions], plan)
        chunks.append([chunk._replace(positions=positions[chunk.positions]) for chunk in of_share])
    return chunks


def plan_of_call(call: Call, roster: Roster, plan: Plan) -> Plan:
    """The plan for an exchange; where a function only draws rows, more clients fit at once."""
    if call.sample_size is None or not plan.drawing:
        return plan
    if call.sample_size >= int(roster.rows.train[call.ids].max()):  # everybody reads all rows
        return plan
    clients = max(1, min(plan.drawing, plan.rows // call.sample_size))
    lighter = max(1, math.prod(roster.row_shape) // NUMBERS_OF_A_PLACE)
    return replace(plan, chunk=clients, rows=lighter * plan.rows)


def divide_work(ids: Tensor, sizes: Tensor, plan: Plan) -> list[Chunk]:
    """The chunks of one share, largest first; it depends on the arguments alone.

    ids: [n] the clients asked.
    sizes: [parts, n] how many rows each of them has in each part of the data that is asked for.
    """
    chunks = []
    for group in groups_of_like_size(by_size(ids, sizes), sizes, plan):
        for positions in group.positions.tensor_split(count_pieces(group, plan)):
            chunks.append(padded_chunk(positions, sizes))
    return sorted(chunks, key=lambda chunk: -chunk.rows)


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


def count_pieces(group: Chunk, plan: Plan) -> int:
    """Into how many chunks to cut a group: by clients, and by rows."""
    at_once = max(1, min(plan.chunk, plan.rows // sum(group.lengths)))
    return math.ceil(len(group.positions) / at_once)


def padded_chunk(positions: Tensor, sizes: Tensor) -> Chunk:
    """The clients at these positions as one chunk."""
    lengths = sizes[:, positions].amax(1).clamp(min=1)
    return Chunk(positions, tuple(lengths.tolist()))


def in_turn(shares: list[list[Chunk]]) -> list[tuple[int, int]]:
    """(share, number of the chunk in it) of all chunks, in the order in which workers take them.

    The largest come first, so that all workers end at about the same time; those of one share keep
    their order.
    """
    turns = []
    for share, chunks in enumerate(shares):
        for number, chunk in enumerate(chunks):
            turns.append((-chunk.rows, number, share))
    return [(share, number) for _, number, share in sorted(turns)]
