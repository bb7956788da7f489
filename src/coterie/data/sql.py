"""Tables from databases: the rows of a query."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from coterie.core.errors import CoterieError, Option
from coterie.data.csv_files import to_one_line
from coterie.data.federation import Federation
from coterie.data.frames import encode_one_table
from coterie.data.spec import maker
from coterie.data.table_options import TableKeywords, TableOptions, show_table_options
from coterie.data.tables import objects_to_arrow

INSTALL = "pip install 'coterie[sql]'"


@maker
@show_table_options(TableKeywords)
def sql(
    url: str,
    query: str,
    label: str,
    client_column: str,
    **options: Unpack[TableKeywords],
) -> Federation:
    """The rows of an SQL query for all clients, with a column that names the client.

    The result is encoded as in `from_frames`. A query on the command line may be a file:
    the data set `sql:sqlite:///clinics.db` with the option `query` set to `query.sql`.

    Args:
        url: The database: a DuckDB file as `duckdb:///clinics.duckdb`, `duckdb://` for a query of
            files alone (`SELECT * FROM 'visits.parquet'`), or a URL of SQLAlchemy, such as
            `sqlite:///clinics.db` or `postgresql://host/clinics`. Leave passwords out: they would
            be stored with each run; most drivers read them from a file or the environment.
        query: The query, or the path of a file that ends in .sql.
        label: The column to predict.
        client_column: The column that names the client.
        **options: See `coterie.data.table_options.TableOptions`.

    Raises:
        CoterieError: If the database or its driver is missing, the query fails or returns no rows,
            or the result lacks the label or the clients.

    Example:
        >>> import sqlite3, tempfile
        >>> file = tempfile.mkdtemp() + "/clinics.db"
        >>> with sqlite3.connect(file) as database:
        ...     _ = database.execute("CREATE TABLE visits (clinic, age, outcome)")
        ...     rows = [("ab"[i % 2], i, "yes" if i % 3 else "no") for i in range(40)]
        ...     _ = database.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)
        >>> fed = sql(f"sqlite:///{file}", "SELECT * FROM visits", "outcome", "clinic")
        >>> fed.names, fed.labels
        (('a', 'b'), ('no', 'yes'))
    """
    if re.search(r"://[^/@:]*:[^/@]+@", url):
        raise CoterieError(
            "the database URL contains a password, which would be stored with each run",
            "leave it out: most drivers read it from a file or the environment, such as PGPASSWORD",
        )
    cells = run_query(url, read_query(query))
    for column, option in ((label, "label"), (client_column, "client_column")):
        if column not in cells.column_names:
            found = ", ".join(cells.column_names)
            raise CoterieError(
                f"the query has no column {column}, only {found}",
                "select it, or give {}",
                options=[Option(option, "COLUMN")],
            )
    table_options = TableOptions(label=label, client_column=client_column, **options)
    return encode_one_table(cells, table_options)


def read_query(query: str) -> str:
    """Return the query, read from its file if it is the path of one."""
    if not query.lower().endswith(".sql"):
        return query
    try:
        return Path(query).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as why:
        raise CoterieError(
            f"the query file {query} cannot be read: {to_one_line(why)}",
            "give the path of a text file, or the query itself",
        ) from None


def run_query(url: str, query: str) -> pa.Table:
    """Return the rows of a query as Arrow columns."""
    run = query_duckdb if url.startswith("duckdb:") else query_sqlalchemy
    try:
        cells = run(url, query)
    except CoterieError:
        raise
    except Exception as why:  # every driver has its own exceptions
        reason = " ".join(str(why).partition("\n")[0].split())
        raise CoterieError(
            f"the query fails: {reason}", "correct the query or the database URL"
        ) from None
    if not cells.num_rows:
        raise CoterieError("the query returns no rows", "select some")
    return pa.Table.from_arrays([*map(to_float, cells.columns)], names=cells.column_names)


def to_float(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert decimals, as databases return sums and numbers with a point, to float64."""
    if not pa.types.is_decimal(cells.type):
        return cells
    return cells.cast(pa.string()).cast(pa.float64())  # the direct cast rounds wrongly


def query_duckdb(url: str, query: str) -> pa.Table:
    """Run a query in DuckDB, which returns Arrow columns."""
    try:
        import duckdb
    except ImportError:
        raise CoterieError("a query of DuckDB needs duckdb", INSTALL) from None
    file = url.removeprefix("duckdb:").removeprefix("//").removeprefix("/")
    if file and not Path(file).is_file():
        raise CoterieError(f"there is no database {file}", "give the path of a DuckDB file")
    with duckdb.connect(file or ":memory:", read_only=bool(file)) as connection:
        return connection.sql(query).to_arrow_table()


def query_sqlalchemy(url: str, query: str) -> pa.Table:
    """Run a query through SQLAlchemy."""
    try:
        from sqlalchemy import create_engine, make_url, text
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError:
        raise CoterieError("a query of a database needs SQLAlchemy", INSTALL) from None
    try:
        address = make_url(url)
        engine = create_engine(address)
    except (ArgumentError, NoSuchModuleError):
        raise CoterieError(
            f"{url!r} is not the URL of a database", "write one, such as sqlite:///clinics.db"
        ) from None
    except ImportError as why:
        raise CoterieError(
            f"the database {address.get_backend_name()} needs a driver: {why}", "install it"
        ) from None
    file = address.database
    if address.get_backend_name() == "sqlite" and file and not Path(file).is_file():
        # sqlite would create it
        raise CoterieError(f"there is no database {file}", "give the path of an SQLite file")
    with engine.connect() as connection:
        result = connection.execute(text(query))
        names = list(result.keys())
        rows: list[Any] = [*result]
    columns = zip(*rows) if rows else [()] * len(names)
    arrays = [objects_to_arrow([*cells]) for cells in columns]
    return pa.Table.from_arrays(arrays, names=names)
