"""What methods noted about themselves, what they were asked for, and how the page came about."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from coterie.reporting import figures
from coterie.reporting.html import Html, Page, join, section, table, tag
from coterie.reporting.source import Source
from coterie.version import __version__

DRAWN = ("curve", "transitions", "sizes")  # notes that have a figure, or repeat one


def notes(page: Page, run: Source) -> list[Html]:
    """What the method noted: figures where there are any, and the last value of everything else."""
    last: dict[str, tuple[int, Any]] = {}
    for row in run.history:
        last |= {name: (row["round"], value) for name, value in (row.get("notes") or {}).items()}
    parts = []
    if "curve" in last:
        chosen = last.get("clusters", (0, None))[1]
        how = "What the method compared numbers of groups by, and the one it chose."
        alt = f"The criterion for 1 to {len(last['curve'][1])} groups; chosen: {chosen}."
        drawn = page.plot(figures.curve_over_k(last["curve"][1], chosen), alt)
        parts.append(section("How many groups", how, drawn, level=4))
    if "transitions" in last:
        at, q = last["transitions"]
        how = f"Q, in round {at}: of a group's members now (column), the share that came from each group (row)."
        if np.array_equal(q, np.diag(np.diag(q))):
            drawn = tag("p", "Nobody moved.")
        else:
            drawn = page.plot(
                figures.transitions(q), "The same numbers as a map; a bright diagonal: few moved."
            )
        parts.append(section("Moves between groups", how, drawn, level=4))
    plain = [
        [name.replace("_", " "), at, brief(value)]
        for name, (at, value) in last.items()
        if name not in DRAWN
    ]
    if plain:
        how = "What the method wrote down about itself, as it was last."
        parts.append(section("Notes", how, table(["note", "round", "value"], plain), level=4))
    return parts


def brief(value: Any) -> str:
    """A note in a table cell."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {brief(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(brief, value[:20])) + (" …" if len(value) > 20 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings(runs: Mapping[str, list[Source]]) -> Html:
    """What was asked for."""
    parts = []
    for label, found in runs.items():
        c = found[0].config
        asked = {
            **c["method"]["settings"],
            **{k: v for k, v in c["options"].items() if k != "seed"},
        }
        lines = [
            ["data", c["data"]],
            ["model", c["model"]],
            ["seeds", ", ".join(str(s.seed) for s in found)],
        ]
        lines += [[k.replace("_", " "), "–" if v is None else brief(v)] for k, v in asked.items()]
        parts.append(
            tag("details", tag("summary", tag("h3", label)), table(["setting", "value"], lines))
        )
    return section("Settings", "Everything that each method was asked for.", join(parts))


def command(words: list[str]) -> str:
    """As it was typed; the program's folder is left out."""
    program = Path(words[0]).name
    first = ["coterie"] if program in ("coterie", "__main__.py") else ["python", program]
    return shlex.join([*first, *words[1:]])


def made_by(methods: Mapping[str, list[Source]]) -> Html:
    configs = [run.config for runs in methods.values() for run in runs]
    commands = {command(words) for c in configs if (words := c.get("command"))}
    versions = {c.get("coterie", "unknown") for c in configs}
    lines = [
        ["coterie, of the runs", ", ".join(sorted(versions))],
        ["coterie, of this page", __version__],
    ]
    lines += [
        ["Python", platform.python_version()],
        *([name, version(name)] for name in ("torch", "numpy", "plotly")),
    ]
    shown = (
        [tag("pre", "\n".join(sorted(commands)))]
        if commands
        else [tag("p", "The runs were made from Python.")]
    )
    return section(
        "How it was made",
        "The commands behind the runs, and the versions.",
        *shown,
        table(["part", "version"], lines),
    )
