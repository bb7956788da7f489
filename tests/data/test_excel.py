"""Excel files, as tables of all clients and one per client."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import pandas as pd
import pytest
from sample_tables import hospitals, joined

from coterie.core.errors import CoterieError
from coterie.data import folder, table

needs_openpyxl = pytest.mark.skipif(
    importlib.util.find_spec("openpyxl") is None,
    reason="Excel needs openpyxl: pip install 'coterie[excel]'",
)


def rounded() -> dict[str, pd.DataFrame]:
    """Hospitals whose numbers Excel holds exactly, and a date for each row."""
    frames, _ = hospitals()
    for frame in frames.values():
        frame["dosé mg"] = frame["dosé mg"].round(2)
        frame["admitted"] = pd.date_range("2026-01-01", periods=len(frame), freq="5D")
    return frames


@needs_openpyxl
def test_excel_is_read_as_csv_is(tmp_path: Path) -> None:
    frames = rounded()
    (tmp_path / "sites").mkdir()
    for name, frame in frames.items():
        frame.to_excel(tmp_path / "sites" / f"{name}.xlsx", index=False)
    (tmp_path / "sites" / "~$Brno.xlsx").write_bytes(b"Excel has Brno.xlsx open")
    joined(frames).to_excel(tmp_path / "all.xlsx", index=False)
    joined(frames).to_csv(tmp_path / "all.csv", index=False)
    csv = table(str(tmp_path / "all.csv"), "outcome", "site", fill="mean")
    assert csv.schema is not None and "admitted (year)" in csv.schema.columns
    one = table(str(tmp_path / "all.xlsx"), "outcome", "site", fill="mean")
    each = folder(str(tmp_path / "sites"), "outcome", fill="mean")
    assert csv.fingerprint() == one.fingerprint() == each.fingerprint()


@needs_openpyxl
def test_sheets_names_and_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = pd.DataFrame({" site ": ["01", "1"] * 4, "v": range(8), "w": None, "y": range(8)})
    caplog.set_level(logging.INFO)
    with pd.ExcelWriter(tmp_path / "all.xlsx") as book:
        rows.to_excel(book, sheet_name="patients", index=False)
        rows.to_excel(book, sheet_name="notes", index=False)
    fed = table(str(tmp_path / "all.xlsx"), "y", "site", drop=("w",))
    assert fed.names == ("01", "1"), "cells of text stay as they are"
    assert "all.xlsx: only the first sheet is read, patients" in caplog.text


@needs_openpyxl
def test_names_that_are_numbers(tmp_path: Path) -> None:
    """Excel itself keeps 15 digits of a number: of longer ones two sites would become one."""
    rows = pd.DataFrame({"site": [7, 8, None] * 4, "v": range(12), "y": range(12)})
    file = tmp_path / "all.xlsx"
    rows.to_excel(file, index=False)
    assert table(str(file), "y", "site", drop_incomplete=True).names == ("7", "8")
    rows.assign(site=[2**55, 2**55 + 1, 3] * 4).to_excel(file, index=False)
    with pytest.raises(CoterieError, match="column site of the file .* above 2\\^53.* as text"):
        table(str(file), "y", "site")
    rows.assign(site=[str(2**55), str(2**55 + 1), "3"] * 4).to_excel(file, index=False)
    assert len(table(str(file), "y", "site")) == 3


@needs_openpyxl
@pytest.mark.parametrize(
    "columns, words",
    [
        (["site", "v", "v"], "more than one column v"),
        (["site", "v", None], "a column without a name"),
    ],
)
def test_headers(tmp_path: Path, columns: list[str], words: str) -> None:
    frame = pd.DataFrame([["a", 1, 2]], columns=columns)
    frame.to_excel(tmp_path / "all.xlsx", index=False)
    with pytest.raises(CoterieError, match=words):
        table(str(tmp_path / "all.xlsx"), "y", "site")


@needs_openpyxl
def test_damaged_and_empty_files(tmp_path: Path) -> None:
    file = tmp_path / "all.xlsx"
    file.write_bytes(b"PK no more")
    with pytest.raises(CoterieError, match="all.xlsx cannot be read as Excel") as error:
        table(str(file), "y", "site")
    assert "\n" not in str(error.value)
    pd.DataFrame().to_excel(file, index=False)
    with pytest.raises(CoterieError, match="all.xlsx is empty"):
        table(str(file), "y", "site")
    pd.DataFrame(columns=["site", "y"]).to_excel(file, index=False)
    with pytest.raises(CoterieError, match="all.xlsx has no rows below its header"):
        table(str(file), "y", "site")


def test_without_openpyxl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    (tmp_path / "all.xlsx").write_bytes(b"PK")
    with pytest.raises(CoterieError, match=r"needs openpyxl: pip install 'coterie\[excel\]'"):
        table(str(tmp_path / "all.xlsx"), "y", "site")
