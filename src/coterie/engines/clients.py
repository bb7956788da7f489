"""Simulated clients in one process: their samples, private states and cached Gram matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.core.call import Call, EvaluationData
from coterie.core.client_data import Store
from coterie.core.contract import Algorithm, Data
from coterie.core.task import Batch, Task
from coterie.core.trees import tree_leaves, tree_map
from coterie.data.federation import Federation, Ragged, as_numbers
from coterie.data.roster import Roster
from coterie.data.shards import ClientSubset
from coterie.engines.templates import example_batch
from coterie.optim.dual_weights import gram_matrix

Enroll = Callable[[Task, Data], Any]


class SimulatedClients:
    """The base of the loop and the vectorised engine: it gives client functions their data.

    Args:
        task: Model and loss.
        fed: The clients' data.
        subset: Which of all clients `fed` has, if other processes have the others.
    """

    def __init__(self, task: Task, fed: Federation, subset: ClientSubset | None = None) -> None:
        def to_task(v: Tensor) -> Tensor:
            if v.dtype == torch.uint8 or (fed.stored is not None and fed.stored.has(v)):
                return v  # may not fit into memory as floats: converted when used
            return as_numbers(v, fed.byte_scale, self.like)

        self.task = task
        self.roster: Roster = fed.roster
        self.byte_scale = fed.byte_scale
        self.loss_scale = fed.loss_scale
        parts = {"train": fed.train, "test": fed.test, "valid": fed.valid}
        self.like = torch.empty(0, dtype=task.dtype, device=task.device)  # for `as_numbers`
        self.parts = {
            name: Ragged(to_task(part.x), to_task(part.y), part.sizes)
            for name, part in parts.items()
            if part is not None
        }
        self.starts = {name: part.starts for name, part in self.parts.items()}
        self.federation: Federation | None = fed
        if subset is not None:
            self._align(subset)
            self.federation = None  # its samples were copied: do not keep them twice
        self.grams: GramCache | None = None
        self.private = PrivateStates(len(fed), task.device)
        self.contacted = torch.zeros(fed.total, dtype=torch.bool)  # has the initial payload

    def _align(self, subset: ClientSubset) -> None:
        """Copy the samples to the memory alignment that they have without ranks.

        Sums then have the same bits.
        """
        for name, part in self.parts.items():
            # an item size that aligns the rows of both x and y
            row_bytes = math.gcd(part.x[:1].nbytes, part.y[:1].nbytes)
            starts = subset.aligned_starts(name, row_bytes)
            shift = (starts - part.starts).repeat_interleave(part.sizes)
            at = (torch.arange(len(shift)) + shift).to(part.x.device)
            rows = int((starts + part.sizes).max())
            x, y = (v.new_zeros(rows, *v.shape[1:]).index_copy_(0, at, v) for v in part[:2])
            self.parts[name] = Ragged(x, y, part.sizes)
            self.starts[name] = starts

    def enroll(self, method: Algorithm, initial_payload: Any) -> None:
        """Store how a client's first private state is made."""
        key = torch.zeros((), dtype=torch.long, device=self.task.device)
        example = Data(example_batch(self.task, self.roster), key, key)
        enroll: Enroll = lambda task, data: method.enroll(task, initial_payload, data)
        self.private.set_enroll(enroll, self.task, example)

    def begin_call(self, call: Call) -> int:
        """Reserve space for new private states; return the number of first contacts."""
        if call.keeps_private:
            self.private.reserve(call.ids)
        if not call.enrolled:
            return 0
        first_contacts = int((~self.contacted[call.ids]).sum())
        self.contacted[call.ids] = True
        return first_contacts

    # -- one client, without padding
    def inputs_of_client(self, call: Call, position: int, task: Task) -> tuple[Any, Any]:
        """(private state, data) of the client at this position of the call.

        The task is that of the worker thread; it makes the client's first private state.
        """
        i, device = int(call.ids[position]), self.task.device
        keys = call.keys[position].to(device), call.client_keys[position].to(device)
        data = self._with_noise(Data(self.rows("train", i), *keys), call.ids[position])
        if self.grams is not None:
            data = data._replace(gram=self.grams.one(i))
        private = self.private.one(i, data, task) if call.enrolled else ()
        if call.split is None:
            return private, data
        return private, EvaluationData(data, self.rows(call.split, i))

    def _with_noise(self, data: Data, ids: Tensor) -> Data:
        """The data with the clients' noise under record-level differential privacy."""
        privacy = self.task.row_privacy
        if privacy is None:
            return data
        return data._replace(noise_multiplier=privacy.noise_multipliers[ids].to(self.like.device))

    def rows(self, split: str, i: int) -> Batch:
        """The samples of one client in a split."""
        x, y, sizes = self.parts[split]
        start = int(self.starts[split][i])
        end = start + int(sizes[i])
        batch = Batch.of(self.as_numbers(x[start:end]), y[start:end], self.task.dtype)
        return self._scale_losses(split, torch.tensor([i]), batch)

    # -- several clients, padded
    def inputs_of_clients(self, call: Call, positions: Tensor, task: Task) -> tuple[Any, Any]:
        """(private states, data) of some clients of the call, leaves [n, ...]."""
        ids, device = call.ids[positions], self.task.device
        keys = call.keys[positions].to(device), call.client_keys[positions].to(device)
        if call.sample_size is not None:  # copy only the samples that the function draws
            store = Store(self.parts["train"].x, self.as_numbers)
            data = Data(self.padded("train", ids, in_store=True), *keys, store=store)
        else:
            data = Data(self.padded("train", ids), *keys)
            if self.grams is not None:
                data = data._replace(gram=self.grams.some(ids))
        data = self._with_noise(data, ids)
        private = self.private.some(ids, data, task) if call.enrolled else ()
        if call.split is None:
            return private, data
        return private, EvaluationData(data, self.padded(call.split, ids))

    def padded(self, split: str, ids: Tensor, *, in_store: bool = False) -> Batch:
        """The samples of some clients, padded to the largest, or with `in_store` their places."""
        batch = pad_samples(
            self.parts[split], self.starts[split], ids, self.task.dtype, in_store=in_store
        )
        if not in_store:
            batch = batch._replace(x=self.as_numbers(batch.x))
        return self._scale_losses(split, ids, batch)

    def as_numbers(self, x: Tensor) -> Tensor:
        """Samples as the model takes them; a no-op for those converted at the start."""
        return as_numbers(x, self.byte_scale, self.like)

    def _scale_losses(self, split: str, ids: Tensor, batch: Batch) -> Batch:
        """Multiply the weights of training samples by their clients' loss scale."""
        if split != "train" or self.loss_scale is None:
            return batch
        factor = self.loss_scale[ids].to(batch.mask)
        if batch.mask.dim() == 2:
            factor = factor[:, None]
        return batch._replace(weight=batch.weight * factor)

    # -- checkpoints
    def snapshot(self) -> Any:
        """Private states, and which clients were contacted."""
        return {"private": self.private.snapshot(), "contacted": self.contacted}

    def restore(self, snapshot: Any) -> None:
        """Restore the engine from a snapshot."""
        self.private.restore(snapshot["private"])
        self.contacted = snapshot["contacted"].clone()


