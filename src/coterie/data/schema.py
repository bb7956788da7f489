"""The schema that encodes the columns of all clients' tables in the same way.

Three pure functions, so that only a description leaves a client:

    description = describe(frame, "outcome")           on each client
    schema = merge({"north": description, …})          on the server
    x, y = schema.encode(frame)                        on each client again

    number      standardised by the mean and standard deviation over all clients' rows; booleans are
                0 and 1, and a constant column is 0
    date        the standardised year, the cosine and sine of the time of year, and a weekend flag
    category    one-hot over the sorted texts with at least `min_category_count` rows over all
                clients, and a last slot for all others, so that no rare text, which may identify a
                person, is stored

A column that contains numbers at one client and text at another is rejected, unless `categories`
names it: then it is text for all clients. A regression target is not encoded; the schema stores
its mean and standard deviation, which models are trained with (see `Task`).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data import dates
from coterie.data.columns import TableColumn
from coterie.data.roster import TableKind
from coterie.data.tables import Table

if TYPE_CHECKING:
    import pandas as pd

Fill = Literal["mean", "median"]
ColumnKind = Literal["number", "category", "date"]
KINDS = get_args(ColumnKind)
MAX_SHIFT = 5  # standard deviations; a new table whose mean is further away gets a warning


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names as integers if all of them are, otherwise as text."""
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


@dataclass(frozen=True)
class Column:
    """One column of a schema: moments of numbers and dates, texts of categories.

    The moments of dates are those of their years, such as 2026.5.
    """

    name: str
    kind: ColumnKind
    missing: int = 0  # number of missing cells over all clients
    mean: float = 0.0
    deviation: float = 0.0
    median: float = 0.0
    categories: tuple[str, ...] = ()
    indicator: bool = (
        False  # some clients lack the column: a last one tells where cells are missing
    )

    @property
    def encoded(self) -> list[str]:
        """Names of the encoded columns."""
        if self.kind == "number":
            names = [self.name]
        elif self.kind == "date":
            names = [f"{self.name} ({part})" for part in dates.PARTS]
        else:
            names = [f"{self.name} = {text}" for text in (*self.categories, "(other)")]
        if self.indicator:
            names.append(f"{self.name} (missing)")
        return names

    def encode(self, cells: TableColumn, fill: Fill | None) -> np.ndarray:
        """Encode cells as float64 [rows, len(encoded)].

        Without `fill`, missing cells raise, except in a column with an indicator: there they become
        the mean.
        """
        if self.indicator:
            plain = replace(self, indicator=False).encode(cells, fill or "mean")
            return np.column_stack([plain, cells.missing])
        if fill is None:
            cells.require_complete("fill them with {}", [Option("fill", "median")])
        if self.kind == "category":
            return self._one_hot(cells)
        if self.kind == "number":
            return self._standardise(cells.require_numbers("correct it"), fill)
        days = cells.require_days()
        season = dates.encode_seasons(days)
        season[cells.missing] = 0  # no season
        return np.column_stack(
            [self._standardise(dates.to_years(days), fill), season, dates.encode_weekends(days)]
        )

    def _standardise(self, values: np.ndarray, fill: Fill | None) -> np.ndarray:
        """Fill NaN and scale to mean 0 and deviation 1 over all clients: float64 [rows, 1]."""
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
        codes, texts = cells.text_codes
        slots = np.array([*(slot.get(text, other) for text in texts), other])[codes]
        x = np.zeros((len(slots), other + 1))
        x[np.arange(len(slots)), slots] = 1
        return x

    def remark(self, cells: TableColumn) -> str:
        """Return a warning if the cells differ from those of training, otherwise ""."""
        if self.kind == "number":
            return self._remark_on_mean(cells.parsed, cells)
        if self.kind == "date":
            return self._remark_on_mean(dates.to_years(cells.days), cells)
        counts = cells.count_texts()
        new = sorted(set(counts) - set(self.categories))
        if not new:
            return ""
        listed = ", ".join(new[:3])
        if len(new) > 3:
            listed += ", …"
        rows = sum(counts[text] for text in new)
        return (
            f"the column {self.name} of {cells.where} has texts that few or no training rows had "
            f"({listed}; {rows} of {len(cells)} rows): they are encoded as other."
        )

    def _remark_on_mean(self, values: np.ndarray, cells: TableColumn) -> str:
        values = values[~np.isnan(values)]
        if not len(values) or not self.deviation:
            return ""
        mean = float(values.mean())
        if abs(mean - self.mean) <= MAX_SHIFT * self.deviation:
            return ""
        return (
            f"the column {self.name} of {cells.where} has mean {mean:.4g}, but training "
            f"rows have {self.mean:.4g} ± {self.deviation:.3g}: check its unit."
        )


