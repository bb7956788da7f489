"""One exchange as data: which function, for whom, with what; and what its answers must look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from coterie.contract import Data, Rows, Upload
from coterie.errors import CoterieError
from coterie.params import nbytes
from coterie.task import Batch, Task


def is_rows(v: Any) -> bool:
    return isinstance(v, Rows)


class Exam(NamedTuple):
    """What an evaluation sees: a client's training part, and the part it is measured on."""

    train: Data
    test: Batch


@dataclass(frozen=True)
class Call:
    """One exchange."""

    fn: Callable[..., Any]  # bound to the method as it is in this round
    path: str  # where that object stands, from the root: "method", "method.inner"
    ids: Tensor  # [n] whom to ask
    shared: Any
    per_client: Any
    static: dict[str, Any]
    keys: Tensor  # [n] each client's randomness in this exchange
    client_keys: Tensor  # [n] each client's own, for the whole run
    version: tuple[int, int]  # (round, exchange)
    exam: str | None = None  # "test" or "valid": the part to measure on; only evaluations have one
    keeps: bool = True  # whether new private states count
    enrolled: bool = True  # newcomers have no private state

    @property
    def name(self) -> str:
        return self.fn.__name__

    def own_rows(self, at: Tensor) -> Any:
        """The rows of `own` for the clients at positions `at` (a number: that client's row)."""

        def row(v: Any) -> Any:
            if not isinstance(v, Rows):
                return v[at]
            index = v.index[at]
            return tree_map(lambda t: t[index if len(t) > 1 else torch.zeros_like(index)], v.table)

        return tree_map(row, self.per_client, is_leaf=is_rows)

    def sent(self, at: Tensor, device: torch.device) -> tuple[Any, Any]:
        """(shared, own) for the clients at positions `at`, where they will be used."""
        return tree_map(lambda v: v.to(device), (self.shared, self.own_rows(at)))

    def only(self, at: Tensor) -> Call:
        """The same exchange with the clients at these positions alone."""
        pick = lambda v: Rows(v.table, v.index[at]) if isinstance(v, Rows) else v[at]
        per_client = tree_map(pick, self.per_client, is_leaf=is_rows)
        return Call(
            self.fn, self.path, self.ids[at], self.shared, per_client, self.static, self.keys[at], self.client_keys[at],
            self.version, self.exam, self.keeps, self.enrolled,
        )  # fmt: skip

    @property
    def bytes_down(self) -> int:
        """To one client: what is shared, and its own row."""
        per_client = tree_map(
            lambda v: v.table if isinstance(v, Rows) else v, self.per_client, is_leaf=is_rows
        )
        return nbytes(self.shared) + sum(
            v[:1].numel() * v.element_size() for v in tree_leaves(per_client)
        )


def path_of(root: Any, target: Any, at: str = "") -> str | None:
    """Where `target` stands among the dataclass fields of `root`: "", "method", "method.inner"; None if nowhere."""
    if root is target:
        return at
    if is_dataclass(root):
        for f in fields(root):
            found = path_of(getattr(root, f.name), target, f"{at}.{f.name}" if at else f.name)
            if found is not None:
                return found
    return None


def follow(root: Any, path: str) -> Any:
    """The object at a path; only dataclass fields can be followed."""
    for word in path.split(".") if path else []:
        if not is_dataclass(root) or word not in {f.name for f in fields(root)}:
            raise PermissionError(f"{path!r} is not part of the method")
        root = getattr(root, word)
    return root


class DryRun:
    """What an upload must look like: the function on two rows of one made-up client.

    Under `vmap`, so that what cannot be vectorised shows on every engine. Cached by function, statics and shapes.
    """

    def __init__(self, task: Task, example: Batch, private: Any = ()) -> None:
        self.task, self.example, self.private = task, example, private
        self.cache: dict[Any, Upload] = {}

    def __call__(self, call: Call) -> Upload:
        first = lambda v: tree_map(lambda t: t[:1], v.table) if isinstance(v, Rows) else v[:1]
        per_client = tree_map(first, call.per_client, is_leaf=is_rows)
        key = (
            call.path,
            call.name,
            repr(sorted(call.static.items())),
            call.exam,
            *map(_shape, (call.shared, per_client)),
        )
        if key not in self.cache:
            self.cache[key] = self._run(call, per_client)
        return self.cache[key]

    def _run(self, call: Call, per_client: Any) -> Upload:
        zero = torch.zeros(1, dtype=torch.long, device=self.task.device)
        row = Data(tree_map(lambda v: v[None], self.example), zero, zero)
        data = row if call.exam is None else Exam(row, row.all)
        per_client = tree_map(lambda v: v.new_zeros(1, *v.shape[1:]), per_client)
        private = (
            tree_map(lambda v: v.new_zeros(1, *v.shape), self.private) if call.enrolled else ()
        )
        one = lambda shared, *rows: call.fn(self.task, shared, *rows, **call.static)
        try:
            up, after = vmap(one, in_dims=(None, 0, 0, 0))(call.shared, per_client, private, data)
        except RuntimeError as e:
            if "vmap" in str(e) or "random" in str(e):
                reason = str(e).strip().splitlines()[0]
                raise CoterieError(
                    f"{call.name}() or the model does what cannot be vectorised: {reason}"
                ) from e
            raise
        if call.keeps and _shape(after) != _shape(private):
            raise CoterieError(
                f"{call.name}() returns a private state of another shape than enroll() gave."
            )
        return tree_map(lambda v: torch.zeros_like(v[0]), up)


def _shape(tree: Any) -> Any:
    return str(tree_structure(tree)), tuple((tuple(v.shape), v.dtype) for v in tree_leaves(tree))
