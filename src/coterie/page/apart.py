"""What sets a group of clients apart, column by column, in words.

Each client gives sums over its training rows, never the rows; the sums of a group's clients are compared with those of
all other clients by the standardised difference of means, (m − m') / √((v + v') / 2), and by the correlation of each
column with the target.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.data import Federation

NOTABLE = 0.3  # standardised difference, or difference of correlations, worth a sentence
SURE = 3.0  # standard errors it must exceed, too
MEANS, RELATIONS, CLASSES = 5, 3, 50  # sentences of each sort; classes beyond which labels are not looked at


class Column(NamedTuple):
    name: str
    of: str  # the column of the tables: "sex" for "sex = female"
    shift: float = 0.0  # value = shift + scale · what the client has
    scale: float = 1.0


class Sums(NamedTuple):
    """Over the rows of one client, or of several."""

    rows: float
    value: np.ndarray  # [d]
    square: np.ndarray  # [d]
    product: np.ndarray  # [d] with the target

    def plus(self, other: Sums) -> Sums:
        return Sums(
            self.rows + other.rows, self.value + other.value, self.square + other.square, self.product + other.product
        )

    @property
    def mean(self) -> np.ndarray:
        return self.value / self.rows

    @property
    def variance(self) -> np.ndarray:
        return np.maximum(self.square / self.rows - self.mean**2, 0)

    def correlation(self) -> np.ndarray:
        """[d − 1] of each column with the target, which is the last; 0 where either never changes."""
        covariance = self.product / self.rows - self.mean * self.mean[-1]
        spread = np.sqrt(self.variance * self.variance[-1])
        flat = spread <= 1e-9 * (1 + np.abs(self.mean * self.mean[-1]))
        return np.where(flat, 0, covariance / np.where(flat, 1, spread))[:-1]


def sums(x: Tensor, y: Tensor, classes: int | None) -> Sums:
    """What one client tells: of its features, of each class (1 where a row has it), and of the target, last."""
    features = x.double() if x.dim() == 2 else x.new_zeros(len(x), 0).double()
    if classes is None:
        labels, target = y.double()[:, None][:, :0], y.double()
    else:
        few = classes if 2 < classes <= CLASSES else 0
        labels = (y[:, None] == torch.arange(few)).double()
        target = (y == 1).double() if classes == 2 else torch.zeros(len(y), dtype=torch.float64)
    z = torch.cat([features, labels, target[:, None]], 1)
    return Sums(len(z), *(v.sum(0).numpy() for v in (z, z * z, z * target[:, None])))


def columns(fed: Federation) -> list[Column]:
    """The columns of `sums`, in the tables' own units where the federation knows them."""
    schema = getattr(fed, "schema", None)
    width = fed.train.x.shape[1] if fed.train.x.dim() == 2 else 0
    if schema is None:
        features = [Column(f"column {i}", f"column {i}") for i in range(width)]
    else:
        features = [
            Column(name, c.name, *((c.mean, c.deviation) if c.kind == "number" else ()))
            for c in schema.features
            for name in c.encoded
        ]
    target = getattr(schema, "label", "the label")
    word = lambda c: f"{target} = {c if fed.labels is None else fed.labels[c]}"
    if fed.classes is None:
        return [*features, Column(target, target)]
    labels = [Column(word(c), word(c)) for c in range(fed.classes)] if 2 < fed.classes <= CLASSES else []
    return [*features, *labels, Column(word(1) if fed.classes == 2 else "", target)]


def sentences(fed: Federation, groups: np.ndarray) -> dict[int, list[str]]:
    """By group, what sets its clients apart from all others; an empty list where no column does."""
    each = [sums(*fed.train.client(i), fed.classes) for i in range(len(fed))]
    names, found = columns(fed), {}
    for k in np.unique(groups[groups >= 0]).tolist():
        here = [s for s, g in zip(each, groups) if g == k]
        there = [s for s, g in zip(each, groups) if g not in (k, -1)]
        if there:
            found[k] = compared(names, total(here), total(there))
    return found if fed.train.x.dim() == 2 or any(found.values()) else {}


def total(parts: list[Sums]) -> Sums:
    first, *others = parts
    for other in others:
        first = first.plus(other)
    return first


def compared(names: list[Column], here: Sums, there: Sums) -> list[str]:
    least = max(NOTABLE, SURE * (1 / here.rows + 1 / there.rows) ** 0.5)
    rounding = 1e-6 * (np.abs(here.mean) + np.abs(there.mean)) + 1e-300
    apart = (here.mean - there.mean) / np.maximum(np.sqrt((here.variance + there.variance) / 2), rounding)
    share = np.isclose(here.value, here.square) & np.isclose(there.value, there.square)  # only 0 and 1
    notable = strongest(apart, least, [c.of for c in names])[:MEANS]
    means = [told(names[i], here.mean[i], there.mean[i], bool(share[i])) for i in notable]
    if not names[-1].name:
        return means
    a, b = here.correlation(), there.correlation()
    moves = strongest(a - b, least, [c.of for c in names[:-1]])[:RELATIONS]
    return means + [
        f"{names[-1].name} {goes(a[i])} {names[i].name} (correlation {number(a[i])}), and elsewhere {goes(b[i])} it "
        f"({number(b[i])})"
        for i in moves
    ]


def strongest(effects: np.ndarray, least: float, of: list[str]) -> list[int]:
    """Numbers of the effects of at least this size, the largest first; one for each column of the tables."""
    found: dict[str, int] = {}
    for i in np.argsort(-np.abs(effects), kind="stable").tolist():
        if abs(effects[i]) >= least:
            found.setdefault(of[i], i)
    return list(found.values())


def told(column: Column, here: float, there: float, share: bool) -> str:
    if share:
        word = "more common" if here > there else "less common"
        return f"{column.name} is {word} ({100 * here:.0f} % of rows against {100 * there:.0f} % elsewhere)"
    word = "higher" if here > there else "lower"
    here, there = (column.shift + column.scale * v for v in (here, there))
    return f"{column.name} is {word} (mean {number(here)} against {number(there)} elsewhere)"


def goes(correlation: float) -> str:
    return "hardly moves with" if abs(correlation) < 0.1 else "rises with" if correlation > 0 else "falls with"


def number(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}" if abs(value) < 1 else f"{value:.3g}"
    return text.replace("-0.00", "0.00").replace("-", "−")
