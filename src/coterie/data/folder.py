"""A folder with one table per client."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.federation import Federation, Kind
from coterie.data.memory import from_memory
from coterie.data.spec import maker
from coterie.errors import CoterieError, unknown

if TYPE_CHECKING:
    import pandas as pd


@maker
def folder(
    path: str,
    label: str,
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
) -> Federation:
    """One CSV file of numbers per client, with a label column.

    A client is named by its file, without the ending. Labels that are text or whole numbers (1 or 1.0) are classes,
    numbered in sorted order over all clients; other numbers are regression targets (`kind` overrules). Columns may
    stand in any order; the first file's is kept. Values stay as they are: nothing is scaled or filled. A random
    `test_share` of each client's rows is its test part; `unseen` clients, drawn at random, never train.
    """
    files = tables_in(Path(path))
    frames = {file: READERS[file.suffix](file) for file in files}
    check_columns(frames, label)
    columns = [column for column in frames[files[0]].columns if column != label]
    xs = {file: features(frame[columns], file) for file, frame in frames.items()}
    ys, classes = targets({file: frame[label] for file, frame in frames.items()}, kind)
    clients = {file.stem: (xs[file], ys[file]) for file in files}
    fed = from_memory(clients, test_share=test_share, seed=seed, labels=classes)
    return fed.with_unseen(unseen, seed)


def read_csv(file: Path) -> pd.DataFrame:
    """The table in a CSV file."""
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(file, index_col=False)
    except pd.errors.EmptyDataError:
        raise CoterieError(f"the file {file} is empty: give it a header and rows, or remove it.") from None
    except pd.errors.ParserWarning:
        raise CoterieError(f"the file {file} has rows with more values than its header has names: mend it.") from None
    except (pd.errors.ParserError, UnicodeDecodeError, OSError) as why:
        raise CoterieError(f"the file {file} cannot be read as CSV: {' '.join(str(why).split())}: mend it.") from None
    if frame.empty:
        raise CoterieError(f"the file {file} is empty below its header: give it rows, or remove it.")
    return frame


READERS: dict[str, Callable[[Path], Any]] = {".csv": read_csv}  # a new file type is one reader here


def tables_in(path: Path) -> list[Path]:
    """The folder's files that a reader knows, sorted by name."""
    if not path.is_dir():
        raise CoterieError(f"there is no folder {path}: give the path of a folder with one CSV file per client.")
    files = sorted(file for file in path.iterdir() if file.suffix in READERS)
    if not files:
        raise CoterieError(f"the folder {path} has no {' or '.join(READERS)} file: put one per client there.")
    return files


def check_columns(frames: dict[Path, pd.DataFrame], label: str) -> None:
    """Every file has the label, some features, and the same columns as the first."""
    first = next(iter(frames))
    for file, frame in frames.items():
        if label not in frame.columns:
            raise unknown(f"label column of {file}:", label, map(str, frame.columns))
        here, there = set(frame.columns), set(frames[first].columns)
        if here != there:
            less, more = (", ".join(sorted(columns)) or "nothing" for columns in (there - here, here - there))
            raise CoterieError(
                f"the columns of {file} differ from those of {first}: it lacks {less} and adds {more}: "
                "all clients need the same columns."
            )
    if len(frames[first].columns) == 1:
        raise CoterieError(f"the file {first} has no column but the label {label}: add columns of features.")


def features(frame: pd.DataFrame, file: Path) -> np.ndarray:
    """The feature columns as float64 [rows, columns]; categorical ones would be encoded here."""
    return np.stack([numbers(frame[column], file) for column in frame.columns], axis=1)


def numbers(column: pd.Series, file: Path) -> np.ndarray:
    """A column as finite float64 [rows]."""
    import pandas as pd

    where = f"the column {column.name} of {file}"
    refuse_missing(column, where)
    values: np.ndarray = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        value = str(column.iloc[bad[0]])
        raise CoterieError(f"{where} has {value!r} in data row {bad[0] + 1}, where a number belongs: correct it.")
    return values


def refuse_missing(column: pd.Series, where: str) -> None:
    missing = int(column.isna().sum())
    if missing:
        raise CoterieError(f"{where} has {missing} missing values in {len(column)} rows: fill them or drop the rows.")


def targets(columns: dict[Path, pd.Series], kind: Kind | None) -> tuple[dict[Path, np.ndarray], tuple[str, ...] | None]:
    """Labels per file: class ids (int64) and the classes' names, or float targets and None."""
    import pandas as pd

    for file, column in columns.items():
        refuse_missing(column, f"the label column {column.name} of {file}")
    joined = pd.concat(columns.values(), ignore_index=True)
    parsed = pd.to_numeric(joined, errors="coerce").astype("float64")
    all_text, whole = parsed.isna().all(), (parsed % 1 == 0).all()
    if kind == "regression" or (kind is None and not all_text and not whole):
        return {file: numbers(column, file) for file, column in columns.items()}, None
    values = (parsed.astype("int64") if whole else joined.astype(str)).to_numpy()
    names, ids = np.unique(values, return_inverse=True)
    ends = np.cumsum([len(column) for column in columns.values()])[:-1]
    return dict(zip(columns, np.split(ids, ends))), tuple(map(str, names))
