"""How many bytes an exchange takes while clients work on it, counted without computing anything.

The client function runs on fake tensors of the shapes that it will meet. They have no memory, and
what they would take is added up while they live.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from coterie.core.call import Call, EvaluationData
from coterie.core.client_data import Store
from coterie.core.contract import Data
from coterie.core.task import Task
from coterie.data.roster import Roster
from coterie.data.shards import make_shards
from coterie.engines.chunks import NUMBERS_OF_A_PLACE, Chunk, chunks_of_call
from coterie.engines.dry_run import example_batch
from coterie.engines.plan import Plan, numbers_per_row
from coterie.optim.all_clients import is_inside, rehearsal
from coterie.optim.forms import noted_forms
from coterie.optim.gram import gram_wishes

MOST_OPERATIONS = 1_000  # local steps repeat each other: later ones hold no more


class EnoughSeen(Exception):
    """So many operations were counted that the rest will hold no more."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are made, for as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self.operations = 0
        self.alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it made."""
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self.count(value)
        self.operations += 1
        if self.operations > MOST_OPERATIONS and not is_inside():
            raise EnoughSeen
        return out

    def count(self, value: Tensor) -> None:
        """Count a tensor's bytes until they are freed; a view has none of its own."""
        storage = value.untyped_storage()
        key = id(storage)
        if key in self.alive:
            return
        size = storage.nbytes()

        def freed(_: Any) -> None:
            del self.alive[key]
            self.now -= size

        self.alive[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


class WorkingMemory:
    """Bytes that the workers take for an exchange; a shape that was seen is not counted again."""

    def __init__(self, task: Task, roster: Roster, plan: Plan, private: Any) -> None:
        """private: one client's private state."""
        self.task = task
        self.roster = roster
        self.plan = plan
        self.shares = make_shards(roster, plan.workers)
        self.private = private
        self.example = example_batch(task, roster)
        self.known: dict[Any, int] = {}
        self.forms: list[str] = []  # of local steps that were chosen, in words
        self.keeps_grams = False  # whether local steps wished for them

    def of(self, call: Call) -> int:
        """Bytes of the largest chunks, one for each worker at the same time."""
        shares = chunks_of_call(call, self.roster, self.plan, self.shares)
        chunks = [chunk for share in shares for chunk in share]
        chunks.sort(key=lambda chunk: self._numbers(call, chunk), reverse=True)
        heaviest = chunks[: self.plan.workers]
        top = heaviest[0]
        shape = (call.path, call.name, call.split, repr(call.static), self._at_once(top))
        if shape not in self.known:
            self.known[shape] = self._peak(call, top)
        numbers = [self._numbers(call, chunk) for chunk in heaviest]
        rest = sum(numbers) / numbers[0]
        return round(self.known[shape] * rest)

    def _at_once(self, chunk: Chunk) -> tuple[int, tuple[int, ...]]:
        """(clients at once, rows of each by part)"""
        if not self.plan.vectorise:
            return 1, chunk.lengths
        return len(chunk.positions), chunk.lengths

    def _numbers(self, call: Call, chunk: Chunk) -> int:
        """How many numbers the work on a chunk holds, roughly: by this chunks are compared."""
        clients, lengths = self._at_once(chunk)
        size = sum(p.numel() for p in self.task.module.parameters())
        of_rows = sum(lengths) * numbers_per_row(self.task, self.roster)
        if call.sample_size is not None and clients > 1:
            drawn = min(call.sample_size, lengths[0]) * numbers_per_row(self.task, self.roster)
            of_rows = drawn + lengths[0] * NUMBERS_OF_A_PLACE
        return clients * (4 * size + of_rows)

    def _peak(self, call: Call, chunk: Chunk) -> int:
        """The most bytes that one worker has at a time."""

        def one(*arguments: Any) -> Any:
            return call.fn(self.task, *arguments, **call.static)

        live = LiveBytes()
        with FakeTensorMode(allow_non_fake_inputs=True):
            shared, per_client, private, data = self._arguments(call, chunk)
            with live, rehearsal(), noted_forms() as forms, gram_wishes() as wishes:
                for value in tree_leaves((per_client, private, data)):
                    live.count(value)
                with suppress(EnoughSeen):
                    vmap(one, in_dims=(None, 0, 0, 0))(shared, per_client, private, data)
        self.forms += [form for form in forms if form not in self.forms]
        self.keeps_grams |= bool(wishes)
        return live.peak

    def _arguments(self, call: Call, chunk: Chunk) -> tuple[Any, Any, Any, Any]:
        """What the client function is given for a chunk, as fake tensors."""
        clients, lengths = self._at_once(chunk)
        positions = chunk.positions[:clients]
        sent = call.arguments(positions, self.task.device)
        shared, per_client = tree_map(torch.empty_like, sent)
        key = torch.empty(clients, dtype=torch.long, device=self.task.device)
        parts = [self._rows(clients, length) for length in lengths]
        data: Any = Data(parts[0], key, key)
        if call.sample_size is not None and clients > 1:  # a client alone has its rows as they are
            places = torch.empty(clients, lengths[0], dtype=torch.long, device=self.task.device)
            store = Store(torch.empty_like(self.example.x), lambda rows: rows)
            data = data._replace(own=parts[0]._replace(x=places), store=store)
        if self.plan.keeps_grams:  # they are counted by themselves, for all clients
            nothing = torch.empty(clients, 0, 0, dtype=self.task.dtype, device=self.task.device)
            data = data._replace(gram=nothing)
        if call.split is not None:
            data = EvaluationData(data, parts[1])
        private: Any = ()
        if call.enrolled:
            private = tree_map(lambda v: v.new_empty(clients, *v.shape), self.private)
        return shared, per_client, private, data

    def _rows(self, clients: int, length: int) -> Any:
        """The rows of some clients, padded to the same length."""
        return tree_map(lambda v: v.new_empty(clients, length, *v.shape[1:]), self.example)
