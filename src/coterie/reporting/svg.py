"""From a figure to SVG that stands in a page.

A figure is as wide as its place, on a phone as on a sheet, and its text keeps its size: positions
across are per cent of the width, positions down are pixels. Only lines and areas are stretched, in
an inner picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from coterie.reporting.axes import Axis
from coterie.reporting.drawing import Area, Box, Dot, Entry, Figure, Line, Mark, Named

ACROSS = 1000  # width of the inner picture, in its own units


def draw(figure: Figure, alt: str) -> Markup:
    """Draw a figure: its legend, then the picture. alt: what it shows, for who cannot see it."""
    parts = [draw_axes(figure)]
    parts += [draw_mark(mark, figure) for mark in figure.marks]
    kind = "picture"
    if figure.x.ticks:
        kind = "picture has-ticks"
    picture = element(
        "svg",
        Markup("").join(parts),
        role="img",
        aria_label=alt,
        width="100%",
        height=figure.height,
    )
    # no style attribute: a page that is served may forbid them
    room = element("span", element("svg", width=left_margin(figure.y), height=1), class_="margin")
    place = element("div", room + picture, class_=kind)
    return draw_legend(figure.legend) + place


def element(tag: str, content: str | Markup = "", **attributes: object) -> Markup:
    """Write an element; content and attributes are escaped, and `class_` is the class."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value != ""
    )
    if content == "" and tag not in ("svg", "div"):
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>") + content + Markup(f"</{tag}>")


# ------------------------------------------------------------------------------ positions
def percent(axis: Axis, value: float) -> str:
    """Return a position across."""
    return f"{short(100 * axis.place(value))}%"


def pixel(figure: Figure, value: float) -> float:
    """Return a position from the top, in pixels."""
    return figure.height * (1 - figure.y.place(value))


