"""The columns of a federation's rows, under the names and in the units of its tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.data import Federation
from coterie.reporting.sums import CLASSES, has_columns
from coterie.reporting.text import format_number


class Column(NamedTuple):
    """A feature or a label, as a page names it."""

    name: str
    source: str  # the column of the tables: "sex" for "sex = female"
    shift: float = 0.0  # value in the table = shift + scale · value in a client's rows
    scale: float = 1.0
    more: str = ""  # of a label: what high values mean, "a higher risk" or "outcome = well"
    less: str = ""  # of a label: what low values mean
    is_class: bool = False  # of a label: whether it is 1 for rows of a class


def label_name(fed: Federation) -> str:
    """Return the name of the label column; "label" where the data have no tables."""
    if fed.schema is None:
        return "label"
    return fed.schema.label


def class_names(fed: Federation) -> list[str]:
    """Return the names of the classes, or their numbers."""
    return list(fed.labels or map(str, range(fed.classes or 0)))


def feature_columns(fed: Federation) -> list[Column]:
    """Name the feature columns of `sums`; none where rows are images or words."""
    x = fed.train.x
    if not has_columns(x):
        return []
    if fed.schema is None:
        return [Column(f"column {i}", f"column {i}") for i in range(x.shape[1])]
    columns = []
    for c in fed.schema.features:
        for place, name in enumerate(c.encoded):
            column = Column(name, c.name)
            is_standardised = c.kind == "number" or (c.kind == "date" and place == 0)  # its year
            if is_standardised:
                column = column._replace(shift=c.mean, scale=c.deviation)
            columns.append(column)
    return columns


def label_columns(fed: Federation) -> list[Column]:
    """Name the label columns of `sums`: the target, class 1 of two, or each of several classes."""
    label = label_name(fed)
    if fed.classes is None:
        return [Column(label, label, more=f"a higher {label}", less=f"a lower {label}")]
    if fed.classes > CLASSES:
        return []
    names = class_names(fed)
    if fed.classes == 2:
        low, high = (f"{label} = {name}" for name in names)
        return [Column(high, label, more=high, less=low, is_class=True)]
    columns = []
    for name in names:
        title = f"{label} = {name}"
        other = f"{label} other than {name}"
        columns.append(Column(title, title, more=title, less=other, is_class=True))
    return columns


def describe_labels(fed: Federation, means: np.ndarray) -> str:
    """Say in a few words what the labels of a group are, from the mean of each label column."""
    if fed.classes is None:
        return f"mean {format_number(means[0])}"
    names = class_names(fed)
    if fed.classes == 2:
        return f"{100 * (1 - means[0]):.0f} % {names[0]}, {100 * means[0]:.0f} % {names[1]}"
    return f"most often {names[int(means.argmax())]} ({100 * means.max():.0f} %)"
