"""What sets groups of clients apart, in words: how the label depends on the columns, and the columns themselves.

Two sides, one group and another or all others, differ by

    (m − m') / √((v + v') / 2 + (m − m')² / 4)   in the mean of a column, which lies between −2 and 2
    r − r'                                       in the correlation of a column with the label inside the clients

and a difference is told if it is NOTABLE and so many standard errors from 0 that, with so few clients and so many
columns, chance would bring any sentence at all in one report of a hundred (Student's t, Bonferroni).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.data import Federation
from coterie.reporting.sums import CLASSES, Sums, has_columns, sums

NOTABLE = 0.3  # difference worth a sentence
CHANCE = 0.01  # that a comparison of groups which do not differ has a sentence
SLIGHT = 0.1  # correlation below which a column hardly matters
SENTENCES = 6  # per comparison
OTHERS = "the other groups"


class Column(NamedTuple):
    name: str
    of: str  # the column of the tables: "sex" for "sex = female"
    shift: float = 0.0  # value = shift + scale · what the client has
    scale: float = 1.0
    more: str = ""  # of a label: what high values mean, "a higher risk" or "outcome = well"
    less: str = ""


class Apart(NamedTuple):
    """What is told of a run's groups."""

    label: str  # its name
    labels: dict[int, str]  # by group, what its labels are
    found: dict[
        str, list[str]
    ]  # "Group 0 against group 1": sentences; none where nothing stands out


def apart(fed: Federation, groups: np.ndarray) -> Apart:
    """What sets the clients of each group apart; of two groups it is told once."""
    features, labels = columns(fed)
    each = sums([fed.train.client(i) for i in range(len(fed))], fed.classes)
    known = np.unique(groups[groups >= 0]).tolist()
    found = {}
    for k in known[:1] if len(known) == 2 else known if len(known) > 2 else []:
        other = f"group {known[1]}" if len(known) == 2 else OTHERS
        here, there = each.of(groups == k), each.of((groups >= 0) & (groups != k))
        found[f"Group {k} against {other}"] = compared(
            features, labels, here, there, (f"group {k}", other)
        )
    if not features and not any(found.values()):
        found = {}
    means = {k: each.of(groups == k).mean()[len(features) :] for k in known}
    name = "label" if fed.schema is None else fed.schema.label
    return Apart(name, {k: labels_told(fed, m) for k, m in means.items() if labels}, found)


def columns(fed: Federation) -> tuple[list[Column], list[Column]]:
    """The features and the labels of `sums`, in the tables' own units where the federation knows them."""
    schema, x = fed.schema, fed.train.x
    features = []
    if schema is None and has_columns(x):
        features = [Column(f"column {i}", f"column {i}") for i in range(x.shape[1])]
    elif schema is not None and has_columns(x):
        for c in schema.features:
            units = (c.mean, c.deviation) if c.kind == "number" else ()
            features += [Column(name, c.name, *units) for name in c.encoded]
    label = "label" if schema is None else schema.label
    if fed.classes is None:
        return features, [Column(label, label, more=f"a higher {label}", less=f"a lower {label}")]
    names = class_names(fed)
    words = [f"{label} = {name}" for name in names]
    if fed.classes == 2:
        return features, [Column(words[1], label, more=words[1], less=words[0])]
    few = zip(words, names) if fed.classes <= CLASSES else []
    return features, [
        Column(word, word, more=word, less=f"{label} other than {name}") for word, name in few
    ]


def class_names(fed: Federation) -> list[str]:
    return list(fed.labels or map(str, range(fed.classes or 0)))


def labels_told(fed: Federation, means: np.ndarray) -> str:
    """The labels of a group, from the mean of each label column."""
    if fed.classes is None:
        return f"mean {number(means[0])}"
    names = class_names(fed)
    if fed.classes == 2:
        return f"{100 * (1 - means[0]):.0f} % {names[0]}, {100 * means[0]:.0f} % {names[1]}"
    return f"most often {names[int(means.argmax())]} ({100 * means.max():.0f} %)"