def short(number: float) -> str:
    """Write a position with up to two decimals."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def left_margin(axis: Axis) -> int:
    """Return the room that the ticks and the title of the y axis need, in pixels."""
    longest = max((len(text) for _, text in axis.ticks), default=0)
    margin = 12 + 7 * longest
    if axis.title:
        margin += 20
    return margin


def paint(colour: str, stroke: bool = False) -> dict[str, str]:
    """Return the attribute for a colour, or for a class of the style sheet."""
    if not colour.startswith("#"):
        return {"class_": colour}
    if stroke:
        return {"stroke": colour}
    return {"fill": colour}


# ------------------------------------------------------------------------------ axes and legend
def draw_axes(figure: Figure) -> Markup:
    """Draw the grid with its ticks, and the titles of both axes."""
    height = figure.height
    parts = []
    for value, text in figure.y.ticks:
        y = short(pixel(figure, value))
        if figure.y.has_grid:
            parts.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        if text:
            parts.append(element("text", text, x="-8", y=y, dy=".32em", class_="end"))
    for value, text in figure.x.ticks:
        x = percent(figure.x, value)
        if figure.x.has_grid:
            parts.append(element("line", x1=x, x2=x, y1="0", y2=height, class_="grid"))
        if text:
            parts.append(element("text", text, x=x, y=height + 17, class_="middle"))
    if figure.x.title:
        parts.append(element("text", figure.x.title, x="50%", y=height + 37, class_="middle"))
    if figure.y.title:
        left = 14 - left_margin(figure.y)
        turn = f"rotate(-90 {left} {height / 2:g})"
        place = {"x": left, "y": f"{height / 2:g}", "transform": turn}
        parts.append(element("text", figure.y.title, class_="middle", **place))
    return Markup("").join(parts)


def draw_legend(entries: Sequence[Entry]) -> Markup:
    """Draw the legend as a list; a click on the name of a line hides it."""
    if not entries:
        return Markup("")
    items = []
    for entry in entries:
        if entry.is_line:
            sample = element(
                "line",
                x1="0",
                x2="24",
                y1="6",
                y2="6",
                stroke_width="2.5",
                stroke_dasharray=entry.dash,
                **paint(entry.colour, stroke=True),
            )
            name = element("button", entry.name, type="button", data_series=entry.name)
            items.append(element("li", element("svg", sample, width="24", height="12") + name))
        else:
            corners = 2
            if entry.is_round:
                corners = 6
            sample = element("rect", width="12", height="12", rx=corners, **paint(entry.colour))
            swatch = element("svg", sample, width="12", height="12")
            items.append(element("li", swatch + element("span", entry.name)))
    return element("ul", Markup("").join(items), class_="legend")


# ------------------------------------------------------------------------------ marks
def draw_mark(mark: Mark, figure: Figure) -> Markup:
    """Draw a mark of any kind."""
    if isinstance(mark, Named):
        inner = Markup("").join(draw_mark(part, figure) for part in mark.marks)
        return element("g", title(mark.title) + inner, data_line=mark.series)
    if isinstance(mark, Line):
        return draw_line(mark, figure)
    if isinstance(mark, Area):
        return draw_area(mark, figure)
    if isinstance(mark, Dot):
        return draw_dot(mark, figure)
    return draw_box(mark, figure)


def title(text: str) -> Markup:
    """Return the text that is shown on hover."""
    if not text:
        return Markup("")
    return element("title", text)


def stretched(path: Markup, figure: Figure) -> Markup:
    """Put a path into a picture that is as wide as the figure."""
    return element(
        "svg",
        path,
        viewBox=f"0 0 {ACROSS} {figure.height}",
        preserveAspectRatio="none",
        width="100%",
        height=figure.height,
    )


def points(figure: Figure, x: Iterable[float], y: Iterable[float]) -> list[tuple[str, str] | None]:
    """Return positions in the inner picture; None for points that are not finite."""
    places: list[tuple[str, str] | None] = []
    for a, b in zip(x, y):
        if math.isfinite(a) and math.isfinite(b):
            places.append((short(ACROSS * figure.x.place(a)), short(pixel(figure, b))))
        else:
            places.append(None)
    return places


def draw_line(line: Line, figure: Figure) -> Markup:
    """Draw a line, with points where it is asked for or where it would not be seen."""
    path = ""
    pen_is_down = False
    for place in points(figure, line.x, line.y):
        if place is not None:
            path += f"{'L' if pen_is_down else 'M'}{place[0]} {place[1]}"
        pen_is_down = place is not None
    drawn = element(
        "path",
        title(line.title),
        d=path,
        class_="line",
        stroke=line.colour,
        stroke_dasharray=line.dash,
    )
    parts = [stretched(drawn, figure)]
    if line.has_points:
        for a, b in zip(line.x, line.y):
            if math.isfinite(a) and math.isfinite(b):
                parts.append(draw_dot(Dot(a, b, line.colour, line.title, 3.5), figure))
    return Markup("").join(parts)


def draw_area(area: Area, figure: Figure) -> Markup:
    """Draw an area; points that are not finite are left out."""
    there = [place for place in points(figure, area.x, area.high) if place is not None]
    back = [place for place in points(figure, area.x, area.low) if place is not None]
    corners = " ".join(f"{x},{y}" for x, y in [*there, *reversed(back)])
    drawn = element(
        "polygon",
        title(area.title),
        points=corners,
        fill_opacity=short(area.opacity),
        **paint(area.colour),
    )
    return stretched(drawn, figure)


def draw_dot(dot: Dot, figure: Figure) -> Markup:
    """Draw a point."""
    place = {"cx": percent(figure.x, dot.x), "cy": short(pixel(figure, dot.y)), "r": dot.radius}
    return element("circle", title(dot.title), **place, **paint(dot.colour))


def draw_box(box: Box, figure: Figure) -> Markup:
    """Draw a rectangle, with its text in the middle."""
    left, right = sorted((figure.x.place(box.left), figure.x.place(box.right)))
    top, bottom = sorted((pixel(figure, box.low), pixel(figure, box.high)))
    place = {
        "x": f"{short(100 * left)}%",
        "y": short(top),
        "width": f"{short(100 * (right - left))}%",
        "height": short(bottom - top),
    }
    opacity = ""
    if box.opacity < 1:
        opacity = short(box.opacity)
    drawn = element("rect", title(box.title), **place, fill_opacity=opacity, **paint(box.colour))
    if not box.text:
        return drawn
    middle = {"x": f"{short(50 * (left + right))}%", "y": short((top + bottom) / 2)}
    return drawn + element("text", box.text, **middle, dy=".32em", class_="cell middle")
