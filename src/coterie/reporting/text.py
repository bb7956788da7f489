"""Scores, sizes and lists of names as text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np

NOTHING = "–"  # in a table, where there is no value


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts numbers in names by their size: school 2 before school 10.

    Accents and capital letters count only between names that are otherwise the same.
    """
    decomposed = unicodedata.normalize("NFKD", name)
    plain = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    parts = []
    for part in re.split(r"([0-9]+)", plain):
        if part.isdecimal():
            parts.append((0, int(part), part))
        else:
            parts.append((1, 0, part.casefold()))
    return [*parts, (-1, 0, name)]


def natural_order(names: Sequence[str]) -> list[int]:
    """Return the positions of names in their natural order."""
    return sorted(range(len(names)), key=lambda i: natural_key(names[i]))


def join_names(names: Sequence[str], most: int = 8) -> str:
    """Join names as in a sentence, "a, b and c"; of many, the first few and how many more."""
    shown = list(names)
    if len(names) > most:
        shown = [*names[:most], f"{len(names) - most} more"]
    if len(shown) == 1:
        return shown[0]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def capitalise(sentence: str) -> str:
    """Write the first letter large and leave all others as they are."""
    return sentence[:1].upper() + sentence[1:]


def metric_name(metric: str) -> str:
    """Return a metric as it is written in a sentence: "accuracy" or "MSE"."""
    return metric.replace("mse", "MSE")


def format_score(value: float, metric: str) -> str:
    """Write a score with three decimals, an error with four digits."""
    if not np.isfinite(value):
        return NOTHING
    if metric == "accuracy":
        return f"{value:.3f}"
    return f"{value:.4g}"


def format_gain(value: float, metric: str) -> str:
    """Write a difference between scores with its sign; one that rounds to 0 has none."""
    text = format_score(abs(value), metric)
    if text == NOTHING or float(text) == 0:
        return text
    if value > 0:
        return f"+{text}"
    return f"−{text}"


def format_number(value: float) -> str:
    """Write a value of a column in about three digits."""
    if abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif abs(value) < 1:
        text = f"{value:.2f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-0.00", "0.00").replace("-", "−")


def format_bytes(size: float) -> str:
    """Write a number of bytes with its unit, as in 12.3 MB."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def replace_path(text: str, path: Path, name: str) -> str:
    """Write `name` for a path where it is not part of another name.

    `/runs/a` is replaced in "/runs/a/config.json is damaged", but not in "/runs/ab" or "/x/runs/a".
    """
    whole_path = rf"(?<![\w./-]){re.escape(str(path))}(?![\w-]|\.\w)"
    return re.sub(whole_path, lambda match: name, text)
