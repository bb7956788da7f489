"""Dates in tables: parsing and encoding.

Two formats are dates: year-month-day, 2026-01-31, optionally followed by a time, and
day.month.year, 31.1.2026. 1/2/2026 is not parsed, because it is ambiguous: day and month have no
common order.
"""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")
GERMAN_DATE = re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")
DAY = np.timedelta64(1, "D")
YEAR = 365.2425  # days
MONDAY = 3  # 1970-01-01, day 0, was a Thursday, three days after a Monday
# the cosine and sine of the time of the year, named by the months where they are 1 and −1
SEASONS = ("January − July", "April − October")
PARTS = ("year", *SEASONS, "weekend")


def parse_days(cells: np.ndarray) -> np.ndarray:
    """Parse cells as days since 1970-01-01: object [n] to float64 [n], NaN if it is not a date."""
    import pandas as pd

    days = np.full(len(cells), np.nan)
    iso = np.array([is_iso(cell) for cell in cells], dtype=bool)
    german = np.array([is_german(cell) for cell in cells], dtype=bool)
    for dates, form in ((iso, "ISO8601"), (german, "%d.%m.%Y")):
        times = pd.to_datetime(
            pd.Series(cells[dates], dtype=object), format=form, utc=True, errors="coerce"
        )
        days[dates] = datetimes_to_days(times)
    return days


def is_german(cell: Any) -> bool:
    """Whether a cell has the format day.month.year."""
    return isinstance(cell, str) and GERMAN_DATE.fullmatch(cell) is not None


def is_iso(cell: Any) -> bool:
    """Whether a cell is a `datetime.date` or has the format of ISO 8601."""
    if isinstance(cell, str):
        return ISO_DATE.fullmatch(cell) is not None
    return isinstance(cell, datetime.date)


def datetimes_to_days(times: pd.Series) -> np.ndarray:
    """Convert datetimes to fractional days since 1970-01-01 UTC: float64 [rows], NaN if missing."""
    import pandas as pd

    plain = pd.to_datetime(times, utc=True).dt.tz_localize(None).to_numpy()
    return (plain - np.datetime64("1970-01-01")) / DAY


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
