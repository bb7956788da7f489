"""A server under load: its memory over 2,000 exchanges, and an exchange with 100 light nodes.

    python benchmarks/network_load.py

First four nodes on this machine train a small model for 2,000 rounds; the memory of the server and
of each node is drawn as docs/images/network-memory.svg. Then 100 clients without torch, threads of
this process, reply to requests of 100 kB with as many bytes. It writes results/network_load.md
beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from coterie.network.certificates import make_authority, register_site
from coterie.network.connections import LOOPBACK, free_port
from coterie.network.https_node import ServerConnection, client_context
from coterie.network.https_server import HttpsServer
from coterie.network.packets import Packet
from machine import processor_name
from process_watch import resident

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
WARM_UP = 200  # exchanges after which memory should stay the same
LIGHT, LIGHT_BYTES, LIGHT_EXCHANGES = 100, 100_000, 20


# ------------------------------------------------------------------------------ memory
def soak(place: Path, exchanges: int) -> dict[str, list[tuple[int, float]]]:
    """Train with four nodes; return (exchange, MB) of each process by name."""
    from machines import NAMES, Machines, diary_lines, small_config, write_tables

    names = NAMES[:4]
    write_tables(place / "sites", names)
    config = small_config(
        "ifca", exchanges, "clusters = 2", "eval_every = 100000", "local_steps = 1"
    )
    machines = Machines(place, config, deadline=60, names=names)
    memory: dict[str, list[tuple[int, float]]] = {name: [] for name in ("server", *names)}
    try:
        while machines.server.poll() is None:
            done = diary_lines(place)
            for name, process in {"server": machines.server, **machines.nodes}.items():
                if done and process.poll() is None:
                    memory[name].append((done, resident(Path(f"/proc/{process.pid}"))))
            time.sleep(2.0)
        machines.ends_well()  # raises if the run failed
    finally:
        machines.stop()
    return memory


def draw(memory: dict[str, list[tuple[int, float]]], file: Path) -> None:
    """Draw the memory of each process."""
    plt.rcParams.update({"svg.hashsalt": "coterie", "font.size": 10})
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for name, points in memory.items():
        label = name if name == "server" else f"node of {name}"
        axes.plot(*zip(*points), label=label, linewidth=2 if name == "server" else 1)
    axes.set(xlabel="exchange", ylabel="resident memory, MB", ylim=(0, None), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3)
    figure.savefig(file, metadata={"Date": None})


def growth(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Return the median memory after the warm-up and in the last tenth, in MB."""
    last = points[-1][0]
    early = [mb for done, mb in points if WARM_UP <= done <= 2 * WARM_UP]
    late = [mb for done, mb in points if done >= 0.9 * last]
    return statistics.median(early), statistics.median(late)


# ------------------------------------------------------------------------------ light nodes
def light_nodes(place: Path) -> list[float]:
    """Return the seconds of each exchange with many light nodes."""
    make_authority(place, LOOPBACK)
    names = [f"site{i:03d}" for i in range(LIGHT)]
    for name in names:
        register_site(place, name)
    packet = Packet(b"a head", {"upload": bytes(LIGHT_BYTES)})
    seconds = []
    with closing(HttpsServer(LOOPBACK, free_port(), place)) as server:

        def answer(name: str) -> None:
            context = client_context(place / f"{name}.pem")
            site = ServerConnection(f"{LOOPBACK}:{server.port}", context)
            for _ in range(LIGHT_EXCHANGES):
                while (request := site.receive()) is None:
                    pass
                site.reply(request.number, request.packet)

        for begin in range(0, LIGHT, 25):  # not more at once than one address may open
            for name in names[begin : begin + 25]:
                threading.Thread(target=answer, args=(name,), daemon=True).start()
            while len(server.connections()) < begin + 25:
                time.sleep(0.05)
        for _ in range(LIGHT_EXCHANGES):
            start = time.perf_counter()
            server.send(dict.fromkeys(names, packet))
            replies = 0
            while replies < LIGHT:
                replies += len(server.receive(1.0))
            seconds.append(time.perf_counter() - start)
    return seconds


# ------------------------------------------------------------------------------ the page
def main() -> None:
    """Measure, draw and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--exchanges", type=int, default=2000)
    parser.add_argument("--out", default=str(HERE / "results" / "network_load.md"))
    parser.add_argument("--figure", default=str(HERE.parent / "docs/images/network-memory.svg"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coterie-load-") as folder:
        light = light_nodes(Path(folder) / "light")
        print(f"{LIGHT} light nodes: {statistics.median(light):.2f} s", flush=True)
        (Path(folder) / "soak").mkdir()
        memory = soak(Path(folder) / "soak", asked.exchanges)
    draw(memory, Path(asked.figure))
    lines = [
        "# A server under load",
        "",
        f"`{' '.join(['python', 'benchmarks/network_load.py', *sys.argv[1:]])}`, "
        f"{datetime.date.today()} ({processor_name()}).",
        "",
        f"**Memory.** Four nodes, {asked.exchanges:,} exchanges of IFCA with small models. "
        f"Resident memory in MB: median of exchanges {WARM_UP} to {2 * WARM_UP}, and of the last "
        "tenth.",
        "",
        "| process | early | late |",
        "| --- | ---: | ---: |",
    ]
    for name, points in memory.items():
        early, late = growth(points)
        lines.append(f"| {name} | {early:.0f} | {late:.0f} |")
    lines += [
        "",
        f"**{LIGHT} light nodes**, which reply to {LIGHT_BYTES // 1000} kB with as many bytes: an "
        f"exchange takes {statistics.median(light):.2f} s (median of {LIGHT_EXCHANGES}; most "
        f"{max(light):.2f} s), with all nodes as threads of the server's process.",
        "",
    ]
    text = "\n".join(lines)
    print(text)
    Path(asked.out).write_text(text)


if __name__ == "__main__":
    main()