def pad_samples(
    part: Ragged, starts: Tensor, ids: Tensor, dtype: torch.dtype, *, in_store: bool = False
) -> Batch:
    """Pad the stored samples of some clients to the largest of them.

    Padding repeats a client's last sample, so that models see only valid inputs. Consecutive
    clients of equal size give a view of the store.

    Args:
        part: The samples of all clients.
        starts: int64, where each client's samples begin.
        ids: int64 [n], the clients.
        dtype: Of masks and weights.
        in_store: Return the places of samples, int64 [n, m], instead of samples.

    Returns:
        Leaves of shape [n, m, ...].
    """
    sizes, first = part.sizes[ids], starts[ids]
    m = max(int(sizes.max()), 1)
    if not in_store and bool((sizes == m).all()) and bool((ids.diff() == 1).all()):
        at = slice(int(first[0]), int(first[0]) + m * len(ids))
        x, y = (v[at].view(len(ids), m, *v.shape[1:]) for v in (part.x, part.y))
        mask = torch.ones(len(ids), m, dtype=dtype, device=x.device)
        return Batch(x, y, mask, mask)
    row = torch.arange(m)
    last = (sizes[:, None] - 1).clamp(min=0)
    rows = (first[:, None] + torch.minimum(row, last)).clamp(max=len(part.x) - 1)
    rows = rows.to(part.x.device)
    mask = (row < sizes[:, None]).to(dtype).to(part.x.device)
    x = rows if in_store else part.x[rows]
    return Batch(x, part.y[rows], mask, torch.ones_like(mask))


