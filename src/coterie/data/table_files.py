"""Read tables from CSV, Excel and Parquet files, and arrays from npz files."""

from __future__ import annotations

import logging
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
    """Open a Parquet file, whose columns are read when they are used; a named index is a column."""
    with parquet_errors(file):
        import pyarrow.parquet

        opened = pyarrow.parquet.ParquetFile(file)
        names = list_plain_columns(opened.schema_arrow)
        if names is None:
            return read_parquet_frame(file)
    readers = {name: partial(read_parquet_column, opened, file, name) for name in names}
    return LazyFrame(readers, opened.metadata.num_rows)


def list_plain_columns(schema: Any) -> list[str] | None:
    """Return the names of the columns, or None if the file must be read as a whole.

    Pandas does not map each field to one column if the index has a name, or if names are repeated
    or not text.
    """
    empty = schema.empty_table().to_pandas()
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    index_names = [empty.index.name, *(one["name"] for one in index if isinstance(one, dict))]
    names = [name for name in schema.names if name in empty.columns]
    has_named_index = any(name is not None for name in index_names)
    if has_named_index or names != list(empty.columns) or len({*names}) < len(names):
        return None
    return names


def read_parquet_column(opened: Any, file: Path, name: str) -> pd.Series:
    """Read one column; `opened` is the ParquetFile."""
    with parquet_errors(file):
        # for a name with a dot, Arrow may also return columns with the same prefix
        table = opened.read(columns=[name]).select([name])
        return table.to_pandas(split_blocks=True, self_destruct=True)[name]


def read_parquet_frame(file: Path) -> pd.DataFrame:
    """Read all columns; a named index is one of them."""
    import pyarrow.parquet

    # column by column: Arrow frees each one after its conversion
    table = pyarrow.parquet.read_table(file, partitioning=None)
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
    if frame.index.name is None:
        return frame
    return frame.reset_index()


@contextmanager
def parquet_errors(file: Path) -> Iterator[None]:
    """Convert the exceptions of pyarrow to `CoterieError`."""
    try:
        yield
    except ImportError:
        raise CoterieError(
            f"{file} is Parquet, which needs pyarrow", "pip install 'coterie[data]'"
        ) from None
    except Exception as why:  # pyarrow raises arbitrary exceptions for damaged files
        raise CoterieError(
            f"the file {file} cannot be read as Parquet: {to_one_line(why)}", "write it again"
        ) from None


log = logging.getLogger("coterie")


def read_table(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    """Read a table into memory; the suffix of the file selects the reader.

    Args:
        file: A .csv, .xlsx or .parquet file.
        text: Columns whose cells are read as text: 01 is not 1.
    """
    table = open_table(file, text)
    if isinstance(table, LazyFrame):
        return table.load()
    return table


def open_table(file: Path, text: Collection[str] = ()) -> pd.DataFrame | LazyFrame:
    """Open a table as `read_table` does; a large one is a `LazyFrame`, not yet in memory."""
    kinds = " or ".join(READERS)
    if not file.is_file():
        raise CoterieError(f"there is no file {file}", f"give the path of a {kinds} file")
    if file.suffix.lower() not in READERS:
        raise CoterieError(f"the file {file} is not a table", f"give a {kinds} file")
    table: pd.DataFrame | LazyFrame = READERS[file.suffix.lower()](file, text)
    if table.empty:
        raise CoterieError(
            f"the file {file} has no rows below its header", "add rows, or remove it"
        )
    return table


def read_tables(files: Mapping[str, Path], text: Collection[str] = ()) -> dict[str, Table]:
    """Read one file per client.

    CSV files with the same columns are parsed together, which is faster.

    Args:
        files: The file of each client.
        text: Columns whose cells are read as text.
    """
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
    """Read the first sheet of an Excel file."""
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
    except Exception as why:  # openpyxl raises arbitrary exceptions for damaged files
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
    """Raise for numeric ids above 2^53: Excel rounds them, so that two may have become equal."""
    if any(isinstance(cell, int | float) and abs(cell) >= MAX_EXACT_INT for cell in cells):
        raise CoterieError(
            f"the column {column} of the file {file} has numbers above 2^53, of which Excel keeps "
            "only the first 15 digits",
            "store them as text in Excel",
        )


# the supported file types
READERS: dict[str, Callable[..., Any]] = {
    ".csv": read_csv,
    ".xlsx": read_excel,
    ".parquet": read_parquet,
}


# ------------------------------------------------------------------------------ npz
def read_npz(file: Path, names: tuple[str, ...] = ("x", "y")) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file.

    Args:
        file: The file.
        names: Arrays that must be in the file. x_test and y_test must both be there, or neither.

    Raises:
        CoterieError: If the file cannot be read or lacks an array.
    """
    try:
        with np.load(file) as npz:
            arrays = {name: npz[name] for name in npz.files}
    except Exception as why:  # numpy and zipfile raise arbitrary exceptions for damaged files
        raise CoterieError(
            f"the file {file} cannot be read as npz: {to_one_line(why)}", "save it again"
        ) from None
    needed = [*names]
    if "x_test" in arrays or "y_test" in arrays:
        needed += ["x_test", "y_test"]
    for name in needed:
        if name not in arrays:
            raise CoterieError(
                f"the file {file} has no array {name}, only {', '.join(arrays)}", "add it"
            )
    return arrays
