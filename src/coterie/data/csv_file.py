"""CSV files: at once, or a large one in pieces. A fault in one is one sentence."""

from __future__ import annotations

import csv
import itertools
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.core.errors import CoterieError
from coterie.data.cells import DECIMAL_COMMA, to_nfc
from coterie.data.columns import Columns, PieceFile, ReadColumn

if TYPE_CHECKING:
    import pandas as pd

LARGE = 200_000_000  # bytes: a larger CSV file is read in pieces
PIECE = 500_000  # rows


def read_csv(file: Path, text: Collection[str] = ()) -> pd.DataFrame | Columns:
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


def parse_csv(file: Path, text: Collection[str]) -> pd.DataFrame | Columns:
    with open(file, encoding="utf-8-sig", newline="") as lines:
        separator, decimal = csv_style(list(itertools.islice(without_blank_start(lines), 100)))
        lines.seek(0)
        rows = csv.reader(without_blank_start(lines), skipinitialspace=True, delimiter=separator)
        header = next(rows, [])
        check_header([name.strip() for name in header], file)
    style = CsvStyle(tuple(header), separator, decimal)
    if file.stat().st_size > LARGE:
        return parse_in_pieces(file, style, set(text))
    return parse_at_once(file, style, text)


def parse_at_once(source: Path | BytesIO, style: CsvStyle, text: Collection[str]) -> pd.DataFrame:
    frame: pd.DataFrame = parse_cells(source, style, text)
    frame.columns = frame.columns.str.strip()
    return frame


class CsvStyle(NamedTuple):
    """How a CSV file is written."""

    header: tuple[str, ...]  # the names of the columns, as they stand there
    separator: str
    decimal: str


def parse_cells(
    source: Path | BytesIO, style: CsvStyle, text: Collection[str], **options: Any
) -> Any:
    """What pandas reads, by these options of its own; more values than names are an error."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(
            source,
            index_col=False,
            skipinitialspace=True,
            low_memory=False,
            sep=style.separator,
            decimal=style.decimal,
            dtype={name: str for name in style.header if to_nfc(name.strip()) in text},
            **options,
        )


# ------------------------------------------------------------------------------ in pieces
def parse_in_pieces(file: Path, style: CsvStyle, text: set[str]) -> pd.DataFrame | Columns:
    """A large file, of which a piece is in memory at a time; the cells go to a temporary file.

    Each piece has types of its own. A column that is numbers here and text there is text, as it is
    when the file is read at once: then all is read again with this column as text.
    Whole numbers above 2^63 and the like are read at once.
    """
    rows = 0
    on_disk = PieceFile()
    columns: dict[str, list[ReadColumn]] = {}
    kinds: dict[str, set[str]] = {}
    with parse_cells(file, style, text, chunksize=PIECE) as pieces:
        for piece in pieces:
            rows += len(piece)
            for name, cells in piece.items():
                columns.setdefault(name, []).append(on_disk.put(cells))
                kinds.setdefault(name, set()).add(kind_of(cells))
    if any("other" in of_column for of_column in kinds.values()):
        return parse_at_once(file, style, text)
    mixed = {name for name, of_column in kinds.items() if len(of_column - {""}) > 1}
    if mixed:
        return parse_in_pieces(file, style, text | {to_nfc(name.strip()) for name in mixed})
    readers = {name.strip(): partial(join_pieces, parts) for name, parts in columns.items()}
    return Columns(readers, rows)


def kind_of(piece: pd.Series) -> str:
    """What a piece of a column holds; "" if it is empty."""
    import pandas as pd

    if piece.isna().all():
        return ""
    kind = pd.api.types.infer_dtype(piece, skipna=True)
    if kind in ("integer", "floating") and piece.dtype.kind in "if":
        return "number"
    return kind if kind in ("string", "boolean") else "other"


def join_pieces(parts: list[ReadColumn]) -> pd.Series:
    """The column of pieces that are of one kind."""
    import pandas as pd

    pieces = [read() for read in parts]
    of_values = [piece.dtype for piece in pieces if kind_of(piece)]
    dtype = (of_values or [pieces[0].dtype])[0]
    is_truth_with_gaps = dtype.kind == "b" and any(piece.isna().any() for piece in pieces)
    if is_truth_with_gaps or any(other != dtype and other.kind == "O" for other in of_values):
        dtype = np.dtype(object)
    if dtype.kind not in "if":  # an empty piece has no type of its own
        pieces = [piece.astype(dtype) for piece in pieces]
    return pd.concat(pieces, ignore_index=True)


# ------------------------------------------------------------------------------ header and style
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


def one_line(why: Exception) -> str:
    """What an error of another library says, in one line."""
    return " ".join(str(why).split())
