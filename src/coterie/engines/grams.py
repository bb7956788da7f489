"""XXᵀ of clients' training rows, kept from round to round where local training uses it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.optim.gram import gram_matrix

Rows = Callable[[int], Tensor]


class Grams:
    """The matrices of all clients in one buffer; each is computed when it is first asked for.

    A page of memory that nothing was written to takes none, so the buffer costs nothing until then.
    """

    def __init__(
        self, sizes: Tensor, rows: Rows, like: Tensor, starts: Tensor | None = None
    ) -> None:
        """sizes: [clients] rows of each.  rows: gives those of a client.  like: of their type.

        starts: [clients] where each matrix begins in the buffer; None: one after another.
        """
        self.sizes = sizes
        self.rows = rows
        self.wanted = torch.zeros(len(sizes), dtype=torch.bool)  # whose local training wished
        squares = sizes * sizes
        self.starts = squares.cumsum(0) - squares if starts is None else starts
        self.buffer = like.new_empty(int((self.starts + squares).max()))
        self.known = torch.zeros(len(sizes), dtype=torch.bool)

    def one(self, i: int) -> Tensor:
        """[n, n] of a client; empty as long as it is not wanted."""
        if not self.wanted[i]:
            return self.buffer.new_empty(0, 0)
        kept = self._place(i)
        if not self.known[i]:
            kept.copy_(gram_matrix(self.rows(i).flatten(1)))
            self.known[i] = True
        return kept

    def some(self, ids: Tensor) -> Tensor:
        """[clients, n, n] padded to the largest; of neighbours of equal size a view.

        Empty as long as they are not wanted of all of them.
        """
        if not bool(self.wanted[ids].all()):
            return self.buffer.new_empty(len(ids), 0, 0)
        for i in ids[~self.known[ids]].tolist():
            self.one(i)
        n = int(self.sizes[ids].max())
        if bool((self.sizes[ids] == n).all()) and bool((ids.diff() == 1).all()):
            start = int(self.starts[ids[0]])
            return self.buffer[start : start + n * n * len(ids)].view(len(ids), n, n)
        padded = self.buffer.new_zeros(len(ids), n, n)
        for row, i in zip(padded, ids.tolist()):
            gram = self._place(i)
            row[: len(gram), : len(gram)] = gram
        return padded

    def _place(self, i: int) -> Tensor:
        n = int(self.sizes[i])
        start = int(self.starts[i])
        return self.buffer[start : start + n * n].view(n, n)
