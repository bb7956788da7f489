"""From a board to the sections of a page, by the templates beside this file."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from coterie.reporting import group_figures, moves, svg, text
from coterie.reporting.drawing import group_colour, group_title
from coterie.reporting.live import figures, words
from coterie.reporting.live.expected import ExpectedBoard
from coterie.reporting.live.folder import Board
from coterie.runs import latecomers

# The sections in their order; each may be replaced while the page is open
SECTIONS = (
    "top",
    "runs",
    "score",
    "by_site",
    "each_site",
    "groups",
    "history",
    "moves",
    "refusals",
    "sites",
    "log",
)
MOST_ON_CARD = 400  # sites of all groups together that stand on the cards
FEW_ON_CARD = 40  # of each group, where there are more than that in all


@cache
def environment() -> Environment:
    """Return the templates with all that they call; whatever they show is escaped."""
    templates = Environment(
        loader=PackageLoader("coterie.reporting.live"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(
        words=words,
        figures=figures,
        group_figures=group_figures,
        moves=moves,
        text=text,
        draw=svg.draw,
        chip=chip,
        group_title=group_title,
        most_on_card=most_on_card,
        describe_latecomer=latecomers.describe,
    )
    return templates


def draw_sections(board: Board | ExpectedBoard) -> dict[str, str]:
    """The HTML of each section."""
    if isinstance(board, ExpectedBoard):
        return draw_expected(board)
    data = {"board": board, "run": board.chosen}
    return {
        name: environment().get_template(f"{name}.html.jinja").render(**data) for name in SECTIONS
    }


def draw_expected(board: ExpectedBoard) -> dict[str, str]:
    """The HTML of each section before a run has begun, when most have nothing to show."""
    drawn = {
        name: environment().get_template(f"expected_{name}.html.jinja").render(board=board)
        for name in ("top", "sites")
    }
    return dict.fromkeys(SECTIONS, "") | drawn


def draw_page(board: Board | ExpectedBoard, sections: dict[str, str]) -> str:
    """The whole page, which its script then keeps up to date."""
    page = environment().get_template("page.html.jinja")
    return page.render(title=board.title, sections=sections, build=build())


def chip(number: int) -> Markup:
    """A small square in the colour of a group."""
    square = svg.element("rect", width=14, height=14, rx=3, **svg.paint(group_colour(number)))
    return svg.element("svg", square, class_="chip", width=14, height=14, aria_hidden="true")


def most_on_card(board: Board) -> int:
    """How many sites of a group a card names."""
    if len(board.chosen.sites) <= MOST_ON_CARD:
        return MOST_ON_CARD
    return FEW_ON_CARD


# ------------------------------------------------------------------------------ style and script
@cache
def style() -> str:
    """The style of the report, with what the live page adds."""
    return read("coterie.reporting", "style.css") + read("coterie.reporting.live", "page.css")


@cache
def script() -> str:
    """The script of the report, which sorts tables and hides lines, then that of the live page."""
    return read("coterie.reporting", "script.js") + read("coterie.reporting.live", "page.js")


@cache
def build() -> str:
    """What changes with style and script: an open page of another build loads itself anew."""
    return hashlib.sha256((style() + script()).encode()).hexdigest()[:16]


def read(package: str, name: str) -> str:
    """A file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
