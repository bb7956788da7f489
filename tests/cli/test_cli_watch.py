"""`coterie watch` as a command: its address, its end, and what it refuses."""

from __future__ import annotations

import builtins
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

WATCH = [sys.executable, "-m", "coterie", "watch"]


@pytest.fixture
def run(coterie, tiny):
    outcome = coterie("run ifca --clusters 2", tiny, "--rounds 3 --out out")
    assert outcome.status == 0, outcome.err
    return "out"


def test_the_page_of_a_run_is_served_until_ctrl_c(run, tmp_path):
    process = subprocess.Popen(
        [*WATCH, run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(
            r"out is shown at (http://127\.0\.0\.1:\d+/) with the token in (.+)\n", line
        )
        assert match is not None, line
        file = Path(match[2])
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(token) >= 20
        asked = urllib.request.Request(match[1], headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert "3 of 3" in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(match[1], timeout=20)
        stream = urllib.request.urlopen(
            urllib.request.Request(match[1] + "events", headers=dict(asked.header_items())),
            timeout=20,
        )
        assert stream.readline() == b"event: board\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (out, err, process.returncode) == ("", "coterie: stopped.\n", 130)
    assert time.monotonic() - began < 10
    assert not file.exists()


def test_what_cannot_be_watched_is_one_sentence(coterie, tmp_path):
    (tmp_path / "empty").mkdir()
    for words, sentence in {
        "watch": "wrong number of names: write coterie watch RUN, such as coterie watch runs/mine.",
        "watch a b": "wrong number of names: write coterie watch RUN",
        "watch nowhere": "there is no folder nowhere: give the folder of a run.",
        "watch empty": "empty is not a run folder: it has no config.json that can be read",
        "watch empty --port 70000": "port is 70000: it must be ≤ 65535.",
        "watch empty --port x": "--port is 'x': it must be a whole number",
        "watch empty --poort 1": "unknown flag '--poort': did you mean '--port'?",
    }.items():
        outcome = coterie(words)
        assert outcome.status == 2 and outcome.err.count("\n") == 1, words
        assert outcome.err.startswith(f"coterie: {sentence}"), outcome.err


def test_ports_hosts_and_tokens_that_cannot_be_are_one_sentence(coterie, run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for flags, sentence in {
            f"--port {port}": f"port {port} of 127.0.0.1 is in use: give another --port, or 0 for",
            "--host 192.0.2.1": "host '192.0.2.1' is not an address of this machine: leave",
            "--token short": "the token must have at least 8 letters, digits or any of - _ . ~",
        }.items():
            outcome = coterie(f"watch out {flags}")
            assert outcome.status == 2 and outcome.err.count("\n") == 1, outcome.err
            assert outcome.err.startswith(f"coterie: {sentence}"), outcome.err


def test_a_missing_extra_is_named(coterie, run, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "aiohttp":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    for module in [
        m
        for m in sys.modules
        if m.startswith(("coterie.reporting.live.server", "coterie.reporting.live.s"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    outcome = coterie("watch out")
    assert outcome.status == 2
    assert outcome.err == ("coterie: the live page needs aiohttp: pip install 'coterie[watch]'.\n")


def test_the_token_may_stand_in_the_environment_and_the_network_is_warned_of(
    run, coterie, monkeypatch
):
    monkeypatch.setenv("COTERIE_TOKEN", "from-the-environment")
    shown = []
    monkeypatch.setattr(
        "coterie.reporting.live.server.LiveServer.run",
        lambda self: shown.append(self.socket.close()),
    )
    outcome = coterie("watch out --host 0.0.0.0")
    assert outcome.status == 0 and shown == [None]
    assert outcome.out.endswith("/ with the token in COTERIE_TOKEN\n")
    assert f"http://{socket.gethostname()}:" in outcome.out
    assert "warning: the page is served to the network without encryption" in outcome.err
    assert os.environ["COTERIE_TOKEN"] not in outcome.out + outcome.err


def test_a_terminal_gets_the_address_with_the_token(run, coterie, monkeypatch):
    monkeypatch.setattr(
        "coterie.reporting.live.server.LiveServer.run", lambda self: self.socket.close()
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    outcome = coterie("watch out --token a-token-of-mine")
    assert outcome.status == 0 and outcome.out.endswith("/?token=a-token-of-mine\n")
