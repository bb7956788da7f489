"""What the columns of the clients' tables mean together, and how a table becomes numbers.

Three pure functions, so that nothing but a description leaves a client:

    description = describe(frame, "outcome")           on each client
    schema = merge({"north": description, …})          on the server
    x, y = schema.encode(frame)                        on each client again

Numbers (booleans are 0 and 1) are standardised by the mean and the deviation over all clients' rows together; a column
that never changes gives 0. Text is one-hot over the sorted texts of all clients, with a last slot for any other.
Nothing is guessed across clients: a column that is numbers here and text there is refused, unless it is named in
`categories`, which reads it as text everywhere. A regression target stays as it is.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie.data.federation import Kind
from coterie.data.tables import (
    MOST_CATEGORIES,
    boolean,
    form_of,
    named,
    numbers,
    parsed,
    refuse_missing,
    texts,
)
from coterie.errors import CoterieError, CoterieWarning, Option, gather, unknown

if TYPE_CHECKING:
    import pandas as pd

Fill = Literal["mean", "median"]
Description = dict[str, Any]
FAR = 5  # deviations: a newcomer's mean beyond is pointed out
MOST_CLASSES = 20  # more whole numbers than this are a regression target
LEVELS = (
    np.arange(21) + 0.5
) / 21  # of the quantiles that tell medians; the middle one is the median itself


# ---------------------------------------------------------------------------------------------- on a client
def describe(
    frame: pd.DataFrame,
    label: str,
    kind: Kind | None = None,
    categories: Collection[str] = (),
    train: Any = None,
    where: str = "the table",
) -> Description:
    """A table's columns in a few numbers each, fit for JSON; `where` names the table in errors.

    Columns are described by the rows numbered in `train` (default: all), the label by all rows. `categories` are the
    columns to read as text whatever they hold. `kind` overrules what the label looks like.
    """
    frame = named(frame, where)
    if label not in frame:
        raise unknown(f"label column of {where}:", label, frame.columns)
    if absent := sorted(set(categories) - set(frame.columns)):
        raise unknown(f"column of {where} in categories:", absent[0], frame.columns)
    rows = np.arange(len(frame)) if train is None else np.asarray(train, dtype=int)
    names = [name for name in frame.columns if name != label]
    jobs = {name: partial(_column, frame[name], rows, name in categories, where) for name in names}
    columns = gather(jobs | {label: partial(_label, frame[label], kind, where)})
    return {"rows": len(rows), "label": {"name": label} | columns.pop(label), "columns": columns}


def _column(column: pd.Series, rows: np.ndarray, as_text: bool, where: str) -> Description:
    form = "category" if as_text else form_of(column, where)
    seen = column.iloc[rows]
    facts: Description = {"kind": form, "missing": int(seen.isna().sum())}
    if form == "number":
        return facts | _moments(numbers(column, where)[rows])
    if form == "category":
        facts["categories"] = dict(Counter(texts(seen.dropna())))
        _refuse_many(f"the column {column.name} of {where}", str(column.name), facts["categories"])
    return facts


def _moments(values: np.ndarray) -> Description:
    values = values[~np.isnan(values)]
    mean = float(values.mean()) if len(values) else 0.0
    return {
        "count": len(values),
        "mean": mean,
        "squares": float(((values - mean) ** 2).sum()),
        "quantiles": np.quantile(values, LEVELS).tolist() if len(values) else [],
        "ids": bool((values % 1 == 0).all()) and len(np.unique(values)) == len(values),
    }


def _label(column: pd.Series, kind: Kind | None, where: str) -> Description:
    """Classes with counts, moments, or both where whole numbers may turn out to be either."""
    refuse_missing(
        column,
        f"the label column {column.name} of {where}",
        "give the rows a label, or remove them",
    )
    form = (
        "number"
        if kind == "regression"
        else "category"
        if kind or boolean(column)
        else form_of(column, where)
    )
    if form == "category" or column.empty:
        return {"kind": "empty" if column.empty else form, "classes": dict(Counter(texts(column)))}
    values = numbers(column, where)
    classes = Counter(texts(column)) if kind is None and (values % 1 == 0).all() else {}
    return {"kind": "number", "classes": dict(classes) if len(classes) <= MOST_CLASSES else {}}


# ---------------------------------------------------------------------------------------------- on the server
def merge(descriptions: Mapping[str, Description]) -> Schema:
    """The schema of all clients, by their names; their order does not matter, to the bit."""
    sites = dict(sorted(descriptions.items()))
    if not sites:
        raise CoterieError(
            "a schema needs the description of at least one client, and none was given."
        )
    try:
        _check_columns(sites)
        first = next(iter(sites.values()))
        of = {
            name: {site: d["columns"][name] for site, d in sites.items()}
            for name in sorted(first["columns"])
        }
        columns = tuple(
            gather({name: partial(_merged, name, parts) for name, parts in of.items()}).values()
        )
        classes = _classes({site: d["label"] for site, d in sites.items()})
        kind: Kind = "regression" if classes is None else "classification"
        return Schema(
            first["label"]["name"], kind, columns, classes, sum(d["rows"] for d in sites.values())
        )
    except CoterieError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as why:
        raise CoterieError(
            f"a client's description is not one that `describe` makes ({why!r}): make it anew."
        ) from None


def _check_columns(sites: Mapping[str, Description]) -> None:
    """All sites have the same columns and the same label."""
    first, model = next(iter(sites.items()))
    for site, described in sites.items():
        if described["label"]["name"] != model["label"]["name"]:
            labels = [
                f"{d['label']['name']} for client {s!r}"
                for s, d in ((first, model), (site, described))
            ]
            raise CoterieError(
                f"the label column is {' and '.join(labels)}: it must be one for all."
            )
        here, there = set(described["columns"]), set(model["columns"])
        if here != there:
            less, more = (
                ", ".join(sorted(names)) or "nothing" for names in (there - here, here - there)
            )
            remedy = "give all clients the same columns, or drop what not all have with {}"
            options = [Option("drop", ",".join(sorted(here ^ there)), of_data=True)]
            if there - here and here - there:
                remedy = (
                    "give all clients the same columns, "
                    f"perhaps by renaming {more} in {site!r} to {less}"
                )
                options = []
            raise CoterieError(
                f"the columns of client {site!r} differ from those of client {first!r}: "
                f"it lacks {less} and adds {more}",
                remedy,
                options=options,
            )
    if not model["columns"]:
        raise CoterieError(
            f"client {first!r} has no column but the label {model['label']['name']}: add features."
        )


def _merged(name: str, sites: Mapping[str, Description]) -> Column:
    missing = sum(d["missing"] for d in sites.values())
    remedy = "make them alike, or read it as text with {}"
    as_text = Option("categories", name, of_data=True)
    form = _one_form(f"the column {name}", sites, remedy, as_text)
    parts = [d for d in sites.values() if d.get("count")]
    if form == "number" and parts:
        if all(d["ids"] for d in parts) and sum(d["count"] for d in parts) > 50:
            doubt = CoterieWarning(
                f"the column {name} has another whole number in each row",
                "if these are ids, drop it with {}",
                options=[_drop(name)],
            )
            warnings.warn(doubt, stacklevel=2)
        return Column(name, "number", missing, *_pooled(parts))
    counts: Counter[str] = sum(
        (Counter(d.get("categories", {})) for d in sites.values()), Counter()
    )
    if not counts:
        raise CoterieError(
            f"the column {name} has no value in any training row",
            "drop it with {}",
            options=[_drop(name)],
            where=name,
        )
    _refuse_many(f"the column {name} of all clients together", name, counts)
    if len(counts) == counts.total() > 10:
        raise CoterieError(
            f"the column {name} has another text in each of {len(counts)} rows, as ids",
            "drop it with {}",
            options=[_drop(name)],
            where=name,
        )
    return Column(name, "category", missing, categories=in_order(counts))


def _pooled(parts: list[Description]) -> tuple[float, float, float]:
    """Mean, deviation (over n, not n − 1) and median of all rows; fsum makes the order of the parts irrelevant."""
    rows = sum(d["count"] for d in parts)
    mean = math.fsum(d["count"] * d["mean"] for d in parts) / rows
    squares = math.fsum(
        [d["squares"] for d in parts] + [d["count"] * (d["mean"] - mean) ** 2 for d in parts]
    )
    deviation = math.sqrt(squares / rows)
    if deviation <= 1e-12 * abs(mean):  # a constant, but for rounding
        deviation = 0.0
    points = sorted((q, d["count"]) for d in parts for q in d["quantiles"])
    reached = np.cumsum([count for _, count in points]) * 2
    low, high = (
        int(np.searchsorted(reached, reached[-1] // 2, side)) for side in ("left", "right")
    )
    return mean, deviation, (points[low][0] + points[high][0]) / 2


def _classes(sites: Mapping[str, Description]) -> tuple[str, ...] | None:
    """The classes of all clients, or None for regression."""
    label = f"the label column {next(iter(sites.values()))['name']}"
    as_classes = Option("kind", "classification", of_data=True)
    form = _one_form(label, sites, "make them alike, or read it as classes with {}", as_classes)
    if form == "empty":
        raise CoterieError(f"{label} has no value for any client: give the clients rows.")
    names = {name for d in sites.values() for name in d["classes"]}
    few = (
        all(d["classes"] for d in sites.values() if d["kind"] != "empty")
        and len(names) <= MOST_CLASSES
    )
    return in_order(names) if form == "category" or few else None


def _one_form(what: str, sites: Mapping[str, Description], remedy: str, option: Option) -> str:
    """The kind of column that all sites with any value must agree on; "empty" if none has one."""
    found = {d["kind"]: site for site, d in sites.items() if d["kind"] != "empty"}
    if len(found) > 1:
        raise CoterieError(
            f"{what} holds numbers for client {found['number']!r} "
            f"and text for client {found['category']!r}",
            remedy,
            options=[option],
        )
    return next(iter(found), "empty")


def _refuse_many(what: str, name: str, counts: Mapping[str, int]) -> None:
    if len(counts) > MOST_CATEGORIES:
        raise CoterieError(
            f"{what} has {len(counts)} different texts, above the {MOST_CATEGORIES} allowed",
            "drop it with {}, or put its texts into groups",
            options=[_drop(name)],
            where=name,
        )


def _drop(name: str) -> Option:
    return Option("drop", name, of_data=True)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted: as whole numbers where all are, else as text."""
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