def compared(
    features: list[Column], labels: list[Column], here: Sums, there: Sums, sides: tuple[str, str]
) -> list[str]:
    """A sentence for each difference, first the one of which most is certain; one of each sort per column."""
    if min(len(here.rows), len(there.rows)) < 2:
        return []  # nothing tells the ways of a single client from those of a group
    told: list[
        tuple[float, str, str]
    ] = []  # (how much of the difference is certain, what it is about, the sentence)
    is_share = here.shares() & there.shares()
    m, n = here.mean(), there.mean()
    wide = np.sqrt((here.variance() + there.variance()) / 2 + (m - n) ** 2 / 4)
    wide = np.maximum(
        wide, 1e-6 * (np.abs(m) + np.abs(n)) + 1e-100
    )  # what never changes is only rounded
    rows = (
        1 / here.rows.sum() + 1 / there.rows.sum()
    )  # the least error there is, also of what never changes
    error = np.maximum((here.mean_error() + there.mean_error()) / wide**2, rows)
    errors = enough(len(here.rows) + len(there.rows) - 2, m.size + len(features) * len(labels))
    certain = sure((m - n) / wide, error, errors)
    for i, column in enumerate([*features, *labels]):
        told.append(
            (certain[i], f"mean of {column.of}", mean_told(column, m[i], n[i], is_share[i], sides))
        )
    (r, r_error), (s, s_error) = here.correlation(), there.correlation()
    certain = sure(r - s, r_error + s_error, errors)
    for i, column in enumerate(features):
        what = column.name if is_share[i] else f"a higher {column.name}"
        for t, label in enumerate(labels):
            sentence = relation_told(what, label, r[i, t], s[i, t], sides)
            told.append((certain[i, t], f"relation of {column.of}", sentence))
    first: dict[str, str] = {}
    for size, about, sentence in sorted(told, key=lambda t: -t[0]):
        if size > 0:
            first.setdefault(about, sentence)
    return list(first.values())[:SENTENCES]


def enough(freedom: int, looks: int) -> float:
    """Standard errors that a difference must exceed, with the clients' degrees of freedom and so many looks."""
    from scipy.stats import t

    return float(t.isf(CHANCE / looks / 2, freedom))


def sure(difference: np.ndarray, squared_error: np.ndarray, errors: float) -> np.ndarray:
    """How much of each difference is certain; 0 where it is not worth a sentence."""
    size = np.abs(difference)
    return np.where(size >= NOTABLE, np.maximum(size - errors * np.sqrt(squared_error), 0), 0)


def mean_told(
    column: Column, here: float, there: float, is_share: bool, sides: tuple[str, str]
) -> str:
    a, b = sides
    if b != OTHERS and here < there:
        a, b, here, there = b, a, there, here
    if is_share:
        word = "more" if here > there else "less"
        return f"{column.name} is {word} common in {a}: {100 * here:.0f} % of rows, against {100 * there:.0f} % in {b}."
    word = "higher" if here > there else "lower"
    mine, theirs = (number(column.shift + column.scale * v) for v in (here, there))
    return f"{column.name} is {word} in {a}: mean {mine}, against {theirs} in {b}."


def relation_told(
    what: str, label: Column, here: float, there: float, sides: tuple[str, str]
) -> str:
    a, b = sides
    opposite = here * there < 0 and min(abs(here), abs(there)) >= SLIGHT
    if not opposite and abs(here) < abs(there):
        a, b, here, there = b, a, there, here
    goes = [label.more if r > 0 else label.less for r in (here, there)]
    start = f"In {a}, {what} goes with {goes[0]} (correlation {number(abs(here))}); in {b}"
    if opposite:
        return f"{start}, with {goes[1]} ({number(abs(there))})."
    return f"{start} {'less so' if abs(there) >= SLIGHT else 'it hardly matters'} ({number(abs(there))})."


def number(value: float) -> str:
    text = (
        f"{value:,.0f}"
        if abs(value) >= 1000
        else f"{value:.2f}"
        if abs(value) < 1
        else f"{value:.3g}"
    )
    return text.replace("-0.00", "0.00").replace("-", "−")
