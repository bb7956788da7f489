"""Tables of sites, and real processes: a server and its nodes, or peers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.network.connections import free_port

NAMES = ("ash", "birch", "cedar", "elm", "fir", "oak")


def write_tables(folder: Path, names: tuple[str, ...] = NAMES) -> Path:
    """A CSV file per site: two numbers, a text with a rare value, and a label of three classes."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        rng = np.random.default_rng(i)
        rows = 14 + 3 * i
        a, b = rng.normal(size=(2, rows))
        sign = 1 if i % 2 else -1
        colour = rng.choice(["red", "blue", "green"], rows)
        label = np.where(sign * a + 0.3 * b > 0.4, "high", np.where(sign * a > -0.4, "mid", "low"))
        lines = [f"{x:.6f},{y:.6f},{c},{t}" for x, y, c, t in zip(a, b, colour, label)]
        (folder / f"{name}.csv").write_text("a,b,colour,outcome\n" + "\n".join(lines) + "\n")
    return folder


def small_config(method: str, rounds: int, *more: str) -> str:
    """A config file for these tables; more: lines of it."""
    lines = [
        f'method = "{method}"',
        f"rounds = {rounds}",
        "seed = 1",
        'label = "outcome"',
        'data = "folder:sites"',
        'model = "mlp:4"',
        'dtype = "float64"',
        *more,
    ]
    return "\n".join(lines) + "\n"


def environment() -> dict[str, str]:
    source = str(Path(ct.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def start(place: Path, *words: str, log: str) -> subprocess.Popen:
    """A command in a process of its own."""
    with open(place / log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "coterie", "network", *words],
            cwd=place, env=environment(), stdout=output, stderr=output, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def wait_for(condition, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} seconds"
        time.sleep(0.05)


def diary_lines(place: Path) -> int:
    file = place / "run/diary.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0


def processes_of(place: Path, command: str) -> list[int]:
    """Processes of `coterie network COMMAND` that run in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            folder = os.readlink(entry / "cwd")
        except OSError:
            continue
        if command.encode() in words and folder == str(place):
            found.append(int(entry.name))
    return found


def distance(a, b) -> float:
    """Largest difference, relative to the largest number of each leaf."""
    gaps = []
    for u, v in zip(tree_leaves(a), tree_leaves(b), strict=True):
        difference = (u.double() - v.double()).abs().max()
        gaps.append(float(difference / (v.double().abs().max() + 1e-9)))
    return max(gaps)


def namespaces_are_permitted() -> bool:
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"coterie-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    if made.returncode:
        return False
    inside = subprocess.run(["ip", "netns", "exec", name, "true"], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return inside.returncode == 0


class Machines:
    """A server and its nodes as processes, with certificates."""

    def __init__(self, place: Path, config: str, deadline: float, names: tuple[str, ...]) -> None:
        self.place = place
        self.names = names
        (place / "net.toml").write_text(config)
        words = ("certs", "certs", "--host", "127.0.0.1", "--sites", ",".join(names))
        assert start(place, *words, log="certs.log").wait(60) == 0
        self.port = str(free_port())
        self.deadline = str(deadline)
        self.server = self.start_server()
        self.nodes = {name: self.start_node(name) for name in names}

    def start_server(self, *more: str) -> subprocess.Popen:
        return start(
            self.place, "server", "net.toml", "--out", "run", "--host", "127.0.0.1",
            "--port", self.port, "--deadline", self.deadline, *more, log="server.log",
        )  # fmt: skip

    def start_node(self, name: str) -> subprocess.Popen:
        return start(self.place, *self.node_words(name), log=f"{name}.log")

    def node_words(self, name: str) -> list[str]:
        return [
            "node", "--data", f"sites/{name}.csv",
            "--server", f"127.0.0.1:{self.port}", "--key", f"certs/{name}.pem",
            "--state", f"states/{name}", "--exact", "1",
        ]  # fmt: skip

    def kill_server(self) -> None:
        """Kill it, and go on with the run."""
        self.server.kill()
        self.server.wait()
        self.server = self.start_server("--resume")

    def kill_node(self, name: str) -> None:
        """Kill it, and start it again."""
        self.nodes[name].kill()
        self.nodes[name].wait()
        self.nodes[name] = self.start_node(name)

    @property
    def log(self) -> str:
        return (self.place / "server.log").read_text()

    def wait_for_exchanges(self, number: int) -> None:
        until = diary_lines(self.place) + number
        wait_for(lambda: diary_lines(self.place) >= until, 120, f"{number} exchanges")

    def ends_well(self) -> None:
        assert self.server.wait(400) == 0, self.log

    def stop(self) -> None:
        for process in (self.server, *self.nodes.values()):
            process.kill()
            process.wait()
