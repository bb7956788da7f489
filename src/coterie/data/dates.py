"""Dates in tables: parsing and encoding.

Two formats are dates: year-month-day, 2026-01-31, optionally followed by a time, and
day.month.year, 31.1.2026. 1/2/2026 is not parsed, because it is ambiguous: day and month have no
common order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import numpy as np

ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")
ISO_MONTH = re.compile(r"\d{4}-\d{2}")
GERMAN_DATE = re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR = 365.2425  # days
MONDAY = 3  # 1970-01-01, day 0, was a Thursday, three days after a Monday
# the cosine and sine of the time of the year, named by the months where they are 1 and −1
SEASONS = ("January − July", "April − October")
PARTS = ("year", *SEASONS, "weekend")


def parse_days(cells: Iterable[str]) -> np.ndarray:
    """Parse texts as days since 1970-01-01, float64; NaN if a text is not a date."""
    return np.array([parse_day(cell) for cell in cells], dtype=np.float64)


def parse_day(cell: str) -> float:
    """Parse one date; with a time zone it is converted to UTC."""
    try:
        if ISO_DATE.fullmatch(cell):
            time = datetime.fromisoformat(cell.rstrip())
        elif GERMAN_DATE.fullmatch(cell):
            day, month, year = map(int, cell.split("."))
            time = datetime(year, month, day)
        else:
            return math.nan
    except ValueError:
        return math.nan
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - EPOCH) / timedelta(days=1)


def parse_months(cells: Iterable[str]) -> np.ndarray:
    """Parse texts as `parse_days` does; here 2010-11 is the first day of a month."""
    return parse_days(f"{cell}-01" if ISO_MONTH.fullmatch(cell) else cell for cell in cells)


def to_years(days: np.ndarray) -> np.ndarray:
    """Convert days since 1970-01-01 to years; 2026.5 is the middle of 2026."""
    return 1970 + days / YEAR


def encode_seasons(days: np.ndarray) -> np.ndarray:
    """Return the cosine and sine of the time of the year, float64 [rows, 2]."""
    angle = 2 * np.pi * (days % YEAR) / YEAR
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def encode_weekends(days: np.ndarray) -> np.ndarray:
    """Return 1 for Saturdays and Sundays, otherwise 0, float64 [rows]."""
    weekday = (np.floor(days) + MONDAY) % 7
    return (weekday >= 5).astype(np.float64)
