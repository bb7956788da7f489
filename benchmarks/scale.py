"""Time and memory against the number of clients, groups and features.

    python benchmarks/scale.py                     every part, and benchmarks/results/scale.md
    python benchmarks/scale.py clients groups      some parts, by name
    python benchmarks/scale.py --largest 100000    smaller, to try it

Every point is a process of its own. It makes its data, runs a small problem that loads the
libraries, and then IFCA with 5 local steps on full batches. The cost of a client-step is the time
of the rounds after the first, without evaluations, over all steps of all clients that took part.
Memory is the peak of the process in these rounds, less what it was before the run, which the data
are part of. The end is the last round, with its evaluation, how sure memberships are, the
checkpoint and the tables of clients.

What a part measured is kept in benchmarks/results/scale.json, so that parts can be run one by one;
the page and its figures are made from that.
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
from pathlib import Path
from typing import Any, NamedTuple

import torch

import coterie as ct
from coterie.plots import COLOURS, FAINT, INK, new_figure, save
from coterie.runs.run import Run
from coterie.runs.start import prepare

RESULTS = Path(__file__).parent / "results"
STEPS = 5
MEGABYTE = 2**20
LARGEST = 1_000_000
LIMIT = 1.2  # of the cost of a client-step with the most clients, over that with the fewest


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


PARTS = {
    "clients": "linear model, 10 features, 20 rows a client, 4 groups",
    "groups": "linear model, 10 features, 20 rows a client, all clients in every round",
    "features": "linear model, 20 rows a client, 4 groups, all clients in every round",
    "store": "MLP 784-200-10 on byte images in a store on disk, 20 rows a client, 4 groups",
}


# ------------------------------------------------------------------------------ one run
def peak() -> float:
    """Peak memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def lines(point: Point) -> ct.data.Federation:
    """Linear regression with planted groups, made some clients at a time."""
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
    """A run that has not begun; a sample of the clients is evaluated, at the start and the end."""
    method = ct.IFCA(clusters=point.groups, lr=0.05, local_steps=STEPS)
    return prepare(
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
    """What a run takes, in this process."""
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
    before = peak()
    began = time.perf_counter()
    run = start(point, fed, folder / "run")
    prepared = time.perf_counter() - began
    run.step()
    cpu = time.process_time()
    rows = [run.step() for _ in range(point.rounds - 1)]
    cpu = time.process_time() - cpu
    in_rounds = peak()
    began = time.perf_counter()
    run.go()  # the last round, how sure memberships are, the checkpoint and the tables
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
        "peak": in_rounds,
        "peak_of_all": peak(),
    }


