"""Large tables: one column at a time is in memory, and the rows are those of a table read whole."""

import errno
import gc
import io
import tempfile
import tracemalloc
import weakref
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from coterie.core.errors import CoterieError
from coterie.data import Federation, folder, from_frames, table
from coterie.data import csv_files as csv_file
from coterie.data.columns import TableColumn
from coterie.data.frames import encode_one_table
from coterie.data.table_files import open_table, read_table
from coterie.data.table_options import TableOptions
from coterie.data.tables import ColumnsOnDisk, Table

SITES = ["Ulm", "Bern", "Köln"]


def patients(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    """Columns of each kind, with gaps; the sites' rows are mixed."""
    g = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "site": g.choice(SITES, rows),
            "age": g.integers(18, 90, rows),
            "dose": np.where(g.random(rows) < 0.1, np.nan, g.normal(size=rows)),
            "ward": g.choice(["north", "south", None], rows),
            "day": g.choice(["2026-01-31", "2026-02-01", "2025-12-24"], rows),
            "smokes": g.choice([True, False], rows),
            "y": g.integers(0, 2, rows),
        }
    )


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every CSV file is large."""
    monkeypatch.setattr(csv_file, "STAGED_ABOVE", 0)
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 3000)
    monkeypatch.setattr("coterie.data.encoding.BLOCK_ROWS", 90)


def write(frame: pd.DataFrame, path: Path, ending: str) -> Path:
    file = path / f"all.{ending}"
    if ending == "csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file, index=False)
    return file


def same(one: Federation, other: Federation) -> bool:
    return one.fingerprint() == other.fingerprint() and one.schema == other.schema


# ------------------------------------------------------------------------------ the same rows
@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unseen": 1},
        {"time_column": "day"},
        {"categories": ("age",), "min_rows_to_report": 2, "drop": ("smokes",)},
        {"kind": "regression"},
    ],
)
def test_the_rows_of_columns_on_disk(ending: str, options: dict[str, Any], tmp_path: Path) -> None:
    frame = patients()
    if "categories" in options:
        frame["age"] //= 10
    file = write(frame, tmp_path, ending)
    assert isinstance(open_table(file), ColumnsOnDisk)
    fed = table(str(file), "y", "site", fill="median", **options)
    assert same(fed, from_frames(frame, "y", "site", fill="median", **options))


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_one_table_is_as_a_file_per_site(ending: str, tmp_path: Path) -> None:
    frame = patients()
    (tmp_path / "sites").mkdir()
    for site, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(tmp_path / "sites" / f"{site}.csv", index=False)
    one = table(str(write(frame, tmp_path, ending)), "y", "site", fill="mean")
    other = folder(str(tmp_path / "sites"), "y", fill="mean")
    assert one.fingerprint() == other.fingerprint()
    assert one.schema is not None and one.schema.ignored == ("site",)
    assert replace(one.schema, ignored=()) == other.schema


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_values_in_their_places(ending: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"site": list("baba"), "age": [1.0, 2.0, 5.0, 4.0], "y": [0, 1, 1, 0]})
    fed = table(str(write(frame, tmp_path, ending)), "y", "site", test_share=0)
    assert fed.names == ("a", "b")
    standardised = (np.array([2.0, 4.0, 1.0, 5.0]) - 3) / np.sqrt(2.5)
    assert fed.train.x[:, 0].tolist() == standardised.astype(np.float32).tolist()
    assert fed.train.y.tolist() == [1, 0, 0, 1]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    "change, options",
    [
        ({}, {}),
        ({"dose": "high", "ward": "w"}, {}),
        ({"note": [f"note {i}" for i in range(300)]}, {"fill": "mean"}),
        ({"y": [None, *"01" * 149, "1"]}, {"fill": "mean"}),
        ({"site": [None, *SITES * 99, "Ulm", "Ulm"]}, {"fill": "mean"}),
        ({}, {"fill": "mean", "drop": ("weight",)}),
        ({}, {"fill": "mean", "categories": ("weight",)}),
    ],
)
def test_errors_are_those_of_a_table_in_memory(
    ending: str, change: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    frame = patients().assign(**change)
    if change.get("dose") == "high":
        frame["dose"] = ["high", *["1.5"] * 299]
    file = write(frame, tmp_path, ending)
    with pytest.raises(CoterieError) as expected:
        encode_one_table(
            read_table(file, ["site"]), TableOptions(label="y", client_column="site", **options)
        )
    with pytest.raises(CoterieError) as error:
        table(str(file), "y", "site", **options)
    assert str(error.value) == str(expected.value)


# ------------------------------------------------------------------------------ memory
@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Which columns are in memory, whenever one is read."""
    live: dict[str, weakref.ref] = {}
    seen: list[set[str]] = []
    simplified = TableColumn.simplified.func

    def watch(cells: TableColumn) -> Any:
        array, content = simplified(cells)
        live[cells.name] = weakref.ref(array)
        gc.collect()
        seen.append({name for name, ref in live.items() if ref() is not None})
        return array, content

    watched = cached_property(watch)
    watched.__set_name__(TableColumn, "simplified")
    monkeypatch.setattr(TableColumn, "simplified", watched)
    return seen


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_one_column_is_in_memory_at_a_time(
    ending: str, tmp_path: Path, in_memory: list[set[str]]
) -> None:
    table(str(write(patients(), tmp_path, ending)), "y", "site", fill="mean")
    features = {"age", "dose", "ward", "day", "smokes", "y"}
    assert set().union(*in_memory) == {"site", *features}
    assert max(map(len, in_memory)) == 1
    assert len(in_memory) == 1 + 2 * len(features), "each is described, and then encoded"


