"""Cost of `coterie watch` during a run of 200 sites with one round per second.

Also measures how long it takes to draw the page of a long run.

    python benchmarks/live_page.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np

import coterie as ct
from coterie.reporting.live.folder import WatchedFolder
from coterie.reporting.live.page import render_sections
from coterie.runs.start import create_job

SITES = 200
ROUNDS = 1000
SECONDS = 60  # of each measurement


def sites() -> ct.data.Federation:
    """Write tables of four kinds of sites, with 60 rows each."""
    rng = np.random.default_rng(0)
    clients = {}
    for i in range(SITES):
        x = rng.normal(size=(60, 6)).astype("float32")
        y = x[:, i % 4] > x[:, (i + 1) % 4]
        clients[f"clinic {i}"] = (x, y.astype("int64"))
    return ct.data.from_memory(clients, test_share=0.25, seed=0)


def train(folder: Path, stop: threading.Event) -> None:
    """Train with a pause of a second after each round."""
    method = ct.IFCA(clusters=4, lr=0.02, local_steps=2)
    job = create_job(method, sites(), "softmax", rounds=ROUNDS, eval_every=2, participation=0.5)
    run = job.start()
    run.folder = job.create_folder(folder)
    for row in run.rounds():
        run.folder.append(row)
        run.save(always=run.round == 0)
        if stop.wait(1.0):
            return


def cpu_seconds(process: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(process: int) -> int:
    """Return the memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+)", status)
    assert match is not None
    return int(match[1]) // 1024


class Reader(threading.Thread):
    """An open page: reads all events and counts their bytes."""

    def __init__(self, address: str, token: str) -> None:
        super().__init__(daemon=True)
        headers = {"Authorization": f"Bearer {token}"}
        self.request = urllib.request.Request(f"{address}events", headers=headers)
        self.bytes = 0

    def run(self) -> None:
        """Read until the server ends."""
        with urllib.request.urlopen(self.request) as stream:
            for line in stream:
                self.bytes += len(line)


def measure(process: int, what: str, reader: Reader | None = None) -> None:
    """Print the fraction of a core that a process uses."""
    before = cpu_seconds(process)
    bytes_before = reader.bytes if reader else 0
    time.sleep(SECONDS)
    share = 100 * (cpu_seconds(process) - before) / SECONDS
    line = f"{what}: {share:.1f} % of a core, {megabytes(process)} MB"
    if reader is not None:
        line += f", {(reader.bytes - bytes_before) / SECONDS / 1000:.0f} kB per second"
    print(line, flush=True)


def draw_long_run(folder: Path) -> None:
    """Print the time to draw 1,000 rounds in which a tenth of the sites change groups."""
    made = create_job(ct.IFCA(clusters=4), sites(), "softmax", rounds=ROUNDS).create_folder(folder)
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 4, SITES)
    for r in range(ROUNDS):
        groups = np.where(rng.random(SITES) < 0.1, rng.integers(0, 4, SITES), groups)
        sent = {"bytes_down": 1000, "bytes_up": 1000, "rejected": []}
        made.append({"round": r, "seconds": 1.0, **sent, "groups": groups, "accuracy": r / ROUNDS})
    watched = WatchedFolder(folder)
    began = time.process_time()
    sections = render_sections(watched.dashboard())
    took = time.process_time() - began
    size = sum(map(len, sections.values())) / 1000
    print(f"{ROUNDS} rounds are drawn in {took:.2f} seconds, {size:.0f} kB", flush=True)


def main() -> None:
    """Train, watch, and measure the watching process."""
    with tempfile.TemporaryDirectory() as base:
        draw_long_run(Path(base) / "long")
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "run"
        training = threading.Thread(target=train, args=(folder, stop))
        training.start()
        while not (folder / "config.json").exists():
            time.sleep(0.1)
        command = [sys.executable, "-m", "coterie", "watch", str(folder)]
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert watching.stdout is not None
        match = re.search(r"(http://\S+/)\?token=(\S+)", watching.stdout.readline())
        assert match is not None
        measure(watching.pid, "nobody looks")
        reader = Reader(match[1], match[2])
        reader.start()
        time.sleep(2)
        measure(watching.pid, "one page is open", reader)
        watching.terminate()
        watching.wait()
        stop.set()
        training.join()


if __name__ == "__main__":
    main()
