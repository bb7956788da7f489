"""A folder of CSV files, one per client."""

import time
from pathlib import Path

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import folder
from coterie.data.csv_files import check_header
from coterie.data.table_files import read_table


def write(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.csv").write_text(text.replace(" ", "\n"))
    return path


def test_whole_numbers_are_classes(tmp_path: Path) -> None:
    write(
        tmp_path, b="u,y,v 1,5,2.5 3,-1,4 5,5,6 7,-1,8", a="v,u,y 10,20,2 30,40,5 50,60,2 70,80,-1"
    )
    (tmp_path / "notes.txt").write_text("not a table")
    fed = folder(str(tmp_path), label="y")
    assert fed.names == ("a", "b") and fed.kind == "classification"
    assert fed.classes == 3 and fed.labels == ("-1", "2", "5")
    assert fed.train.sizes.tolist() == fed.test.sizes.mul(3).tolist() == [3, 3]
    assert fed.schema is not None and fed.schema.columns == ("u", "v"), (
        "columns by name, whatever their order"
    )
    mean, deviation = (
        torch.tensor([getattr(c, what) for c in fed.schema.features])
        for what in ("mean", "deviation")
    )
    labels = {}
    for part in (fed.train, fed.test):
        for i in range(2):
            x, y = part.client(i)
            labels |= {
                tuple(row): int(label)
                for row, label in zip((x * deviation + mean).round(decimals=3).tolist(), y)
            }
    assert labels == {
        (20, 10): 1,
        (40, 30): 2,
        (60, 50): 1,
        (80, 70): 0,
        (1, 2.5): 2,
        (3, 4): 0,
        (5, 6): 2,
        (7, 8): 0,
    }
    assert fed.train.x.mean(0).abs().max() < 1e-6, (
        "standardised by the training rows of all clients"
    )
    assert fed.train.x.std(0, correction=0).sub(1).abs().max() < 1e-6


def test_text_is_classes_sorted_over_all_clients(tmp_path: Path) -> None:
    write(tmp_path, a="x,y 1,well 2,ill 3,well", b="x,y 4,dead 5,ill")
    fed = folder(str(tmp_path), "y", test_share=0)
    assert fed.labels == ("dead", "ill", "well")
    assert fed.train.y.tolist() == [2, 1, 2, 0, 1]


def test_kinds(tmp_path: Path) -> None:
    write(tmp_path / "float", a="x,y 1,0.5 2,1 3,2", b="x,y 4,1 5,2")
    fed = folder(str(tmp_path / "float"), "y", test_share=0)
    assert (
        fed.kind == "regression"
        and fed.train.y.tolist() == [0.5, 1, 2, 1, 2]
        and fed.labels is None
    )
    write(tmp_path / "whole", a="x,y 1,1.0 2,0.0", b="x,y 4,1 5,0")
    assert folder(str(tmp_path / "whole"), "y", test_share=0).labels == ("0", "1")
    numbers = folder(str(tmp_path / "whole"), "y", test_share=0, kind="regression")
    assert numbers.train.y.dtype == torch.float64
    write(tmp_path / "bool", a="x,y 1,True 2,False", b="x,y True,True False,False")
    truth = folder(str(tmp_path / "bool"), "y", test_share=0)
    assert truth.train.y.tolist() == [1, 0, 1, 0] and truth.labels == ("False", "True")
    assert truth.train.x.flatten().tolist() == pytest.approx([0, 2**0.5, 0, -(2**0.5)]), (
        "1, 2, 1, 0 standardised"
    )
    write(tmp_path / "mixed", a="x,y 1,1 2,other 3,1", b="x,y 4,2 5,1")
    mixed = folder(str(tmp_path / "mixed"), "y", test_share=0, kind="classification")
    assert mixed.labels == ("1", "2", "other")


def test_unseen_sites_are_drawn(tmp_path: Path) -> None:
    write(tmp_path, **dict.fromkeys("abcdef", "x,y 1,0 2,1 3,0 4,1"))
    draws = {folder(str(tmp_path), "y", unseen=2, seed=seed).names[4:] for seed in range(6)}
    assert len(draws) > 1


GOOD = "age,dose,outcome 1,2,0 3,4,1"


@pytest.mark.parametrize(
    "files, words",
    [
        ({}, ["no .csv"]),
        ({"a": GOOD, "b": ""}, ["b.csv", "empty"]),
        ({"a": GOOD, "b": "age,dose,outcome"}, ["b.csv", "has no rows below its header"]),
        ({"a": GOOD, "b": "age,dose,outcom 1,2,0"}, ["client 'b'", "'outcome'", "'outcom'"]),
        (
            {"a": GOOD, "b": "age,dose,outcome 1,2,0 3,high,1"},
            ["client 'b'", "dose", "'high'", "row 2"],
        ),
        (
            {"a": GOOD, "b": "age,dose,outcome 1,,0 3,4,1 5,,1"},
            ["client 'b'", "dose", "2 missing", "3 rows"],
        ),
        ({"a": GOOD, "b": "age,dose,outcome 1,inf,0"}, ["client 'b'", "dose", "'inf'", "row 1"]),
        (
            {"a": GOOD, "b": "age,dose,outcome 1,2, 3,4,1"},
            ["client 'b'", "label column outcome", "1 missing"],
        ),
        (
            {"a": GOOD, "b": "age,dose,outcome 1,2,ill 3,4,1"},
            ["client 'b'", "outcome", "'ill'", "row 1"],
        ),
        (
            {"a": GOOD, "b": "age,sex,outcome 1,2,0"},
            ["client 'a'", "client 'b'", "lacks dose", "adds sex"],
        ),
        (
            {"a": GOOD, "b": "age,outcome 1,0"},
            ["client 'a'", "client 'b'", "lacks dose", "adds nothing"],
        ),
        ({"a": "outcome 1 0"}, ["client 'a'", "no column but the label"]),
        ({"a": "age,dose,outcome 1,2,0,7 3,4,1,7"}, ["a.csv", "more values than"]),
        ({"a": "age,dose,outcome 1,2,0 3,4,1,7,8"}, ["a.csv", "cannot be read"]),
        ({"a": GOOD, "b": "age,age,outcome 1,2,0"}, ["b.csv", "more than one column age"]),
        ({"a": ",age,outcome 0,1,0"}, ["a.csv", "without a name"]),
        (
            {"a": "age;outcome 1.012,5;0 2.000,5;1"},
            ["client 'a'", "'1.012,5'", "without thousands separators"],
        ),
        (
            {"a": 'age,outcome "1,5",0 "2,5",1'},
            ["client 'a'", "'1,5'", "row 1", "write numbers with a decimal point"],
        ),
        (
            {"a": GOOD, "b": "age,dose,outcome 1,low,0 3,high,1"},
            ["dose", "numbers for client 'a'", "text for client 'b'"],
        ),
        (
            {"a": GOOD, "b": "age,dose,outcome 1,1e200,0 3,1,1"},
            ["client 'b'", "dose", "'1e200'", "row 1"],
        ),
    ],
)
def test_errors(tmp_path: Path, files: dict[str, str], words: list[str]) -> None:
    write(tmp_path, **files)
    with pytest.raises(CoterieError) as error:
        folder(str(tmp_path), "outcome")
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "age;town;y 1,5;Köln;0 2;Ulm;1 -3,25;Ulm;0",
        "age\ttown\ty 1.5\tKöln\t0 2\tUlm\t1 -3.25\tUlm\t0",
        "age;town;y 1.5;Köln;0 2;Ulm;1 -3.25;Ulm;0",
    ],
)
def test_semicolons_tabs_and_decimal_commas(tmp_path: Path, text: str) -> None:
    write(tmp_path, a=text)
    frame = read_table(tmp_path / "a.csv")
    assert frame.to_pydict() == {
        "age": [1.5, 2, -3.25],
        "town": ["Köln", "Ulm", "Ulm"],
        "y": [0, 1, 0],
    }


