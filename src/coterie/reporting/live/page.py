"""Renders the sections of the live page, with the templates in templates/."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from coterie.metrics import METRICS
from coterie.reporting import figures as report_figures
from coterie.reporting import group_membership, svg, text
from coterie.reporting.drawing import group_colour, group_title
from coterie.reporting.live import figures
from coterie.reporting.live import text as live_text
from coterie.reporting.live.folder import Dashboard, WaitingDashboard
from coterie.runs import late_sites

# In the order of the page; each can be replaced while the page is open
SECTIONS = (
    "top",
    "runs",
    "score",
    "by_site",
    "each_site",
    "groups",
    "history",
    "changes",
    "incidents",
    "sites",
    "log",
)
MAX_CARD_SITES = 400  # up to this number of sites, the cards list all of them
MAX_PER_CARD = 40  # beyond it, this many per group


class RenderedPage(NamedTuple):
    """The HTML of a page and of its sections."""

    version: int
    title: str
    sections: dict[str, str]
    html: str


@cache
def environment() -> Environment:
    """Return the templates and what they call; all values are escaped."""
    templates = Environment(
        loader=PackageLoader("coterie.reporting.live"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(
        live_text=live_text,
        figures=figures,
        report_figures=report_figures,
        group_membership=group_membership,
        text=text,
        metrics=METRICS,
        draw=svg.draw,
        chip=chip,
        group_title=group_title,
        max_per_card=max_per_card,
        describe_late_site=late_sites.describe_late_site,
    )
    return templates


def render_page(dashboard: Dashboard | WaitingDashboard, version: int) -> RenderedPage:
    """Render the whole page; its script then replaces the sections that change."""
    sections = render_sections(dashboard)
    page = environment().get_template("page.html.jinja")
    html = page.render(title=dashboard.title, sections=sections, build=build())
    return RenderedPage(version, dashboard.title, sections, html)


def render_sections(dashboard: Dashboard | WaitingDashboard) -> dict[str, str]:
    """Render each section; before a run has started, most are empty."""
    if isinstance(dashboard, WaitingDashboard):
        templates = {name: f"waiting_{name}.html.jinja" for name in ("top", "sites")}
        data: dict[str, object] = {"board": dashboard}
    else:
        templates = {name: f"{name}.html.jinja" for name in SECTIONS}
        data = {"board": dashboard, "run": dashboard.chosen}
    rendered = {
        name: environment().get_template(template).render(**data)
        for name, template in templates.items()
    }
    return dict.fromkeys(SECTIONS, "") | rendered


def chip(number: int) -> Markup:
    """Return a small square in the colour of a group."""
    square = svg.element("rect", width=14, height=14, rx=3, **svg.paint(group_colour(number)))
    return svg.element("svg", square, class_="chip", width=14, height=14, aria_hidden="true")


def max_per_card(dashboard: Dashboard) -> int:
    """Return how many sites of a group its card lists."""
    if len(dashboard.chosen.sites) <= MAX_CARD_SITES:
        return MAX_CARD_SITES
    return MAX_PER_CARD


# ------------------------------------------------------------------------------ style and script
@cache
def style() -> str:
    """Return the report's style sheet and the additions of the live page."""
    return read("coterie.reporting", "style.css") + read("coterie.reporting.live", "page.css")


@cache
def script() -> str:
    """Return the report's script, which sorts tables and toggles lines, and the live page's own."""
    return read("coterie.reporting", "script.js") + read("coterie.reporting.live", "page.js")


@cache
def build() -> str:
    """Return a hash of style and script; an open page with another hash reloads itself."""
    return hashlib.sha256((style() + script()).encode()).hexdigest()[:16]


def read(package: str, name: str) -> str:
    """Read a text file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
