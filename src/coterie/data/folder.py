"""Files of client data: a folder with a file per client, or one table of all clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from coterie.core.errors import CoterieError, Option
from coterie.core.targets import IGNORE_INDEX
from coterie.data.columns import to_nfc
from coterie.data.federation import Federation
from coterie.data.frames import encode_one_table, encode_tables
from coterie.data.memory import from_memory
from coterie.data.spec import maker
from coterie.data.table_files import READERS, open_table, read_npz, read_tables
from coterie.data.table_options import TableKeywords, TableOptions, as_names, show_table_options

# options that apply only to tables
TABLE_ONLY = (
    "fill", "drop", "categories", "split_column", "time_column", "min_rows", "drop_incomplete",
    "columns", "groups",
)  # fmt: skip
HIDDEN = (".", "~$")  # Excel keeps ~$sites.xlsx beside sites.xlsx while it is open


def client_files(path: Path) -> dict[str, Path]:
    """List the files of a folder by client name, sorted.

    Hidden files, folders and files of other types are ignored; all others must be of one type.
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
            f"the folder {path} has no {' or '.join(endings)} file", "add one per client"
        )
    first_of_kind = {file.suffix.lower(): file.name for file in reversed(files)}
    if len(first_of_kind) > 1:
        listed = " and ".join(sorted(first_of_kind.values()))
        raise CoterieError(
            f"the folder {path} has files of several types, {listed}", "keep files of one type"
        )
    return name_clients(files)


def name_clients(files: list[Path]) -> dict[str, Path]:
    """Name each file's client by the file name without its suffix."""
    clients: dict[str, Path] = {}
    for file in files:
        name = to_nfc(file.stem)
        if any("\ud800" <= sign <= "\udfff" for sign in name):  # not UTF-8
            raise CoterieError(
                f"the file {str(file)!r} has a name that is not valid UTF-8", "rename it"
            )
        if name in clients:
            raise CoterieError(
                f"{clients[name]} and {file} name the same client {name!r}", "rename one of them"
            )
        clients[name] = file
    return clients


@maker
@show_table_options(TableKeywords)
def folder(
    path: str,
    label: str | None = None,
    ignore_index: int = IGNORE_INDEX,
    **options: Unpack[TableKeywords],
) -> Federation:
    """One file per client: CSV, Excel or Parquet tables with a label column, or npz with x and y.

    A client is named by its file, without the suffix. Tables are encoded as in `from_frames`. An
    npz file holds x and y, which are used unchanged, and optionally x_test and y_test; without
    these, a random `test_share` of its rows is held out. Inputs of several parts are arrays x.NAME
    (x_test.NAME); files without y have no targets.

    Args:
        path: The folder.
        label: The column to predict, in tables.
        ignore_index: The label of tokens and pixels that do not count, in npz files.
        **options: See `coterie.data.table_options.TableOptions`; npz files take `test_share`,
            `seed`, `unseen` and `kind`.

    Example:
        >>> import tempfile, pandas as pd
        >>> sites = tempfile.mkdtemp()
        >>> for name in ("north", "south"):
        ...     table = pd.DataFrame({"age": range(20), "outcome": ["yes", "no"] * 10})
        ...     table.to_csv(f"{sites}/{name}.csv", index=False)
        >>> folder(sites, label="outcome").names
        ('north', 'south')
    """
    files = client_files(Path(path))
    if next(iter(files.values())).suffix.lower() == ".npz":
        given = {"label": label, **{name: options.get(name) for name in TABLE_ONLY}}
        for name, value in given.items():
            if value not in (None, (), False) and (name, value) != ("min_rows", 1):
                raise CoterieError(f"{name} applies to tables, but {path} has npz files", "omit it")
        return from_npz(files, options, ignore_index)
    if ignore_index != IGNORE_INDEX:
        raise CoterieError(
            f"ignore_index is for labels of tokens and pixels, and {path} has tables", "omit it"
        )
    if label is None:
        raise CoterieError(
            f"the data set folder needs a label, the column to predict in {path}",
            "give {}",
            options=[Option("label", "COLUMN")],
        )
    table_options = TableOptions(label=label, **options)
    return encode_tables(read_tables(files, table_options.categories), table_options)


