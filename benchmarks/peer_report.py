"""The results of `peers.py` as a table and a plot."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.reporting.plots import COLOURS, FAINT, INK, new_figure, save
from machine import processor_name
from peer_environments import PEERS, Peer

TITLES = {peer.name: peer.title for peer in PEERS}
TICKS = [0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500]
RIVALS = [peer for peer in PEERS if peer.name != "ours"]


# ------------------------------------------------------------------------------ the file
def read_results(folder: Path) -> dict[str, Any]:
    """Read the saved results."""
    path = folder / "peers.json"
    if not path.exists():
        return {"problems": {}, "missing": {}, "shapes": {}}
    results: dict[str, Any] = json.loads(path.read_text())
    return results


def write_results(folder: Path, results: dict[str, Any]) -> None:
    """Write the file atomically."""
    path = folder / "peers.json"
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    os.replace(partial, path)


# ------------------------------------------------------------------------------ numbers
def wall(contender: dict[str, Any]) -> float:
    """Return the seconds of the fastest round, over numbers of threads."""
    return min(min(turn["wall"]) for turn in contender["turns"])


def processor(contender: dict[str, Any]) -> float:
    """Return the minimum processor seconds of a round."""
    return min(min(turn["processor"]) for turn in contender["turns"])


def best_turn(contender: dict[str, Any]) -> dict[str, Any]:
    turn: dict[str, Any] = min(contender["turns"], key=lambda turn: min(turn["wall"]))
    return turn


def ratios(
    record: dict[str, Any], seconds: Callable[[dict[str, Any]], float] = wall
) -> dict[str, float]:
    """Return each rival's time relative to ours, where it did the same work."""
    contenders = record["contenders"]
    if "turns" not in contenders.get("ours", {}):
        return {}
    return {
        name: seconds(contender) / seconds(contenders["ours"])
        for name, contender in contenders.items()
        if name != "ours" and "turns" in contender and not contender["differs"]
    }


# ------------------------------------------------------------------------------ Markdown
def write_report(folder: Path, results: dict[str, Any]) -> int:
    """Write peers.md and peers.svg; return exit code 1 if a contender differs."""
    write_results(folder, results)
    (folder / "peers.md").write_text("\n".join(page(results)) + "\n")
    save(plot(results), folder / "peers.svg")
    print(f"{folder / 'peers.md'} and peers.svg are written.")
    differing = list(differences(results))
    for line in differing:
        print(line)
    return 1 if differing else 0


def page(results: dict[str, Any]) -> list[str]:
    """Return the lines of the page."""
    problems = results["problems"]
    rivals = [
        peer for peer in RIVALS if any(peer.name in p["contenders"] for p in problems.values())
    ]
    lines = ["# A round of Coterie against other libraries", "", *provenance(problems), ""]
    lines += [
        "Each cell: seconds of the best round, how many times as long as ours, and how far the "
        "loss after the round is from the plain loop's, as a share of what the round gained. "
        "Mini-batches are drawn by each library itself, so losses differ a little; the plain loop "
        "is given ours. A peer runs on one thread and on all cores, in turns with the others; the "
        "better counts, and its number of threads stands in brackets.",
        "",
        "![How many times as long as Coterie](peers.svg)",
        "",
        "| work | Coterie | " + " | ".join(peer.title for peer in rivals) + " |",
        "| --- |" + " ---: |" * (1 + len(rivals)),
    ]
    for record in problems.values():
        cells = [cell(record, peer.name) for peer in rivals]
        lines.append(f"| {record['title']} | {ours_cell(record)} | {' | '.join(cells)} |")
    lines += ["", *not_there(results), *processor_table(problems, rivals), *peak_table(results)]
    return lines


def provenance(problems: dict[str, Any]) -> list[str]:
    """Return lines about command, dates, machine and versions."""
    dates = sorted(record["date"] for record in problems.values())
    loads = sorted({f"{record['load']:.1f}" for record in problems.values()})
    versions: dict[str, str] = {"Python": platform.python_version()}
    for record in problems.values():
        for contender in record["contenders"].values():
            versions |= contender.get("versions", {})
    names = ", ".join(f"{name} {number}" for name, number in versions.items())
    commands = " and ".join(sorted({f"`{record['command']}`" for record in problems.values()}))
    return [
        f"{commands}, {dates[0]} to {dates[-1]}, on "
        f"{len(os.sched_getaffinity(0))} cores ({processor_name()}). Load when the run began: "
        f"{' and '.join(loads)}. {names}."
    ]


def ours_cell(record: dict[str, Any]) -> str:
    ours = record["contenders"]["ours"]
    if "reason" in ours:
        return f"failed: {ours['reason']}"
    return f"{wall(ours):.3f} s{off_words(ours)}"


