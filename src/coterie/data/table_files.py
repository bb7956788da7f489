"""Read tables from CSV, Excel and Parquet files, and arrays from npz files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from coterie.core.errors import CoterieError
from coterie.data.columns import MAX_EXACT_INT, numbers_to_arrow, to_nfc
from coterie.data.csv_files import (
    MISSING,
    cast_cells,
    check_header,
    group_files,
    parse_group,
    read_csv,
    to_one_line,
)
from coterie.data.tables import (
    Cells,
    ColumnsOnDisk,
    Table,
    join_tables,
    objects_to_arrow,
    split_table,
)

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

log = logging.getLogger("coterie")


def open_table(file: Path, text: Collection[str] = ()) -> Cells:
    """Open a CSV, Excel or Parquet file; columns of large files stay on disk until they are used.

    Args:
        file: The file.
        text: Columns whose cells stay text: categories and ids, such as 007.

    Raises:
        CoterieError: If the file is missing, of another type, damaged or without rows.
    """
    kinds = " or ".join(READERS)
    if not file.is_file():
        raise CoterieError(f"there is no file {file}", f"give the path of a {kinds} file")
    if file.suffix.lower() not in READERS:
        raise CoterieError(f"the file {file} is not a table", f"give a {kinds} file")
    table: Cells = READERS[file.suffix.lower()](file, text)
    if not table.num_rows or not table.column_names:
        raise CoterieError(
            f"the file {file} has no rows below its header", "add rows, or remove it"
        )
    return table


def read_table(file: Path, text: Collection[str] = ()) -> pa.Table:
    """Read a CSV, Excel or Parquet file into memory, as `open_table`."""
    table = open_table(file, text)
    return table.load() if isinstance(table, ColumnsOnDisk) else table


def read_tables(files: Mapping[str, Path], text: Collection[str] = ()) -> dict[str, Table]:
    """Read one file per client.

    CSV files with the same columns are parsed together, which is faster.

    Args:
        files: The file of each client.
        text: Columns whose cells stay text.
    """
    tables: dict[str, Table] = {}
    alone = dict(files)
    for group in group_files(files):
        cells = parse_group(group, text)
        if cells is not None:
            tables |= split_table(cells, group.counts)
            alone = {name: file for name, file in alone.items() if name not in group.counts}
    tables |= join_tables({name: read_table(file, text) for name, file in alone.items()})
    return {name: tables[name] for name in files}


# ------------------------------------------------------------------------------ Parquet
def read_parquet(file: Path, text: Collection[str] = ()) -> Cells:
    """Open a Parquet file, whose columns are read when they are used.

    An index with a name, as pandas writes it, is a column; one without a name is left out.
    """
    import pyarrow.parquet  # takes 9 MB, and most tables are CSV

    with parquet_errors(file):
        opened = pyarrow.parquet.ParquetFile(file)
        names = opened.schema_arrow.names
        rows = opened.metadata.num_rows
        index = (opened.schema_arrow.pandas_metadata or {}).get("index_columns", [])
        check_header(names, file)
    readers: dict[str, Any] = {}
    for level in index:
        if isinstance(level, dict) and level["name"] is not None:  # a range, which is not stored
            numbers = numbers_to_arrow(np.arange(level["start"], level["stop"], level["step"]))
            readers[str(level["name"])] = lambda numbers=numbers: numbers
        elif isinstance(level, str) and not level.startswith("__index_level_"):
            readers[level] = partial(read_parquet_column, opened, file, level)
    for name in names:
        if name not in index:
            readers[name] = partial(read_parquet_column, opened, file, name)
    return ColumnsOnDisk(readers, rows)


def read_parquet_column(opened: ParquetFile, file: Path, name: str) -> pa.ChunkedArray:
    """Read one column."""
    with parquet_errors(file):
        # for a name with a dot, Arrow may also return columns with the same prefix
        return opened.read(columns=[name]).column(name)


@contextmanager
def parquet_errors(file: Path) -> Iterator[None]:
    """Convert the exceptions of pyarrow to `CoterieError`."""
    try:
        yield
    except CoterieError:
        raise
    except Exception as why:  # pyarrow raises arbitrary exceptions for damaged files
        raise CoterieError(
            f"the file {file} cannot be read as Parquet: {to_one_line(why)}", "write it again"
        ) from None


# ------------------------------------------------------------------------------ Excel
def read_excel(file: Path, text: Collection[str] = ()) -> pa.Table:
    """Read the first sheet of an Excel file."""
    try:
        import openpyxl
    except ImportError:
        raise CoterieError(
            f"{file} is Excel, which needs openpyxl", "pip install 'coterie[excel]'"
        ) from None
    try:
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        sheets = book.sheetnames
        rows = list(book[sheets[0]].iter_rows(values_only=True))
        book.close()
    except Exception as why:  # openpyxl raises arbitrary exceptions for damaged files
        raise CoterieError(
            f"the file {file} cannot be read as Excel: {to_one_line(why)}", "save it as .xlsx again"
        ) from None
    if len(sheets) > 1:
        log.info("%s: only the first sheet is read, %s", file.name, sheets[0])
    return parse_sheet(rows, file, text)


def parse_sheet(rows: list[tuple[Any, ...]], file: Path, text: Collection[str]) -> pa.Table:
    """Convert the rows of a sheet to columns; its first row has their names."""
    if not rows or all(cell is None for cell in rows[0]):
        raise CoterieError(f"the file {file} is empty", "give it a header and rows, or remove it")
    header = ["" if name is None else str(name).strip() for name in rows[0]]
    check_header(header, file)
    filled = [row for row in rows[1:] if any(cell is not None for cell in row)]
    columns = list(zip(*filled)) if filled else [()] * len(header)
    arrays = []
    for name, cells in zip(header, columns):
        keep_text = to_nfc(name) in text
        if keep_text:
            check_excel_ids(cells, name, file)
        array = objects_to_arrow([None if cell in MISSING else cell for cell in cells])
        if pa.types.is_string(array.type) and not keep_text:
            array = cast_cells(array)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, names=header)


def check_excel_ids(cells: Collection[Any], column: str, file: Path) -> None:
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
        names: Arrays that must be in the file; x_test and y_test, both or neither. (): any arrays.

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
    if names and ("x_test" in arrays or "y_test" in arrays):
        needed += ["x_test", "y_test"]
    for name in needed:
        if name not in arrays:
            raise CoterieError(
                f"the file {file} has no array {name}, only {', '.join(arrays)}", "add it"
            )
    return arrays
