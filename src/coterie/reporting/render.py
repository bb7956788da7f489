"""From the data of a page to HTML, by the templates beside this file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from coterie.data.site_columns import describe_constants
from coterie.reporting import (
    apart,
    benefit,
    calibration,
    client_table,
    coefficients,
    comparison,
    comparison_table,
    constant_guess,
    convergence,
    cost,
    diverged,
    drawing,
    fairness,
    figures,
    filled,
    fit,
    group_figures,
    lookup,
    membership,
    method,
    moves,
    notes,
    provenance,
    svg,
    text,
    verdict,
)
from coterie.reporting.page import Page

MARKER = "<!doctype html><!-- a report of coterie -->"  # how each page begins

# Modules of statistics: templates may call each of their functions describe_… and …_table
STATISTICS = (
    apart,
    benefit,
    calibration,
    client_table,
    coefficients,
    comparison,
    comparison_table,
    constant_guess,
    convergence,
    cost,
    diverged,
    fairness,
    filled,
    fit,
    membership,
    method,
    moves,
    notes,
    provenance,
    verdict,
)


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
        membership_colours=membership_colours,
        draw=svg.draw,
        describe_constants=describe_constants,
        answer_of=benefit.answer_of,
        can_search=lookup.can_search,
        lookup_json=lookup.lookup_json,
    )
    return templates


def render(template: str, **data: Any) -> str:
    """Fill in a template."""
    return environment().get_template(template).render(**data)


def render_page(page: Page) -> str:
    """Write a page, with its style, its script and its figures in it."""
    return render(
        "page.html.jinja",
        page=page,
        styles=page.styles,
        marker=Markup(MARKER),
        style=read("style.css"),
        script=read("script.js"),
    )


def membership_colours(result: membership.Membership) -> list[str]:
    """Return the colour of each group of a table; "" for clients that were not seen."""
    colours = []
    for group in result.groups:
        colour = ""
        if group.number >= 0:
            colour = drawing.group_colour(group.number)
        colours.append(colour)
    return colours


def read(name: str) -> Markup:
    """Read a file of this package, to stand in the page as it is."""
    return Markup(files("coterie.reporting").joinpath(name).read_text(encoding="utf-8"))
