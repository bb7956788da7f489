"""What a server may know of its clients.

Names, row counts, what a row looks like; nothing of any row.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.task import Scale

if TYPE_CHECKING:
    from coterie.data.schema import Schema

Kind = Literal["classification", "regression"]


class RowCounts(NamedTuple):
    """How many rows each client has, int64 [total]."""

    train: Tensor
    test: Tensor
    valid: Tensor


@dataclass(frozen=True, eq=False)
class Roster:
    """What a server knows of its clients; the last `unseen` of them never take part in training.

    A simulation takes it from its `Federation`, a network from what its sites said of themselves,
    and a finished run from its folder.
    """

    names: tuple[str, ...]  # unique, one per client
    unseen: int
    rows: RowCounts
    row_shape: tuple[int, ...]  # of one row of x
    tokens: bool  # whether x holds whole numbers (int64) instead of floats
    kind: Kind
    classes: int | None = None  # None for regression
    labels: tuple[str, ...] | None = None  # class names, where known
    schema: Schema | None = None  # what the columns of x mean, where it came from tables
    source: str = ""  # how the data were made, without folders: "rotated:digits?clients=40&…"
    truth: Tensor | None = None  # int64 [total] planted groups, or float [total, K] mixture weights
    planted: Tensor | None = None  # [K, d] true parameters of synthetic data

    def __post_init__(self) -> None:
        if not self.names:
            raise CoterieError("a federation needs at least one client, and none was given.")
        check_unique(self.names)
        if not 0 <= self.unseen < self.total:
            raise CoterieError(
                f"unseen={self.unseen} of {self.total} clients: at least one client must train."
            )
        if self.truth is not None and len(self.truth) != self.total:
            raise CoterieError(
                f"truth has {len(self.truth)} entries for {self.total} clients: give one per "
                "client."
            )

    def __len__(self) -> int:
        """The number of clients that train."""
        return self.total - self.unseen

    @property
    def total(self) -> int:
        """The number of all clients, the unseen ones too."""
        return len(self.names)

    @property
    def training_names(self) -> tuple[str, ...]:
        """The names of the clients that train."""
        return self.names[: len(self)]

    @property
    def label_scale(self) -> Scale | None:
        """The unit in which a regression target is learnt; None: its own."""
        if self.schema is None or not self.schema.label_deviation:
            return None
        return Scale(self.schema.label_mean, self.schema.label_deviation)

    def example(self) -> tuple[Tensor, Tensor]:
        """Two made-up rows (x, y), all zeros, of the shapes and types that clients have."""
        x_type = torch.int64 if self.tokens else torch.float32
        y_type = torch.int64 if self.kind == "classification" else torch.float32
        return torch.zeros(2, *self.row_shape, dtype=x_type), torch.zeros(2, dtype=y_type)


def check_unique(names: tuple[str, ...]) -> None:
    """Refuse a name that two clients have."""
    if len(set(names)) == len(names):
        return
    name, _ = Counter(names).most_common(1)[0]
    raise CoterieError(
        f"the client name {name!r} occurs more than once: give each client its own name."
    )


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