def test_a_comma_in_the_header_means_commas(tmp_path: Path) -> None:
    write(tmp_path, a="a;b,y 1;2,0")
    assert read_table(tmp_path / "a.csv").to_pydict() == {"a;b": ["1;2"], "y": [0]}


def test_a_header_below_blank_lines_is_checked_and_read(tmp_path: Path) -> None:
    """pandas passes over blank lines, and would call the second column age.1."""
    (tmp_path / "a.csv").write_text("\n\nage,age\n1,2\n")
    with pytest.raises(CoterieError, match="more than one column age"):
        read_table(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("\r\nage;dose\r\n1,5;2\r\n")
    assert read_table(tmp_path / "b.csv").to_pydict() == {"age": [1.5], "dose": [2]}


def test_a_wide_header_is_checked_quickly() -> None:
    names = [f"gene {i}" for i in range(40_000)]
    start = time.process_time()
    check_header(names, Path("wide.csv"))
    with pytest.raises(CoterieError, match="wide.csv has more than one column gene 7"):
        check_header([*names, "gene 7"], Path("wide.csv"))
    assert time.process_time() - start < 2, "comparing all pairs takes many seconds"


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="no folder .*nowhere"):
        folder(str(tmp_path / "nowhere"), "y")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,y\n\xff\xfe,1\n")
    with pytest.raises(CoterieError, match=r"a.csv is not in UTF-8: save it as UTF-8"):
        folder(str(tmp_path), "y")


