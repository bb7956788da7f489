"""Tables as they come: files read into frames, and cells read as numbers or text. All that is wrong is one sentence."""

from __future__ import annotations

import csv
import itertools
import re
import unicodedata
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.errors import CoterieError, Option

if TYPE_CHECKING:
    import pandas as pd


# ---------------------------------------------------------------------------------------------- files
def read_table(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    """The table in a file, read by its ending; the cells of columns in `text` stay as they are written: 01 is not 1."""
    if not file.is_file():
        raise CoterieError(
            f"there is no file {file}: give the path of a {' or '.join(READERS)} file."
        )
    if file.suffix.lower() not in READERS:
        raise CoterieError(
            f"the file {file} is no table: it must be a {' or '.join(READERS)} file."
        )
    frame = READERS[file.suffix.lower()](file, text)
    if frame.empty:
        raise CoterieError(
            f"the file {file} is empty below its header: give it rows, or remove it."
        )
    return frame


def read_csv(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    import pandas as pd

    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            between, decimal = style(list(itertools.islice(lines, 100)))
            lines.seek(0)
            header = next(csv.reader(lines, skipinitialspace=True, delimiter=between), [])
            check_header([name.strip() for name in header], file)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                file, index_col=False, skipinitialspace=True, low_memory=False, sep=between, decimal=decimal,
                dtype={name: str for name in header if name.strip() in text},
            )  # fmt: skip
        return frame.rename(columns=str.strip)
    except UnicodeDecodeError:
        raise CoterieError(
            f"the file {file} is not in UTF-8: save it as UTF-8 (in Excel: CSV UTF-8)."
        ) from None
    except pd.errors.EmptyDataError:
        raise CoterieError(
            f"the file {file} is empty: give it a header and rows, or remove it."
        ) from None
    except pd.errors.ParserWarning:
        raise CoterieError(
            f"the file {file} has rows with more values than its header has names: mend it."
        ) from None
    except (pd.errors.ParserError, csv.Error, OSError) as why:
        raise CoterieError(
            f"the file {file} cannot be read as CSV: {' '.join(str(why).split())}: mend it."
        ) from None


def style(lines: list[str]) -> tuple[str, str]:
    """(what stands between cells, the decimal sign): semicolons or tabs where the header has no comma, and then
    commas in numbers if the first lines have any."""
    header = lines[0] if lines else ""
    between = next((sign for sign in ";\t" if sign in header and "," not in header), ",")
    cells = (cell.strip() for line in lines[1:] for cell in line.split(between))
    return between, "," if any(COMMA.fullmatch(cell) for cell in cells) else "."


def check_header(header: list[str], file: Path) -> None:
    """Refuse what pandas would give new names."""
    for name in header:
        if not name:
            raise CoterieError(
                f"the file {file} has a column without a name: name it, or save without row numbers."
            )
        if header.count(name) > 1:
            raise CoterieError(
                f"the file {file} has more than one column {name}: remove or rename one of them."
            )


def read_parquet(file: Path, text: Collection[str] = ()) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = pd.read_parquet(file, engine="pyarrow")
    except ImportError:
        raise CoterieError(
            f"{file} is Parquet, which needs pyarrow: pip install 'coterie[data]'."
        ) from None
    except (ValueError, OSError) as why:  # pyarrow's errors are both
        raise CoterieError(
            f"the file {file} cannot be read as Parquet: {' '.join(str(why).split())}."
        ) from None
    return frame if frame.index.name is None else frame.reset_index()


READERS: dict[str, Callable[..., Any]] = {
    ".csv": read_csv,
    ".parquet": read_parquet,
}  # a new file type is one here


def read_npz(file: Path, names: tuple[str, ...] = ("x", "y")) -> dict[str, np.ndarray]:
    try:
        with np.load(file) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as why:
        raise CoterieError(
            f"the file {file} cannot be read as npz: {' '.join(str(why).split())}: mend it."
        ) from None
    needed = [*names] + ["x_test", "y_test"] * any(name in found for name in ("x_test", "y_test"))
    for name in needed:
        if name not in found:
            raise CoterieError(
                f"the file {file} has no array {name}, but {', '.join(found)}: add it."
            )
    return found


def files_in(path: Path) -> dict[str, Path]:
    """The folder's files of one kind, by client name, sorted; hidden files, folders and other kinds are passed over."""
    endings = (*READERS, ".npz")
    if path.is_file():
        raise CoterieError(
            f"{path} is a file: write table:{path} for one table of all clients, or give a folder."
        )
    if not path.is_dir():
        raise CoterieError(
            f"there is no folder {path}: give the path of a folder with one file per client (and, for tables, a label)."
        )
    found = [
        file for file in sorted(path.iterdir()) if file.suffix.lower() in endings and file.is_file()
    ]
    found = [file for file in found if not file.name.startswith(".")]
    if not found:
        raise CoterieError(
            f"the folder {path} has no {' or '.join(endings)} file: put one per client there."
        )
    if len(kinds := {file.suffix.lower(): file for file in reversed(found)}) > 1:
        some = " and ".join(sorted(file.name for file in kinds.values()))
        raise CoterieError(
            f"the folder {path} has files of several kinds, {some}: keep one kind there."
        )
    files: dict[str, Path] = {}
    for file in found:
        name = normal(file.stem)
        if any("\ud800" <= sign <= "\udfff" for sign in name):  # bytes that are not UTF-8
            raise CoterieError(f"the file {str(file)!r} has a name that is no text: rename it.")
        if name in files:
            raise CoterieError(
                f"{files[name]} and {file} name the same client {name!r}: rename one of them."
            )
        files[name] = file
    return files


# ---------------------------------------------------------------------------------------------- cells
COMMA = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")  # as much of the world writes 1.5 and 1000.5
MOST_CATEGORIES = 50
HUGE = 1e100  # the square of a number must be finite, too


def named(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """The table with its columns' names as text, no two alike."""
    frame = frame.set_axis(frame.columns.map(lambda name: normal(str(name))), axis=1)
    if twice := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise CoterieError(
            f"{where} has more than one column {twice[0]}: remove or rename one of them."
        )
    return frame


def form_of(column: pd.Series, where: str) -> Literal["number", "category", "empty"]:
    """What a column holds. Text among cells that are numbers by half or more is a mistake, not a category."""
    present = ~column.isna().to_numpy()
    strange = present & np.isnan(parsed(column, where))
    if not present.any():
        return "empty"
    if 2 * strange.sum() > present.sum() and not COMMA.fullmatch(
        str(column.iloc[strange.argmax()])
    ):
        return "category"
    numbers(column, where)
    return "number"


def numbers(column: pd.Series, where: str, remedy: str | None = None) -> np.ndarray:
    """float64 [rows], NaN where cells are missing; text and infinite numbers are refused."""
    values = parsed(column, where)
    bad = np.flatnonzero((np.isnan(values) & ~column.isna().to_numpy()) | (np.abs(values) > HUGE))
    if len(bad):
        value = str(column.iloc[bad[0]])
        options = []
        if COMMA.fullmatch(value):
            remedy = "write numbers with points, and without signs between thousands"
        elif remedy is None:
            remedy = "correct or empty the cell"
            if column.nunique() <= MOST_CATEGORIES:
                remedy += ", or read the column as text with {}"
                options.append(Option("categories", str(column.name), of_data=True))
        raise CoterieError(
            f"the column {column.name} of {where} has {value!r} in data row {bad[0] + 1}, "
            "where a number belongs",
            remedy,
            options=options,
            where=str(column.name),
        )
    return values


def parsed(column: pd.Series, where: str) -> np.ndarray:
    """float64 [rows], NaN where there is no number; booleans are 0 and 1."""
    import pandas as pd

    if column.dtype.kind in "mMc":  # times and complex numbers
        raise CoterieError(
            f"the column {column.name} of {where} holds {column.dtype}",
            "turn it into numbers, or drop it with {}",
            options=[Option("drop", str(column.name), of_data=True)],
            where=str(column.name),
        )
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    try:
        found: np.ndarray = pd.to_numeric(column, errors="coerce").to_numpy(
            dtype=np.float64, na_value=np.nan
        )
    except OverflowError:
        raise CoterieError(
            f"the column {column.name} of {where} has a number beyond all measure",
            "correct it",
            where=str(column.name),
        ) from None
    return found.copy()


def texts(column: pd.Series) -> list[str]:
    """Every cell as text; a whole number is written without a point, so that 1 and 1.0 are the same category."""
    return [
        str(int(v)) if isinstance(v, float) and v.is_integer() else normal(str(v))
        for v in column.tolist()
    ]


def normal(text: str) -> str:
    """An accent may come as a character of its own."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def boolean(column: pd.Series) -> bool:
    """Whether the cells that are there are True and False."""
    return all(isinstance(value, bool) for value in column.dropna().tolist())


def refuse_missing(
    column: pd.Series, what: str, remedy: str, options: Sequence[Option] = ()
) -> None:
    """Refuse a column with empty cells."""
    missing = int(column.isna().sum())
    if missing:
        raise CoterieError(
            f"{what} has {missing} missing values in {len(column)} rows",
            remedy,
            options=options,
            where=str(column.name),
        )
