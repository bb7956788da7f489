"""Files of tables and arrays: CSV, Excel, Parquet and npz. A fault in one is one sentence."""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.errors import CoterieError
from coterie.data.cells import EXACT, to_nfc
from coterie.data.columns import Columns
from coterie.data.csv_file import check_header, read_csv
from coterie.data.csv_file import one_line as one_line
from coterie.data.parquet_file import read_parquet

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("coterie")


def read_table(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    """The table in a file, read by its ending.

    The cells of columns in `text` stay as they are written: 01 is not 1.
    """
    table = open_table(file, text)
    if isinstance(table, Columns):
        return table.frame()
    return table


def open_table(file: Path, text: Collection[str] = ()) -> pd.DataFrame | Columns:
    """As `read_table`; a table that may be large is given as columns that are not yet in memory."""
    kinds = " or ".join(READERS)
    if not file.is_file():
        raise CoterieError(f"there is no file {file}", f"give the path of a {kinds} file")
    if file.suffix.lower() not in READERS:
        raise CoterieError(f"the file {file} is no table", f"it must be a {kinds} file")
    table: pd.DataFrame | Columns = READERS[file.suffix.lower()](file, text)
    if table.empty:
        raise CoterieError(
            f"the file {file} is empty below its header", "give it rows, or remove it"
        )
    return table


# ------------------------------------------------------------------------------ Excel
def read_excel(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    """The table on the first sheet of an Excel file."""
    import pandas as pd

    try:
        with pd.ExcelFile(file, engine="openpyxl") as book:
            return parse_excel(book, file, text)
    except CoterieError:
        raise
    except ImportError:
        raise CoterieError(
            f"{file} is Excel, which needs openpyxl", "pip install 'coterie[excel]'"
        ) from None
    except Exception as why:  # openpyxl raises whatever a damaged file leads to
        raise CoterieError(
            f"the file {file} cannot be read as Excel: {one_line(why)}", "save it as .xlsx again"
        ) from None


def parse_excel(book: pd.ExcelFile, file: Path, text: Collection[str]) -> pd.DataFrame:
    if len(book.sheet_names) > 1:
        log.info("%s: only the first sheet is read, %s", file.name, book.sheet_names[0])
    first_row = book.parse(0, header=None, nrows=1, dtype=str, keep_default_na=False)
    if first_row.empty:
        raise CoterieError(f"the file {file} is empty", "give it a header and rows, or remove it")
    header = first_row.iloc[0].tolist()
    check_header([name.strip() for name in header], file)
    as_written = {
        place: object for place, name in enumerate(header) if to_nfc(name.strip()) in text
    }
    frame = book.parse(0, header=None, skiprows=1, dtype=as_written)
    frame = frame.reindex(columns=range(len(header)))  # a last column may be empty in all rows
    for place in as_written:
        check_excel_names(frame[place], header[place], file)
    return frame.set_axis([name.strip() for name in header], axis=1)


def check_excel_names(cells: Iterable[Any], column: str, file: Path) -> None:
    """Refuse names that are numbers too long for Excel: two of them may have become one."""
    if any(isinstance(cell, int | float) and abs(cell) >= EXACT for cell in cells):
        raise CoterieError(
            f"the column {column} of the file {file} has numbers above 2^53, of which Excel keeps "
            "only the first 15 digits",
            "write them as text there",
        )


# A new file type is one line here.
READERS: dict[str, Callable[..., Any]] = {
    ".csv": read_csv,
    ".xlsx": read_excel,
    ".parquet": read_parquet,
}


# ------------------------------------------------------------------------------ npz
def read_npz(file: Path, names: tuple[str, ...] = ("x", "y")) -> dict[str, np.ndarray]:
    """The arrays of an npz file: `names`, and x_test and y_test where either is there."""
    try:
        with np.load(file) as npz:
            arrays = {name: npz[name] for name in npz.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as why:
        raise CoterieError(
            f"the file {file} cannot be read as npz: {one_line(why)}", "mend it"
        ) from None
    needed = [*names]
    if "x_test" in arrays or "y_test" in arrays:
        needed += ["x_test", "y_test"]
    for name in needed:
        if name not in arrays:
            raise CoterieError(
                f"the file {file} has no array {name}, but {', '.join(arrays)}", "add it"
            )
    return arrays