def cell(record: dict[str, Any], name: str) -> str:
    """One rival in one row."""
    contender = record["contenders"].get(name)
    if contender is None:
        return "–"
    if "reason" in contender:
        return f"failed: {contender['reason']}"
    if contender["differs"]:
        return f"differs: {contender['differs']}"
    ratio = ratios(record).get(name)
    times = f" **{ratio:.2f}×**" if ratio is not None else ""
    return (
        f"{wall(contender):.3f} s ({best_turn(contender)['threads']}){times}{off_words(contender)}"
    )


def processor_table(problems: dict[str, Any], rivals: list[Peer]) -> list[str]:
    """Return a table of processor times, which depend less on other load."""
    lines = [
        "## Processor time, as a multiple of ours",
        "",
        "Of the number of threads, and the round, that take the least of it.",
        "",
        "| work | " + " | ".join(peer.title for peer in rivals) + " |",
        "| --- |" + " ---: |" * len(rivals),
    ]
    for record in problems.values():
        found = ratios(record, processor)
        cells = [f"{found[peer.name]:.2f}×" if peer.name in found else "–" for peer in rivals]
        lines.append(f"| {record['title']} | {' | '.join(cells)} |")
    return [*lines, ""]


def off_words(contender: dict[str, Any]) -> str:
    if "off" not in contender:
        return ""
    return f" · {100 * contender['off']:.1g} %"


def differences(results: dict[str, Any]) -> list[str]:
    """Return a line for each contender that did different work."""
    return [
        f"{name}: {peer} differs: {contender['differs']}"
        for name, record in results["problems"].items()
        for peer, contender in record["contenders"].items()
        if contender.get("differs")
    ]


def not_there(results: dict[str, Any]) -> list[str]:
    """Which peers could not be installed, and which problems others do not take."""
    lines = []
    for name, why in results["missing"].items():
        lines += [f"{TITLES[name]} is not here: {why}.", ""]
    lines += [
        "A dash: the library has no such method, or, for Flower's simulation, the size is too "
        "large. pfl does not shuffle rows and keeps its batches between rounds. Flower runs two "
        "processes of Ray with one thread each.",
        "",
    ]
    return lines


def peak_table(results: dict[str, Any]) -> list[str]:
    """Compare our throughput on mini-batches with the machine's peak."""
    lines = [
        "## How much of the machine's matrix products",
        "",
        "Products are counted as PyTorch runs them in one round (`FlopCounterMode`): ours in the "
        "form that was chosen, the plain loop's in plain steps. Peak: square float32 products on "
        "all cores, measured right after each problem.",
        "",
        "| work | form | our products, GFLOP | plain steps' | peak, GFLOPS | ours of the peak "
        "| plain steps' products in our time, of the peak |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for record in results["problems"].values():
        row = peak_row(record)
        if row:
            lines.append(row)
    lines += ["", "Products of these shapes alone, each core with its own, in GFLOPS: "]
    shapes = [f"{name} {speed:.0f}" for name, speed in results["shapes"].items()]
    lines[-1] += "; ".join(shapes) + "."
    return lines


def peak_row(record: dict[str, Any]) -> str:
    ours = record["contenders"].get("ours", {})
    plain = record["contenders"].get("plain_loop", {})
    if not record["mini_batch"] or "products" not in ours or "products" not in plain:
        return ""
    reach = wall(ours) * record["peak"] * 1e9
    return (
        f"| {record['title']} | {ours['form'] or 'plain'} | {ours['products'] / 1e9:.2f} "
        f"| {plain['products'] / 1e9:.2f} | {record['peak']:.0f} "
        f"| {100 * ours['products'] / reach:.0f} % | {100 * plain['products'] / reach:.0f} % |"
    )


# ------------------------------------------------------------------------------ the plot
def plot(results: dict[str, Any]) -> Any:
    """Plot a row per problem and a dot per rival: its time relative to ours."""
    problems = results["problems"]
    figure = new_figure(9.5, 1.4 + 0.3 * len(problems))
    axes = figure.add_subplot()
    heights = {name: -i for i, name in enumerate(problems)}
    colours = dict(zip((peer.name for peer in RIVALS), COLOURS))
    for peer in RIVALS:
        points = [(ratios(p).get(peer.name), heights[name]) for name, p in problems.items()]
        points = [point for point in points if point[0] is not None]
        if points:
            x, y = zip(*points)
            axes.scatter(x, y, color=colours[peer.name], label=peer.title, s=42, zorder=3)
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.set_xscale("log")
    largest = max((max(ratios(p).values(), default=1) for p in problems.values()), default=1)
    ticks = [tick for tick in TICKS if tick < 1.5 * max(largest, 2)]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(list(heights.values()), [problems[name]["title"] for name in heights])
    axes.grid(color=FAINT, linewidth=0.8)
    axes.spines[:].set_visible(False)
    axes.tick_params(which="both", length=0, colors=INK, labelsize=8)
    axes.set_title(
        "Time of a round, as a multiple of Coterie's", loc="left", color=INK, fontsize=11
    )
    figure.legend(loc="outside lower center", ncols=len(RIVALS), fontsize=8, frameon=False)
    return figure
