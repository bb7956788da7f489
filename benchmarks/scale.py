"""Time and memory against the number of clients, groups and features.

    python benchmarks/scale.py                     every part, and benchmarks/results/scale.md
    python benchmarks/scale.py clients groups      some parts, by name
    python benchmarks/scale.py --largest 100000    smaller, to try it

Every point is a process of its own. It creates its data, runs a small problem that loads the
libraries, and then IFCA with 5 local steps on full batches. The cost of a client-step is the time
of the rounds after the first, without evaluations, divided by all steps of participating clients.
Memory is the peak of the process minus its memory before the run, which includes the data. It is
measured at the start (round 0, in which every participating client sends a sketch of its update),
in the rounds, and at the end (the last round with its evaluation, membership confidence, the
checkpoint and the tables of clients).

Results of each part are saved in benchmarks/results/scale.json, so that parts can be run one by
one; the page and its figures are generated from it.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

import coterie as ct
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from scale_page import MEGABYTE, PARTS, RESULTS, write_page

STEPS = 5
LARGEST = 1_000_000


class Point(NamedTuple):
    """One run."""

    clients: int
    participation: float = 1.0
    groups: int = 4
    features: int = 10
    rows: int = 20  # of each client
    model: str = "linear"
    rounds: int = 4


def points(part: str, largest: int) -> list[Point]:
    """The runs of a part."""
    numbers = [n for n in (10_000, 100_000, 1_000_000) if n <= largest]
    middle = min(largest, 100_000)
    few = min(largest, 10_000)
    if part == "clients":
        return [Point(n, share) for share in (1.0, 0.01) for n in numbers]
    if part == "groups":
        return [Point(middle, groups=k) for k in (2, 4, 8, 16)]
    if part == "features":
        return [Point(few, features=d) for d in (10, 30, 100, 300, 1000)]
    return [
        Point(n, 0.01, features=784, model="mlp", rounds=3)
        for n in (10_000, 30_000, 100_000)
        if n <= largest
    ]


# ------------------------------------------------------------------------------ one run
def forget_peak() -> None:
    """Measure the peak of memory from here on, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """Peak memory of this process since `forget_peak`, in MB."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def lines(point: Point) -> ct.data.Federation:
    """Create linear regressions with planted groups, some clients at a time."""
    n, rows, d = point.clients, point.rows, point.features
    g = torch.Generator().manual_seed(0)
    planted = torch.randn(point.groups, d, generator=g) / d**0.5
    truth = torch.arange(n) % point.groups
    x, y = torch.empty(n * rows, d), torch.empty(n * rows)
    for first in range(0, n, 10_000):
        some = truth[first : first + 10_000].repeat_interleave(rows)
        at = slice(first * rows, first * rows + len(some))
        x[at] = torch.randn(len(some), d, generator=g)
        noise = 0.1 * torch.randn(len(some), generator=g)
        y[at] = (x[at] * planted[some]).sum(1) + noise
    train = ct.data.Ragged(x, y, torch.full((n,), rows))
    test = ct.data.Ragged(x[: 2 * n], y[: 2 * n], torch.full((n,), 2))
    names = tuple(f"c{i:07d}" for i in range(n))
    return ct.data.Federation(names, train, test, "regression", None, truth=truth)


def images(point: Point) -> Iterator[tuple[Any, ...]]:
    """Random byte images of ten classes, client by client."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(point.rows) % 10
    for i in range(point.clients):
        x = torch.randint(256, (point.rows, 784), generator=g, dtype=torch.uint8)
        yield f"c{i:07d}", (x, y), (x[:2], y[:2])


def start(point: Point, fed: ct.data.Federation, out: Path | None = None) -> Run:
    """Prepare a run that evaluates a sample of the clients at the start and the end."""
    method = ct.IFCA(clusters=point.groups, lr=0.05, local_steps=STEPS)
    return prepare_run(
        method,
        fed,
        point.model,
        out=out,
        rounds=point.rounds,
        participation=point.participation,
        eval_every=point.rounds,
        eval_clients=min(1_000, point.clients),
    )


