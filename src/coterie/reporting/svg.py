"""Drawing of figures as inline SVG.

A figure fills the width of its container while its text keeps its size: horizontal positions are
percentages, vertical positions are pixels. Only lines and areas are stretched, in an inner SVG.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from coterie.reporting.drawing import (
    Area,
    Axis,
    Box,
    Dot,
    Figure,
    LegendEntry,
    Mark,
    NamedMarks,
    Polyline,
)

INNER_WIDTH = 1000  # of the inner SVG, in its own units


def draw(figure: Figure, alt: str) -> Markup:
    """Draw a figure with its legend.

    Args:
        figure: The figure.
        alt: Text for screen readers.

    Returns:
        HTML without style attributes, which the content security policy of a server may forbid.
    """
    parts = [draw_axes(figure)]
    parts += [draw_mark(mark, figure) for mark in figure.marks]
    kind = "picture has-ticks" if figure.x.ticks else "picture"
    picture = element(
        "svg",
        Markup("").join(parts),
        role="img",
        aria_label=alt,
        width="100%",
        height=figure.height,
    )
    margin = element("span", element("svg", width=left_margin(figure.y), height=1), class_="margin")
    return draw_legend(figure.legend) + element("div", margin + picture, class_=kind)


def element(tag: str, content: str | Markup = "", **attributes: object) -> Markup:
    """Return an element; content and attributes are escaped, `class_` becomes `class`."""
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
    """Return a horizontal position."""
    return f"{short(100 * axis.place(value))}%"


def pixel(figure: Figure, value: float) -> float:
    """Return a vertical position in pixels from the top."""
    return figure.height * (1 - figure.y.place(value))


def short(number: float) -> str:
    """Format a position with up to two decimals."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def left_margin(axis: Axis) -> int:
    """Return the width in pixels of the ticks and title of the y axis."""
    longest = max((len(text) for _, text in axis.ticks), default=0)
    margin = 12 + 7 * longest
    if axis.title:
        margin += 20
    return margin


def paint(colour: str, attribute: str = "fill") -> dict[str, str]:
    """Return the attribute for a colour, or the class for a name of the style sheet."""
    if colour.startswith("#"):
        return {attribute: colour}
    return {"class_": colour}


# ------------------------------------------------------------------------------ axes and legend
def draw_axes(figure: Figure) -> Markup:
    """Draw the grid, the ticks and the titles of both axes."""
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


def draw_legend(entries: Sequence[LegendEntry]) -> Markup:
    """Draw the legend as a list; names of lines are buttons that hide them."""
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
                **paint(entry.colour, "stroke"),
            )
            name = element("button", entry.name, type="button", data_series=entry.name)
            items.append(element("li", element("svg", sample, width="24", height="12") + name))
        else:
            corners = 6 if entry.is_round else 2
            sample = element("rect", width="12", height="12", rx=corners, **paint(entry.colour))
            swatch = element("svg", sample, width="12", height="12")
            items.append(element("li", swatch + element("span", entry.name)))
    return element("ul", Markup("").join(items), class_="legend")


# ------------------------------------------------------------------------------ marks
def draw_mark(mark: Mark, figure: Figure) -> Markup:
    """Draw a mark of any type."""
    if isinstance(mark, NamedMarks):
        inner = Markup("").join(draw_mark(part, figure) for part in mark.marks)
        return element("g", tooltip(mark.title) + inner, data_line=mark.series)
    if isinstance(mark, Polyline):
        return draw_line(mark, figure)
    if isinstance(mark, Area):
        return draw_area(mark, figure)
    if isinstance(mark, Dot):
        return draw_dot(mark, figure)
    return draw_box(mark, figure)


def tooltip(text: str) -> Markup:
    """Return the text that appears on hover."""
    return element("title", text) if text else Markup("")


def stretch(path: Markup, figure: Figure) -> Markup:
    """Put a path into an inner SVG as wide as the figure."""
    return element(
        "svg",
        path,
        viewBox=f"0 0 {INNER_WIDTH} {figure.height}",
        preserveAspectRatio="none",
        width="100%",
        height=figure.height,
    )


def inner_points(
    figure: Figure, x: Iterable[float], y: Iterable[float]
) -> list[tuple[str, str] | None]:
    """Return positions in the inner SVG; None for points that are not finite."""
    places: list[tuple[str, str] | None] = []
    for a, b in zip(x, y):
        if math.isfinite(a) and math.isfinite(b):
            places.append((short(INNER_WIDTH * figure.x.place(a)), short(pixel(figure, b))))
        else:
            places.append(None)
    return places


def draw_line(line: Polyline, figure: Figure) -> Markup:
    """Draw a line, with dots at its points if `has_points`."""
    path = ""
    pen_is_down = False
    for place in inner_points(figure, line.x, line.y):
        if place is not None:
            path += f"{'L' if pen_is_down else 'M'}{place[0]} {place[1]}"
        pen_is_down = place is not None
    drawn = element(
        "path",
        tooltip(line.title),
        d=path,
        class_="line",
        stroke=line.colour,
        stroke_dasharray=line.dash,
    )
    parts = [stretch(drawn, figure)]
    if line.has_points:
        for a, b in zip(line.x, line.y):
            if math.isfinite(a) and math.isfinite(b):
                parts.append(draw_dot(Dot(a, b, line.colour, line.title, 3.5), figure))
    return Markup("").join(parts)


def draw_area(area: Area, figure: Figure) -> Markup:
    """Draw an area; points that are not finite are skipped."""
    upper = [place for place in inner_points(figure, area.x, area.high) if place is not None]
    lower = [place for place in inner_points(figure, area.x, area.low) if place is not None]
    drawn = element(
        "polygon",
        tooltip(area.title),
        points=" ".join(f"{x},{y}" for x, y in [*upper, *reversed(lower)]),
        fill_opacity=short(area.opacity),
        **paint(area.colour),
    )
    return stretch(drawn, figure)


def draw_dot(dot: Dot, figure: Figure) -> Markup:
    """Draw a point."""
    place = {"cx": percent(figure.x, dot.x), "cy": short(pixel(figure, dot.y)), "r": dot.radius}
    return element("circle", tooltip(dot.title), **place, **paint(dot.colour))


def draw_box(box: Box, figure: Figure) -> Markup:
    """Draw a rectangle with its text in the centre."""
    left, right = sorted((figure.x.place(box.left), figure.x.place(box.right)))
    top, bottom = sorted((pixel(figure, box.low), pixel(figure, box.high)))
    place = {
        "x": f"{short(100 * left)}%",
        "y": short(top),
        "width": f"{short(100 * (right - left))}%",
        "height": short(bottom - top),
    }
    opacity = short(box.opacity) if box.opacity < 1 else ""
    drawn = element("rect", tooltip(box.title), **place, fill_opacity=opacity, **paint(box.colour))
    if not box.text:
        return drawn
    middle = {"x": f"{short(50 * (left + right))}%", "y": short((top + bottom) / 2)}
    return drawn + element("text", box.text, **middle, dy=".32em", class_="cell middle")
