"""One sentence for Python and for the command line, from the same error."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

import coterie.data
from coterie.cli import main
from coterie.cli.messages import format_flag, format_option, option_style
from coterie.cli.progress import ProgressDisplay
from coterie.core.errors import ColumnErrors, CoterieError, Option, collect_errors, run_column_jobs
from coterie.data import folder, from_frames


def refusal(name: str, what: str, *options: Option) -> CoterieError:
    remedy = " or ".join("try {}" for _ in options) or "correct it"
    return CoterieError(f"{name} {what}", remedy, options=options)


def drop(name: str) -> Option:
    return Option("drop", name, of_data=True)


@pytest.mark.parametrize(
    "option, python, flag",
    [
        (Option("drop", "a,b", of_data=True), "drop=a,b", "--data.drop a,b"),
        (Option("drop", "dosé mg", of_data=True), "drop='dosé mg'", "--data.drop 'dosé mg'"),
        (Option("client_column", "COLUMN"), "client_column=COLUMN", "--client-column COLUMN"),
        (Option("kind", of_data=True), "kind", "--data.kind"),
        (Option("split_column", of_data=True), "split_column", "--data.split_column"),
    ],
)
def test_an_option_in_python_and_as_a_flag(option: Option, python: str, flag: str) -> None:
    assert str(option) == python and format_flag(option) == flag
    error = CoterieError("it is wrong", "use {}", options=[option])
    assert str(error) == f"it is wrong: use {python}."
    assert error.sentence(format_flag) == f"it is wrong: use {flag}."


def test_braces_in_names_are_text() -> None:
    error = CoterieError("the column {x} is {} wrong", "drop it with {}", options=[drop("{} {y}")])
    assert str(error) == "the column {x} is {} wrong: drop it with drop='{} {y}'."
    assert str(CoterieError("a", "rename {0} to {}")) == "a: rename {0} to {}."
    frame = pd.DataFrame({"{v}": [1.0, None], "y": [0, 1]})
    with pytest.raises(CoterieError, match=re.escape("drop='{v}'")):
        from_frames({"a": frame}, "y")


@pytest.mark.parametrize(
    ("option", "line"),
    [
        (Option("fill", "median"), '`fill = "median"`'),
        (Option("valid", "0.2"), "`valid = 0.2`"),
        (Option("drop_incomplete"), "`drop_incomplete = true`"),
        (Option("min_rows"), "`min_rows = VALUE`"),
        (Option("drop", "a,b b", of_data=True), '`data = "folder:PATH?drop=a,b b"`'),
        (Option("kind", of_data=True), '`data = "folder:PATH?kind=VALUE"`'),
        (Option("page_host"), "--page-host"),
    ],
)
def test_commands_of_a_network_write_options_as_lines_of_their_config_file(option, line) -> None:
    assert format_option(option) == format_flag(option)
    with option_style(["network", "simulate"]):
        assert format_option(option) == line
    assert format_option(option) == format_flag(option)


def test_several_columns_share_their_options() -> None:
    fill = Option("fill", "median")
    refused = ColumnErrors(
        {
            "a": [refusal("a", "has gaps", fill, drop("a"))] * 3,
            "b": [refusal("b", "is ids", drop("b"))],
            "c c": [refusal("c c", "is dates", drop("c c"))],
            "d": [refusal("d", "has 'x'", Option("categories", "d", of_data=True))],
            "e": [refusal("e", "is huge")],
        }
    )
    assert refused.options == (Option("drop", "b,c c", of_data=True), fill)
    assert refused.sentence(format_flag) == (
        "5 columns cannot be used as they are: a has gaps (2 more clients likewise); b is ids; "
        "c c is dates; d has 'x': try --data.categories d; e is huge: correct it; "
        "try --data.drop 'b,c c' --fill median."
    )
    assert str(refused).endswith("try drop='b,c c' fill=median.")
    many = ColumnErrors({name: [refusal(name, "is ids", drop(name))] for name in "abcdefghij"})
    assert "h is ids; and 2 more; try drop=a,b,c,d,e,f,g,h,i,j." in str(many)


def test_one_column_keeps_its_own_remedy() -> None:
    refused = ColumnErrors({"a": [refusal("a", "is ids", drop("a"))] * 2})
    assert str(refused) == "a is ids (1 more clients likewise): try drop=a."
    assert refused.options == (drop("a"),)


def test_jobs_are_all_done_and_their_errors_collected() -> None:
    def fail() -> int:
        raise refusal("b", "is ids", drop("b"))

    assert run_column_jobs({"a": lambda: 1, "c": lambda: 2}) == {"a": 1, "c": 2}
    problems: dict[str, list[CoterieError]] = {}
    for _ in range(2):
        with collect_errors(problems):
            run_column_jobs({"a": lambda: 1, "b": fail})
    assert {name: len(errors) for name, errors in problems.items()} == {"b": 2}


def test_the_makers_of_data_know_no_flags() -> None:
    for file in Path(coterie.data.__file__).parent.glob("*.py"):
        assert not re.search(r"--[a-z]", file.read_text()), file.name


def test_the_command_says_the_same_with_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pd.DataFrame({"id": range(100, 190), "age": [30.5, 40, 50] * 30, "y": [0, 1] * 45})
    gaps = rows.assign(age=rows.age.where(rows.index != 3), note=[f"n {i}" for i in rows.index])
    for name, frame in {"good": rows, "bad": gaps}.items():
        Path(name).mkdir()
        frame.to_csv(Path(name) / "a.csv", index=False)
    with ProgressDisplay().active():
        folder("good", "y")
    lines = capsys.readouterr().err.splitlines()
    assert any(line.endswith("if these are ids, drop it with --data.drop id.") for line in lines)
    assert any(line.endswith("classification (--data.kind overrides)") for line in lines)
    assert main(["run", "fedavg", "--data", "folder:bad", "--label", "y", "--dry-run"]) == 2
    assert "; try --data.drop note --fill median." in capsys.readouterr().err
