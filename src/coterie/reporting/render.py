"""From the data of a page to HTML, by the templates beside this file."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from coterie.metrics import to_json
from coterie.reporting import (
    apart,
    benefit,
    clients,
    comparison,
    comparison_table,
    convergence,
    cost,
    fairness,
    figures,
    fit,
    group_figures,
    membership,
    method,
    moves,
    notes,
    provenance,
    text,
    verdict,
)
from coterie.reporting.drawing import Figure
from coterie.reporting.page import Page

MARKER = "<!doctype html><!-- a report of coterie -->"  # how each page begins

# Modules of statistics: templates may call each of their functions describe_… and …_table
STATISTICS = (
    apart,
    benefit,
    clients,
    comparison,
    comparison_table,
    convergence,
    cost,
    fairness,
    fit,
    membership,
    method,
    moves,
    notes,
    provenance,
    verdict,
)


class Figures:
    """The figures of a page, which script.js draws by their names."""

    def __init__(self) -> None:
        self.by_name: dict[str, Figure] = {}

    def place(self, figure: Figure) -> str:
        """Keep a figure and return its name, the id of its place on the page."""
        name = f"figure-{len(self.by_name)}"
        self.by_name[name] = figure
        return name

    def to_json(self) -> Markup:
        """Return all figures as JSON that can stand inside a script element."""
        figures_json = json.dumps(to_json(self.by_name), separators=(",", ":"))
        return Markup(figures_json.replace("<", "\\u003c"))


@cache
def environment() -> Environment:
    """Return the templates with all that they call; whatever they show is escaped."""
    templates = Environment(
        loader=PackageLoader("coterie.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for module in STATISTICS:
        for name, value in vars(module).items():
            if name.startswith("describe_") or name.endswith("_table"):
                templates.globals[name] = value
    templates.globals.update(
        capitalise=text.capitalise,
        join_names=text.join_names,
        figures=figures,
        group_figures=group_figures,
    )
    return templates


def render(template: str, placed: Figures, **data: Any) -> str:
    """Fill in a template. placed: takes the figures that it shows."""
    return environment().get_template(template).render(place=placed.place, **data)


def render_page(page: Page) -> str:
    """Write a page, with its style, its script and its figures in it."""
    from plotly.offline import get_plotlyjs

    placed = Figures()
    return render(
        "page.html.jinja",
        placed,
        page=page,
        marker=Markup(MARKER),
        style=read("style.css"),
        script=read("script.js"),
        plotly=Markup(get_plotlyjs()),
        figures_json=placed.to_json,
    )


def read(name: str) -> Markup:
    """Read a file of this package, to stand in the page as it is."""
    return Markup(files("coterie.reporting").joinpath(name).read_text(encoding="utf-8"))
