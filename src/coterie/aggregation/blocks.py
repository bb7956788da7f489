"""Walk through the clients' values in blocks of coordinates.

The values may be memory-mapped tables far larger than memory. A block holds the rows of a centre's
members for some coordinates, and as many numbers whatever the number of members.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from coterie.core.params import Params

# A whole piece of each row is read at once: on a disk, a few numbers cost as much as a page.
READ_NUMBERS = 2**23
# What is sorted and multiplied at once; it stays in the processor's cache.
BLOCK_NUMBERS = 2**20


class Block(NamedTuple):
    """Some coordinates of all members."""

    leaf: str
    columns: slice  # of the leaf, with everything but its first axis flattened
    rows: Tensor  # [members, columns], a copy


class Members(NamedTuple):
    """The rows of some clients in the table of all clients' values."""

    values: Params  # leaves [clients, ...]
    clients: Tensor  # int64 [members], their rows

    def blocks(self) -> Iterator[Block]:
        """All coordinates of all leaves, block by block."""
        read = max(1, READ_NUMBERS // len(self.clients))
        width = max(1, BLOCK_NUMBERS // len(self.clients))
        for name, leaf in self.values.items():
            table = as_table(leaf)
            for first in range(0, table.shape[1], read):
                piece = table[:, first : first + read].index_select(0, self.clients)
                for rows in piece.split(width, 1):
                    yield Block(name, slice(first, first + rows.shape[1]), rows)
                    first += rows.shape[1]


def as_table(leaf: Tensor) -> Tensor:
    """[n, ...] as [n, numbers], without a copy if the leaf is contiguous."""
    return leaf.detach().reshape(len(leaf), math.prod(leaf.shape[1:]))


def centres_by_members(weight: Tensor) -> Iterator[tuple[list[int], Tensor]]:
    """(centres, members): the centres that have the same members, so that these are read once.

    weight: [n, K]. Members of a centre are the clients with a positive weight for it; a centre
    without any is left out.
    """
    centres: dict[bytes, list[int]] = {}
    is_member = (weight > 0).cpu()
    for k in range(weight.shape[1]):
        centres.setdefault(is_member[:, k].numpy().tobytes(), []).append(k)
    for same in centres.values():
        members = is_member[:, same[0]].nonzero()[:, 0]
        if len(members):
            yield same, members.to(weight.device)
