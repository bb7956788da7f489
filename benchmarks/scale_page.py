"""The page and the figures of `benchmarks/scale.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.ticker import LogLocator

from coterie.reporting.plots import COLOURS, FAINT, INK, new_figure, save

RESULTS = Path(__file__).parent / "results"
LIMIT = 1.2  # of the cost of a client-step with the most clients, over that with the fewest
MEGABYTE = 2**20
PARTS = {
    "clients": "linear model, 10 features, 20 rows a client, 4 groups",
    "groups": "linear model, 10 features, 20 rows a client, all clients in every round",
    "features": "linear model, 20 rows a client, 4 groups, all clients in every round",
    "store": "MLP 784-200-10 on byte images in a store on disk, 20 rows a client, 4 groups",
}


def as_table(measured: list[dict[str, Any]]) -> str:
    """Return the measurements of a part as a Markdown table."""
    lines = [
        "| clients | participating | groups | features | µs a client-step | of CPU | "
        "s to open | s to prepare | s at the end | data, MB | start, MB | rounds, MB | end, MB |",
        "| ---: " * 13 + "|",
    ]
    for m in measured:
        start, rounds, end = (m[phase] - m["before"] for phase in ("start", "peak", "end"))
        cells = (
            f"{m['clients']:,}", f"{m['participation']:.0%}", m["groups"], m["features"],
            f"{1e6 * m['seconds']:.2f}", f"{1e6 * m['cpu']:.2f}", f"{m['opened']:.2f}",
            f"{m['prepared']:.1f}", f"{m['finished']:.1f}", f"{m['data']:,.0f}", f"{start:,.0f}",
            f"{rounds:,.0f}", f"{end:,.0f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def ratios(measured: list[dict[str, Any]]) -> list[str]:
    """Describe how the cost of a client-step grows, one sentence per participation."""
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
    """Plot time and memory against the parameter that a part varies."""
    return [
        draw_one(
            measured,
            axis,
            "µs a client-step",
            {"": lambda m: 1e6 * m["seconds"], ", of CPU": lambda m: 1e6 * m["cpu"]},
            RESULTS / f"scale-{part}-time.svg",
        ),
        draw_one(
            measured,
            axis,
            "MB beside the data",
            {
                ", rounds": lambda m: max(m["peak"] - m["before"], 1),
                ", the end": lambda m: max(m["end"] - m["before"], 1),
            },
            RESULTS / f"scale-{part}-memory.svg",
        ),
    ]


def draw_one(
    measured: list[dict[str, Any]],
    axis: str,
    title: str,
    values: dict[str, Callable[[dict[str, Any]], float]],
    path: Path,
) -> Path:
    """Draw a line per participation and value; the first value is solid."""
    figure = new_figure(5.4, 3.4)
    axes = figure.add_subplot()
    shares = sorted({m["participation"] for m in measured}, reverse=True)
    for colour, share in zip(COLOURS, shares):
        alike = [m for m in measured if m["participation"] == share]
        for style, (name, value) in zip(("-", ":"), values.items()):
            axes.plot(
                [m[axis] for m in alike],
                [value(m) for m in alike],
                color=colour,
                marker="o",
                linestyle=style,
                linewidth=2.2,
                label=f"{share:.0%} participate{name}",
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    places = sorted({m[axis] for m in measured})
    axes.set_xticks(places, labels=[f"{place:,}" for place in places])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", length=0, colors=INK)
    axes.set_xlabel(axis, color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)
    return save(figure, path)


def write_page(kept: dict[str, Any]) -> None:
    """Write benchmarks/results/scale.md and its figures from the saved results."""
    text = [
        "# Scale on one machine",
        "",
        "What the columns mean stands at the head of `benchmarks/scale.py`. Rows of a store "
        "that were read count as memory, which the system takes back when it needs it.",
    ]
    for part, about in PARTS.items():
        if part not in kept:
            continue
        measured = kept[part]["measured"]
        axis = {"groups": "groups", "features": "features"}.get(part, "clients")
        text += ["", f"## {part.capitalize()}", "", f"{about}.", ""]
        text += [f"`{kept[part]['command']}`, {kept[part]['when']}.", ""]
        text += [as_table(measured), ""]
        if axis == "clients":
            text += [*ratios(measured), ""]
        for figure in draw(part, axis, measured):
            text.append(f"![{figure.stem.replace('-', ', ')}]({figure.name})")
    (RESULTS / "scale.md").write_text("\n".join(text) + "\n")