class PrivateStates:
    """The private states of simulated clients: one table per leaf, one row per contacted client.

    `enroll` is pure, so the state of a client that was never contacted is made when it is needed.
    """

    def __init__(self, clients: int, device: torch.device) -> None:
        self.device = device
        self.slots = torch.full((clients,), -1)  # the table row of each client; −1: none
        self.written = torch.zeros(clients, dtype=torch.bool)  # whether the row holds a state
        self.used = 0
        self.tables: Any = ()
        self.enroll: Enroll = lambda task, data: ()
        self.like: Any = ()  # one client's state

    def set_enroll(self, enroll: Enroll, task: Task, example: Data) -> None:
        """Set how first states are made; example: data of a client, for their shapes."""
        self.enroll = enroll
        self.like = enroll(task, example)
        self.tables = tree_map(lambda v: v.new_zeros(0, *v.shape), self.like)

    @property
    def empty(self) -> bool:
        """Whether clients of this method have no private state."""
        return not tree_leaves(self.like)

    def one(self, client: int, data: Data, task: Task) -> Any:
        """One client's state; task and data make it if there is none."""
        slot = int(self.slots[client])
        if not self.written[client]:
            return self.enroll(task, data._replace(key=data.client_key))
        return tree_map(lambda table: table[slot].clone(), self.tables)

    def some(self, clients: Tensor, data: Data, task: Task) -> Any:
        """The states of some clients, leaves [n, ...]; data: theirs, padded."""
        if self.empty:
            return ()
        slots = self.slots[clients].to(self.device)
        written = self.written[clients].to(self.device)
        if bool(written.all()):
            return tree_map(lambda table: table[slots], self.tables)

        def enroll(own: Data) -> Any:
            return self.enroll(task, own)

        first = torch.func.vmap(enroll)(data._replace(key=data.client_key))
        if not bool(written.any()):
            return tree_map(lambda v: v.contiguous(), first)

        def choose(table: Tensor, made: Tensor) -> Tensor:
            kept = table[slots.clamp(min=0)]
            return torch.where(written.view(-1, *[1] * (made.dim() - 1)), kept, made)

        return tree_map(choose, self.tables, first)

    def reserve(self, clients: Tensor) -> None:
        """Reserve a row for each client, so that `write` is safe from several threads."""
        if self.empty:
            return
        new = clients[self.slots[clients] < 0].sort().values
        self.slots[new] = self.used + torch.arange(len(new))
        self.used += len(new)
        capacity = len(tree_leaves(self.tables)[0])
        if self.used > capacity:
            extra = max(self.used, min(2 * capacity, len(self.slots))) - capacity
            self.tables = tree_map(
                lambda v: torch.cat([v, v.new_zeros(extra, *v.shape[1:])]), self.tables
            )

    def write(self, clients: Tensor, states: Any) -> None:
        """Store new states, leaves [n, ...], of clients with reserved rows."""
        slots = self.slots[clients].to(self.device)
        for table, rows in zip(tree_leaves(self.tables), tree_leaves(states), strict=True):
            table.index_copy_(0, slots, rows)
        self.written[clients] = True

    def snapshot(self) -> Any:
        """A pytree of tensors for `restore`."""
        slots = torch.where(self.written, self.slots, -1)
        return {"slots": slots, "tables": tree_map(lambda v: v[: self.used], self.tables)}

    def restore(self, snapshot: Any) -> None:
        """Restore the states from a snapshot."""
        self.slots = snapshot["slots"].clone()
        self.written = self.slots >= 0
        self.used = int(self.slots.max()) + 1
        self.tables = tree_map(lambda v: v.to(self.device), snapshot["tables"])


class GramCache:
    """Cached Gram matrices XXᵀ of clients' training samples, for the dual form.

    All matrices are in one buffer. Memory pages that were never written take no memory, so the
    buffer costs nothing until a matrix is computed.

    Args:
        sizes: int64 [clients], samples per client.
        rows: Returns the samples of a client.
        like: A tensor with their dtype and device.
        starts: int64 [clients], where each matrix begins in the buffer; dense by default.
    """

    def __init__(
        self,
        sizes: Tensor,
        rows: Callable[[int], Tensor],
        like: Tensor,
        starts: Tensor | None = None,
    ) -> None:
        self.sizes = sizes
        self.rows = rows
        squares = sizes * sizes
        self.starts = squares.cumsum(0) - squares if starts is None else starts
        self.buffer = like.new_empty(int((self.starts + squares).max()))
        self.wanted = torch.zeros(len(sizes), dtype=torch.bool)  # local training asked for it
        self.known = torch.zeros(len(sizes), dtype=torch.bool)

    def one(self, i: int) -> Tensor:
        """The matrix [n, n] of a client; empty if it is not wanted."""
        if not self.wanted[i]:
            return self.buffer.new_empty(0, 0)
        cached = self._view(i)
        if not self.known[i]:
            cached.copy_(gram_matrix(self.rows(i).flatten(1)))
            self.known[i] = True
        return cached

    def some(self, ids: Tensor) -> Tensor:
        """The matrices [clients, n, n], padded; a view for consecutive clients of equal size.

        Empty unless all of them are wanted.
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
            gram = self._view(i)
            row[: len(gram), : len(gram)] = gram
        return padded

    def _view(self, i: int) -> Tensor:
        n = int(self.sizes[i])
        start = int(self.starts[i])
        return self.buffer[start : start + n * n].view(n, n)
