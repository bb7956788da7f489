"""One exchange as data: which function runs on which clients with which arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.core.contract import Data, Rows
from coterie.core.declarations import Declaration
from coterie.core.errors import SiteRefusal
from coterie.core.params import nbytes
from coterie.core.task import Batch
from coterie.core.trees import tree_leaves, tree_map


class EvaluationData(NamedTuple):
    """A client's training samples, and those of the split that is evaluated: test or validation."""

    train: Data
    evaluated: Batch


Phase = Literal["start", "train", "evaluate"]


class Version(NamedTuple):
    """The version of a private state: the exchange that produced it."""

    round: int
    phase: Phase
    exchange: int


START = Version(0, "start", 0)  # the private state that `enroll` makes


def is_rows(v: Any) -> bool:
    """Whether v is a `Rows`, for `tree_map(..., is_leaf=is_rows)`."""
    return isinstance(v, Rows)


def pick_clients(per_client: Any, positions: Tensor) -> Any:
    """Select clients in a pytree of [N, ...] tensors and `Rows`."""

    def pick(v: Any) -> Any:
        if isinstance(v, Rows):
            return Rows(v.table, v.index[positions])
        return v[positions]

    return tree_map(pick, per_client, is_leaf=is_rows)


@dataclass(frozen=True)
class Call:
    """One exchange."""

    fn: Callable[..., Any]  # bound to the method as it is in this round
    path: str  # of that object, from the run's `Evaluation`: "method", "method.inner"
    ids: Tensor  # int64 [n], the selected clients
    shared: Any
    per_client: Any
    static: dict[str, Any]
    keys: Tensor  # int64 [n], random keys of this exchange
    client_keys: Tensor  # int64 [n], random keys of the run
    version: Version
    split: str | None = None  # "test" or "valid" in evaluations
    keeps_private: bool = True  # whether new private states are stored
    enrolled: bool = True  # False for unseen clients, which have no private state

    @property
    def name(self) -> str:
        """The function's name."""
        return self.fn.__name__

    @property
    def sample_size(self) -> int | None:
        """How many rows of a client the function reads at a time; None for any number."""
        declaration: Declaration | None = getattr(self.fn, "declaration", None)
        owner = getattr(self.fn, "__self__", None)
        if declaration is None or self.split is not None:
            return None
        return declaration.sample_size(owner)

    def per_client_rows(self, at: Tensor) -> Any:
        """The rows of `per_client` at positions `at`, or one client's row if `at` is a scalar.

        They are copies, so that they are aligned in memory.
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
        """(shared, per_client) of the clients at positions `at`, on a device."""
        return tree_map(lambda v: v.to(device), (self.shared, self.per_client_rows(at)))

    def only(self, positions: Tensor) -> Call:
        """The same exchange for only the clients at these positions."""
        return replace(
            self,
            ids=self.ids[positions],
            per_client=pick_clients(self.per_client, positions),
            keys=self.keys[positions],
            client_keys=self.client_keys[positions],
        )

    @property
    def bytes_down(self) -> int:
        """Bytes sent to one client: `shared` and its row of `per_client`."""
        tables = tree_map(
            lambda v: v.table if isinstance(v, Rows) else v, self.per_client, is_leaf=is_rows
        )
        rows = sum(v[:1].numel() * v.element_size() for v in tree_leaves(tables))
        return nbytes(self.shared) + rows


# ------------------------------------------------------------------------------ functions by path
def path_of(root: Any, target: Any, at: str = "") -> str | None:
    """The path of `target` among the dataclass fields of `root`: "", "method.inner"; or None."""
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
    """The object at a path of dataclass fields.

    Raises:
        SiteRefusal: If the path leaves the dataclass fields.
    """
    for word in path.split(".") if path else []:
        if not is_dataclass(root) or word not in {f.name for f in fields(root)}:
            raise SiteRefusal(f"{path!r} is not part of the method")
        root = getattr(root, word)
    return root
