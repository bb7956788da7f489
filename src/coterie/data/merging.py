"""Merge the descriptions of all clients into one schema, on the server.

The result does not depend on the order of the clients, to the bit.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from coterie.core.errors import CoterieError, CoterieWarning, Option, run_column_jobs
from coterie.data.columns import CellKind
from coterie.data.description import (
    MAX_CLASSES,
    MAX_QUANTILES,
    Description,
    check_category_count,
    drop_option,
)
from coterie.data.roster import TableKind
from coterie.data.schema import MIN_CATEGORY_COUNT, Column, Schema, sort_names

Descriptions = Mapping[str, Description]  # by client
ColumnChoice = Literal["union", "common"]
CHOICES = (Option("columns", "union"), Option("columns", "common"))
Columns = frozenset[str]
MAX_LISTED_CLIENTS = 5  # clients that an error message describes; it counts the others


def find_lacking(clients: Descriptions) -> dict[str, tuple[str, ...]]:
    """Return the columns that some clients lack, sorted, with the names of these clients."""
    names = sorted({name for d in clients.values() for name in d["columns"]})
    lacking = {
        name: tuple(client for client, d in clients.items() if name not in d["columns"])
        for name in names
    }
    return {name: without for name, without in lacking.items() if without}


def align_columns(clients: Descriptions, choice: ColumnChoice) -> dict[str, Description]:
    """Give all descriptions the union of the columns, or only the common ones."""
    lacking = find_lacking(clients)
    aligned = {}
    for client, d in clients.items():
        columns = {name: c for name, c in d["columns"].items() if name not in lacking}
        if choice == "union":
            absent = {"kind": "empty", "missing": d["rows"]}
            columns |= {name: d["columns"].get(name, absent) for name in lacking}
        aligned[client] = {**d, "columns": columns}
    if not any(d["columns"] for d in aligned.values()) and lacking:
        raise CoterieError(
            "the clients have no column in common but the label",
            "rename the columns that mean the same, or use {}",
            options=[Option("columns", "union")],
        )
    return aligned


def check_columns(clients: Mapping[str, Description]) -> None:
    """Raise if columns or the label of some clients differ from those of most clients."""
    first, model = next(iter(clients.items()))
    label = model["label"]["name"]
    for client, description in clients.items():
        if description["label"]["name"] != label:
            raise CoterieError(
                f"the label column is {label} for client {first!r} "
                f"and {description['label']['name']} for client {client!r}",
                "use the same label for all clients",
            )
    columns = {client: frozenset(d["columns"]) for client, d in clients.items()}
    common = Counter(columns.values()).most_common(1)[0][0]
    if set(columns.values()) != {common}:
        raise column_mismatch(columns, common)
    if not common:
        raise CoterieError(f"client {first!r} has no column but the label {label}", "add features")


def column_mismatch(columns: Mapping[str, Columns], common: Columns) -> CoterieError:
    """Return an error that names the clients whose columns differ from the most common ones."""
    example = next(client for client, own in columns.items() if own == common)
    differing = {client: own for client, own in columns.items() if own != common}
    parts = []
    for client, own in list(differing.items())[:MAX_LISTED_CLIENTS]:
        lacks = ", ".join(sorted(common - own)) or "nothing"
        adds = ", ".join(sorted(own - common)) or "nothing"
        parts.append(
            f"the columns of client {client!r} differ from those of client {example!r}: "
            f"it lacks {lacks} and adds {adds}"
        )
    if len(differing) > MAX_LISTED_CLIENTS:
        parts.append(f"and {len(differing) - MAX_LISTED_CLIENTS} more clients")
    what = "; ".join(parts)
    if len(differing) == 1 and lacks != "nothing" and adds != "nothing":
        rename = f"perhaps by renaming {adds} in {client!r} to {lacks}"
        return CoterieError(
            what,
            f"give all clients the same columns, {rename}, or take all columns with {{}} or the "
            "common ones with {}",
            options=CHOICES,
        )
    not_shared = Columns().union(*(own ^ common for own in differing.values()))
    return CoterieError(
        what,
        "give all clients the same columns, drop those that some clients lack with {}, or take all "
        "columns with {} or the common ones with {}",
        options=[Option("drop", ",".join(sorted(not_shared)), of_data=True), *CHOICES],
    )


log = logging.getLogger("coterie")
KIND_NAMES: dict[CellKind, str] = {
    "number": "numbers",
    "date": "dates",
    "category": "text",
}  # in words
NEAR, FAR = 2.0, 3.0  # units of `limit_outliers`
MIN_ROWS_FOR_IDS = 50  # distinct integers in fewer rows are not taken for ids


def merge(
    descriptions: Descriptions,
    min_category_count: int = MIN_CATEGORY_COUNT,
    robust: bool = False,
    columns: ColumnChoice | None = None,
) -> Schema:
    """Merge the descriptions of all clients into one schema.

    The result does not depend on the order of the clients, to the bit.

    Args:
        descriptions: By client name, what `describe` returned.
        min_category_count: Categories with fewer rows, over all clients, are encoded as "other".
        robust: Limit the influence of clients whose moments are far from those of the others,
            because clients may lie.
        columns: If the clients' columns differ, take their "union" or the "common" ones.

    Raises:
        CoterieError: If the clients' columns differ.

    Example:
        >>> import pandas as pd
        >>> from coterie.data.description import describe
        >>> table = pd.DataFrame({"age": [20, 30, 40], "outcome": ["yes", "no", "no"]})
        >>> described = {name: describe(table, "outcome") for name in ("north", "south")}
        >>> schema = merge(described)
        >>> schema.columns, schema.classes
        (('age',), ('no', 'yes'))
    """
    clients = dict(sorted(descriptions.items()))
    if not clients:
        raise CoterieError(
            "a schema needs the description of at least one client, and none was given."
        )
    try:
        lacking = find_lacking(clients)
        if columns is not None:
            clients = align_columns(clients, columns)
        check_columns(clients)
        schema = merge_checked(clients, min_category_count, robust)
        return replace(
            schema, features=tuple(replace(c, indicator=c.name in lacking) for c in schema.features)
        )
    except CoterieError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as why:
        raise CoterieError(
            f"a client's description was not made by `describe` ({why!r})", "create it again"
        ) from None


def merge_checked(clients: Descriptions, min_category_count: int, robust: bool) -> Schema:
    """Merge descriptions that have the same columns."""
    first = next(iter(clients.values()))
    jobs = {}
    for name in sorted(first["columns"]):
        of_clients = {client: d["columns"][name] for client, d in clients.items()}
        jobs[name] = partial(merge_column, name, of_clients, min_category_count, robust)
    columns = run_column_jobs(jobs)
    labels = {client: d["label"] for client, d in clients.items()}
    classes = merge_classes(labels)
    kind: TableKind = "regression" if classes is None else "classification"
    mean, deviation = 0.0, 0.0
    parts = parts_with_values("the label", labels, robust)
    if kind == "regression" and parts:
        mean, deviation = pool_moments(parts)
    return Schema(
        label=first["label"]["name"],
        kind=kind,
        features=tuple(columns.values()),
        classes=classes,
        rows=sum(d["rows"] for d in clients.values()),
        label_mean=mean,
        label_deviation=deviation,
    )


# ------------------------------------------------------------------------------ one column
def merge_column(
    name: str, clients: Descriptions, min_category_count: int, robust: bool = False
) -> Column:
    """Merge the descriptions of one column.

    Args:
        name: Name of the column.
        clients: Its descriptions by client.
        min_category_count: Categories with fewer rows are encoded as "other".
        robust: As in `merge`.

    Raises:
        CoterieError: If the clients disagree on its kind, or it has no or too many values.
    """
    missing = sum(d["missing"] for d in clients.values())
    form = find_common_kind(
        f"the column {name}",
        clients,
        "use one type, or read it as text with {}",
        Option("categories", name, of_data=True),
    )
    parts = parts_with_values(f"the column {name}", clients, robust)
    if form == "number":
        warn_about_ids(name, parts)
    if form in ("number", "date") and parts:
        mean, deviation = pool_moments(parts)
        median = pool_medians(parts)
        return Column(name, form, missing, mean=mean, deviation=deviation, median=median)
    counts: Counter[str] = Counter()
    for description in clients.values():
        counts.update(description.get("categories", {}))
    if not counts:
        raise CoterieError(
            f"the column {name} has no value in any training row "
            "(or, at each client, in fewer than min_rows_to_report)",
            "drop it with {}",
            options=[drop_option(name)],
            where=name,
        )
    check_category_count(f"the column {name} of all clients together", name, len(counts))
    if len(counts) == counts.total() > 10:
        raise CoterieError(
            f"the column {name} has a different text in each of {len(counts)} rows, like ids",
            "drop it with {}",
            options=[drop_option(name)],
            where=name,
        )
    return Column(
        name, "category", missing, categories=select_categories(name, counts, min_category_count)
    )


def select_categories(name: str, counts: Counter[str], min_category_count: int) -> tuple[str, ...]:
    """Return the categories with enough rows, sorted; log how many are too rare."""
    common = [text for text, rows in counts.items() if rows >= min_category_count]
    if not common:
        doubt = CoterieWarning(
            f"the column {name} has no text that {min_category_count} training rows have, so that "
            "all its texts are encoded as other",
            "drop it with {}, or name every text with {}",
            options=[drop_option(name), Option("min_category_count", "1", of_data=True)],
        )
        warnings.warn(doubt, stacklevel=2)
    elif len(common) < len(counts):
        rare_rows = counts.total() - sum(counts[text] for text in common)
        log.info(
            "%d texts of the column %s, each in fewer than %d training rows, are encoded as other: "
            "%d rows",
            len(counts) - len(common), name, min_category_count, rare_rows,
        )  # fmt: skip
    return sort_names(common)


def find_common_kind(what: str, clients: Descriptions, remedy: str, option: Option) -> CellKind:
    """Return the kind that all clients with any value agree on; "empty" if there is no value."""
    forms: dict[CellKind, str] = {
        d["kind"]: client for client, d in clients.items() if d["kind"] != "empty"
    }
    if len(forms) > 1:
        first, second, *_ = [form for form in KIND_NAMES if form in forms]
        raise CoterieError(
            f"{what} holds {KIND_NAMES[first]} for client {forms[first]!r} "
            f"and {KIND_NAMES[second]} for client {forms[second]!r}",
            remedy,
            options=[option],
        )
    return next(iter(forms), "empty")


def warn_about_ids(name: str, parts: list[Description]) -> None:
    """Warn about numbers that are probably ids."""
    sign = ""
    if any(d["rounded"] for d in parts):
        sign = "has integers above 2^53, whose last digits are lost"
    elif all(d["ids"] for d in parts) and sum(d["count"] for d in parts) > MIN_ROWS_FOR_IDS:
        sign = "has a different integer in each row"
    if sign:
        doubt = CoterieWarning(
            f"the column {name} {sign}",
            "if these are ids, drop it with {}",
            options=[drop_option(name)],
        )
        warnings.warn(doubt, stacklevel=2)


def parts_with_values(what: str, clients: Descriptions, robust: bool) -> list[Description]:
    """Return the descriptions of clients that have values in a column."""
    parts = {client: d for client, d in clients.items() if d.get("count")}
    if robust:
        parts = limit_outliers(what, parts)
    return list(parts.values())


def limit_outliers(what: str, parts: dict[str, Description]) -> dict[str, Description]:
    """Limit the influence of clients whose mean or deviation is far from those of the others.

    The unit is the median of the clients' standard deviations, or the typical distance between
    their means if that is larger. Up to 2 units a client counts with all its rows, as in the plain
    mean; up to 3 with as many rows as the median client; beyond that not at all.

    Args:
        what: Names the column in the warning.
        parts: Descriptions by client, each with a count above 0. Fewer than three are returned
            as they are: nobody could say which of two is wrong.
    """
    if len(parts) < 3:
        return parts
    counts = np.array([d["count"] for d in parts.values()], dtype=float)
    means = np.array([d["mean"] for d in parts.values()])
    deviations = np.sqrt(np.array([d["squares"] for d in parts.values()]) / counts)
    centre = np.median(means)
    unit = max(np.median(deviations), 1.4826 * np.median(abs(means - centre)))
    if not unit:  # constant at most clients: those where it varies are compared with each other
        varying = deviations[deviations > 0]
        unit = np.median(varying) if len(varying) > 1 else 0.0
    distances = np.maximum(abs(means - centre), deviations)
    usual = np.median(counts)
    limited: dict[str, Description] = {}
    for (client, d), distance in zip(parts.items(), distances):
        if distance > FAR * unit:
            log.warning(
                "%s of %s has mean %.4g and standard deviation %.4g, far from those of the other "
                "clients (%.4g ± %.3g): its statistics are not used.",
                what, client, d["mean"], math.sqrt(d["squares"] / d["count"]), centre, unit,
            )  # fmt: skip
        elif distance > NEAR * unit and d["count"] > usual:
            count = int(usual)
            limited[client] = {**d, "count": count, "squares": d["squares"] * count / d["count"]}
        else:
            limited[client] = d
    return limited


def pool_moments(parts: list[Description]) -> tuple[float, float]:
    """Return the mean and standard deviation (over n, not n − 1) of all rows.

    fsum makes the result independent of the order of the clients.
    """
    rows = sum(d["count"] for d in parts)
    mean = math.fsum(d["count"] * d["mean"] for d in parts) / rows
    within = [d["squares"] for d in parts]
    between = [d["count"] * (d["mean"] - mean) ** 2 for d in parts]
    deviation = math.sqrt(math.fsum(within + between) / rows)
    if deviation <= 1e-12 * abs(mean):  # constant up to rounding errors
        deviation = 0.0
    return mean, deviation


def pool_medians(parts: list[Description]) -> float:
    """Estimate the median of all rows from the clients' quantiles.

    It is the weighted median of the quantiles, each of which stands for an equal share of its
    client's rows.
    """
    points = np.concatenate([d["quantiles"] for d in parts])
    lengths = [len(d["quantiles"]) for d in parts]
    weights = np.repeat(
        [d["count"] * (MAX_QUANTILES // len(d["quantiles"])) for d in parts], lengths
    )
    order = points.argsort()
    points = points[order]
    twice_below = 2 * weights[order].cumsum()
    half = twice_below[-1] // 2
    low = np.searchsorted(twice_below, half, "left")
    high = np.searchsorted(twice_below, half, "right")
    return float(points[low] + points[high]) / 2


def merge_classes(clients: Descriptions) -> tuple[str, ...] | None:
    """Return the classes of all clients, or None for regression."""
    label = f"the label column {next(iter(clients.values()))['name']}"
    form = find_common_kind(
        label,
        clients,
        "use one type, or read it as classes with {}",
        Option("kind", "classification", of_data=True),
    )
    if form == "empty":
        raise CoterieError(f"{label} has no value for any client", "give the clients rows")
    names = {name for d in clients.values() for name in d["classes"]}
    if form == "category":
        return sort_names(names)
    all_whole = all(d["classes"] for d in clients.values() if d["kind"] != "empty")
    if all_whole and len(names) <= MAX_CLASSES:
        return sort_names(names)
    return None
