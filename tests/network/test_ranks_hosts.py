"""torchrun on two hosts, each a network namespace with its own folder: docs/ranks.md in earnest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie as ct
from coterie.cli import main
from machines import environment, namespaces_are_permitted, wait_for
from test_contract import same_bits

pytestmark = [pytest.mark.slow, pytest.mark.network]
RUN = (
    "run ditto --clients 8 --samples 12 --local-steps 2 --model mlp:12 --eval-every 1000 "
    "--dtype float64"
)
PAGE = Path(__file__).parent.parent.parent / "docs/ranks.md"
ADDRESS = "10.78.0"


def launches() -> list[str]:
    """What the page gives torchrun on each host, word for word."""
    found = re.findall(r"^torchrun (.+) -m coterie run", PAGE.read_text(), re.MULTILINE)
    assert len(found) == 2
    return found


class TwoHosts:
    """Two hosts with a cable between them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.number = os.getpid() % 100_000
        self.processes: list[subprocess.Popen] = []
        for host in (0, 1):
            (base / str(host)).mkdir()
            self.ip("netns", "add", self.space(host))
            self.inside(host, "link", "set", "lo", "up")
        self.ip("link", "add", self.end(0), "type", "veth", "peer", "name", self.end(1))
        for host in (0, 1):
            self.ip("link", "set", self.end(host), "netns", self.space(host))
            address = f"{ADDRESS}.{host + 1}/24"
            self.inside(host, "addr", "add", address, "dev", self.end(host))
            self.inside(host, "link", "set", self.end(host), "up")

    def space(self, host: int) -> str:
        return f"coterie-{self.number}-rank{host}"

    def end(self, host: int) -> str:
        return f"r{self.number}h{host}"

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def inside(self, host: int, *words: str) -> None:
        self.ip("netns", "exec", self.space(host), "ip", *words)

    def start(self, line: str, log: str, **variables: str) -> None:
        """Start torchrun on both hosts, with these variables of the environment."""
        self.processes = []
        for host in (0, 1):
            launch = launches()[host].replace("node0", f"{ADDRESS}.1").split()
            words = [sys.executable, "-m", "torch.distributed.run", *launch, "-m"]
            with open(self.base / str(host) / log, "wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", self.space(host), *words, "coterie", *line.split()],
                        cwd=self.base / str(host), env={**environment(), **variables},
                        stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                    )
                )  # fmt: skip

    def statuses(self, seconds: float = 600) -> list[int]:
        return [process.wait(seconds) for process in self.processes]

    def log(self, host: int, log: str) -> str:
        return (self.base / str(host) / log).read_text()

    def rounds(self) -> int:
        file = self.base / "0/run/metrics.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    def rank_of(self, host: int) -> int:
        """The process of the rank on a host."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                folder = os.readlink(entry / "cwd")
            except OSError:
                continue
            is_rank = b"-m" in words and words[words.index(b"-m") + 1] == b"coterie"
            if is_rank and folder == str(self.base / str(host)):
                return int(entry.name)
        raise AssertionError(f"host {host} has no rank")

    def close(self) -> None:
        for process in self.processes:
            process.terminate()  # torchrun then ends its ranks, which kill would leave
            process.wait(120)
        for host in (0, 1):
            subprocess.run(["ip", "netns", "del", self.space(host)], capture_output=True)


@pytest.fixture
def hosts(tmp_path) -> Iterator[TwoHosts]:
    if not namespaces_are_permitted():
        pytest.skip("network namespaces are not permitted here")
    hosts = TwoHosts(tmp_path)
    yield hosts
    hosts.close()


def straight(folder: Path, rounds: int) -> ct.Result:
    """The same run in one process."""
    words = f"{RUN} --rounds {rounds} --quiet --out {folder}"
    assert main(words.split()) == 0
    return ct.load(folder)


def test_two_hosts_are_one_process_and_a_killed_rank_changes_nothing(hosts, tmp_path):
    """Rank 1 is killed in the middle; the same command with resume goes on to the same bits."""
    hosts.start(f"{RUN} --rounds 60 --out run", "never-stopped")
    assert hosts.statuses() == [0, 0], hosts.log(0, "never-stopped")
    assert not (tmp_path / "1/run").exists(), "rank 0 alone writes"
    never_stopped = ct.load(tmp_path / "0/run")
    one = straight(tmp_path / "one", 60)
    for a, b in zip(never_stopped.state.values(), one.state.values(), strict=True):
        assert (a - b).norm() <= 1e-9 * b.norm()
    (tmp_path / "0/run").rename(tmp_path / "0/first")

    hosts.start(f"{RUN} --rounds 60 --out run", "killed")
    wait_for(lambda: hosts.rounds() >= 5, 400, "round 5")
    os.kill(hosts.rank_of(1), 9)
    assert 0 not in hosts.statuses(200)
    log = hosts.log(0, "killed")
    assert "rank 1 (" in log and "ended before the run did" in log
    assert "coterie resume run" in log
    assert hosts.rounds() < 60, "it was killed before the end"

    hosts.start("resume run", "resumed")
    assert hosts.statuses() == [0, 0], hosts.log(0, "resumed")
    assert same_bits(ct.load(tmp_path / "0/run").state, never_stopped.state)


def test_a_rank_that_cannot_reach_rank_0_is_named_by_both(hosts):
    hosts.start(f"{RUN} --rounds 2 --out run", "log", GLOO_SOCKET_IFNAME="lo")
    assert 0 not in hosts.statuses()
    for host in (0, 1):
        assert "coterie: rank 1 cannot reach rank 0 at 127.0.0.1:" in hosts.log(host, "log")
    assert not (hosts.base / "0/run").exists()


def test_a_host_that_is_cut_off_stops_the_run(hosts):
    hosts.start(f"{RUN} --rounds 100000 --out run", "log")
    wait_for(lambda: hosts.rounds() >= 5, 400, "round 5")
    began = time.monotonic()
    hosts.inside(1, "link", "set", hosts.end(1), "down")
    assert hosts.processes[0].wait(120) != 0
    assert time.monotonic() - began < 100
    assert "rank 1 (" in hosts.log(0, "log") and "coterie resume run" in hosts.log(0, "log")
    assert hosts.processes[1].wait(120) != 0, "the other host ends, too"
