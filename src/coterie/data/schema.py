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
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from coterie.core.errors import CoterieError, unknown_name
from coterie.data.cells import Cells
from coterie.data.client_table import Table
from coterie.data.column import KINDS, Column, in_order
from coterie.data.column import Fill as Fill
from coterie.data.federation import Kind

if TYPE_CHECKING:
    import pandas as pd

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
        fault = next(faults(self), "")
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
        return self.encode_table(Table.of(frame, where), fill)

    def encode_table(
        self, table: Table, fill: Fill | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """`encode` for a table whose columns are already parsed."""
        fill = fill or self.fill
        if fill not in (None, *get_args(Fill)):
            raise unknown_name("fill", str(fill), get_args(Fill))
        self.refuse_absent(table, fill)
        parts = [column.encode(table.columns[column.name], fill) for column in self.features]
        x = np.concatenate(parts, axis=1, dtype=np.float32)
        if self.label not in table.columns:
            return x, None
        return x, self.encode_label(table.columns[self.label])

    def refuse_absent(self, table: Table, fill: Fill | None) -> None:
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

    def encode_label(self, cells: Cells) -> np.ndarray:
        """y, int64 classes or float64 targets."""
        cells.refuse_missing("give the rows a label, or remove them", role="label column")
        if self.classes is None:
            return cells.numbers("correct it")
        class_of = {name: i for i, name in enumerate(self.classes)}
        numbers, texts = cells.coded
        y = np.array([class_of.get(text, -1) for text in texts], dtype=np.int64)[numbers]
        if (y < 0).any():
            name = texts[numbers[(y < 0).argmax()]]
            what = f"class in the label column {self.label} of {cells.where}:"
            raise unknown_name(what, name, self.classes)
        return y

    def remarks(self, frame: pd.DataFrame, where: str = "the table") -> list[str]:
        """Sentences about columns, texts and units of a table that no training row had."""
        table = Table.of(frame, where)
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


def faults(schema: Schema) -> Iterator[str]:
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
    if any(in_order({*texts}) != texts for texts in lists):
        yield "categories or classes are not in order"
