from pathlib import Path

import pytest
import torch

from coterie.data import folder
from coterie.errors import CoterieError


def write(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.csv").write_text(text.replace(" ", "\n"))
    return path


def test_whole_numbers_are_classes(tmp_path: Path) -> None:
    write(tmp_path, b="u,y,v 1,5,2.5 3,-1,4 5,5,6 7,-1,8", a="v,u,y 10,20,2 30,40,5 50,60,2 70,80,-1")
    (tmp_path / "notes.txt").write_text("not a table")
    fed = folder(str(tmp_path), label="y")
    assert fed.names == ("a", "b") and fed.kind == "classification"
    assert fed.classes == 3 and fed.labels == ("-1", "2", "5")
    assert fed.train.sizes.tolist() == fed.test.sizes.mul(3).tolist() == [3, 3]
    found = {}
    for part in (fed.train, fed.test):
        for i in range(2):
            x, y = part.client(i)
            found |= {tuple(row): int(label) for row, label in zip(x.tolist(), y)}
    assert found[10, 20] == 1 and found[30, 40] == 2 and found[70, 80] == 0, "columns in the first file's order: v, u"
    assert found[2.5, 1] == 2 and found[4, 3] == 0


def test_text_is_classes_sorted_over_all_clients(tmp_path: Path) -> None:
    write(tmp_path, a="x,y 1,well 2,ill 3,well", b="x,y 4,dead 5,ill")
    fed = folder(str(tmp_path), "y", test_share=0)
    assert fed.labels == ("dead", "ill", "well")
    assert fed.train.y.tolist() == [2, 1, 2, 0, 1]


def test_kinds(tmp_path: Path) -> None:
    write(tmp_path / "float", a="x,y 1,0.5 2,1 3,2", b="x,y 4,1 5,2")
    fed = folder(str(tmp_path / "float"), "y", test_share=0)
    assert fed.kind == "regression" and fed.train.y.tolist() == [0.5, 1, 2, 1, 2] and fed.labels is None
    write(tmp_path / "whole", a="x,y 1,1.0 2,0.0", b="x,y 4,1 5,0")
    assert folder(str(tmp_path / "whole"), "y", test_share=0).labels == ("0", "1")
    numbers = folder(str(tmp_path / "whole"), "y", test_share=0, kind="regression")
    assert numbers.train.y.dtype == torch.float32
    write(tmp_path / "bool", a="x,y 1,True 2,False", b="x,y True,True False,False")
    truth = folder(str(tmp_path / "bool"), "y", test_share=0)
    assert truth.train.y.tolist() == [1, 0, 1, 0] and truth.train.x.flatten().tolist() == [1, 2, 1, 0]
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
        ({"a": GOOD, "b": "age,dose,outcome"}, ["b.csv", "empty below its header"]),
        ({"a": GOOD, "b": "age,dose,outcom 1,2,0"}, ["b.csv", "'outcome'", "'outcom'"]),
        ({"a": GOOD, "b": "age,dose,outcome 1,2,0 3,high,1"}, ["b.csv", "dose", "'high'", "row 2"]),
        ({"a": GOOD, "b": "age,dose,outcome 1,,0 3,4,1 5,,1"}, ["b.csv", "dose", "2 missing", "3 rows"]),
        ({"a": GOOD, "b": "age,dose,outcome 1,inf,0"}, ["b.csv", "dose", "'inf'", "row 1"]),
        ({"a": GOOD, "b": "age,dose,outcome 1,2, 3,4,1"}, ["b.csv", "label column outcome", "1 missing"]),
        ({"a": GOOD, "b": "age,dose,outcome 1,2,ill 3,4,1"}, ["b.csv", "outcome", "'ill'", "row 1"]),
        ({"a": GOOD, "b": "age,sex,outcome 1,2,0"}, ["a.csv", "b.csv", "lacks dose", "adds sex"]),
        ({"a": GOOD, "b": "age,outcome 1,0"}, ["a.csv", "b.csv", "lacks dose", "adds nothing"]),
        ({"a": "outcome 1 0"}, ["a.csv", "no column but the label"]),
        ({"a": "age,dose,outcome 1,2,0,7 3,4,1,7"}, ["a.csv", "more values than"]),
        ({"a": "age,dose,outcome 1,2,0 3,4,1,7,8"}, ["a.csv", "cannot be read"]),
    ],
)
def test_errors(tmp_path: Path, files: dict[str, str], words: list[str]) -> None:
    write(tmp_path, **files)
    with pytest.raises(CoterieError) as error:
        folder(str(tmp_path), "outcome")
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="no folder .*nowhere"):
        folder(str(tmp_path / "nowhere"), "y")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,y\n\xff\xfe,1\n")
    with pytest.raises(CoterieError, match="a.csv cannot be read"):
        folder(str(tmp_path), "y")