MIN_CATEGORY_COUNT = 5  # rows over all clients; texts with fewer rows are encoded as other


@dataclass(frozen=True)
class Schema:
    """Encodes tables with these columns, in the same way for every client.

    Attributes:
        label: The column to predict.
        kind: "classification" or "regression".
        features: The other columns, sorted by name.
        classes: Names of the classes; None for regression.
        rows: Number of rows that the columns were described by.
        fill: What replaces missing cells; None: tables with missing cells are rejected.
        ignored: Columns of the training tables that are not features.
        label_mean: Mean of a regression target.
        label_deviation: Its standard deviation; 0: models are trained on the target as it is.

    Example:
        >>> import pandas as pd
        >>> from coterie.data import describe, merge
        >>> site = pd.DataFrame({"age": [20, 30, 40], "outcome": ["yes", "no", "no"]})
        >>> x, y = merge({"north": describe(site, "outcome")}).encode(site)
        >>> x.shape, y.tolist()
        ((3, 1), [1, 0, 0])
    """

    label: str
    kind: TableKind
    features: tuple[Column, ...]
    classes: tuple[str, ...] | None
    rows: int
    fill: Fill | None = None
    ignored: tuple[str, ...] = ()
    label_mean: float = 0.0
    label_deviation: float = 0.0

    def __post_init__(self) -> None:
        fault = next(find_faults(self), "")
        if fault:
            raise CoterieError(
                f"the schema for the label {self.label!r} is invalid ({fault})", "create it again"
            )

    @property
    def texts(self) -> list[str]:
        """Names of the columns that are read as text."""
        return [column.name for column in self.features if column.kind == "category"]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the encoded columns: "age", "sex = female", "sex = (other)", …"""
        return tuple(name for column in self.features for name in column.encoded)

    def encode(
        self, frame: pd.DataFrame, fill: Fill | None = None, where: str = "the table"
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode a table.

        Args:
            frame: The table, with or without the label column.
            fill: "mean" or "median" over all clients for missing numbers and dates; missing texts
                become "other". Default: as in training.
            where: Names the table in error messages.

        Returns:
            x, float32 [rows, columns], and y, int64 classes or float64 targets [rows]. y is None if
            the table has no label column.

        Raises:
            CoterieError: If a column is missing or a cell cannot be encoded.
        """
        return self.encode_table(Table.of(frame, where), fill)

    def encode_table(
        self, table: Table, fill: Fill | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode a parsed table, as `encode`."""
        fill = fill or self.fill
        if fill not in (None, *get_args(Fill)):
            raise unknown_name("fill", str(fill), get_args(Fill))
        self.check_columns_present(table, fill)
        parts = [column.encode(table.column(column.name), fill) for column in self.features]
        x = np.concatenate(parts, axis=1, dtype=np.float32)
        if self.label not in table.columns:
            return x, None
        return x, self.encode_label(table.columns[self.label])

    def check_columns_present(self, table: Table, fill: Fill | None) -> None:
        """Raise if the table lacks columns of the schema."""
        needed = [column.name for column in self.features if not column.indicator]
        absent = [name for name in needed if name not in table.columns]
        if absent:
            columns = "column" if len(absent) == 1 else "columns"
            remedy = "."
            if fill is not None:
                remedy = "; a column that was not measured may be empty."
            raise CoterieError(
                f"{table.where} lacks the {columns} {', '.join(absent)}: "
                f"it has {', '.join(table.columns)}{remedy}"
            )

    def encode_label(self, cells: TableColumn) -> np.ndarray:
        """Encode the label column as int64 classes or float64 targets [rows]."""
        cells.require_complete("give the rows a label, or remove them", role="label column")
        if self.classes is None:
            return cells.require_numbers("correct it")
        class_of = {name: i for i, name in enumerate(self.classes)}
        codes, texts = cells.text_codes
        y = np.array([class_of.get(text, -1) for text in texts], dtype=np.int64)[codes]
        if (y < 0).any():
            name = texts[codes[(y < 0).argmax()]]
            what = f"class in the label column {self.label} of {cells.where}:"
            raise unknown_name(what, name, self.classes)
        return y

    def remarks(self, frame: pd.DataFrame, where: str = "the table") -> list[str]:
        """Return warnings about columns, texts and units of a table that differ from training."""
        return self.remarks_on(Table.of(frame, where))

    def remarks_on(self, table: Table) -> list[str]:
        """Return the warnings of `remarks` about a parsed table."""
        known = {*(column.name for column in self.features), self.label, *self.ignored}
        sentences = []
        extra = sorted(set(table.columns) - known)
        if extra:
            sentences.append(
                f"{table.where} has columns that training did not have, which are ignored: "
                f"{', '.join(extra)}."
            )
        present = [column for column in self.features if column.name in table.columns]
        sentences += [column.remark(table.columns[column.name]) for column in present]
        return [sentence for sentence in sentences if sentence]

    def to_json(self) -> str:
        """Serialise the schema for `from_json`."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read a schema that `to_json` wrote, or raise `CoterieError`."""
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
                f"the text is not a schema in JSON ({why})", "write it with to_json"
            ) from None