@pytest.mark.usefixtures("pieces")
def test_no_more_than_one_column_with_an_error(tmp_path: Path, in_memory: list[set[str]]) -> None:
    file = write(patients(), tmp_path, "csv")
    with pytest.raises(CoterieError, match="2 columns .* dose .* ward"):
        table(str(file), "y", "site")
    assert max(map(len, in_memory)) == 1


def test_the_peak_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 columns of numbers, 24 MB of cells: the encoded rows of 12 MB and some columns."""
    monkeypatch.setattr(csv_file, "STAGED_ABOVE", 0)
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 1_000_000)
    monkeypatch.setattr("coterie.data.encoding.BLOCK_ROWS", 5_000)
    g = np.random.default_rng(0)
    rows = 75_000
    frame = pd.DataFrame({f"v{i}": g.integers(0, 9, rows) / 8 for i in range(40)})
    frame = frame.assign(site=g.choice(SITES, rows), y=g.integers(0, 2, rows))
    file = str(write(frame, tmp_path, "csv"))
    del frame
    table(file, "y", "site")  # loads what is loaded once
    tracemalloc.start()
    try:
        fed = table(file, "y", "site")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    encoded = sum(part.x.nbytes for part in (fed.train, fed.test))
    assert encoded == 40 * 4 * rows
    assert peak < 0.9 * encoded, "beside the encoded rows, which tracemalloc does not see"


# ------------------------------------------------------------------------------ on disk
@pytest.mark.usefixtures("pieces")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is then read at once."""

    class FullDisk(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    file = write(patients(), tmp_path, "csv")
    expected = table(str(file), "y", "site", fill="mean")
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda suffix: FullDisk())
    assert not isinstance(open_table(file), ColumnsOnDisk)
    assert same(table(str(file), "y", "site", fill="mean"), expected)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": [1, 2], "a.b": [3, 4], ".c": ["x", None]}),
        pd.DataFrame({"a": [1, 2]}, index=[5, 7]),
        pd.DataFrame({"a": [1, 2]}, index=pd.Index([5, 7], name="n")),
        pd.DataFrame({"a": [1, 2]}, index=pd.RangeIndex(2, name="n")),
        pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([(1, 2), (3, 4)])),
        pd.DataFrame({"a": pd.Categorical(["x", "y"]), "t": pd.to_datetime(["2026-01-01"] * 2)}),
        pd.DataFrame({"a": [[1, 2], [3]], "b": [{"u": 1}, {"u": 2}]}),
        pd.DataFrame([[1, 2], [3, 4]]),
    ],
)
def test_parquet_columns_read_as_the_whole(frame: pd.DataFrame, tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    frame.to_parquet(file)
    expected = pd.read_parquet(file)
    if expected.index.name is not None:
        expected = expected.reset_index()
    read = Table.of(read_table(file), "the table")
    assert list(read.columns) == [str(name) for name in expected.columns]
    for name, cells in read.columns.items():
        raw = cells.read().to_pylist()
        column = expected.set_axis(list(read.columns), axis=1)[name]
        assert raw == pa.array(column, from_pandas=True).to_pylist()


def test_a_parquet_column_that_is_damaged(tmp_path: Path) -> None:
    file = write(patients(), tmp_path, "parquet")
    raw = bytearray(file.read_bytes())
    raw[4:200] = b"\0" * 196
    file.write_bytes(raw)
    with pytest.raises(CoterieError, match=r"all.parquet cannot be read as Parquet"):
        table(str(file), "y", "site", fill="mean")


@pytest.mark.parametrize(
    "change",
    [
        (b'"pandas_type"', b'"pandas_tyqe"'),
        (b'"index_columns"', b'"index_kolumns"'),
        (b'"numpy_type": "float64"', b'"numpy_type": "fl_at64"'),
    ],
)
def test_a_parquet_file_with_damaged_metadata(change: tuple[bytes, bytes], tmp_path: Path) -> None:
    """What pandas writes about its own types does not matter: the types of Arrow do."""
    file = tmp_path / "all.parquet"
    patients().to_parquet(file)
    expected = table(str(file), "y", "site", fill="mean")
    raw = file.read_bytes()
    assert change[0] in raw
    file.write_bytes(raw.replace(*change))
    assert same(table(str(file), "y", "site", fill="mean"), expected)
