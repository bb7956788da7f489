"""Damaged metrics.jsonl: an error, or rows that are those of the file."""

from __future__ import annotations

import json

import pytest
from harness import case, command, fresh_copy, fuzz, said, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_json
from valid_files import Files

from coterie.core.errors import CoterieError
from coterie.runs.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
KIND = "metrics"
COMMANDS = {
    "assign": "assign case new.csv --json",
    "export": "export case --out case/models",
    "report": "report case --out case/report.html",
    "resume": "resume case --quiet",
    "resume as JSON": "resume case --quiet --json",
    "resume for longer": "resume case --rounds 4 --quiet",
}


def check_metrics(files: Files, content: bytes, which: str) -> None:
    """Assert that damaged metrics are refused, or read as what they say, a row for each round."""
    run = fresh_copy(files.run)
    (run / "metrics.jsonl").write_bytes(content)
    rows = said(RunFolder(run).rows)
    outcome = command(*COMMANDS[which].split())
    if isinstance(rows, CoterieError):
        assert outcome.status == 2
        return
    lines = content.splitlines()
    assert rows == [json.loads(line) for line in lines[: len(rows)]]
    assert len(rows) >= len(lines) - 1, "more than a last line is passed over"
    if outcome.status == 0:
        assert [row["round"] for row in rows] == list(range(len(rows))), "rounds are missing"
    if outcome.status == 0 and which == "report":
        page = (run / "report.html").read_text(encoding="utf-8")
        assert "</html>" in page


@fuzz(120)
@given(st.sampled_from(list(COMMANDS)), st.data())
def test_damaged_row(files: Files, which: str, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    lines = (files.run / "metrics.jsonl").read_bytes().splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    damaged = data.draw(damaged_json(json.loads(lines[number])))
    lines[number] = damaged.replace("\n", "").encode(errors="surrogatepass")
    with case(KIND):
        check_metrics(files, b"\n".join(lines) + b"\n", which)


@fuzz(80)
@given(st.sampled_from(list(COMMANDS)), st.data())
def test_damaged_bytes(files: Files, which: str, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    content = data.draw(damaged_bytes((files.run / "metrics.jsonl").read_bytes()))
    with case(KIND):
        check_metrics(files, content, which)


@fuzz(50)
@given(st.sampled_from(list(COMMANDS)), st.data())
def test_other_lines(files: Files, which: str, data: st.DataObject) -> None:
    """Lines that are lost, doubled or in another order."""
    if time_is_over(KIND):
        return
    lines = (files.run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    chosen = data.draw(st.lists(st.sampled_from([*lines, b"\n", b"{}\n"]), max_size=8))
    with case(KIND):
        check_metrics(files, b"".join(chosen), which)
