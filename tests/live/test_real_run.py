"""A page beside a process that really trains, is killed and goes on."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.reporting.live.folder import WatchedFolder
from coterie.reporting.live.page import render_sections
from coterie.runs.folder import RunFolder

COTERIE = [sys.executable, "-m", "coterie"]
ROUNDS = 400
RUN = (
    f"run ifca --clusters 2 --clients 8 --samples 20 --rounds {ROUNDS} --model softmax "
    "--eval-every 1 --participation 0.5 --quiet --out"
)


def wait_for(watch: WatchedFolder, round: int, process: subprocess.Popen) -> None:
    """Look at a run, and draw it, until it has come to a round."""
    deadline = time.monotonic() + 120
    while watch.dashboard().chosen.round < round:
        assert time.monotonic() < deadline and process.poll() in (None, 0)
        if watch.poll():
            render_sections(watch.dashboard())
            assert not watch.problem and not watch.dashboard().chosen.problem


@pytest.mark.slow
def test_a_run_is_followed_through_a_kill_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen([*COTERIE, *RUN.split(), str(folder)])
    try:
        while not (folder / "config.json").exists():
            assert process.poll() is None
            time.sleep(0.05)
        watch = WatchedFolder(folder)
        wait_for(watch, 30, process)
    finally:
        process.kill()
        process.wait()
    assert watch.dashboard().chosen.round < ROUNDS
    process = subprocess.Popen([*COTERIE, "resume", str(folder), "--quiet"])
    try:
        time.sleep(0.1)
        watch.poll()
        wait_for(watch, ROUNDS, process)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    watch.poll()
    run = watch.dashboard().chosen
    assert run.state == "ended" and watch.runs["."].rows == RunFolder(folder).rows()
    with open(folder / "clients.csv") as file:
        kept = {line["client"]: float(line["accuracy"]) for line in csv.DictReader(file)}
    shown = {site.name: site.score for site in run.sites}
    assert shown == pytest.approx(kept, abs=1e-5)
    assert len(run.site_scores.rounds) > 10  # as checkpoints came