def test_what_else_lies_in_the_folder(tmp_path: Path) -> None:
    write(tmp_path, **{"Hôpital du Nord": "x,y 1,0 2,1 3,0", "cafe\u0301": "x,y 1,0 2,1 3,0"})
    (tmp_path / "inner.csv").mkdir()
    (tmp_path / ".lock.csv").write_text("no table")
    (tmp_path / "c.CSV").write_bytes("\ufeffx, y\n1, 0\n2, 1\n".encode())
    assert folder(str(tmp_path), "y").names == ("Hôpital du Nord", "c", "café"), (
        "in the order of the files"
    )
    (tmp_path / "c.csv").write_text("x,y\n1,0\n")
    with pytest.raises(CoterieError, match=r"c.CSV and .*c.csv name the same client 'c'"):
        folder(str(tmp_path), "y")
    (tmp_path / "d.npz").write_bytes(b"")
    with pytest.raises(CoterieError, match="several types, .*d.npz: keep files of one type"):
        folder(str(tmp_path), "y")


def test_codes_that_are_named_categories_stay_as_written(tmp_path: Path) -> None:
    """01 is 01 in every file, also where another cell has letters, and for a newcomer."""
    write(tmp_path, a="code,y 01,0 02,1 01,0 02,1", b="code,y 01,0 X,1 02,0 X,1")
    fed = folder(str(tmp_path), "y", categories=("code",), test_share=0, min_category_count=1)
    assert fed.schema is not None and fed.schema.columns == (
        "code = 01",
        "code = 02",
        "code = X",
        "code = (other)",
    )
    write(tmp_path / "new", c="code,y 01,0 02,1")
    x, _ = fed.schema.encode(read_table(tmp_path / "new" / "c.csv", fed.schema.texts))
    assert x.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


def test_a_code_with_a_point_is_the_same_code(tmp_path: Path) -> None:
    """Spreadsheets write whole numbers as 1.0 where a column has empty cells."""
    write(tmp_path, a="code,y 1,0 2,1 1,0 2,1", b="code,y 1.0,0 2.0,1 1.5,0 1.50,1")
    fed = folder(str(tmp_path), "y", categories=("code",), test_share=0, min_category_count=1)
    assert fed.schema is not None and fed.schema.columns == (
        "code = 1",
        "code = 1.5",
        "code = 1.50",
        "code = 2",
        "code = (other)",
    )


def test_accents_of_either_kind_are_the_same(tmp_path: Path) -> None:
    write(tmp_path, a="\u00e9,y \u00e8,0 b,1", b="e\u0301,y e\u0300,0 b,1")
    fed = folder(str(tmp_path), "y", test_share=0, min_category_count=1)
    assert fed.schema is not None and fed.schema.columns == ("é = b", "é = è", "é = (other)")


def test_a_number_too_large_for_float64(tmp_path: Path) -> None:
    write(tmp_path, a=f"x,y {10**400},0 1,1")
    words = r"column x of client 'a' has '1000.*\.\.\.' in data row 1, .* not a number between"
    with pytest.raises(CoterieError, match=words):
        folder(str(tmp_path), "y")
