"""Files of client data: a folder with a file per client, or one table of all clients."""

from __future__ import annotations

from pathlib import Path

from coterie.core.errors import CoterieError, Option
from coterie.data.cells import to_nfc
from coterie.data.federation import Federation, Kind
from coterie.data.frames import encode_one_table, encode_tables
from coterie.data.memory import from_memory
from coterie.data.schema import MIN_CATEGORY_COUNT, Fill
from coterie.data.spec import maker
from coterie.data.table_files import READERS, open_table, read_npz, read_tables
from coterie.data.table_options import TableOptions, as_names

HIDDEN = (".", "~$")  # Excel keeps ~$sites.xlsx beside sites.xlsx while it is open


def client_files(path: Path) -> dict[str, Path]:
    """The files in a folder by client name, sorted; all must be of one kind.

    Hidden files, folders and files of other kinds are passed over.
    """
    endings = (*READERS, ".npz")
    if path.is_file():
        raise CoterieError(
            f"{path} is a file",
            f"write table:{path} for one table of all clients, or give a folder",
        )
    if not path.is_dir():
        raise CoterieError(
            f"there is no folder {path}",
            "give the path of a folder with one file per client (and, for tables, a label)",
        )
    files = [
        file
        for file in sorted(path.iterdir())
        if file.suffix.lower() in endings and file.is_file() and not file.name.startswith(HIDDEN)
    ]
    if not files:
        raise CoterieError(
            f"the folder {path} has no {' or '.join(endings)} file", "put one per client there"
        )
    first_of_kind = {file.suffix.lower(): file.name for file in reversed(files)}
    if len(first_of_kind) > 1:
        listed = " and ".join(sorted(first_of_kind.values()))
        raise CoterieError(
            f"the folder {path} has files of several kinds, {listed}", "keep one kind there"
        )
    return name_clients(files)


def name_clients(files: list[Path]) -> dict[str, Path]:
    """Files by their names without the ending, which name the clients."""
    clients: dict[str, Path] = {}
    for file in files:
        name = to_nfc(file.stem)
        if any("\ud800" <= sign <= "\udfff" for sign in name):  # bytes that are not UTF-8
            raise CoterieError(f"the file {str(file)!r} has a name that is no text", "rename it")
        if name in clients:
            raise CoterieError(
                f"{clients[name]} and {file} name the same client {name!r}", "rename one of them"
            )
        clients[name] = file
    return clients


@maker
def folder(
    path: str,
    label: str | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
    fill: Fill | None = None,
    drop: tuple[str, ...] | None = None,
    categories: tuple[str, ...] | None = None,
    split_column: str | None = None,
    time_column: str | None = None,
    min_category_count: int = MIN_CATEGORY_COUNT,
    min_rows_to_report: int = 1,
    min_rows: int = 1,
    drop_incomplete: bool = False,
) -> Federation:
    """One file per client: CSV, Excel or Parquet tables with a label column, or npz with x and y.

    A client is named by its file, without the ending. Tables are read as in `from_frames`. An npz
    file holds x and y, which stay as they are, and may hold x_test and y_test; else a random
    `test_share` of its rows is held out.
    """
    files = client_files(Path(path))
    if next(iter(files.values())).suffix.lower() == ".npz":
        refuse_table_options(
            path,
            label=label,
            fill=fill,
            drop=drop,
            categories=categories,
            split_column=split_column,
            time_column=time_column,
            min_rows=min_rows if min_rows > 1 else None,
            drop_incomplete=drop_incomplete or None,
        )
        return from_npz(files, test_share, seed, kind).with_unseen(unseen, seed)
    if label is None:
        raise CoterieError(
            f"the data set folder needs a label, the column to predict in {path}",
            "give {}",
            options=[Option("label", "COLUMN")],
        )
    options = TableOptions(
        label=label,
        test_share=test_share,
        seed=seed,
        unseen=unseen,
        kind=kind,
        fill=fill,
        drop=as_names(drop),
        categories=as_names(categories),
        split_column=split_column,
        time_column=time_column,
        min_category_count=min_category_count,
        min_rows_to_report=min_rows_to_report,
        min_rows=min_rows,
        drop_incomplete=drop_incomplete,
    )
    return encode_tables(read_tables(files, options.categories), options)


@maker
def table(
    path: str,
    label: str | None = None,
    client_column: str | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
    fill: Fill | None = None,
    drop: tuple[str, ...] | None = None,
    categories: tuple[str, ...] | None = None,
    split_column: str | None = None,
    time_column: str | None = None,
    min_category_count: int = MIN_CATEGORY_COUNT,
    min_rows_to_report: int = 1,
    min_rows: int = 1,
    drop_incomplete: bool = False,
) -> Federation:
    """One CSV, Excel or Parquet file of all clients' rows, with a column that names the client.

    It is read as in `from_frames`.
    """
    source = open_table(Path(path), [*as_names(categories), *as_names(client_column)])
    if label is None or client_column is None:
        missing, use = "client_column", "that names the client"
        if label is None:
            missing, use = "label", "to predict"
        columns = ", ".join(map(str, source.columns))
        raise CoterieError(
            f"the data set table needs the column {use}, and {path} has {columns}",
            "give {}",
            options=[Option(missing, "COLUMN")],
        )
    options = TableOptions(
        label=label,
        client_column=client_column,
        test_share=test_share,
        seed=seed,
        unseen=unseen,
        kind=kind,
        fill=fill,
        drop=as_names(drop),
        categories=as_names(categories),
        split_column=split_column,
        time_column=time_column,
        min_category_count=min_category_count,
        min_rows_to_report=min_rows_to_report,
        min_rows=min_rows,
        drop_incomplete=drop_incomplete,
    )
    return encode_one_table(source, options)


# ------------------------------------------------------------------------------ arrays
def refuse_table_options(path: str, **options: object) -> None:
    """Refuse options that mean nothing for arrays."""
    for name, value in options.items():
        if value is not None:
            raise CoterieError(
                f"{name} is for tables, but {path} has npz files, of x and y", "leave it out"
            )


def from_npz(files: dict[str, Path], test_share: float, seed: int, kind: Kind | None) -> Federation:
    """Clients from arrays x and y, all with x_test and y_test or none."""
    arrays = {name: read_npz(file) for name, file in files.items()}
    clients = {name: (of_client["x"], of_client["y"]) for name, of_client in arrays.items()}
    with_test = [name for name, of_client in arrays.items() if "x_test" in of_client]
    if not with_test:
        return from_memory(clients, test_share=test_share, seed=seed, kind=kind)
    for name, file in files.items():
        if name not in with_test:
            raise CoterieError(
                f"{files[with_test[0]]} has test rows and {file} has none",
                "give x_test and y_test to all or none",
            )
    test = {name: (of_client["x_test"], of_client["y_test"]) for name, of_client in arrays.items()}
    return from_memory(clients, test=test, kind=kind)