@maker
@show_table_options(TableKeywords)
def table(
    path: str,
    label: str | None = None,
    client_column: str | None = None,
    **options: Unpack[TableKeywords],
) -> Federation:
    """One CSV, Excel or Parquet file of all clients' rows, with a column that names the client.

    The table is encoded as in `from_frames`.

    Args:
        path: The file.
        label: The column to predict.
        client_column: The column that names the client.
        **options: See `coterie.data.table_options.TableOptions`.

    Example:
        >>> import tempfile, pandas as pd
        >>> file = tempfile.mkdtemp() + "/sites.csv"
        >>> rows = {"site": ["a", "b"] * 20, "age": range(40), "outcome": [0, 0, 1, 1] * 10}
        >>> pd.DataFrame(rows).to_csv(file, index=False)
        >>> table(file, label="outcome", client_column="site").names
        ('a', 'b')
    """
    as_text = [*as_names(options.get("categories")), *as_names(client_column)]
    source = open_table(Path(path), as_text)
    if label is None or client_column is None:
        missing, use = "client_column", "that names the client"
        if label is None:
            missing, use = "label", "to predict"
        columns = ", ".join(source.column_names)
        raise CoterieError(
            f"the data set table needs the column {use}, and {path} has {columns}",
            "give {}",
            options=[Option(missing, "COLUMN")],
        )
    table_options = TableOptions(label=label, client_column=client_column, **options)
    return encode_one_table(source, table_options)


def from_npz(files: dict[str, Path], options: TableKeywords, ignore_index: int) -> Federation:
    """Make a federation of arrays x and y; all files have x_test and y_test, or none."""
    seed, kind = options.get("seed", 0), options.get("kind")
    unseen = options.get("unseen", 0)
    arrays = {name: read_client_npz(file) for name, file in files.items()}
    clients = {name: (of_client["x"], of_client.get("y")) for name, of_client in arrays.items()}
    with_y = [name for name, of_client in arrays.items() if "y" in of_client]
    for name, file in files.items():
        if with_y and name not in with_y:
            raise CoterieError(
                f"the file {file} has no array y, and {files[with_y[0]]} has", "give y to all"
            )
    with_test = [name for name, of_client in arrays.items() if "x_test" in of_client]
    if not with_test:
        share = options.get("test_share", 0.25)
        fed = from_memory(
            clients, test_share=share, seed=seed, kind=kind, ignore_index=ignore_index
        )
        return fed.with_unseen(unseen, seed)
    for name, file in files.items():
        if name not in with_test:
            raise CoterieError(
                f"{files[with_test[0]]} has test rows and {file} has none",
                "give x_test and y_test to all or none",
            )
    test = {
        name: (of_client["x_test"], of_client.get("y_test")) for name, of_client in arrays.items()
    }
    fed = from_memory(clients, test=test, kind=kind, ignore_index=ignore_index)
    return fed.with_unseen(unseen, seed)


def read_client_npz(file: Path) -> dict[str, Any]:
    """Read the arrays of one client; arrays x.NAME become a dict under x."""
    arrays: dict[str, Any] = dict(read_npz(file, names=()))
    for part in ("x", "x_test"):
        fields = {n.removeprefix(f"{part}."): arrays[n] for n in arrays if n.startswith(f"{part}.")}
        if fields and part in arrays:
            raise CoterieError(
                f"the file {file} has both an array {part} and arrays {part}.NAME", "keep one"
            )
        if fields:
            arrays[part] = fields
    missing, found = "", ", ".join(arrays) or "none"
    if "x" not in arrays:
        missing = "x"
    elif "x_test" in arrays and ("y" in arrays) != ("y_test" in arrays):
        missing = "y_test" if "y" in arrays else "y"
    elif "y_test" in arrays and "x_test" not in arrays:
        missing = "x_test"
    if missing:
        raise CoterieError(f"the file {file} has no array {missing}, only {found}", "add it")
    return arrays
