"""Files of tables and arrays: CSV, Excel, Parquet and npz. A fault in one is one sentence."""

from __future__ import annotations

import csv
import itertools
import logging
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.cells import DECIMAL_COMMA, EXACT, to_nfc
from coterie.errors import CoterieError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("coterie")


def read_table(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    """The table in a file, read by its ending.

    The cells of columns in `text` stay as they are written: 01 is not 1.
    """
    kinds = " or ".join(READERS)
    if not file.is_file():
        raise CoterieError(f"there is no file {file}", f"give the path of a {kinds} file")
    if file.suffix.lower() not in READERS:
        raise CoterieError(f"the file {file} is no table", f"it must be a {kinds} file")
    frame = READERS[file.suffix.lower()](file, text)
    if frame.empty:
        raise CoterieError(
            f"the file {file} is empty below its header", "give it rows, or remove it"
        )
    return frame


# ------------------------------------------------------------------------------ CSV
def read_csv(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    """The table in a CSV file with commas, semicolons or tabs between cells."""
    import pandas as pd

    try:
        return parse_csv(file, text)
    except UnicodeDecodeError:
        raise CoterieError(
            f"the file {file} is not in UTF-8", "save it as UTF-8 (in Excel: CSV UTF-8)"
        ) from None
    except pd.errors.EmptyDataError:
        raise CoterieError(
            f"the file {file} is empty", "give it a header and rows, or remove it"
        ) from None
    except pd.errors.ParserWarning:
        raise CoterieError(
            f"the file {file} has rows with more values than its header has names", "mend it"
        ) from None
    except (pd.errors.ParserError, csv.Error, OSError) as why:
        raise CoterieError(
            f"the file {file} cannot be read as CSV: {one_line(why)}", "mend it"
        ) from None


def parse_csv(file: Path, text: Collection[str]) -> pd.DataFrame:
    import pandas as pd

    with open(file, encoding="utf-8-sig", newline="") as lines:
        separator, decimal = csv_style(list(itertools.islice(without_blank_start(lines), 100)))
        lines.seek(0)
        rows = csv.reader(without_blank_start(lines), skipinitialspace=True, delimiter=separator)
        header = next(rows, [])
        check_header([name.strip() for name in header], file)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        frame = pd.read_csv(
            file,
            index_col=False,
            skipinitialspace=True,
            low_memory=False,
            sep=separator,
            decimal=decimal,
            dtype={name: str for name in header if to_nfc(name.strip()) in text},
        )
    frame.columns = frame.columns.str.strip()
    return frame


def without_blank_start(lines: Iterable[str]) -> Iterator[str]:
    """The lines from the header on; pandas passes over blank lines before it."""
    return itertools.dropwhile(lambda line: not line.strip("\r\n"), lines)


def csv_style(lines: list[str]) -> tuple[str, str]:
    """(separator, decimal sign) of a CSV file, by its first lines.

    Semicolons or tabs separate where the header has them and no comma; only then can commas be
    decimal signs.
    """
    header = lines[0] if lines else ""
    if "," in header:
        return ",", "."
    separator = next((sign for sign in ";\t" if sign in header), ",")
    cells = (cell.strip() for line in lines[1:] for cell in line.split(separator))
    if any(DECIMAL_COMMA.fullmatch(cell) for cell in cells):
        return separator, ","
    return separator, "."


def check_header(header: list[str], file: Path) -> None:
    """Refuse names that pandas would change: empty ones, and those that occur twice."""
    for name, count in Counter(header).items():
        if not name:
            raise CoterieError(
                f"the file {file} has a column without a name",
                "name it, or save without row numbers",
            )
        if count > 1:
            raise CoterieError(
                f"the file {file} has more than one column {name}", "remove or rename one of them"
            )


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


# ------------------------------------------------------------------------------ Parquet and npz
def read_parquet(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    """The table in a Parquet file; a named index is a column."""
    import pandas as pd

    try:
        frame = pd.read_parquet(file, engine="pyarrow")
    except ImportError:
        raise CoterieError(
            f"{file} is Parquet, which needs pyarrow", "pip install 'coterie[data]'"
        ) from None
    except (ValueError, OSError) as why:  # pyarrow's errors are both
        raise CoterieError(f"the file {file} cannot be read as Parquet: {one_line(why)}.") from None
    if frame.index.name is None:
        return frame
    return frame.reset_index()


# A new file type is one line here.
READERS: dict[str, Callable[..., Any]] = {
    ".csv": read_csv,
    ".xlsx": read_excel,
    ".parquet": read_parquet,
}


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


def one_line(why: Exception) -> str:
    """What an error of another library says, in one line."""
    return " ".join(str(why).split())