def run_point(point: Point) -> dict[str, Any]:
    """Measure a run in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="coterie-scale-") as folder:
        words = [sys.executable, __file__, "--point", json.dumps(point), "--folder", folder]
        last = subprocess.check_output(words, text=True).splitlines()[-1]
    return {**point._asdict(), **json.loads(last)}


# ------------------------------------------------------------------------------ results
def describe(m: dict[str, Any]) -> str:
    """A measurement in a line."""
    return (
        f"{m['clients']:9,d} clients at {m['participation']:.0%}, K={m['groups']}, "
        f"d={m['features']}: {1e6 * m['seconds']:.2f} µs a client-step "
        f"({1e6 * m['cpu']:.2f} of CPU), prepared in {m['prepared']:.1f} s, data {m['data']:,.0f} "
        f"MB, rounds {m['peak'] - m['before']:,.0f} MB more, the end {m['finished']:.1f} s"
    )


def as_table(measured: list[dict[str, Any]]) -> str:
    """The measurements of a part as a Markdown table."""
    lines = [
        "| clients | taking part | groups | features | µs a client-step | of CPU | "
        "s to open | s to prepare | s at the end | data, MB | rounds, MB | all, MB |",
        "| ---: " * 12 + "|",
    ]
    for m in measured:
        more = m["peak"] - m["before"]
        cells = (
            f"{m['clients']:,}", f"{m['participation']:.0%}", m["groups"], m["features"],
            f"{1e6 * m['seconds']:.2f}", f"{1e6 * m['cpu']:.2f}", f"{m['opened']:.2f}",
            f"{m['prepared']:.1f}", f"{m['finished']:.1f}", f"{m['data']:,.0f}", f"{more:,.0f}",
            f"{m['peak_of_all'] - m['before']:,.0f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def ratios(measured: list[dict[str, Any]]) -> list[str]:
    """How the cost of a client-step grows with the clients, a sentence for each participation."""
    sentences = []
    for share in sorted({m["participation"] for m in measured}, reverse=True):
        alike = [m for m in measured if m["participation"] == share]
        few, many = alike[0], alike[-1]
        if few is many:
            continue
        ratio = many["seconds"] / few["seconds"]
        sentences.append(
            f"At {share:.0%} participation a client-step of {many['clients']:,} clients costs "
            f"{ratio:.2f} times one of {few['clients']:,} (limit {LIMIT})."
        )
    return sentences


def draw(part: str, axis: str, measured: list[dict[str, Any]]) -> list[Path]:
    """Time and memory against what a part varies, as two figures."""
    figures = []
    units = {"time": "µs a client-step", "memory": "MB of the rounds, beside the data"}
    for what, unit in units.items():
        figure = new_figure(5.4, 3.4)
        axes = figure.add_subplot()
        shares = sorted({m["participation"] for m in measured}, reverse=True)
        for colour, share in zip(COLOURS, shares):
            alike = [m for m in measured if m["participation"] == share]
            values = [1e6 * m["seconds"] for m in alike]
            if what == "memory":
                values = [max(m["peak"] - m["before"], 0.1) for m in alike]
            places = [m[axis] for m in alike]
            label = f"{share:.0%} take part"
            axes.plot(places, values, color=colour, marker="o", linewidth=2.2, label=label)
        axes.set_xscale("log")
        axes.set_ylim(0, None)
        axes.grid(axis="y", color=FAINT, linewidth=0.8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(which="both", length=0, colors=INK)
        axes.set_xlabel(axis, color=INK)
        axes.set_title(unit, loc="left", color=INK, fontsize=11)
        axes.legend(frameon=False, labelcolor=INK)
        figures.append(save(figure, RESULTS / f"scale-{part}-{what}.svg"))
    return figures


def write_page(kept: dict[str, Any], command: str) -> None:
    """Write benchmarks/results/scale.md and its figures from all that was measured."""
    text = [
        "# Scale on one machine",
        "",
        f"Made by `{command}`; each part says when it was measured, and on what. What the columns "
        "mean stands at the head of `benchmarks/scale.py`.",
    ]
    for part, about in PARTS.items():
        if part not in kept:
            continue
        measured = kept[part]["measured"]
        axis = {"groups": "groups", "features": "features"}.get(part, "clients")
        text += ["", f"## {part.capitalize()}", "", f"{about}. {kept[part]['when']}.", ""]
        text += [as_table(measured), ""]
        if axis == "clients":
            text += [*ratios(measured), ""]
        for figure in draw(part, axis, measured):
            text.append(f"![{figure.stem.replace('-', ', ')}]({figure.name})")
    (RESULTS / "scale.md").write_text("\n".join(text) + "\n")


def main() -> None:
    """Measure the parts that are named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--largest", type=int, default=LARGEST, help="number of clients")
    parser.add_argument("--note", default="", help="what else to say, such as a busy machine")
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
    kept = json.loads(file.read_text()) if file.exists() else {}
    when = f"{time.strftime('%Y-%m-%d')}, {torch.get_num_threads()} threads, {platform.machine()}"
    if args.note:
        when += f"; {args.note}"
    for part in args.parts or PARTS:
        measured = []
        for point in points(part, args.largest):
            measured.append(run_point(point))
            print(f"{part:8s} {describe(measured[-1])}", flush=True)
        kept[part] = {"when": when, "measured": measured}
        file.write_text(json.dumps(kept, indent=1) + "\n")
        write_page(kept, " ".join(["python benchmarks/scale.py", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
