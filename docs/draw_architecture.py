"""Draws docs/architecture.svg: the data flow in `run`, `assign` and `report`.

python docs/draw_architecture.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT = 1000, 710
INK, LINE = "#24292f", "#57606a"
FILLS = {"data": "#fff3d6", "code": "#e3edf9", "disk": "#e8f3e8"}


class Box(NamedTuple):
    """A named box with a line of explanation."""

    x: int
    y: int
    width: int
    title: str
    text: str
    kind: str  # "data": rows of clients; "code": what runs; "disk": files
    height: int = 62


def box(x: int, y: int, title: str, text: str, kind: str = "code", width: int = 205) -> Box:
    """Return a box of the default size."""
    return Box(x, y, width, title, text, kind)


BOXES = {
    "command": box(30, 60, "coterie run", "cli: flags and config"),
    "job": box(275, 60, "Job", "runs: validated, no engine yet"),
    "run": box(520, 60, "Run", "runs: the round loop"),
    "method": box(765, 60, "method", "methods: one file per paper"),
    "federation": box(275, 180, "Federation", "data: roster and samples", "data"),
    "engine": box(520, 180, "Engine", "engines: runs the clients"),
    "ask": box(765, 180, "ask → Aggregator", "aggregation: checked sums"),
    "folder": box(520, 300, "run folder", "config, metrics, checkpoints", "disk"),
    "assign": box(30, 450, "coterie assign", "cli"),
    "trained": box(275, 450, "TrainedRun", "runs: roster, state, history"),
    "answers": box(520, 450, "assign, predict", "serve: group, predictions"),
    "new_client": box(765, 450, "a new client's file", "serve: rows are validated", "data"),
    "report": box(30, 620, "coterie report", "cli"),
    "source": box(275, 620, "client statistics", "reporting: runs as plain values"),
    "statistics": box(520, 620, "statistics", "reporting: typed data"),
    "page": box(765, 620, "report.html", "templates and figures", "disk"),
}

ARROWS = [
    ("command", "job", ""),
    ("job", "run", "roster"),
    ("run", "method", "round"),
    ("job", "federation", ""),
    ("federation", "engine", "rows"),
    ("method", "ask", "ask(train)"),
    ("ask", "engine", "Call"),
    ("run", "engine", ""),
    ("engine", "folder", "snapshot"),
    ("folder", "trained", "state, scores"),
    ("assign", "trained", ""),
    ("trained", "answers", "model"),
    ("new_client", "answers", "rows"),
    ("report", "source", ""),
    ("trained", "source", ""),
    ("source", "statistics", ""),
    ("statistics", "page", ""),
]


def draw() -> str:
    """Return the whole picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif" role="img" '
        'aria-label="Data flow in run, assign and report">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for y, title in ((34, "run: train"), (424, "assign, predict, export"), (594, "report")):
        parts.append(
            f'<text x="30" y="{y}" font-size="17" font-weight="bold" fill="{INK}">{title}</text>'
        )
    parts += [arrow(BOXES[a], BOXES[b], label) for a, b, label in ARROWS]
    parts += [rectangle(b) for b in BOXES.values()]
    return "\n".join([*parts, "</svg>", ""])


def rectangle(b: Box) -> str:
    """A box with its two lines."""
    return (
        f'<rect x="{b.x}" y="{b.y}" width="{b.width}" height="{b.height}" rx="8" '
        f'fill="{FILLS[b.kind]}" stroke="{LINE}"/>'
        f'<text x="{b.x + b.width / 2}" y="{b.y + 27}" font-size="15" font-weight="bold" '
        f'text-anchor="middle" fill="{INK}">{escape(b.title)}</text>'
        f'<text x="{b.x + b.width / 2}" y="{b.y + 47}" font-size="12" text-anchor="middle" '
        f'fill="{INK}">{escape(b.text)}</text>'
    )


def arrow(a: Box, b: Box, label: str) -> str:
    """An arrow from one box to the next, with a word beside it."""
    if a.y == b.y:
        x1, x2 = (a.x + a.width, b.x) if a.x < b.x else (a.x, b.x + b.width)
        y1 = y2 = a.y + a.height / 2
        text_x, text_y, anchor = (x1 + x2) / 2, y1 - 8, "middle"
    else:
        x1, x2 = a.x + a.width / 2, b.x + b.width / 2
        y1, y2 = (a.y + a.height, b.y) if a.y < b.y else (a.y, b.y + b.height)
        text_x, text_y, anchor = (x1 + x2) / 2 + 8, (y1 + y2) / 2 + 4, "start"
    line = (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" stroke-width="1.6" '
        'marker-end="url(#tip)"/>'
    )
    if not label:
        return line
    return (
        f'{line}<text x="{text_x}" y="{text_y}" font-size="12" text-anchor="{anchor}" '
        f'fill="{INK}" stroke="white" stroke-width="4" paint-order="stroke">{escape(label)}</text>'
    )


if __name__ == "__main__":
    Path(__file__).with_name("architecture.svg").write_text(draw(), encoding="utf-8")
