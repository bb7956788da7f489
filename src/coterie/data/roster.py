"""The description of the clients that a server may have: names, row counts, shapes; no rows."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.inputs import InputField
from coterie.core.targets import IGNORE_INDEX, Target
from coterie.core.targets import Kind as Kind
from coterie.core.task import Scale

if TYPE_CHECKING:
    from coterie.data.schema import Schema

TableKind = Literal["classification", "regression"]  # the kinds of task that tables have


class RowCounts(NamedTuple):
    """Number of rows of each client in each split, int64 [total]."""

    train: Tensor
    test: Tensor
    valid: Tensor


@dataclass(frozen=True, eq=False)
class Roster:
    """The description of the clients that a server may have.

    A simulation gets it from its `Federation`, a network from the descriptions that its sites
    send, and a finished run from its folder. The last `unseen` clients never train.

    Raises:
        CoterieError: If there are no clients, names are not unique, or counts do not match.
    """

    names: tuple[str, ...]  # unique, one per client
    unseen: int
    rows: RowCounts
    row_shape: tuple[int, ...]  # of one row of x; (numbers,) if x has several parts
    tokens: bool  # whether x holds whole numbers (int64) instead of floats
    kind: Kind
    classes: int | None = None  # None for regression
    labels: tuple[str, ...] | None = None  # class names, if known
    schema: Schema | None = None  # the columns of x, if they come from tables
    source: str = ""  # spec of the data, without folders: "rotated:digits?clients=40&…"
    truth: Tensor | None = None  # int64 [total] planted groups, or float [total, K] mixture weights
    planted: Tensor | None = None  # [K, d] true parameters of synthetic data
    groups: tuple[str, ...] | None = None  # the group that users gave to each client
    target_shape: tuple[int, ...] = ()  # of one row of y
    ignore_index: int = IGNORE_INDEX  # the label of tokens and pixels that do not count
    fields: tuple[InputField, ...] = ()  # the parts of x, if it is a dict of tensors

    def __post_init__(self) -> None:
        if not self.names:
            raise CoterieError("a federation needs at least one client, and none was given.")
        if len(set(self.names)) < self.total:
            name, _ = Counter(self.names).most_common(1)[0]
            raise CoterieError(
                f"the client name {name!r} occurs more than once: give each client its own name."
            )
        if not 0 <= self.unseen < self.total:
            raise CoterieError(
                f"unseen={self.unseen} of {self.total} clients: at least one client must train."
            )
        if self.truth is not None and len(self.truth) != self.total:
            raise CoterieError(
                f"truth has {len(self.truth)} entries for {self.total} clients: give one per "
                "client."
            )

    @property
    def known_groups(self) -> Tensor | None:
        """The groups that found ones are compared with: `truth`, or the numbers of `groups`."""
        if self.truth is not None or self.groups is None:
            return self.truth
        names = sorted(set(self.groups))
        return torch.tensor([names.index(name) for name in self.groups])

    def __len__(self) -> int:
        """Number of clients that train."""
        return self.total - self.unseen

    @property
    def total(self) -> int:
        """Number of all clients, including unseen ones."""
        return len(self.names)

    @property
    def training_names(self) -> tuple[str, ...]:
        """Names of the clients that train."""
        return self.names[: len(self)]

    @property
    def label_scale(self) -> Scale | None:
        """Mean and deviation that standardise the regression target; None: it is not scaled."""
        if self.schema is None or not self.schema.label_deviation:
            return None
        return Scale(self.schema.label_mean, self.schema.label_deviation)

    @property
    def target(self) -> Target:
        """The targets, for a `Task`."""
        return Target(self.kind, self.classes, self.target_shape, self.ignore_index)

    def example(self) -> tuple[Tensor, Tensor]:
        """Return two rows (x, y) of zeros, with the shapes and dtypes of the clients' rows."""
        x_type = torch.int64 if self.tokens else torch.float32
        return torch.zeros(2, *self.row_shape, dtype=x_type), self.target.example(2, torch.float32)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders numbers in names by value: "school 2" before "school 10".

    Accents and upper case only break ties.
    """
    decomposed = unicodedata.normalize("NFKD", name)
    plain = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    parts = []
    for part in re.split(r"([0-9]+)", plain):
        if part.isdecimal():
            parts.append((0, int(part[:300]), part))
        else:
            parts.append((1, 0, part.casefold()))
    return [*parts, (-1, 0, name)]
