"""Rows are read as they come, whatever the process that writes them is doing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from made_run import row

from coterie.reporting.live.run_files import MetricsTail


def line(round: int, **more: object) -> bytes:
    return json.dumps(row(round, **more)).encode() + b"\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(0) + line(1))
    return path


def rounds(tail: MetricsTail) -> list[int]:
    return [row["round"] for row in tail.rows]


def test_only_what_was_added_is_read(file, monkeypatch):
    tail = MetricsTail(file, clients=2)
    assert tail.poll() and rounds(tail) == [0, 1]
    assert not tail.poll()
    with open(file, "ab") as more:
        more.write(line(2))
    parsed = []
    monkeypatch.setattr(
        "json.loads", lambda text, load=json.loads: parsed.append(text) or load(text)
    )
    assert tail.poll() and rounds(tail) == [0, 1, 2]
    assert parsed == [line(2)[:-1]]


def test_a_line_that_is_half_written_waits_for_its_end(file):
    tail = MetricsTail(file, clients=2)
    whole = line(2)
    for end in range(0, len(whole), 7):
        file.write_bytes(line(0) + line(1) + whole[:end])
        tail.poll()
        assert rounds(tail) == [0, 1] and not tail.problem
    with open(file, "ab") as more:
        more.write(whole[end:])
    assert tail.poll() and rounds(tail) == [0, 1, 2]


def test_a_file_that_was_replaced_is_read_anew(file, tmp_path):
    tail = MetricsTail(file, clients=2)
    tail.poll()
    other = tmp_path / "new"
    other.write_bytes(line(0, seconds=9.0))  # the run goes on from its first checkpoint
    os.replace(other, file)
    assert tail.poll() and [row["seconds"] for row in tail.rows] == [9.0]
    assert tail.seconds_per_round() is None


def test_a_file_that_was_written_over_in_place_is_read_anew(file):
    tail = MetricsTail(file, clients=2)
    tail.poll()
    file.write_bytes(b"".join(line(r, seconds=2.125) for r in range(4)))
    tail.poll()
    tail.poll()
    assert rounds(tail) == [0, 1, 2, 3] and tail.rows[0]["seconds"] == 2.125 and not tail.problem


@pytest.mark.parametrize(
    "bad",
    [
        b"no json\n",
        b"[]\n",
        b'{"round": 2}\n',
        line(7),
        line(2, groups=[0, 1, 0]),
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_damaged_line_is_named_and_the_rows_before_it_stay(file, bad):
    file.write_bytes(line(0) + line(1) + bad + line(3))
    tail = MetricsTail(file, clients=2)
    assert tail.poll() and rounds(tail) == [0, 1]
    assert tail.problem == f"line 3 of {file} is damaged."
    assert not tail.poll()  # it is said once


def test_a_file_that_is_gone_is_said_to_be_and_may_come_back(file):
    tail = MetricsTail(file, clients=2)
    tail.poll()
    file.unlink()
    assert tail.poll() and "cannot be read (No such file" in tail.problem
    assert rounds(tail) == [0, 1] and not tail.poll()
    file.write_bytes(line(0))
    assert tail.poll() and rounds(tail) == [0] and not tail.problem


def test_the_pace_is_that_of_the_rounds_that_were_watched(file):
    tail = MetricsTail(file, clients=2)
    os.utime(file, (1000, 1000))
    tail.poll()
    assert tail.seconds_per_round() is None
    with open(file, "ab") as more:
        more.write(b"".join(line(r) for r in range(2, 6)))
    os.utime(file, (1000, 1020))
    tail.poll()
    assert tail.seconds_per_round() == 5.0  # four rounds in twenty seconds
    for _ in range(50):
        tail.poll()
    assert tail.seconds_per_round() == 5.0  # looking at nothing new changes nothing
