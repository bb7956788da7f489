"""The tables beside a page."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from small_runs import HOW, trained

import coterie as ct
from coterie.reporting import spreadsheets


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_one_run_has_a_copy_of_its_tables(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained(ct.IFCA(clusters=2, **HOW), run, rounds=2)
    ct.report(run, tmp_path / "page.html")
    for name in ("groups.csv", "clients.csv"):
        copy = tmp_path / f"page-{name}"
        assert copy.read_text(encoding="utf-8") == (run / name).read_text(encoding="utf-8")


def test_several_runs_are_told_apart(results: list[ct.Result], tmp_path: Path) -> None:
    ct.report(results, tmp_path / "page.html")
    groups, clients = (read(tmp_path / f"page-{name}.csv") for name in ("groups", "clients"))
    assert {(row["method"], row["seed"]) for row in groups} == {("ifca", "0")}
    assert {row["method"] for row in clients} == {"ifca", "fedavg", "local"}
    assert len(clients) == 3 * len(results[0].names)
    assert all(row["accuracy"] for row in clients)


def test_an_excel_file_has_them_as_sheets(results: list[ct.Result], tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    ct.report(results, tmp_path / "page.html")
    book = openpyxl.load_workbook(tmp_path / "page.xlsx")
    assert book.sheetnames == ["groups", "clients", "comparison"]
    head, *lines = book["comparison"].iter_rows(values_only=True)
    table = {line[0]: dict(zip(head, line)) for line in lines}
    for result in results:
        accuracy = table[result.method.name]["accuracy"]
        assert accuracy == pytest.approx(result.accuracy.weighted, rel=1e-5)
    assert table["fedavg"]["churn"] is None and table["ifca"]["churn"] is not None
    sheet = book["groups"]
    assert [cell.value for cell in sheet[1]][:5] == [
        "method",
        "seed",
        "client",
        "group",
        "confidence",
    ]
    assert isinstance(sheet["D2"].value, int)


def test_no_cell_is_a_formula_or_breaks_the_file() -> None:
    pytest.importorskip("openpyxl")
    assert spreadsheets.as_cell("=1+1") == "'=1+1"
    assert spreadsheets.as_cell("a\x00b") == "ab"
    assert spreadsheets.as_cell(-0.5) == -0.5


def test_a_user_without_openpyxl_has_the_others(results, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(spreadsheets, "find_spec", lambda name: None)
    ct.report(results, tmp_path / "page.html")
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["page-clients.csv", "page-groups.csv", "page.html"]


def test_files_of_others_are_left_as_they_are(results, tmp_path) -> None:
    """They are replaced where Coterie wrote them, as its page is."""
    (tmp_path / "page-groups.csv").write_text("mine\n")
    (tmp_path / "page.xlsx").write_bytes(b"mine")
    said: list[str] = []
    for _ in range(2):
        ct.report(results, tmp_path / "page.html", warn=said.append)
    assert (tmp_path / "page-groups.csv").read_text() == "mine\n"
    assert (tmp_path / "page.xlsx").read_bytes() == b"mine"
    assert len([sentence for sentence in said if "was not replaced" in sentence]) == 4
    (tmp_path / "page.xlsx").unlink()
    ct.report(results, tmp_path / "page.html")
    ct.report(results[1:], tmp_path / "page.html", warn=said.append)
    assert len(read(tmp_path / "page-clients.csv")) == 2 * len(results[0].names)
    assert (tmp_path / "page-groups.csv").read_text() == "mine\n"
    (tmp_path / "page-groups.csv").unlink()
    ct.report(results, tmp_path / "page.html")
    ct.report(results[1:], tmp_path / "page.html", warn=said.append)
    assert not (tmp_path / "page-groups.csv").exists(), "these runs have no groups"
    assert len([sentence for sentence in said if "page.xlsx" in sentence]) == 2


def test_tables_of_version_0_2_are_replaced(results, tmp_path) -> None:
    old = "client,group,sure,margin,second_group,rows\na,0,1,,,\n"
    (tmp_path / "page-groups.csv").write_text(old)
    said: list[str] = []
    ct.report(results[0], tmp_path / "page.html", warn=said.append)
    assert said == [] and (tmp_path / "page-groups.csv").read_text() != old
