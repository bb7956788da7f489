"""Files of tables and arrays."""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.errors import CoterieError
from coterie.data.cells import MAX_EXACT_INT, to_nfc
from coterie.data.client_table import LazyFrame, Table, make_tables, split_table
from coterie.data.csv_files import check_header, group_files, parse_group, read_csv, to_one_line

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(file: Path, text: Collection[str] = ()) -> pd.DataFrame | LazyFrame:
    """The table in a Parquet file; a named index is a column."""
    with parquet_errors(file):
        import pyarrow.parquet

        opened = pyarrow.parquet.ParquetFile(file)
        names = list_plain_columns(opened.schema_arrow)
        if names is None:
            return read_parquet_frame(file)
    readers = {name: partial(read_column, opened, file, name) for name in names}
    return LazyFrame(readers, opened.metadata.num_rows)


def list_plain_columns(schema: Any) -> list[str] | None:
    """The names of the columns; None if pandas makes more of the fields than a column of each.

    It does so for an index that has a name, and for names that are no texts or occur twice.
    """
    empty = schema.empty_table().to_pandas()
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    index_names = [empty.index.name, *(one["name"] for one in index if isinstance(one, dict))]
    names = [name for name in schema.names if name in empty.columns]
    has_named_index = any(name is not None for name in index_names)
    if has_named_index or names != list(empty.columns) or len({*names}) < len(names):
        return None
    return names


def read_column(opened: Any, file: Path, name: str) -> pd.Series:
    """One column; `opened` is the ParquetFile."""
    with parquet_errors(file):
        # where a name has a point, Arrow may give others that begin alike
        table = opened.read(columns=[name]).select([name])
        return table.to_pandas(split_blocks=True, self_destruct=True)[name]


def read_parquet_frame(file: Path) -> pd.DataFrame:
    """All columns; a named index is one of them."""
    import pyarrow.parquet

    # column by column, each of which Arrow gives up when pandas has it
    table = pyarrow.parquet.read_table(file, partitioning=None)
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
    if frame.index.name is None:
        return frame
    return frame.reset_index()


@contextmanager
def parquet_errors(file: Path) -> Iterator[None]:
    """Turn the errors of pyarrow into one sentence."""
    try:
        yield
    except ImportError:
        raise CoterieError(
            f"{file} is Parquet, which needs pyarrow", "pip install 'coterie[data]'"
        ) from None
    except (ValueError, OSError) as why:  # pyarrow's errors are both
        raise CoterieError(
            f"the file {file} cannot be read as Parquet: {to_one_line(why)}."
        ) from None


log = logging.getLogger("coterie")


def read_table(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    """The table in a file, read by its ending.

    The cells of columns in `text` stay as they are written: 01 is not 1.
    """
    table = open_table(file, text)
    if isinstance(table, LazyFrame):
        return table.load()
    return table


def open_table(file: Path, text: Collection[str] = ()) -> pd.DataFrame | LazyFrame:
    """As `read_table`; a table that may be large is given as columns that are not yet in memory."""
    kinds = " or ".join(READERS)
    if not file.is_file():
        raise CoterieError(f"there is no file {file}", f"give the path of a {kinds} file")
    if file.suffix.lower() not in READERS:
        raise CoterieError(f"the file {file} is no table", f"it must be a {kinds} file")
    table: pd.DataFrame | LazyFrame = READERS[file.suffix.lower()](file, text)
    if table.empty:
        raise CoterieError(
            f"the file {file} is empty below its header", "give it rows, or remove it"
        )
    return table


def read_tables(files: Mapping[str, Path], text: Collection[str] = ()) -> dict[str, Table]:
    """The table of each client's file; the cells of columns in `text` stay as they are written."""
    tables: dict[str, Table] = {}
    alone = dict(files)
    for group in group_files(files):
        frame = parse_group(group, text)
        if frame is not None:
            tables |= split_table(frame, group.counts)
            alone = {name: file for name, file in alone.items() if name not in group.counts}
    tables |= make_tables({name: read_table(file, text) for name, file in alone.items()})
    return {name: tables[name] for name in files}


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
            f"the file {file} cannot be read as Excel: {to_one_line(why)}", "save it as .xlsx again"
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
        check_excel_ids(frame[place], header[place], file)
    return frame.set_axis([name.strip() for name in header], axis=1)


def check_excel_ids(cells: Iterable[Any], column: str, file: Path) -> None:
    """Refuse names that are numbers too long for Excel: two of them may have become one."""
    if any(isinstance(cell, int | float) and abs(cell) >= MAX_EXACT_INT for cell in cells):
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
            f"the file {file} cannot be read as npz: {to_one_line(why)}", "mend it"
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
