"""The options that all federations of tables have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.core.errors import CoterieError, Option
from coterie.data.federation import Kind
from coterie.data.schema import MIN_CATEGORY_COUNT, Fill


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How clients' tables become a federation; `from_frames` explains each option."""

    label: str
    client_column: str | None = None
    test_share: float = 0.25
    seed: int = 0
    unseen: int = 0
    kind: Kind | None = None
    fill: Fill | None = None
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    split_column: str | None = None
    time_column: str | None = None
    min_category_count: int = MIN_CATEGORY_COUNT
    min_rows_to_report: int = 1
    min_rows: int = 1
    drop_incomplete: bool = False

    def __post_init__(self) -> None:
        for name in ("min_category_count", "min_rows_to_report", "min_rows"):
            value = getattr(self, name)
            if value < 1:
                raise CoterieError(
                    f"{name} is {value}, below 1",
                    "give {}",
                    options=[Option(name, "5", of_data=True)],
                )

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns that are neither features nor the label, each once."""
        named = (self.client_column, self.split_column, self.time_column)
        return tuple(dict.fromkeys([*self.drop, *filter(None, named)]))


def as_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name, several or none as a tuple."""
    if isinstance(names, str):
        return (names,)
    return tuple(names or ())
