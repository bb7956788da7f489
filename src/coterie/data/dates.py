"""Dates in tables: which cells are dates, and the numbers that stand for them.

A date is written year-month-day, 2026-01-31, perhaps with a time after it, or day.month.year,
31.1.2026. 1/2/2026 is none: half of the world reads another day there.
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
# what a date becomes besides its year, each with 0 in the middle; named by where it is 1 and −1
SEASONS = ("January − July", "April − October")
PARTS = ("year", *SEASONS, "weekend")


def parse_days(cells: np.ndarray) -> np.ndarray:
    """float64 [n]: the days from 1970-01-01 to each cell, an object; NaN where it is no date."""
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
    """Whether a cell looks like a date of the form day.month.year."""
    return isinstance(cell, str) and GERMAN_DATE.fullmatch(cell) is not None


def is_iso(cell: Any) -> bool:
    """Whether a cell is a date of Python or looks like one in ISO 8601."""
    if isinstance(cell, str):
        return ISO_DATE.fullmatch(cell) is not None
    return isinstance(cell, datetime.date)


def datetimes_to_days(times: pd.Series) -> np.ndarray:
    """float64 [rows]: days, with fractions, from 1970-01-01 in UTC; NaN where a time is missing."""
    import pandas as pd

    plain = pd.to_datetime(times, utc=True).dt.tz_localize(None).to_numpy()
    return (plain - np.datetime64("1970-01-01")) / DAY


def to_years(days: np.ndarray) -> np.ndarray:
    """Days since 1970-01-01 as years: 2026.5 is in the middle of 2026."""
    return 1970 + days / YEAR


def encode_seasons(days: np.ndarray) -> np.ndarray:
    """float64 [rows, 2]: the cosine and sine of the time of the year."""
    angle = 2 * np.pi * (days % YEAR) / YEAR
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def encode_weekends(days: np.ndarray) -> np.ndarray:
    """float64 [rows]: 1 on Saturdays and Sundays, else 0."""
    weekday = (np.floor(days) + MONDAY) % 7
    return (weekday >= 5).astype(np.float64)
