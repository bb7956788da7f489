"""Rows and columns that mislead a comparison: leaks, sites named twice, sites too small to learn.

`find_misleading` looks at the encoded training rows of tables. It returns all problems of a table
at once, each with a way out; only the user knows whether it is a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from coterie.core.errors import CoterieWarning, Option
from coterie.data.federation import Federation
from coterie.data.schema import Column

TOO_GOOD = 0.98  # AUC or R² of a single column above which it probably leaks the label
MOST_ROWS = 20_000  # rows that are looked at, evenly spaced
MIN_ROWS = 20  # fewer rows say nothing about a column
MIN_SITES = 3  # fewer sites say nothing about a column that names them
BINS = 20  # of a number, to find relations that are not straight
MAX_LISTED = 3  # sites that a sentence names
DATE = re.compile(r"\s*\d{1,4}[-/. ]\d{1,2}[-/. ]\d{1,4}\b.*")


def find_misleading(fed: Federation) -> list[CoterieWarning]:
    """Return the problems of tables, one warning each; [] for other data.

    Args:
        fed: The clients' rows.

    Example:
        >>> import coterie as ct
        >>> from coterie.data.misleading import find_misleading
        >>> find_misleading(ct.data.linear(clients=4, samples=10, dim=2, clusters=2))
        []
    """
    schema = fed.roster.schema
    if schema is None or fed.train.x.dim() != 2:
        return []
    clients = len(fed.roster.training_names)
    sizes = fed.train.sizes[:clients].numpy()
    total = int(sizes.sum())
    x = fed.train.x[:total].double().numpy()
    y = fed.train.y[:total].double().numpy()
    if x.shape[1] != len(schema.columns) or total < MIN_ROWS:
        return []
    site = np.repeat(np.arange(clients), sizes)
    places = np.linspace(0, total - 1, min(total, MOST_ROWS)).round().astype(int)
    warnings: list[CoterieWarning] = []
    start = 0
    for column in schema.features:
        block = x[:, start : start + len(column.encoded)]
        start += len(column.encoded)
        values = column_values(block)
        warnings += warn_of_dates(column)
        warnings += warn_of_site_names(column, values, site, sizes)
        warnings += warn_of_leak(column, values[places], y[places], schema.classes is not None)
    names = fed.roster.training_names
    rows = sizes + fed.roster.rows.test[:clients].numpy()
    warnings += warn_of_few_rows(names, sizes, rows, len(schema.features))
    if schema.classes is not None:
        warnings += warn_of_one_class(names, sizes, rows, y=y, site=site)
    return warnings


def column_values(block: np.ndarray) -> np.ndarray:
    """Return one number per row of an encoded column: its first, or the number of its category."""
    if block.shape[1] == 1 or not np.isin(block, (0, 1)).all():
        values: np.ndarray = block[:, 0]
        return values
    return block.argmax(1).astype(float)


# ------------------------------------------------------------------------------ columns
def warn_of_leak(
    column: Column, values: np.ndarray, y: np.ndarray, is_class: bool
) -> Iterator[CoterieWarning]:
    """Warn if a column alone predicts the label nearly perfectly."""
    if len(np.unique(values)) < 2 or len(np.unique(y)) < 2:
        return
    score = auc_of_column(column, values, y) if is_class else r2_of_column(column, values, y)
    if score > TOO_GOOD:
        measure = "AUC" if is_class else "R²"
        yield CoterieWarning(
            f"the column {column.name} alone predicts the label ({measure} {score:.2f})",
            "if it is known only together with the label, drop it with {}",
            options=[drop(column)],
        )


def auc_of_column(column: Column, values: np.ndarray, y: np.ndarray) -> float:
    """Return how well a column separates each class from the others: the mean AUC over classes."""
    areas = []
    for number in np.unique(y):
        is_class = y == number
        scores = values
        if column.kind == "category":
            scores = group_means(values, is_class)
        area = roc_area(scores, is_class)
        areas.append(max(area, 1 - area))
    return float(np.mean(areas))


def roc_area(scores: np.ndarray, is_class: np.ndarray) -> float:
    """Return the area under the ROC curve; ties count half."""
    _, rank, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = (counts.cumsum() - (counts - 1) / 2)[rank]
    ones = is_class.sum()
    return float((mean_rank[is_class].sum() - ones * (ones + 1) / 2) / (ones * (len(rank) - ones)))


def r2_of_column(column: Column, values: np.ndarray, y: np.ndarray) -> float:
    """Return the share of the label's variance that a column explains, straight or in steps."""
    straight = float(np.corrcoef(values, y)[0, 1] ** 2)
    steps = values
    if column.kind != "category":
        edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
        steps = np.searchsorted(edges, values).astype(float)
    explained = 1 - float(((y - group_means(steps, y)) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    return max(straight, explained)


def group_means(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each row the mean over the rows with the same key."""
    _, group = np.unique(keys, return_inverse=True)
    sums = np.bincount(group, weights=values.astype(float))
    means: np.ndarray = (sums / np.bincount(group))[group]
    return means


def warn_of_site_names(
    column: Column, values: np.ndarray, site: np.ndarray, sizes: np.ndarray
) -> Iterator[CoterieWarning]:
    """Warn if a column is one-to-one with the sites: a category, or a whole number."""
    trained = np.flatnonzero(sizes > 0)
    if len(trained) < MIN_SITES or (sizes > 1).sum() < MIN_SITES:
        return
    first = values[np.concatenate([[0], sizes.cumsum()[:-1]])[trained]]
    is_constant = np.array_equal(values, np.repeat(first, sizes[trained]))
    if column.kind == "category":
        first = first[first < len(column.categories)]  # without rare texts, which share a number
        is_one_to_one = len(first) >= MIN_SITES
    else:
        whole = first * column.deviation + column.mean
        is_one_to_one = column.kind == "number" and np.allclose(whole, np.round(whole), atol=1e-3)
    if is_constant and is_one_to_one and len(np.unique(first)) == len(first):
        yield CoterieWarning(
            f"the column {column.name} names the site again (each has its own value)",
            "drop it with {}",
            options=[drop(column)],
        )


def warn_of_dates(column: Column) -> Iterator[CoterieWarning]:
    """Warn of texts that look like dates and were not read as such."""
    dates = [text for text in column.categories if DATE.fullmatch(text)]
    if column.kind == "category" and len(dates) > len(column.categories) / 2:
        yield CoterieWarning(
            f"the column {column.name} looks like dates, such as {dates[0]!r}, that cannot be read",
            "write them as 2026-05-31, or drop it with {}",
            options=[drop(column)],
        )


def drop(column: Column) -> Option:
    """Return the option that leaves a column out."""
    return Option("drop", column.name, of_data=True)


# ------------------------------------------------------------------------------ sites
def warn_of_few_rows(
    names: Sequence[str], sizes: np.ndarray, rows: np.ndarray, columns: int
) -> Iterator[CoterieWarning]:
    """Warn of sites with fewer training rows than the table has columns.

    Args:
        names: The sites.
        sizes: Their training rows.
        rows: All their rows, which `min_rows` counts.
        columns: Columns of the table.
    """
    small = np.flatnonzero((sizes > 0) & (sizes <= columns))
    few = [names[i] for i in small.tolist()]
    if few:
        yield CoterieWarning(
            f"{count_sites(few, len(names))} no more training rows than the table has columns "
            f"({columns}), too few for a model of their own ({list_sites(few)})",
            "leave them out with {}, or use methods that learn from the other sites",
            options=[Option("min_rows", str(int(rows[small].max()) + 1))],
        )


def warn_of_one_class(
    names: Sequence[str], sizes: np.ndarray, rows: np.ndarray, y: np.ndarray, site: np.ndarray
) -> Iterator[CoterieWarning]:
    """Warn of sites whose training rows have a single class; arguments as in `warn_of_few_rows`."""
    first = y[np.concatenate([[0], sizes.cumsum()[:-1]]).clip(max=len(y) - 1)]
    differs = np.bincount(site[y != first[site]], minlength=len(sizes))
    single = np.flatnonzero((sizes > 0) & (differs == 0))
    if len(single):
        usual = int(np.median(rows[single]))
        listed = [names[i] for i in single.tolist()]
        yield CoterieWarning(
            f"{count_sites(listed, len(names))} training rows of one class only "
            f"({list_sites(listed)}), so that a model of their own always predicts it",
            "leave out small sites with {}",
            options=[Option("min_rows", str(usual + 1))],
        )


def count_sites(some: list[str], of: int) -> str:
    """Return "3 of 20 sites have"."""
    verb = "has" if len(some) == 1 else "have"
    return f"{len(some)} of {of} sites {verb}"


def list_sites(names: list[str]) -> str:
    """Name the first sites."""
    listed = ", ".join(names[:MAX_LISTED])
    return f"{listed}, …" if len(names) > MAX_LISTED else listed
