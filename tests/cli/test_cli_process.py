"""The command as a process of its own: what it imports, Ctrl-C, and readers that go away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

COTERIE = [sys.executable, "-m", "coterie"]


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["compare", "--help"],
        ["network", "certs", "--help"],
        ["network", "pause", "--help"],
    ],
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


def test_interrupt_saves_and_resume_finishes(coterie, coterie_with_signal, tiny, tmp_path):
    outcome = coterie_with_signal(
        "run fedavg", tiny, "--rounds 100 --out out",
        number=signal.SIGINT, at=lambda run: run.round == 3,
    )  # fmt: skip
    assert outcome.status == 130, outcome.err
    assert outcome.err.endswith("coterie: saved; continue with: coterie resume out\n")
    assert "Traceback" not in outcome.err
    metrics = tmp_path / "out" / "metrics.jsonl"
    done = metrics.read_text().count("\n")
    assert done == 4, "the round is finished, and no more"
    outcome = coterie("resume out --json --rounds", done + 2)
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["runs"][0]["rounds"] == done + 2
    rounds = [json.loads(row)["round"] for row in metrics.read_text().splitlines()]
    assert rounds == list(range(done + 3))


def test_interrupt_during_imports_is_one_line(tmp_path):
    """As half an import of numpy by torch, which ends in another error than that of Ctrl-C."""
    code = (
        "import os, signal, sys, coterie.cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'numpy':\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "            except KeyboardInterrupt:\n"
        "                raise ImportError('cannot load module more than once per process')\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['coterie', 'run', 'fedavg']\n"
        "sys.exit(coterie.cli.main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert (ended.returncode, ended.stderr) == (130, b"coterie: stopped.\n")
    assert os.listdir(tmp_path) == []


def test_ctrl_c_again_and_again_is_one_line():
    """After the first, others must not break the exit."""
    code = (
        "import atexit, os, signal, sys, coterie.cli\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "def stop(argv): raise KeyboardInterrupt\n"
        "coterie.cli.dispatch = stop\n"
        "sys.exit(coterie.cli.main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (ended.returncode, ended.stderr) == (130, b"coterie: stopped.\n")


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"]])
def test_a_reader_that_goes_away_is_no_error(argv):
    process = subprocess.Popen(
        [*COTERIE, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) in (0, 141)
