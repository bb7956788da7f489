"""Parquet files, whose columns are read one at a time. A fault in one is one sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.errors import CoterieError
from coterie.data.columns import Columns
from coterie.data.csv_file import one_line

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(file: Path, text: Collection[str] = ()) -> pd.DataFrame | Columns:
    """The table in a Parquet file; a named index is a column."""
    with parquet_faults(file):
        import pyarrow.parquet

        opened = pyarrow.parquet.ParquetFile(file)
        names = plain_columns(opened.schema_arrow)
        if names is None:
            return read_at_once(file)
    readers = {name: partial(read_column, opened, file, name) for name in names}
    return Columns(readers, opened.metadata.num_rows)


def plain_columns(schema: Any) -> list[str] | None:
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
    with parquet_faults(file):
        # where a name has a point, Arrow may give others that begin alike
        table = opened.read(columns=[name]).select([name])
        return table.to_pandas(split_blocks=True, self_destruct=True)[name]


def read_at_once(file: Path) -> pd.DataFrame:
    """All columns; a named index is one of them."""
    import pyarrow.parquet

    # column by column, each of which Arrow gives up when pandas has it
    table = pyarrow.parquet.read_table(file, partitioning=None)
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
    if frame.index.name is None:
        return frame
    return frame.reset_index()


@contextmanager
def parquet_faults(file: Path) -> Iterator[None]:
    """Turn the errors of pyarrow into one sentence."""
    try:
        yield
    except ImportError:
        raise CoterieError(
            f"{file} is Parquet, which needs pyarrow", "pip install 'coterie[data]'"
        ) from None
    except (ValueError, OSError) as why:  # pyarrow's errors are both
        raise CoterieError(f"the file {file} cannot be read as Parquet: {one_line(why)}.") from None
