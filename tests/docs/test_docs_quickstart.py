"""The quickstart.

Its notebook runs, it explains every column of the table, and refusals are as it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pages
import pandas as pd
import pytest
from cells import notebook
from test_docs_run import Block, Capture, run, two_kinds

from coterie.cli import main
from coterie.reporting.comparison import Comparison, all_columns
from test_docs import ROOT

PAGE = (ROOT / "docs" / "quickstart.md").read_text()
Change = Callable[[pd.DataFrame], pd.DataFrame | str | bytes]


def first_cells(heading: str) -> list[str]:
    """The first column of the table under a heading."""
    section = next(text for title, text in pages.sections(PAGE).items() if heading in title)
    return [
        row.split(" | ")[0].removeprefix("| ")
        for row in section.splitlines()
        if row.startswith("| ")
    ][2:]


# ------------------------------------------------------------------------------ the notebook
@pytest.mark.slow
def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    book = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    two_kinds(run([code("".join(cell["source"])) for cell in cells], capsys))


def code(source: str) -> Block:
    """A cell as a block; a line that begins with ! goes to the shell."""
    shell = source.startswith("!")
    return Block(
        "sh" if shell else "python",
        "",
        re.sub("^!", "", source, flags=re.MULTILINE) if shell else source,
    )


def test_prose_and_blocks_become_cells_in_order() -> None:
    page = "# One\n\n```sh\nmake demo\n```\n\nTwo\n\n```python\nx = 1\n```\n"
    page += "\n```sh\ncoterie list\n```\n\n```text\ny\n```\n"
    cells = json.loads(notebook(page))["cells"]
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    assert found == [
        ("markdown", "# One\n\n```sh\nmake demo\n```\n\nTwo"),
        ("code", "x = 1"),
        ("code", "!coterie list"),
        ("markdown", "```text\ny\n```"),
    ]


# ------------------------------------------------------------------------------ the table
@pytest.mark.parametrize("main_score, seeds", [("accuracy", 1), ("accuracy", 3), ("mse", 1)])
def test_every_column_is_explained(main_score: str, seeds: int) -> None:
    uneven = {"balanced_accuracy": 0.5, "accuracy": 0.9}
    comparison = Comparison(main_score, {"ifca": [uneven] * seeds})
    titles = {part for title, _ in all_columns(comparison) for part in re.split(" (?=±)", title)}
    assert titles <= {*first_cells("Read the table")}


# ------------------------------------------------------------------------------ refusals
def without_points(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(age=frame.age.astype(str).str.replace(".", ","))


def semicolons(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, sep=";", decimal=",")


def latin(frame: pd.DataFrame) -> bytes:
    return frame.rename(columns={"ward": "Fälle"}).to_csv(index=False).encode("latin-1")


def only(name: str, change: Change) -> Change:
    """In one file alone."""
    return lambda frame: change(frame) if frame.attrs["of"] == name else frame


def numbered(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(id=np.arange(len(frame)) + 100 * "abc".index(frame.attrs["of"][0]))


DROP, FILL, TEXT = ["--data.drop", "id"], ["--fill", "median"], ["--data.categories", "age"]
CASES: dict[
    str, tuple[Change, list[str] | None]
] = {  # by what it says: how files were changed; flags that mend it
    "different texts, more": (
        lambda f: numbered(f).assign(id=lambda g: "P" + g.id.astype(str)),
        DROP,
    ),
    "a different integer": (numbered, DROP),
    "never changes": (only("b", lambda f: f.assign(age=0)), ["--data.drop", "age"]),
    "fill them": (lambda f: f.assign(age=f.age.where(f.index != 3)), FILL),
    "give the rows": (lambda f: f.assign(outcome=f.outcome.where(f.index != 3)), None),
    "has '61,9'": (without_points, None),
    "has 'unknown'": (
        lambda f: f.assign(age=f.age.round(-1).astype(object).where(f.index != 3, "unknown")),
        TEXT,
    ),
    "is not in UTF-8": (latin, None),
    "without a name": (lambda f: f.to_csv(), None),
    "the columns of client": (only("b", lambda f: f.assign(id=1)), DROP),
    "holds numbers for": (only("b", lambda f: f.assign(age="old")), TEXT),
    "unknown label": (lambda f: f.rename(columns={"outcome": "Outcome"}), ["--label", "Outcome"]),
    "choose another": (lambda f: f, []),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_as_the_page_says(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (row,) = [cell for cell in first_cells("Error messages") if case in cell]
    change, remedy = CASES[case]
    write(Path("sites"), change)
    if case == "choose another":
        write(Path("run"), change)
    warns = row.startswith("warning: ")
    says = re.sub(r"\d+", r"\\d+", re.escape(row.removeprefix("warning: "))).replace("…", ".+")
    assert try_out() == (0 if warns else 2)
    assert re.search(says, said := capsys.readouterr().err), said
    if remedy is not None:
        assert try_out(*remedy, "--out", "again") == 0
        assert not re.search(says, said := capsys.readouterr().err), said


def test_every_refusal_of_the_page_is_tried() -> None:
    assert len(first_cells("Error messages")) == len(CASES)


@pytest.mark.slow
def test_files_with_semicolons_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("sites"), semicolons)
    assert try_out() == 0
    assert "columns of numbers: age" in capsys.readouterr().err


def write(folder: Path, change: Change) -> None:
    """Three small tables, each changed."""
    folder.mkdir()
    for i, name in enumerate("abc"):
        rng = np.random.default_rng(i)
        age, ward = rng.normal(60, 10, 30).round(1), rng.choice(["A", "B"], 30)
        frame = pd.DataFrame({"age": age, "ward": ward, "outcome": rng.choice(["ill", "well"], 30)})
        frame.attrs["of"] = name
        made = change(frame)
        text = made.to_csv(index=False) if isinstance(made, pd.DataFrame) else made
        (folder / f"{name}.csv").write_bytes(text if isinstance(text, bytes) else text.encode())


def try_out(*flags: str) -> int:
    given = [
        "--data",
        "folder:sites",
        "--label",
        "outcome",
        "--rounds",
        "1",
        "--model",
        "softmax",
        "--out",
        "run",
    ]
    return main(["run", "fedavg", *given, *flags])
