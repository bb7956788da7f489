"""Cells of tables: texts as numbers, and any cell as text."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import numpy as np

WHOLE_WITH_POINT = re.compile(r"[+-]?\d+\.0+")  # as spreadsheets write codes


def parse_numbers(cells: np.ndarray) -> np.ndarray:
    """The number of each of these different cells, NaN where there is none."""
    import pandas as pd

    numbers: np.ndarray = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    return numbers


def is_text_type(dtype: Any) -> bool:
    """Whether pandas promises that a column of this type holds texts alone."""
    import pandas as pd

    return isinstance(dtype, pd.StringDtype)


def as_text(cell: Any) -> str:
    """One cell as text; a whole number has no point, so that 1 and 1.0 are the same category."""
    if isinstance(cell, str):
        if WHOLE_WITH_POINT.fullmatch(cell):
            return cell.partition(".")[0]
        return to_nfc(cell)
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return to_nfc(str(cell))


def to_nfc(text: str) -> str:
    """Normalise to Unicode NFC, so that an é typed in two ways is one name."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text)
