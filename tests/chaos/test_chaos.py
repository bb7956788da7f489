"""Commands are killed before each change of a file; every one goes on or starts anew.

`make chaos` tries every point, `make test-slow` some of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from killing import ChildResult, command, in_child
from safetensors import safe_open

TINY = "--data linear?dim=3 --clients 4 --samples 8 --rounds 2 --model linear --quiet"
RUN = f"run fedavg {TINY} --out out"
FULL = os.environ.get("COTERIE_CHAOS") == "all"
KEPT = (".json", ".toml", ".safetensors", ".html")
HASHES = rb'"(data|salt)": "[0-9a-f]+"'  # of the data: their salt is random
SAMPLE = 8  # points of each command, where not all are tried


class Case(NamedTuple):
    """A command, what comes before it, and how it goes on after a kill."""

    words: str
    before: str = ""
    goes_on: tuple[str, ...] = ()  # tried in turn; one that refuses leaves it to the next


CASES = {
    "run": Case(RUN, goes_on=("resume out --quiet", RUN)),
    "compare": Case(
        f"compare fedavg local {TINY} --seeds 2 --out out",
        goes_on=(
            "resume out --quiet",
            f"compare fedavg local {TINY} --seeds 2 --out out",
        ),
    ),
    "search": Case(f"search fedavg {TINY} --over lr=0.01,0.1 --out out"),
    "tune": Case(f"compare fedavg {TINY} --tune lr=0.01,0.1 --out out"),
    # killed when only its lock file is left to remove, an export is complete and is not repeated:
    # `list` changes nothing, and the files are compared all the same
    "export": Case(
        "export out --out models", before=RUN, goes_on=("export out --out models", "list")
    ),
    "report": Case("report out --out page.html", before=RUN),
}


def result_of(folder: Path) -> dict[str, object]:
    """What a command left, but for seconds and logs: the same for the same bits."""
    left: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "metrics.jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            left[name] = [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]
        elif path.name == "checkpoints":
            left[name] = content_of(max(path.glob("*.safetensors")))
        elif path.suffix in KEPT and path.parent.name != "checkpoints":
            left[name] = re.sub(HASHES, b"", path.read_bytes())
    return left


def content_of(checkpoint: Path) -> object:
    """The name, the head and the tensors of a checkpoint; their order in the file is random."""
    with safe_open(checkpoint, framework="pt") as file:
        tensors = {key: file.get_tensor(key).tolist() for key in file.keys()}  # noqa: SIM118
        return checkpoint.name, file.metadata(), tensors


def one_sentence(outcome: ChildResult) -> bool:
    """Whether a command refused in one sentence."""
    lines = [line for line in outcome.err.splitlines() if not line.startswith("warning: ")]
    return outcome.status == 2 and len(lines) == 1 and lines[0].startswith("coterie: ")


def prepare(case: Case, folder: Path) -> Path:
    """An empty folder, or one with the run that the command is about, the same every time."""
    before = folder.parent / "before"
    if not before.exists():
        before.mkdir()
        if case.before:
            assert in_child(command(case.before), before).status == 0
    shutil.copytree(before, folder)
    return folder


def go_on(case: Case, folder: Path) -> ChildResult:
    """The documented way to go on."""
    for words in case.goes_on or (case.words,):
        outcome = in_child(command(words), folder)
        if outcome.status == 0:
            return outcome
        assert one_sentence(outcome), outcome.err
    return outcome


def some_of(points: range) -> list[int]:
    """All points, or a sample from the first to the last."""
    if FULL or len(points) <= SAMPLE:
        return list(points)
    step = (len(points) - 1) / (SAMPLE - 1)
    return [points[round(i * step)] for i in range(SAMPLE)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_kill_before_any_change_of_a_file_loses_nothing(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole = prepare(case, tmp_path / "whole")
    undisturbed = in_child(command(case.words), whole)
    assert undisturbed.status == 0, undisturbed.err
    expected = result_of(whole)
    killed = 0
    for point in some_of(range(1, undisturbed.changes + 1)):
        folder = prepare(case, tmp_path / f"point-{point}")
        first = in_child(command(case.words), folder, kill_at=point)
        if first.status == 0:  # fewer checkpoints in a quicker process
            continue
        assert first.status == -signal.SIGKILL, first.err
        killed += 1
        last = go_on(case, folder)
        assert last.status == 0, f"killed before change {point}: {last.err}"
        assert result_of(folder) == expected, f"killed before change {point}"
        unfinished = [path.name for path in folder.rglob("*.coterie-new")]
        assert not unfinished, f"killed before change {point}"
    print(f"{name}: {undisturbed.changes} changes of files, {killed} kills")
    assert killed
