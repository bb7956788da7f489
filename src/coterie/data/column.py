"""A column of a schema: what it is for all clients together, and how its cells become numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from coterie.core.errors import Option
from coterie.data import dates
from coterie.data.cells import Cells

Fill = Literal["mean", "median"]
ColumnKind = Literal["number", "category", "date"]
KINDS = get_args(ColumnKind)
FAR = 5  # deviations: a newcomer's mean beyond is pointed out


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted: as whole numbers where all are, else as text."""
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


@dataclass(frozen=True)
class Column:
    """A column of the tables: its moments if it holds numbers or dates, its texts if categories.

    The moments of dates are those of their years, such as 2026.5.
    """

    name: str
    kind: ColumnKind
    missing: int = 0  # cells, in all clients' rows together
    mean: float = 0.0
    deviation: float = 0.0
    median: float = 0.0
    categories: tuple[str, ...] = ()

    @property
    def encoded(self) -> list[str]:
        """The names of the columns that it becomes."""
        if self.kind == "number":
            return [self.name]
        if self.kind == "date":
            return [f"{self.name} ({part})" for part in dates.PARTS]
        return [f"{self.name} = {text}" for text in (*self.categories, "(other)")]

    def encode(self, cells: Cells, fill: Fill | None) -> np.ndarray:
        """float64 [rows, len(encoded)]"""
        if fill is None:
            cells.refuse_missing("fill them with {}", [Option("fill", "median")])
        if self.kind == "category":
            return self._one_hot(cells)
        if self.kind == "number":
            return self._standardised(cells.numbers("correct it"), fill)
        days = cells.dates()
        season = dates.seasons(days)
        season[cells.missing] = 0  # no season
        return np.column_stack(
            [self._standardised(dates.years(days), fill), season, dates.weekends(days)]
        )

    def _standardised(self, values: np.ndarray, fill: Fill | None) -> np.ndarray:
        """float64 [rows, 1]: mean 0 and deviation 1 over all clients; NaN is filled."""
        if not self.deviation:
            return np.zeros((len(values), 1))
        filling = self.mean
        if fill == "median":
            filling = self.median
        filled = np.where(np.isnan(values), filling, values)
        return ((filled - self.mean) / self.deviation)[:, None]

    def _one_hot(self, cells: Cells) -> np.ndarray:
        slot = {text: i for i, text in enumerate(self.categories)}
        other = len(slot)
        numbers, texts = cells.coded
        slots = np.array([*(slot.get(text, other) for text in texts), other])[numbers]
        x = np.zeros((len(slots), other + 1))
        x[np.arange(len(slots)), slots] = 1
        return x

    def remark(self, cells: Cells) -> str:
        """A sentence about cells that are unlike those of training; "" if there is none."""
        if self.kind == "number":
            return self._remark_on_mean(cells.parsed, cells)
        if self.kind == "date":
            return self._remark_on_mean(dates.years(cells.days), cells)
        present = [text for text, gone in zip(cells.texts, cells.missing) if not gone]
        counts = Counter(present)
        new = sorted(set(counts) - set(self.categories))
        if not new:
            return ""
        listed = ", ".join(new[:3])
        if len(new) > 3:
            listed += ", …"
        rows = sum(counts[text] for text in new)
        return (
            f"the column {self.name} of {cells.where} has texts that few or no training rows had "
            f"({listed}; {rows} of {len(cells)} rows): they count as other."
        )

    def _remark_on_mean(self, values: np.ndarray, cells: Cells) -> str:
        values = values[~np.isnan(values)]
        if not len(values) or not self.deviation:
            return ""
        mean = float(values.mean())
        if abs(mean - self.mean) <= FAR * self.deviation:
            return ""
        return (
            f"the column {self.name} of {cells.where} is {mean:.4g} on average, where training "
            f"rows have {self.mean:.4g} ± {self.deviation:.3g}: check its unit."
        )
