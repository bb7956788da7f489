"""Numbers, names and tables as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.data.roster import natural_key
from coterie.metrics import METRICS

NOTHING = "–"  # table cell without a value


class TextTable(NamedTuple):
    """A table of text. Templates turn it into HTML, `coterie compare` prints it."""

    head: list[str]
    rows: list[list[str]]
    marked: tuple[int, ...] = ()  # indices of highlighted rows


def natural_order(names: Sequence[str]) -> list[int]:
    """Return the indices that sort names by `natural_key`."""
    return sorted(range(len(names)), key=lambda i: natural_key(names[i]))


def join_names(names: Sequence[str], most: int = 8) -> str:
    """Join names for a sentence: "a, b and c", or "a, b and 7 more".

    Args:
        names: At least one name.
        most: Maximum number of names to list.
    """
    shown = list(names)
    if len(names) > most:
        shown = [*names[:most], f"{len(names) - most} more"]
    if len(shown) == 1:
        return shown[0]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def capitalise(sentence: str) -> str:
    """Capitalise the first letter and keep all others, unlike `str.capitalize`."""
    return sentence[:1].upper() + sentence[1:]


def format_score(value: float, metric: str) -> str:
    """Format a score as its metric declares."""
    if not np.isfinite(value):
        return NOTHING
    return METRICS[metric].format_value(value)


def format_gain(value: float, metric: str) -> str:
    """Format a difference between scores with its sign; a difference that rounds to 0 has none."""
    text = format_score(abs(value), metric)
    if text == NOTHING or float(text) == 0:
        return text
    if value > 0:
        return f"+{text}"
    return f"−{text}"


def format_number(value: float) -> str:
    """Format a value of a column with about three significant digits."""
    if abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif abs(value) < 1:
        text = f"{value:.2f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-0.00", "0.00").replace("-", "−")


def format_error(value: float) -> str:
    """Format an error in the label's unit with three significant digits: "12,400", "0.712"."""
    if value >= 100:
        digits = max(len(f"{value:.0f}") - 3, 0)
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def format_bytes(size: float) -> str:
    """Format a number of bytes with its unit, such as "12.3 MB"."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def replace_path(text: str, path: Path, name: str) -> str:
    """Replace a path in a text, except where it is part of a longer name.

    `/runs/a` is replaced in "/runs/a/config.json is damaged", but not in "/runs/ab" or "/x/runs/a".
    """
    whole_path = rf"(?<![\w./-]){re.escape(str(path))}(?![\w-]|\.\w)"
    return re.sub(whole_path, lambda match: name, text)
