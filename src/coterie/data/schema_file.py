"""A schema that is written by hand, so that no statistics of rows have to leave a site.

    schema.toml

    label = "outcome"
    classes = ["no", "yes"]          of a regression target: label_mean and label_deviation

    [columns.age]
    mean = 52
    deviation = 17                   also median, where medians fill missing cells

    [columns.sex]
    categories = ["female", "male"]  any other text is "other"

    [columns.admitted]
    kind = "date"
    mean = 2021.5                    in years
    deviation = 2

Plausible numbers are enough: they scale the columns, and need not be those of any table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from coterie.core.errors import CoterieError
from coterie.core.toml import read_toml
from coterie.data.schema import Column, ColumnKind, Schema, sort_names

Finite = Annotated[float, Meta(ge=-1e100, le=1e100)]
Positive = Annotated[float, Meta(gt=0, le=1e100)]


class WrittenColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of schema.toml."""

    kind: ColumnKind | None = None
    mean: Finite | None = None
    deviation: Positive | None = None
    median: Finite | None = None
    categories: tuple[str, ...] = ()
    indicator: bool = False  # some sites lack the column


class WrittenSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of schema.toml."""

    label: str
    columns: Annotated[dict[str, WrittenColumn], Meta(min_length=1)]
    classes: tuple[str, ...] = ()
    label_mean: Finite = 0.0
    label_deviation: Positive = 1.0


def read_schema_file(file: Path) -> Schema:
    """Read schema.toml.

    Raises:
        CoterieError: It cannot be read, or a key or a value is wrong.
    """
    raw: Any = read_toml(file, "schema")
    try:
        written = msgspec.convert(raw, WrittenSchema)
    except msgspec.ValidationError as e:
        raise CoterieError(f"the schema {file} is wrong: {str(e).rstrip('.')}.") from e
    is_regression = not written.classes
    if not is_regression and ("label_mean" in raw or "label_deviation" in raw):
        raise CoterieError(f"the schema {file} has classes and moments of the label", "give one")
    if len(set(written.classes)) != len(written.classes) or len(written.classes) == 1:
        raise CoterieError(f"the schema {file} needs two different classes or more")
    return Schema(
        label=written.label,
        kind="regression" if is_regression else "classification",
        features=tuple(
            as_column(name, written.columns[name], file) for name in sorted(written.columns)
        ),
        classes=None if is_regression else sort_names(written.classes),
        rows=0,
        label_mean=written.label_mean if is_regression else 0.0,
        label_deviation=written.label_deviation if is_regression else 0.0,
    )


def as_column(name: str, written: WrittenColumn, file: Path) -> Column:
    """Return a column of the file as one of a schema."""
    if written.categories:
        if written.mean is not None or written.kind not in (None, "category"):
            raise CoterieError(
                f"the column {name} in {file} has categories and numbers", "give one of the two"
            )
        texts = sort_names(set(written.categories))
        return Column(name, "category", categories=texts, indicator=written.indicator)
    if written.mean is None or written.deviation is None or written.kind == "category":
        raise CoterieError(
            f"the column {name} in {file} lacks its moments or its categories",
            "give mean and deviation, or categories",
        )
    median = written.mean if written.median is None else written.median
    return Column(
        name=name,
        kind=written.kind or "number",
        mean=written.mean,
        deviation=written.deviation,
        median=median,
        indicator=written.indicator,
    )