def measure(point: Point, folder: Path) -> dict[str, float]:
    """Measure time and memory of a run in this process."""
    written = 0.0
    if point.model == "mlp":
        began = time.perf_counter()
        ct.data.store(images(point), folder / "images", byte_scale=255)
        written = time.perf_counter() - began
        began = time.perf_counter()
        fed = ct.data.open_store(str(folder / "images"))
    else:
        fed = lines(point)
        began = time.perf_counter()
    opened = time.perf_counter() - began
    for _ in start(point, fed.subset(range(100))).rounds():
        pass
    forget_peak()
    before = peak()
    began = time.perf_counter()
    run = start(point, fed, folder / "run")
    prepared = time.perf_counter() - began
    run.step()
    in_start = peak()
    forget_peak()
    cpu = time.process_time()
    rows = [run.step() for _ in range(point.rounds - 1)]
    cpu = time.process_time() - cpu
    in_rounds = peak()
    forget_peak()
    began = time.perf_counter()
    run.train()  # the last round, membership confidence, the checkpoint and the tables
    finished = time.perf_counter() - began
    steps = STEPS * max(1, round(point.participation * point.clients)) * len(rows)
    parts = fed.parts().values()
    return {
        "data": sum(part.x.nbytes + part.y.nbytes for part in parts) / MEGABYTE,
        "written": written,
        "opened": opened,
        "prepared": prepared,
        "seconds": sum(row["seconds"] for row in rows) / steps,
        "cpu": cpu / steps,
        "finished": finished,
        "before": before,
        "start": in_start,
        "peak": in_rounds,
        "end": peak(),
    }


def run_point(point: Point) -> dict[str, Any]:
    """Measure a run in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="coterie-scale-") as folder:
        words = [sys.executable, __file__, "--point", json.dumps(point), "--folder", folder]
        last = subprocess.check_output(words, text=True).splitlines()[-1]
    return {**point._asdict(), **json.loads(last)}


# ------------------------------------------------------------------------------ results
def describe(m: dict[str, Any]) -> str:
    """Return a measurement as one line."""
    return (
        f"{m['clients']:9,d} clients at {m['participation']:.0%}, K={m['groups']}, "
        f"d={m['features']}: {1e6 * m['seconds']:.2f} µs a client-step "
        f"({1e6 * m['cpu']:.2f} of CPU), prepared in {m['prepared']:.1f} s, data {m['data']:,.0f} "
        f"MB, rounds {m['peak'] - m['before']:,.0f} MB more, the end {m['finished']:.1f} s"
    )


def main() -> None:
    """Measure the given parts and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--largest", type=int, default=LARGEST, help="number of clients")
    parser.add_argument("--note", default="", help="a remark for the page, such as a busy machine")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.point is not None:
        print(json.dumps(measure(Point(*json.loads(args.point)), args.folder)))
        return
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"there is no part {part}: choose of {', '.join(PARTS)}")
    file = RESULTS / "scale.json"
    when = f"{time.strftime('%Y-%m-%d')}, {torch.get_num_threads()} threads, {platform.machine()}"
    if args.note:
        when += f"; {args.note}"
    for part in args.parts or PARTS:
        measured = []
        for point in points(part, args.largest):
            measured.append(run_point(point))
            print(f"{part:8s} {describe(measured[-1])}", flush=True)
        kept = json.loads(file.read_text()) if file.exists() else {}
        command = f"python benchmarks/scale.py {part}"
        if args.largest != LARGEST:
            command += f" --largest {args.largest}"
        kept[part] = {"command": command, "when": when, "measured": measured}
        file.write_text(json.dumps(kept, indent=1) + "\n")
        write_page(kept)


if __name__ == "__main__":
    main()
