"""Templates of uploads: the names, shapes and dtypes that the uploads of an exchange must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import vmap

from coterie.core.call import Call, EvaluationData, is_rows
from coterie.core.contract import Algorithm, Data, Rows, Upload
from coterie.core.errors import CoterieError
from coterie.core.task import Batch, Task
from coterie.core.trees import tree_leaves, tree_map, tree_structure
from coterie.data.roster import Roster


def map_clients(task: Task, fn: Callable[..., Any], shared: Any, rows: tuple[Any, ...]) -> Any:
    """Run a client function on all clients at once, with `vmap` if the model permits it.

    Args:
        task: The model.
        fn: Takes `shared` and one client's rows.
        shared: The same for all clients.
        rows: Trees with leaves [clients, ...]; of one client if the model cannot be vectorised.
    """
    if not task.needs_loop:
        return vmap(fn, in_dims=(None, *[0] * len(rows)))(shared, *rows)
    found = fn(shared, *tree_map(lambda v: v[0], rows))
    return tree_map(lambda v: v[None], found)


class UploadTemplates:
    """Makes the template of a call by running its function on two samples of an artificial client.

    It runs under `vmap`, so a function that cannot be vectorised fails on every engine, unless the
    model needs the loop as recurrent layers do. Templates are cached by
    function, static arguments and shapes.
    """

    def __init__(self, task: Task, roster: Roster, method: Algorithm, initial_payload: Any) -> None:
        self.task = task
        self.example = example_batch(task, roster)
        key = torch.zeros((), dtype=torch.long, device=task.device)
        self.private = method.enroll(task, initial_payload, Data(self.example, key, key))
        self.cache: dict[Any, Upload] = {}

    def __call__(self, call: Call) -> Upload:
        """Zeros of the shapes and types that one client's upload must have."""
        per_client = tree_map(_first_row, call.per_client, is_leaf=is_rows)
        static = repr(sorted(call.static.items()))
        key = (call.path, call.name, static, call.split, _shape(call.shared), _shape(per_client))
        if key not in self.cache:
            self.cache[key] = self._run(call, per_client)
        return self.cache[key]

    def _run(self, call: Call, per_client: Any) -> Upload:
        key = torch.zeros(1, dtype=torch.long, device=self.task.device)
        train = Data(tree_map(lambda v: v[None], self.example), key, key)
        data: Any = train
        if call.split is not None:
            data = EvaluationData(train, train.all)
        device = self.task.device
        shared = tree_map(lambda v: v.to(device), call.shared)
        per_client = tree_map(
            lambda v: torch.zeros(1, *v.shape[1:], dtype=v.dtype, device=device), per_client
        )
        private: Any = ()
        if call.enrolled:
            private = tree_map(lambda v: v.new_zeros(1, *v.shape), self.private)

        def one(shared: Any, *rows: Any) -> Any:
            return call.fn(self.task, shared, *rows, **call.static)

        try:
            up, after = map_clients(self.task, one, shared, (per_client, private, data))
        except RuntimeError as e:
            if "vmap" in str(e) or "random" in str(e):
                reason = str(e).strip().splitlines()[0]
                raise CoterieError(
                    f"{call.name}() or the model uses an operation that vmap does not support: "
                    f"{reason}"
                ) from e
            raise
        if call.keeps_private and _shape(after) != _shape(private):
            raise CoterieError(
                f"{call.name}() returns a private state whose shapes differ from those of enroll()."
            )
        return tree_map(lambda v: torch.zeros_like(v[0]), up)


def example_batch(task: Task, roster: Roster) -> Batch:
    """Two artificial samples, as a batch of a client."""
    x, y = (v.to(task.device) for v in roster.example())
    if x.is_floating_point():
        x = x.to(task.dtype)
    if y.is_floating_point():
        y = y.to(task.dtype)
    return Batch.of(x, y, task.dtype)


def _first_row(v: Any) -> Any:
    if isinstance(v, Rows):
        return tree_map(lambda t: t[:1], v.table)
    return v[:1]


def _shape(tree: Any) -> Any:
    return str(tree_structure(tree)), tuple((tuple(v.shape), v.dtype) for v in tree_leaves(tree))
