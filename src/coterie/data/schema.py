"""How the columns of the clients' tables become numbers, the same way for every client.

Three pure functions, so that nothing but a description leaves a client:

    description = describe(frame, "outcome")           on each client
    schema = merge({"north": description, …})          on the server
    x, y = schema.encode(frame)                        on each client again

Numbers (booleans are 0 and 1) are standardised by the mean and the deviation over all clients' rows
together; a column that never changes gives 0. A date becomes its year, standardised, the time of
the year as cosine and sine, and whether it is on a weekend. Text is one-hot over the sorted texts
that at least `min_category_count` rows of all clients together have, with a last slot for any
other, so that no text stands anywhere which only a few people have. Nothing is guessed across
clients: a column that is numbers here and text there is refused, unless it is named in
`categories`, which reads it as text everywhere. A regression target stays as it is; the schema
keeps its mean and deviation, by which models are trained (see `Task`).
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data import dates
from coterie.data.cells import TableColumn
from coterie.data.client_table import Table
from coterie.data.federation import Kind

if TYPE_CHECKING:
    import pandas as pd

Fill = Literal["mean", "median"]
ColumnKind = Literal["number", "category", "date"]
KINDS = get_args(ColumnKind)
FAR = 5  # deviations: a warning for a new client's mean beyond this


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
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

    def encode(self, cells: TableColumn, fill: Fill | None) -> np.ndarray:
        """float64 [rows, len(encoded)]"""
        if fill is None:
            cells.require_complete("fill them with {}", [Option("fill", "median")])
        if self.kind == "category":
            return self._one_hot(cells)
        if self.kind == "number":
            return self._standardised(cells.require_numbers("correct it"), fill)
        days = cells.require_days()
        season = dates.encode_seasons(days)
        season[cells.missing] = 0  # no season
        return np.column_stack(
            [self._standardised(dates.to_years(days), fill), season, dates.encode_weekends(days)]
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

    def _one_hot(self, cells: TableColumn) -> np.ndarray:
        slot = {text: i for i, text in enumerate(self.categories)}
        other = len(slot)
        numbers, texts = cells.text_codes
        slots = np.array([*(slot.get(text, other) for text in texts), other])[numbers]
        x = np.zeros((len(slots), other + 1))
        x[np.arange(len(slots)), slots] = 1
        return x

    def remark(self, cells: TableColumn) -> str:
        """A sentence about cells that are unlike those of training; "" if there is none."""
        if self.kind == "number":
            return self._remark_on_mean(cells.parsed, cells)
        if self.kind == "date":
            return self._remark_on_mean(dates.to_years(cells.days), cells)
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

    def _remark_on_mean(self, values: np.ndarray, cells: TableColumn) -> str:
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


MIN_CATEGORY_COUNT = 5  # rows of all clients together: a text that fewer have counts as other


@dataclass(frozen=True)
class Schema:
    """How tables with these columns become numbers, the same way for every client."""

    label: str
    kind: Kind
    features: tuple[Column, ...]  # sorted by name
    classes: tuple[str, ...] | None  # names of the classes; None for regression
    rows: int  # that the columns were described by
    fill: Fill | None = None  # what stands for missing cells; None: they are refused
    ignored: tuple[str, ...] = ()  # columns of the training tables that are no features
    label_mean: float = 0.0  # of a regression target
    label_deviation: float = 0.0  # of it; 0: models are trained on the target as it is

    def __post_init__(self) -> None:
        fault = next(find_faults(self), "")
        if fault:
            raise CoterieError(
                f"the schema for the label {self.label!r} makes no sense ({fault})", "make it anew"
            )

    @property
    def texts(self) -> list[str]:
        """The columns whose cells are read as text."""
        return [column.name for column in self.features if column.kind == "category"]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the encoded columns: "age", "sex = female", "sex = (other)", …"""
        return tuple(name for column in self.features for name in column.encoded)

    def encode(
        self, frame: pd.DataFrame, fill: Fill | None = None, where: str = "the table"
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """x, float32 [rows, columns], and y, int64 classes or float64 targets.

        y is None if there is no label column. Missing numbers are refused, or filled with the mean
        or median over all clients; missing texts become "other". Without `fill` it is as in
        training.
        """
        return self.encode_table(Table.from_frame(frame, where), fill)

    def encode_table(
        self, table: Table, fill: Fill | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """`encode` for a table whose columns are already parsed."""
        fill = fill or self.fill
        if fill not in (None, *get_args(Fill)):
            raise unknown_name("fill", str(fill), get_args(Fill))
        self.check_columns_present(table, fill)
        parts = [column.encode(table.columns[column.name], fill) for column in self.features]
        x = np.concatenate(parts, axis=1, dtype=np.float32)
        if self.label not in table.columns:
            return x, None
        return x, self.encode_label(table.columns[self.label])

    def check_columns_present(self, table: Table, fill: Fill | None) -> None:
        """Refuse a table that lacks columns."""
        absent = [c.name for c in self.features if c.name not in table.columns]
        if absent:
            columns = "column" if len(absent) == 1 else "columns"
            remedy = "."
            if fill is not None:
                remedy = "; what was not measured may be a column of empty cells."
            raise CoterieError(
                f"{table.where} lacks the {columns} {', '.join(absent)}: "
                f"it has {', '.join(table.columns)}{remedy}"
            )

    def encode_label(self, cells: TableColumn) -> np.ndarray:
        """y, int64 classes or float64 targets."""
        cells.require_complete("give the rows a label, or remove them", role="label column")
        if self.classes is None:
            return cells.require_numbers("correct it")
        class_of = {name: i for i, name in enumerate(self.classes)}
        numbers, texts = cells.text_codes
        y = np.array([class_of.get(text, -1) for text in texts], dtype=np.int64)[numbers]
        if (y < 0).any():
            name = texts[numbers[(y < 0).argmax()]]
            what = f"class in the label column {self.label} of {cells.where}:"
            raise unknown_name(what, name, self.classes)
        return y

    def remarks(self, frame: pd.DataFrame, where: str = "the table") -> list[str]:
        """Sentences about columns, texts and units of a table that no training row had."""
        table = Table.from_frame(frame, where)
        known = {*(column.name for column in self.features), self.label, *self.ignored}
        sentences = []
        extra = sorted(set(table.columns) - known)
        if extra:
            sentences.append(
                f"{where} has columns that training did not have, which are passed over: "
                f"{', '.join(extra)}."
            )
        present = [column for column in self.features if column.name in table.columns]
        sentences += [column.remark(table.columns[column.name]) for column in present]
        return [sentence for sentence in sentences if sentence]

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """The schema that `to_json` wrote; anything else is refused."""
        try:
            raw = json.loads(text)
            features = [read_column(column) for column in raw["features"]]
            classes = raw["classes"]
            if classes is not None:
                classes = tuple(classes)
            lists = {
                "features": tuple(features),
                "classes": classes,
                "ignored": tuple(raw.get("ignored", ())),
            }
            return cls(**raw | lists)
        except CoterieError:
            raise
        except (ValueError, KeyError, TypeError) as why:
            raise CoterieError(
                f"this is not a schema in JSON ({why})", "write it with to_json"
            ) from None


def read_column(values: dict[str, Any]) -> Column:
    """The column that `to_json` wrote; KeyError if something is missing."""
    complete = {field.name: values[field.name] for field in fields(Column)}
    return Column(**values | complete | {"categories": tuple(values["categories"])})


def find_faults(schema: Schema) -> Iterator[str]:
    """What contradicts itself in a schema, as one from a file may."""
    columns = schema.features
    names = [column.name for column in columns]
    lists = [schema.classes or (), *(column.categories for column in columns)]
    listed = [text for texts in lists for text in texts]
    if schema.kind not in get_args(Kind):
        yield f"its kind is {schema.kind!r}"
    if (schema.classes is None) != (schema.kind == "regression"):
        yield "classes and kind contradict each other"
    if not names or len({*names, schema.label}) <= len(names):
        yield "its columns are none, or one is there twice"
    if not all(math.isfinite(v) for c in columns for v in (c.mean, c.deviation, c.median)):
        yield "its numbers are not all finite"
    if not all(map(math.isfinite, (schema.label_mean, schema.label_deviation))):
        yield "the moments of its label are not finite"
    if schema.label_deviation < 0 or any(column.deviation < 0 for column in columns):
        yield "a deviation is negative"
    if any(column.kind not in KINDS for column in columns):
        yield "a column is of an unknown kind"
    if not all(isinstance(text, str) for text in [schema.label, *names, *schema.ignored, *listed]):
        yield "a name is not text"
    if schema.fill not in (None, *get_args(Fill)):
        yield f"its fill is {schema.fill!r}"
    if any(sort_names({*texts}) != texts for texts in lists):
        yield "categories or classes are not in order"


log = logging.getLogger("coterie")


def log_schema(schema: Schema, nearly_empty: str = "") -> None:
    """Log what the columns and the label were taken for, a line each.

    nearly_empty: names the columns that are nearly empty at some clients.
    """
    numbers = [c.name for c in schema.features if c.kind == "number"]
    if numbers:
        log.info("columns of numbers: %s", ", ".join(numbers))
    dates = [c.name for c in schema.features if c.kind == "date"]
    if dates:
        log.info("columns of dates: %s", ", ".join(dates))
    texts = [c for c in schema.features if c.kind == "category"]
    if texts:
        described = [f"{c.name} ({join_first(c.categories)})" for c in texts]
        log.info("columns of text: %s", ", ".join(described))
    log_missing("number", f"are filled with the {schema.fill}", schema)
    log_missing("date", f"are filled with the {schema.fill}", schema)
    log_missing("category", "count as other", schema)
    if nearly_empty:
        log.info("nearly all of these cells are empty: %s", nearly_empty)
    if schema.ignored:
        log.info("columns left out: %s", ", ".join(schema.ignored))
    label = f"the label {schema.label} holds numbers: regression"
    if schema.classes is not None:
        classes = f"{len(schema.classes)} classes ({join_first(schema.classes)})"
        label = f"the label {schema.label} has {classes}: classification"
    log.info("%s (%s overrules)", label, Option("kind", of_data=True))


def log_missing(kind: str, becomes: str, schema: Schema) -> None:
    """Log how many empty cells the columns of a kind had, and what becomes of them."""
    gaps = [f"{c.name} {c.missing}" for c in schema.features if c.kind == kind and c.missing]
    if gaps:
        log.info("empty cells in training rows %s: %s", becomes, ", ".join(gaps))


def join_first(texts: Sequence[str]) -> str:
    """The first five texts, with an ellipsis if there are more."""
    listed = ", ".join(texts[:5])
    if len(texts) > 5:
        listed += ", …"
    return listed
