"""One exchange as data: which function runs, for whom, with what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coterie.core.contract import Data, Rows
from coterie.core.declarations import Declaration
from coterie.core.params import nbytes
from coterie.core.task import Batch


class EvaluationData(NamedTuple):
    """What an evaluation sees: a client's training part, and the part it is measured on."""

    train: Data
    test: Batch


Phase = Literal["start", "train", "evaluate"]


class Version(NamedTuple):
    """When an answer was given; the phase keeps evaluations apart from training."""

    round: int
    phase: Phase
    exchange: int


START = Version(0, "start", 0)  # the private state that `enroll` makes


def is_rows(v: Any) -> bool:
    """Whether a node of a nest is a `Rows`, for `tree_map(..., is_leaf=is_rows)`."""
    return isinstance(v, Rows)


def pick_clients(per_client: Any, positions: Tensor) -> Any:
    """The rows of these clients in a nest of [N, ...] tensors and `Rows`."""

    def pick(v: Any) -> Any:
        if isinstance(v, Rows):
            return Rows(v.table, v.index[positions])
        return v[positions]

    return tree_map(pick, per_client, is_leaf=is_rows)


@dataclass(frozen=True)
class Call:
    """One exchange."""

    fn: Callable[..., Any]  # bound to the method as it is in this round
    path: str  # where that object stands, from the root: "method", "method.inner"
    ids: Tensor  # [n] the clients that are asked
    shared: Any
    per_client: Any
    static: dict[str, Any]
    keys: Tensor  # [n] each client's randomness in this exchange
    client_keys: Tensor  # [n] each client's randomness for the whole run
    version: Version
    split: str | None = None  # "test" or "valid": the part to measure on, in evaluations
    keeps_private: bool = True  # whether new private states count
    enrolled: bool = True  # False for newcomers, which have no private state

    @property
    def name(self) -> str:
        """The function's name."""
        return self.fn.__name__

    @property
    def sample_size(self) -> int | None:
        """How many rows of a client the function reads at a time; None: any number."""
        declaration: Declaration | None = getattr(self.fn, "declaration", None)
        owner = getattr(self.fn, "__self__", None)
        if declaration is None or self.split is not None:
            return None
        return declaration.sample_size(owner)

    def per_client_rows(self, at: Tensor) -> Any:
        """The rows of `per_client` at positions `at`; for a single number, that client's row.

        They are copies, so that they are aligned wherever they stood.
        """
        if not at.dim():
            return tree_map(lambda v: v[0], self.per_client_rows(at[None]))

        def row(v: Any) -> Any:
            if not isinstance(v, Rows):
                return v[at]
            index = v.index[at]
            only_row = torch.zeros_like(index)  # a leaf of one row is shared by all
            return tree_map(lambda t: t[index if len(t) > 1 else only_row], v.table)

        return tree_map(row, self.per_client, is_leaf=is_rows)

    def arguments(self, at: Tensor, device: torch.device) -> tuple[Any, Any]:
        """(shared, per_client) for the clients at positions `at`, on the device they run on."""
        return tree_map(lambda v: v.to(device), (self.shared, self.per_client_rows(at)))

    def only(self, positions: Tensor) -> Call:
        """The same exchange with the clients at these positions alone."""
        return replace(
            self,
            ids=self.ids[positions],
            per_client=pick_clients(self.per_client, positions),
            keys=self.keys[positions],
            client_keys=self.client_keys[positions],
        )

    @property
    def bytes_down(self) -> int:
        """Bytes sent to one client: what is shared, and its row of `per_client`."""
        tables = tree_map(
            lambda v: v.table if isinstance(v, Rows) else v, self.per_client, is_leaf=is_rows
        )
        rows = sum(v[:1].numel() * v.element_size() for v in tree_leaves(tables))
        return nbytes(self.shared) + rows


# ------------------------------------------------------------------------------ functions by path
def path_of(root: Any, target: Any, at: str = "") -> str | None:
    """Where `target` stands among the dataclass fields of `root`: "", "method.inner"; or None."""
    if root is target:
        return at
    if not is_dataclass(root):
        return None
    for f in fields(root):
        here = f"{at}.{f.name}" if at else f.name
        path = path_of(getattr(root, f.name), target, here)
        if path is not None:
            return path
    return None


def follow(root: Any, path: str) -> Any:
    """The object at a path; only dataclass fields can be followed."""
    for word in path.split(".") if path else []:
        if not is_dataclass(root) or word not in {f.name for f in fields(root)}:
            raise PermissionError(f"{path!r} is not part of the method")
        root = getattr(root, word)
    return root
