"""Several processes at once: each run has its folder, each folder one process that trains."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from killing import command, in_child, start_child, wait_for

from coterie.cli import main
from coterie.runs.run import Run

TINY = "--data linear?dim=3 --clients 4 --samples 8 --rounds 2 --model linear --quiet"


def rounds_in(folder: Path) -> list[int]:
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row)["round"] for row in rows]


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


def slowly(words: str, begun: Path, may_end: Path) -> Callable[[], int]:
    """A command that tells when it trains, and goes on when it may."""

    def work() -> int:
        step = Run.step

        def step_slowly(run: Run) -> dict:
            begun.touch()
            wait_until(may_end.exists)
            return step(run)

        Run.step = step_slowly  # type: ignore[method-assign]
        return main(words.split())

    return work


@pytest.fixture
def work_folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_runs_started_at_once_have_a_whole_folder_each(work_folder: Path) -> None:
    """Their names have a resolution of one second."""
    words = [f"run fedavg {TINY} --seed {seed}" for seed in range(15)]
    children = [start_child(command(w), work_folder) for w in words]
    outcomes = [wait_for(child, work_folder) for child in children]
    assert [outcome.status for outcome in outcomes] == [0] * 15, outcomes
    folders = list((work_folder / "runs").iterdir())
    assert len(folders) == 15
    assert all(rounds_in(folder) == [0, 1, 2] for folder in folders)
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert sorted(config["options"]["seed"] for config in configs) == list(range(15))


@pytest.mark.parametrize(
    "words, second",
    [
        (f"run fedavg {TINY} --out out", f"run fedavg {TINY} --out out"),
        (f"run fedavg {TINY} --out out", "resume out"),
        (f"compare fedavg local {TINY} --out out", "resume out"),
        (f"compare fedavg local {TINY} --out out", "resume out/fedavg"),
        (f"compare fedavg {TINY} --tune lr=0.1 --out out", None),
        (f"search fedavg {TINY} --over lr=0.1 --out out", None),
    ],
)
def test_a_second_process_is_told_in_one_sentence(
    work_folder: Path, tmp_path: Path, words: str, second: str | None
) -> None:
    """Without a second word: the same command again."""
    begun, may_end = tmp_path / "begun", tmp_path / "may_end"
    child = start_child(slowly(words, begun, may_end), work_folder)
    try:
        wait_until(begun.exists)
        outcome = in_child(command(second or words), work_folder)
    finally:
        may_end.touch()
        first = wait_for(child, work_folder)
    assert outcome.status == 2
    assert outcome.err.startswith("coterie: another process is training out")
    assert outcome.err.count("\n") == 1, outcome.err
    assert first.status == 0, first.err
    for metrics in work_folder.rglob("metrics.jsonl"):
        assert rounds_in(metrics.parent) == [0, 1, 2], "no row is there twice"


def test_a_run_in_progress_can_be_read(work_folder: Path, tmp_path: Path) -> None:
    """Reports and exports need no lock."""
    begun, may_end = tmp_path / "begun", tmp_path / "may_end"
    assert in_child(command(f"run fedavg {TINY} --out out"), work_folder).status == 0
    child = start_child(slowly("resume out --rounds 4", begun, may_end), work_folder)
    try:
        wait_until(begun.exists)
        for words in ("report out --out page.html", "export out --out models"):
            assert in_child(command(words), work_folder).status == 0
    finally:
        may_end.touch()
        assert wait_for(child, work_folder).status == 0
    assert rounds_in(work_folder / "out") == [0, 1, 2, 3, 4]


def test_a_killed_process_leaves_no_lock(work_folder: Path) -> None:
    words = f"run fedavg {TINY} --out out"
    changes = in_child(command(words), work_folder).changes
    killed = in_child(
        command(words.replace("--out out", "--out other")), work_folder, kill_at=changes - 2
    )
    assert killed.status == -9
    assert in_child(command("resume other --quiet"), work_folder).status == 0
    assert rounds_in(work_folder / "other") == [0, 1, 2]


def test_a_run_that_cannot_be_made_deletes_nothing_of_another(work_folder: Path) -> None:
    """Also where the other was made between the check of the folder and its making."""

    def work() -> int:
        from coterie.runs.start import Job

        create_run = Job.create_run

        def create_and_lose(job: Job, *given: object) -> Run:
            run = create_run(job, *given)
            job.create_folder("out")  # as another process would
            return run

        Job.create_run = create_and_lose  # type: ignore[method-assign]
        return main(f"run fedavg {TINY} --out out".split())

    outcome = in_child(work, work_folder)
    assert outcome.status == 2 and outcome.err.startswith("coterie: out exists: choose another")
    assert in_child(command("resume out --quiet"), work_folder).status == 0
    assert rounds_in(work_folder / "out") == [0, 1, 2]
