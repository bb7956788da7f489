"""Pieces of HTML. Whatever is not `Html` already is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from coterie.metrics import to_json
from coterie.reporting.drawing import Figure


class Html(str):
    """Text that is markup."""


def safe(value: Any) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, *content: Any, **attributes: str) -> Html:
    """<name key="value">content</name>; `kind` is the attribute class, and _ stands for -."""
    names = {k: k.replace("kind", "class").replace("_", "-") for k in attributes}
    given = "".join(f' {names[k]}="{html.escape(v)}"' for k, v in attributes.items())
    return Html(f"<{name}{given}>{join(content)}</{name}>")


def join(pieces: Iterable[Any]) -> Html:
    return Html("".join(map(safe, pieces)))


def table(
    head: Sequence[Any], rows: Iterable[Sequence[Any]], kind: str = "", best: Iterable[int] = ()
) -> Html:
    """`best`: numbers of the rows to mark.

    kind: "numbers" stand right; "members": on a phone, cells stand below each other; "sortable": by a click on a head.
    """
    marked = set(best)
    named = [{"data_head": str(h)} if kind == "members" else {} for h in head]
    cells = [
        tag(
            "tr",
            *(tag("td", cell, **n) for cell, n in zip(row, named)),
            **({"kind": "best"} if i in marked else {}),
        )
        for i, row in enumerate(rows)
    ]
    whole = [
        tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))),
        tag("tbody", *cells),
    ]
    return tag("div", tag("table", *whole, kind=kind), kind="scroll", tabindex="0")


def section(title: str, how: str, *content: Any, level: int = 2) -> Html:
    """A heading, a sentence on how to read what follows, and what follows."""
    return join([tag(f"h{level}", title), tag("p", how, kind="how"), *content])


def listed(names: Sequence[str], most: int = 8) -> str:
    """a, b and c; of many, the first few and the number of the others."""
    shown = list(names) if len(names) <= most else [*names[:most], f"{len(names) - most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


class Page:
    """Content and its figures, which are drawn by name."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}

    def plot(self, figure: Figure, told: str) -> Html:
        """`told`: what the figure shows, for those who cannot see it."""
        name = f"figure-{len(self.figures)}"
        self.figures[name] = figure
        height = f"min-height:{figure['layout']['height']}px"
        return tag("div", kind="plot", id=name, style=height, role="img", aria_label=told)

    def write(self, title: str, content: Html) -> str:
        """The whole page; nothing in it is fetched from elsewhere."""
        from plotly.offline import get_plotlyjs

        here = files("coterie.reporting")
        figures = json.dumps(to_json(self.figures), separators=(",", ":")).replace("<", "\\u003c")
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en"><head><meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<link rel="icon" href="data:,">',
                f"<title>{safe(title)}</title>",
                f"<style>{here.joinpath('style.css').read_text()}</style>",
                f"</head><body><main>{content}</main>",
                f'<script type="application/json" id="figures">{figures}</script>',
                f"<script>{get_plotlyjs()}</script>",
                f"<script>{here.joinpath('script.js').read_text()}</script>",
                "</body></html>\n",
            ]
        )
