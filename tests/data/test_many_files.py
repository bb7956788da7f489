"""Many CSV files, which are parsed at once, and large ones, which are parsed in pieces."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.core.errors import CoterieError
from coterie.data import Federation, csv_files, folder, table
from coterie.data import csv_files as csv_file
from coterie.data.table_files import open_table, read_table, read_tables
from coterie.data.tables import ColumnsOnDisk

HEAD = "age,sex,day,y\n"
NORTH = HEAD + "41,f,2026-01-31,1\n52,m,2026-02-01,0\n63,f,2026-02-02,1\n"
SOUTH = HEAD + "40.5,m,2026-03-01,0\n,f,2026-03-05,1\n61,m,2026-03-09,0\n"


def write(path: Path, **files: str) -> dict[str, Path]:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.csv").write_text(text, newline="")
    return {name: path / f"{name}.csv" for name in files}


def same(one: Federation, other: Federation) -> bool:
    return one.fingerprint() == other.fingerprint() and one.schema == other.schema


def one_by_one(monkeypatch: pytest.MonkeyPatch, path: Path, **options: object) -> Federation:
    """The federation of a folder whose files are parsed one by one."""
    with monkeypatch.context() as patch:
        patch.setattr(csv_files, "read_plain_csv", lambda file: None)
        return folder(str(path), "y", fill="median", min_category_count=1, **options)  # type: ignore[arg-type]


# Files that read alike by themselves and together, and whether they are joined.
CASES = {
    "alike": ({"a": NORTH, "b": SOUTH}, True),
    "no last line break": ({"a": NORTH.rstrip("\n"), "b": SOUTH}, True),
    "as Windows writes": ({"a": NORTH.replace("\n", "\r\n"), "b": SOUTH}, True),
    "byte order mark": ({"a": "\ufeff" + NORTH, "b": SOUTH}, True),
    "no sex known": ({"a": NORTH, "b": SOUTH.replace(",m,", ",,").replace(",f,", ",,")}, True),
    "short row": ({"a": NORTH, "b": SOUTH + "70,m,2026-03-09,1\n71,m,,0\n"}, True),
    "quoted": ({"a": NORTH, "b": SOUTH.replace("m", '"m"')}, False),
    "two lines in a cell": ({"a": NORTH, "b": SOUTH.replace("m", '"m\nx"')}, False),
    "blank line": ({"a": NORTH, "b": SOUTH.replace("\n61", "\n\n61")}, False),
    "line of spaces": ({"a": NORTH, "b": SOUTH.replace("\n61", "\n   \n61")}, False),
    "truth": ({"a": "t,y\nTrue,1\nFalse,0\n", "b": "t,y\nTrue,0\nFalse,1\n"}, True),
    "truth with a gap": ({"a": "t,y\nTrue,1\nFalse,0\n,1\n", "b": "t,y\nTrue,0\nFalse,1\n"}, True),
    "truth and numbers": ({"a": "t,y\nTrue,1\nFalse,0\n", "b": "t,y\n1,0\n0,1\n"}, False),
    "decimal commas": ({"a": "u;y\n1,5;1\n2,5;0\n", "b": "u;y\n3,5;0\n4,5;1\n"}, True),
    "decimal commas in one": ({"a": "u;y\n1,5;1\n2,5;0\n", "b": "u;y\n3.5;0\n4;1\n"}, False),
    "long numbers": (
        {"a": f"u,y\n{2**60 + 1},1\n{2**60 + 3},0\n", "b": "u,y\n0.5,1\n2.5,0\n"},
        False,
    ),
    "other columns' order": ({"a": NORTH, "b": "y,sex,age,day\n1,m,3,2026-01-01\n"}, False),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_joined_files_read_as_single_ones(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, joined = CASES[case]
    files = write(tmp_path, **texts)
    groups = [csv_files.parse_group(g, ()) for g in csv_files.group_files(files)]
    assert [group is not None for group in groups] == [True] * joined or not joined
    assert any(group is not None for group in groups) == joined
    together = folder(str(tmp_path), "y", fill="median", min_category_count=1)
    assert same(together, one_by_one(monkeypatch, tmp_path))


def test_columns_read_as_text_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a="zip,y\n01,1\n1,0\n", b="zip,y\n01,0\n02,1\n")
    fed = folder(
        str(tmp_path), "y", fill="median", min_category_count=1, categories=("zip",), test_share=0
    )
    assert fed.schema is not None and fed.schema.features[0].categories == ("01", "1", "02")
    assert same(fed, one_by_one(monkeypatch, tmp_path, categories=("zip",), test_share=0))


@pytest.mark.parametrize(
    "text, words",
    [
        (SOUTH + "1,2,3,4,5,6\n", ["b.csv", "cannot be read"]),
        (SOUTH.replace("40.5", "high"), ["client 'b'", "'high'", "data row 1"]),
        (
            SOUTH.replace("2026-03-05,1", "2026-03-05,"),
            ["client 'b'", "1 missing values in 3 rows"],
        ),
        (HEAD, ["b.csv", "has no rows below its header"]),
        (SOUTH.replace("f", "\xe9"), ["b.csv", "not in UTF-8"]),
    ],
)
def test_a_fault_names_its_file(text: str, words: list[str], tmp_path: Path) -> None:
    write(tmp_path, a=NORTH, c=NORTH)
    (tmp_path / "b.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(CoterieError) as error:
        folder(str(tmp_path), "y", fill="median")
    assert all(word in str(error.value) for word in words), str(error.value)


def test_groups_are_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path, **{f"s{i}": NORTH.replace("41", str(41 + i)) for i in range(7)})
    monkeypatch.setattr(csv_files, "MAX_JOINED_BYTES", 2 * len(NORTH))
    groups = [list(group.counts) for group in csv_files.group_files(files)]
    assert [len(group) for group in groups] == [3, 3]
    cells = [part.columns["age"].require_numbers().tolist() for part in read_tables(files).values()]
    assert cells == [[41 + i, 52, 63] for i in range(7)], "the last file is read alone"


# ------------------------------------------------------------------------------ large files
@pytest.mark.parametrize(
    "cells",
    [
        [1, 2, 3, 4, 5, 6],
        [1, 2, 0.5, 4, 5, ""],
        ["", "", 3, 4, 5, 6],
        ["a", "b", "", "", "c", "d"],
        ["", "", "a", "b", "c", "d"],
        [1, 2, "x", 4, 5.50, "05"],
        ["True", "False", "True", "True", "False", "False"],
        ["True", "False", "", "", "False", "False"],
        ["True", "False", 1, 0, "x", 3],
        ["", "", "", "", "", ""],
        [" 1", "2 ", " ", "4", " NA", "6"],
        [2**63 + 1, 5, 1, 2, 3, 4],
        ['"a, b"', '"a\nb"', '""', '"say ""x"""', "c", "d"],
    ],
)
def test_a_staged_file_reads_as_one_in_memory(
    cells: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join(f"{cell},{i}" for i, cell in enumerate(cells))
    file = write(tmp_path, a=f" u ,y\n{lines}\n")["a"]
    at_once = read_table(file)
    monkeypatch.setattr(csv_file, "STAGED_ABOVE", 0)
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 40)
    assert isinstance(open_table(file), ColumnsOnDisk)
    staged = read_table(file)
    assert staged.schema == at_once.schema and staged.to_pydict() == at_once.to_pydict()


def test_a_large_table_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = np.random.default_rng(0)
    n = 500
    frame = pd.DataFrame(
        {
            "site": g.choice(["a", "b", "c"], n),
            "age": g.integers(1, 90, n),
            "dose": np.where(g.random(n) < 0.1, np.nan, g.normal(size=n)),
            "sex": g.choice(["f", "m", None], n),
            "y": g.integers(0, 2, n),
        }
    )
    frame.to_csv(tmp_path / "all.csv", index=False)
    frame.to_parquet(tmp_path / "all.parquet")

    def read(ending: str) -> Federation:
        return table(str(tmp_path / f"all.{ending}"), "y", "site", fill="mean", seed=1)

    at_once = read("csv")
    assert same(read("parquet"), at_once)
    monkeypatch.setattr(csv_file, "STAGED_ABOVE", 0)
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 1000)
    monkeypatch.setattr("coterie.data.encoding.BLOCK_ROWS", 90)
    assert same(read("csv"), at_once)
