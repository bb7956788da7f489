"""The command as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COTERIE = [sys.executable, "-m", "coterie.cli"]


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], ["run", "--help"], ["compare", "--help"]]
)
def test_help_does_not_load_torch(argv):
    code = (
        f"import sys; from coterie.cli import main; main({argv}); sys.exit('torch' in sys.modules)"
    )
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
    assert time.monotonic() - began < 5  # about 0.1 s on an idle machine


def test_listing_loads_only_what_it_needs():
    code = (
        "import sys; from coterie.cli import main; main(['list']); "
        "print([m for m in ('sklearn', 'scipy', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).endswith("\n[]\n")


def test_interrupt_saves_and_resume_finishes(tmp_path):
    flags = ["--clients", "8", "--samples", "12", "--rounds", "100000", "--model", "softmax"]
    process = subprocess.Popen(
        [*COTERIE, "run", "fedavg", *flags, "--out", "out"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = Path(tmp_path / "out" / "metrics.jsonl")
    while not (metrics.exists() and metrics.read_text().count("\n") > 3):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "saved; go on with: coterie resume out" in err and "Traceback" not in err
    done = metrics.read_text().count("\n")
    more = [*COTERIE, "resume", "out", "--json", "--rounds", str(done + 2)]
    said = subprocess.run(more, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["runs"][0]["rounds"] == done + 2
    assert [json.loads(row)["round"] for row in metrics.read_text().splitlines()] == list(
        range(done + 3)
    )


def test_a_reader_that_goes_away_is_no_error():
    process = subprocess.Popen(
        [*COTERIE, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) in (0, 141)
