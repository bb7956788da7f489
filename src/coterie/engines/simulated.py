"""What simulated clients own, in one process: their rows and their private states."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from coterie.core.call import Call, EvaluationData
from coterie.core.client_data import Store
from coterie.core.contract import Algorithm, Data
from coterie.core.task import Batch, Task
from coterie.data.federation import Federation, Ragged, as_numbers
from coterie.data.shards import ClientSubset
from coterie.engines.dry_run import example_batch
from coterie.engines.grams import Grams
from coterie.engines.private_states import Enroll, PrivateStates


def padded_rows(
    part: Ragged, starts: Tensor, ids: Tensor, dtype: torch.dtype, *, in_store: bool = False
) -> Batch:
    """The rows of some clients as they are kept, padded to the largest: leaves [clients, n, ...].

    Padding repeats the client's own last row, so that no model meets a row it never would.
    Neighbours of equal size are a view of the store: nothing is copied.
    in_store: x are the places of the rows, int64 [clients, n].
    """
    sizes, first = part.sizes[ids], starts[ids]
    n = max(int(sizes.max()), 1)
    if not in_store and bool((sizes == n).all()) and bool((ids.diff() == 1).all()):
        at = slice(int(first[0]), int(first[0]) + n * len(ids))
        x, y = (v[at].view(len(ids), n, *v.shape[1:]) for v in (part.x, part.y))
        mask = torch.ones(len(ids), n, dtype=dtype, device=x.device)
        return Batch(x, y, mask, mask)
    row = torch.arange(n)
    last = (sizes[:, None] - 1).clamp(min=0)
    rows = (first[:, None] + torch.minimum(row, last)).clamp(max=len(part.x) - 1)
    rows = rows.to(part.x.device)
    mask = (row < sizes[:, None]).to(dtype).to(part.x.device)
    x = rows if in_store else part.x[rows]
    return Batch(x, part.y[rows], mask, torch.ones_like(mask))


class SimulatedClients:
    """The rows of all clients and the private states of those that were asked.

    It is what the loop and the vectorised engine have in common.
    """

    def __init__(self, task: Task, fed: Federation, among: ClientSubset | None = None) -> None:
        """among: which of all clients those of `fed` are, where other processes have the others."""

        def move(v: Tensor) -> Tensor:
            if v.dtype == torch.uint8 or (fed.stored is not None and fed.stored.has(v)):
                return v  # which would not fit into memory: `numbers` converts what is used
            return as_numbers(v, fed.byte_scale, self.like)

        self.task = task
        self.roster = fed.roster
        self.byte_scale = fed.byte_scale
        self.loss_scale = fed.loss_scale
        parts = {"train": fed.train, "test": fed.test, "valid": fed.valid}
        self.like = torch.empty(0, dtype=task.dtype, device=task.device)
        self.parts = {
            name: Ragged(move(part.x), move(part.y), part.sizes)
            for name, part in parts.items()
            if part is not None
        }
        self.starts = {name: part.starts for name, part in self.parts.items()}
        if among is None:
            self.fed = fed
        else:  # whose rows are copied, and not kept twice
            self._align(among)
        self.grams: Grams | None = None  # where the engine keeps them
        self.private = PrivateStates(len(fed), task.device)
        self.contacted = torch.zeros(
            fed.total, dtype=torch.bool
        )  # who was sent the initial payload

    def _align(self, among: ClientSubset) -> None:
        """Put the rows where they are aligned as in a store of all clients."""
        for name, part in self.parts.items():
            # what aligns items of this size aligns the rows of x and those of y
            row_bytes = math.gcd(part.x[:1].nbytes, part.y[:1].nbytes)
            starts = among.aligned_starts(name, row_bytes)
            shift = (starts - part.starts).repeat_interleave(part.sizes)
            at = (torch.arange(len(shift)) + shift).to(part.x.device)
            rows = int((starts + part.sizes).max())
            x, y = (v.new_zeros(rows, *v.shape[1:]).index_copy_(0, at, v) for v in part[:2])
            self.parts[name] = Ragged(x, y, part.sizes)
            self.starts[name] = starts

    def enroll(self, method: Algorithm, initial_payload: Any) -> None:
        """Remember how clients begin."""
        key = torch.zeros((), dtype=torch.long, device=self.task.device)
        example = Data(example_batch(self.task, self.roster), key, key)
        enroll: Enroll = lambda task, data: method.enroll(task, initial_payload, data)
        self.private.remember_enroll(enroll, self.task, example)

    def begin_call(self, call: Call) -> int:
        """Make room for new private states; how many clients are contacted for the first time."""
        if call.keeps_private:
            self.private.reserve(call.ids)
        if not call.enrolled:
            return 0
        new = int((~self.contacted[call.ids]).sum())
        self.contacted[call.ids] = True
        return new

    # -- one client, unpadded
    def client(self, call: Call, at: int, task: Task) -> tuple[Any, Any]:
        """(private, data) of the client at a position of the call; task: the worker's own."""
        i, device = int(call.ids[at]), self.task.device
        keys = call.keys[at].to(device), call.client_keys[at].to(device)
        data = Data(self.rows("train", i), *keys)
        if self.grams is not None:
            data = data._replace(gram=self.grams.one(i))
        private = self.private.one(i, data, task) if call.enrolled else ()
        if call.split is None:
            return private, data
        return private, EvaluationData(data, self.rows(call.split, i))

    def rows(self, part: str, i: int) -> Batch:
        """The rows of one client."""
        x, y, sizes = self.parts[part]
        start = int(self.starts[part][i])
        end = start + int(sizes[i])
        batch = Batch.of(self.numbers(x[start:end]), y[start:end], self.task.dtype)
        return self.scale_losses(part, torch.tensor([i]), batch)

    # -- some clients, padded
    def clients(self, call: Call, at: Tensor, task: Task) -> tuple[Any, Any]:
        """(private, data) of the clients at these positions, leaves [n, ...]."""
        ids, device = call.ids[at], self.task.device
        keys = call.keys[at].to(device), call.client_keys[at].to(device)
        if call.sample_size is not None:
            data = Data(self.places("train", ids), *keys, store=self.store)
        else:
            data = Data(self.padded("train", ids), *keys)
            if self.grams is not None:
                data = data._replace(gram=self.grams.some(ids))
        private = self.private.some(ids, data, task) if call.enrolled else ()
        if call.split is None:
            return private, data
        return private, EvaluationData(data, self.padded(call.split, ids))

    @property
    def store(self) -> Store:
        """The training rows of all clients."""
        return Store(self.parts["train"].x, self.numbers)

    def places(self, part: str, ids: Tensor) -> Batch:
        """The rows of some clients by their places in the store, padded to the largest."""
        batch = padded_rows(
            self.parts[part], self.starts[part], ids, self.task.dtype, in_store=True
        )
        return self.scale_losses(part, ids, batch)

    def padded(self, part: str, ids: Tensor) -> Batch:
        """The rows of some clients, padded to the largest."""
        batch = padded_rows(self.parts[part], self.starts[part], ids, self.task.dtype)
        return self.scale_losses(part, ids, batch._replace(x=self.numbers(batch.x)))

    def numbers(self, x: Tensor) -> Tensor:
        """Rows as the model takes them; those in memory are so already."""
        return as_numbers(x, self.byte_scale, self.like)

    def scale_losses(self, part: str, ids: Tensor, batch: Batch) -> Batch:
        """The rows with the factor that their clients' training losses have."""
        if part != "train" or self.loss_scale is None:
            return batch
        factor = self.loss_scale[ids].to(batch.mask)
        if batch.mask.dim() == 2:
            factor = factor[:, None]
        return batch._replace(weight=batch.weight * factor)

    # -- checkpoints
    def snapshot(self) -> Any:
        """Private states, and who was contacted."""
        return {"private": self.private.snapshot(), "contacted": self.contacted}

    def restore(self, snapshot: Any) -> None:
        """Be where `snapshot` was taken."""
        self.private.restore(snapshot["private"])
        self.contacted = snapshot["contacted"].clone()