def read_column(values: dict[str, Any]) -> Column:
    """Read a column that `to_json` wrote; raise KeyError if a field is missing."""
    values = {"indicator": False, **values}  # files of 0.2 have none
    complete = {field.name: values[field.name] for field in fields(Column)}
    return Column(**values | complete | {"categories": tuple(values["categories"])})


def find_faults(schema: Schema) -> Iterator[str]:
    """Yield what is invalid in a schema, which may come from a file."""
    columns = schema.features
    names = [column.name for column in columns]
    lists = [schema.classes or (), *(column.categories for column in columns)]
    listed = [text for texts in lists for text in texts]
    if schema.kind not in get_args(TableKind):
        yield f"its kind is {schema.kind!r}"
    if (schema.classes is None) != (schema.kind == "regression"):
        yield "its classes do not match its kind"
    if not names or len({*names, schema.label}) <= len(names):
        yield "it has no columns, or a column twice"
    if not all(math.isfinite(v) for c in columns for v in (c.mean, c.deviation, c.median)):
        yield "a moment of a column is not finite"
    if not all(map(math.isfinite, (schema.label_mean, schema.label_deviation))):
        yield "a moment of the label is not finite"
    if schema.label_deviation < 0 or any(column.deviation < 0 for column in columns):
        yield "a standard deviation is negative"
    if any(column.kind not in KINDS for column in columns):
        yield "a column has an unknown kind"
    if not all(isinstance(text, str) for text in [schema.label, *names, *schema.ignored, *listed]):
        yield "a name is not text"
    if schema.fill not in (None, *get_args(Fill)):
        yield f"its fill is {schema.fill!r}"
    if any(sort_names({*texts}) != texts for texts in lists):
        yield "its categories or classes are not sorted"


log = logging.getLogger("coterie")


def log_schema(schema: Schema, nearly_empty: str = "") -> None:
    """Log the kinds of the columns and of the label.

    Args:
        schema: The schema.
        nearly_empty: Text that names the columns which are nearly empty at some clients.
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
    log_missing("category", "are encoded as other", schema)
    if nearly_empty:
        log.info("nearly all of these cells are empty: %s", nearly_empty)
    if schema.ignored:
        log.info("columns ignored: %s", ", ".join(schema.ignored))
    label = f"the label {schema.label} holds numbers: regression"
    if schema.classes is not None:
        classes = f"{len(schema.classes)} classes ({join_first(schema.classes)})"
        label = f"the label {schema.label} has {classes}: classification"
    log.info("%s (%s overrides)", label, Option("kind", of_data=True))


def log_missing(kind: str, becomes: str, schema: Schema) -> None:
    """Log how many cells of the columns of a kind are missing, and what replaces them."""
    gaps = [f"{c.name} {c.missing}" for c in schema.features if c.kind == kind and c.missing]
    if gaps:
        log.info("empty cells in training rows %s: %s", becomes, ", ".join(gaps))


def join_first(texts: Sequence[str]) -> str:
    """Join the first five texts, with an ellipsis if there are more."""
    listed = ", ".join(texts[:5])
    if len(texts) > 5:
        listed += ", …"
    return listed