# ---------------------------------------------------------------------------------------------- the schema
@dataclass(frozen=True)
class Column:
    """A column of the tables: its moments if it holds numbers, its texts if categories."""

    name: str
    kind: Literal["number", "category"]
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
        return [f"{self.name} = {text}" for text in (*self.categories, "(other)")]

    def encode(self, column: pd.Series, fill: Fill | None, where: str) -> np.ndarray:
        """float64 [rows, len(encoded)]"""
        missing = column.isna().to_numpy()
        if fill is None:
            refuse_missing(
                column,
                f"the column {self.name} of {where}",
                "fill them with {}",
                [Option("fill", "median")],
            )
        if self.kind == "category":
            slot = {text: i for i, text in enumerate(self.categories)}
            taken = np.array([slot.get(text, len(slot)) for text in texts(column)], dtype=int)
            taken[missing] = len(slot)
            x = np.zeros((len(column), len(slot) + 1))
            x[np.arange(len(x)), taken] = 1
            return x
        values = numbers(column, where, "correct it")
        values[missing] = self.median if fill == "median" else self.mean
        scaled = (values - self.mean) / self.deviation if self.deviation else np.zeros(len(values))
        return scaled[:, None]


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

    def __post_init__(self) -> None:
        names = [column.name for column in self.features]
        lists = [self.classes or (), *(c.categories for c in self.features)]
        all_texts = [
            self.label,
            *names,
            *self.ignored,
            *(text for listed in lists for text in listed),
        ]
        values = [v for c in self.features for v in (c.mean, c.deviation, c.median)]
        for wrong, why in (
            (self.kind not in get_args(Kind), f"its kind is {self.kind!r}"),
            (
                (self.classes is None) != (self.kind == "regression"),
                "classes and kind contradict each other",
            ),
            (
                not names or len({*names, self.label}) <= len(names),
                "its columns are none, or one is there twice",
            ),
            (not all(map(math.isfinite, values)), "its numbers are not all finite"),
            (any(c.deviation < 0 for c in self.features), "a deviation is negative"),
            (
                any(c.kind not in ("number", "category") for c in self.features),
                "a column is of an unknown kind",
            ),
            (not all(isinstance(text, str) for text in all_texts), "a name is not text"),
            (self.fill not in (None, *get_args(Fill)), f"its fill is {self.fill!r}"),
            (
                any(in_order({*listed}) != listed for listed in lists),
                "categories or classes are not in order",
            ),
        ):
            if wrong:
                raise CoterieError(
                    f"the schema for the label {self.label!r} makes no sense ({why}): make it anew."
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
        """x, float32 [rows, columns], and y (int64 classes or float64 targets), or None if there is no label column.

        Missing numbers are refused, or filled with the mean or median over all clients; missing texts become "other".
        Without `fill` it is as in training.
        """
        fill = fill or self.fill
        if fill not in (None, *get_args(Fill)):
            raise unknown("fill", str(fill), get_args(Fill))
        frame = named(frame, where)
        names = [column.name for column in self.features]
        if absent := [name for name in names if name not in frame]:
            what = "column" if len(absent) == 1 else "columns"
            raise CoterieError(
                f"{where} lacks the {what} {', '.join(absent)}: it has {', '.join(frame.columns)}."
            )
        x = np.concatenate(
            [c.encode(frame[c.name], fill, where) for c in self.features], axis=1, dtype=np.float32
        )
        return x, self._targets(frame[self.label], where) if self.label in frame else None

    def remarks(self, frame: pd.DataFrame, where: str = "the table") -> list[str]:
        """What `encode` passes over in a table: columns and texts that no training row had, a sentence each."""
        frame = named(frame, where)
        found = []
        known = {*(column.name for column in self.features), self.label, *self.ignored}
        if extra := sorted(set(frame.columns) - known):
            found.append(
                f"{where} has columns that training did not have, which are passed over: {', '.join(extra)}."
            )
        for column in self.features:
            if column.kind == "number" and column.deviation and column.name in frame:
                values = parsed(frame[column.name], where)
                mean = float(np.nanmean(values)) if not np.isnan(values).all() else column.mean
                if abs(mean - column.mean) > FAR * column.deviation:
                    usual = f"where training rows have {column.mean:.4g} ± {column.deviation:.3g}"
                    found.append(
                        f"the column {column.name} of {where} is {mean:.4g} on average, {usual}: check its unit."
                    )
            if column.kind == "category" and column.name in frame:
                counts = Counter(texts(frame[column.name].dropna()))
                if new := sorted(set(counts) - {*column.categories}):
                    rows, some = (
                        sum(counts[text] for text in new),
                        ", ".join(new[:3]) + (", …" if len(new) > 3 else ""),
                    )
                    what = f"the column {column.name} of {where} has texts that no training row had"
                    found.append(
                        f"{what} ({some}; {rows} of {len(frame)} rows): they count as other."
                    )
        return found

    def _targets(self, column: pd.Series, where: str) -> np.ndarray:
        what = f"the label column {self.label} of {where}"
        refuse_missing(column, what, "give the rows a label, or remove them")
        if self.classes is None:
            return numbers(column, where, "correct it")
        number = {name: i for i, name in enumerate(self.classes)}
        found = texts(column)
        for name in found:
            if name not in number:
                raise unknown(f"class in {what}:", name, self.classes)
        return np.array([number[name] for name in found], dtype=np.int64)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """The schema that `to_json` wrote; anything else is refused."""
        try:
            raw = json.loads(text)
            features = tuple(
                Column(**c | {"categories": tuple(c["categories"])}) for c in raw["features"]
            )
            classes = None if raw["classes"] is None else tuple(raw["classes"])
            ignored = tuple(raw.get("ignored", ()))
            return cls(**raw | {"features": features, "classes": classes, "ignored": ignored})
        except CoterieError:
            raise
        except (ValueError, KeyError, TypeError) as why:
            raise CoterieError(
                f"this is not a schema in JSON ({why}): write it with to_json."
            ) from None
