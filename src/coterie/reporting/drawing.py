"""What the figures of a page share: colours, axes, short numbers and safe names."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

Figure = dict[str, Any]  # {"data": [...], "layout": {...}}, as plotly takes it

# After Okabe and Ito, which colour-blind readers can tell apart; the light ones are darkened, so that each has a
# contrast of at least 3 to the page's white and to its black
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C48700", "#3D94C9", "#8A8A8A")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
UNSEEN = "#D9D9D9"
LABELS = 40  # rows of a map above which their names are shown on hover only


def short(values: Any) -> list[float | None]:
    """Four digits are enough to draw with; what is not finite is left out."""
    return [float(f"{v:.4g}") if v is not None and np.isfinite(v) else None for v in values]


def plain(text: str) -> str:
    """Text as plotly takes it, which reads < and & as markup."""
    return html.escape(text, quote=False)


def safe(names: Sequence[str], clients: np.ndarray) -> list[str]:
    return [plain(names[i]) for i in clients]


def colours(k: int) -> list[str]:
    """k colours that can be told apart: a fixed set, and beyond it steps of a sequential scale."""
    if k <= len(COLOURS):
        return list(COLOURS[:k])
    from plotly.colors import sample_colorscale

    found: list[str] = sample_colorscale("Viridis", k)
    return found


def stepped(shades: Sequence[str]) -> list[list[Any]]:
    """A colour scale of equal steps."""
    n = len(shades)
    return [[edge / n, shade] for i, shade in enumerate(shades) for edge in (i, i + 1)]


def bar(title: str, ticks: Sequence[int] | None = None) -> Figure:
    """A colour bar above the figure, where it takes no width from a phone."""
    style: Figure = {
        "orientation": "h",
        "y": 1.0,
        "yanchor": "bottom",
        "thickness": 10,
        "len": 0.7,
        "x": 0.5,
        "ypad": 4,
    }
    style |= {"title": {"text": title, "side": "top"}, "outlinewidth": 0}
    if ticks is not None:
        style |= {
            "tickvals": list(ticks),
            "ticktext": [str(t) if t >= 0 else "not seen" for t in ticks],
        }
    return style


def clients(shown: np.ndarray, names: Sequence[str]) -> Figure:
    """The axis of a map whose rows are clients."""
    axis: Figure = {"type": "category", "autorange": "reversed", "showgrid": False}
    if len(shown) > LABELS:
        return {**axis, "showticklabels": False, "title": {"text": f"{len(shown)} clients"}}
    brief = [name if len(name) <= 16 else f"{name[:15]}…" for name in (names[i] for i in shown)]
    return {
        **axis,
        "tickvals": safe(names, shown),
        "ticktext": [plain(name) for name in brief],
        "tickfont": {"size": 10},
    }


def tall(rows: int) -> int:
    return int(min(640, 170 + 15 * rows))
