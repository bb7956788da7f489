"""Strangers and a registered site attack a server of real processes during a run."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import coterie as ct
from coterie.network.connections import LOOPBACK
from coterie.network.https_node import ServerConnection, client_context
from machines import NAMES, Machines, environment, small_config, wait_for, write_tables

pytestmark = [pytest.mark.slow, pytest.mark.network]
ROUNDS = 12
LIMITED = "import resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (200, 200)); " + (
    "from coterie.cli import main; sys.exit(main(sys.argv[1:]))"
)


def memory(process: subprocess.Popen) -> float:
    """The resident memory of a process in MB."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class AttackedMachines(Machines):
    """Six nodes, and a server that may open few files; a seventh site attacks."""

    def __init__(self, place: Path) -> None:
        config = small_config("ditto", ROUNDS, "local_steps = 20")
        super().__init__(place, config, deadline=60, names=NAMES)

    def start_server(self, *more: str) -> subprocess.Popen:
        words = [
            "network", "server", "net.toml", "--out", "run", "--host", LOOPBACK, "--port",
            self.port, "--deadline", self.deadline, *more,
        ]  # fmt: skip
        with open(self.place / "server.log", "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-c", LIMITED, *words],
                cwd=self.place, env=environment(), stdout=output, stderr=output,
            )  # fmt: skip


@pytest.fixture
def machines(tmp_path):
    write_tables(tmp_path / "sites")
    machines = AttackedMachines(tmp_path)
    yield machines
    machines.stop()


def flood(port: int, connections: int, ended: threading.Event) -> None:
    """Open connections that send nothing, or noise, and keep them."""
    held = []
    for i in range(connections):
        with suppress(OSError):
            stranger = socket.create_connection((LOOPBACK, port), 5)
            if i % 2:
                stranger.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * 1000)
            held.append(stranger)
    ended.wait()
    for stranger in held:
        stranger.close()


def send_headers(port: int, file: Path, megabytes: int) -> None:
    """Send headers without end with the certificate of a site, over many connections."""
    context = client_context(file)
    sent = 0
    while sent < megabytes * 1e6:
        sent += 1_000_000  # of this attempt, or as much as the server takes
        with suppress(OSError):
            plain = socket.create_connection((LOOPBACK, port), 5)
            with context.wrap_socket(plain, server_hostname=LOOPBACK) as site:
                site.sendall(b"GET /request HTTP/1.1\r\nHost: x\r\n")
                for _ in range(250):
                    site.sendall(b"X-Header: " + b"y" * 4000 + b"\r\n")


def attack_as_site(port: int, file: Path, ended: threading.Event) -> None:
    """Reply to nothing, at wrong lengths, and to requests of others."""
    context = client_context(file)
    while not ended.wait(0.05):
        for headers in ({"Coterie-Request": "1"}, {"Coterie-Request": "-1"}, {}):
            with suppress(Exception):
                site = ServerConnection(f"{LOOPBACK}:{port}", context)
                site.http.request("POST", "/reply", b"x" * 100_000, headers)
                site.http.getresponse().read()
                site.close()


def test_a_flood_of_strangers_and_a_hostile_site_change_nothing(machines, tmp_path):
    """2,000 connections, 500 MB of headers, replies that nobody asked for."""
    words = ("certs", "certs", "--sites", "mallory")
    wait_for(lambda: (tmp_path / "run/diary.jsonl").exists(), 120, "the first exchange")
    subprocess.run(
        [sys.executable, "-m", "coterie", "network", *words],
        cwd=tmp_path, env=environment(), check=True,
    )  # fmt: skip
    before = memory(machines.server)
    ended = threading.Event()
    port, file = int(machines.port), tmp_path / "certs/mallory.pem"
    attackers = [
        threading.Thread(target=flood, args=(port, 1000, ended), daemon=True),
        threading.Thread(target=flood, args=(port, 1000, ended), daemon=True),
        threading.Thread(target=send_headers, args=(port, file, 500), daemon=True),
        threading.Thread(target=attack_as_site, args=(port, file, ended), daemon=True),
    ]
    for attacker in attackers:
        attacker.start()
    most = before
    while machines.server.poll() is None:
        with suppress(OSError):
            most = max(most, memory(machines.server))
        ended.wait(0.2)
    ended.set()
    assert machines.server.wait() == 0, machines.log
    result = ct.load(tmp_path / "run")
    assert result.trained.round == ROUNDS and result.trained.roster.names == NAMES
    audit = [json.loads(line) for line in (tmp_path / "run/audit.jsonl").read_text().splitlines()]
    honest = [line for line in audit if line["site"] in NAMES]
    assert {line["result"] for line in honest} == {"accepted"}, "every round, within its deadline"
    assert most - before < 100, f"{most - before:.0f} MB"
    lines = re.findall(r"(\S+(?: at \S+)?) was refused: ", machines.log)
    minutes = max(float(e["seconds"] or 0) for e in honest) * len(honest) / 60 + 3
    for party in set(lines):
        assert lines.count(party) <= minutes, f"{party} has {lines.count(party)} lines"
    assert "Traceback" not in machines.log and "open files" not in machines.log
