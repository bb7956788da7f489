"""Figures about the groups and clients of one method."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from coterie.reporting.coefficients import MOST_DRAWN, Coefficients, format_signed
from coterie.reporting.drawing import (
    ACCENT,
    MOST_IN_LEGEND,
    MOST_LABELS,
    SHADES,
    Area,
    Axis,
    Box,
    Dot,
    Figure,
    LegendEntry,
    Mark,
    NamedMarks,
    Polyline,
    Styles,
    column_axis,
    format_percent,
    group_colour,
    group_title,
    half_row,
    map_height,
    metric_axis,
    number_axis,
    round_axis,
    row_axis,
)
from coterie.reporting.excess import BOUNDS, describe_excess, name_bounds
from coterie.reporting.figures import cell
from coterie.reporting.fit import FEWEST_IN_BOX, ClientMap, ClientPositions, GroupScores
from coterie.reporting.moves import Moves
from coterie.reporting.text import format_score

MOST_ROUNDS = 200  # columns of a map; of more rounds, an even sample is drawn
MOST_STATIONS = 6  # groups of a client over the rounds that are listed on hover
FEW_DOTS = 12  # points of a strip up to which they are large
FEW_RADIUS = 4.5
MANY_RADIUS = 2.6
STRIP = 0.8  # width of all methods of a group together; 1 is the distance between groups


def group_legend(groups: list[int], word: str = "group") -> list[LegendEntry]:
    """Name the colours of groups; of very many, none."""
    if len(groups) > MOST_IN_LEGEND:
        return []
    return [LegendEntry(group_title(group, word), group_colour(group)) for group in groups]


# ------------------------------------------------------------------------------ groups over rounds
def history_map(moves: Moves) -> Figure:
    """Draw everyone's group as a map of colours: a row per client, from the first round on."""
    rounds = len(moves.groups)
    columns = np.unique(np.linspace(0, rounds - 1, min(rounds, MOST_ROUNDS)).round().astype(int))
    numbers = [moves.rounds[i] for i in columns]
    ends = [*numbers[1:], numbers[-1] + max(1, numbers[-1] // MOST_ROUNDS)]
    names = [moves.names[i] for i in moves.shown]
    half = half_row(len(names))
    marks: list[Mark] = []
    for row, client in enumerate(moves.shown):
        boxes: list[Box] = []
        stations = []
        column = 0
        for group, same in groupby(moves.groups[columns, client].tolist()):
            last = column + len(list(same)) - 1
            box = Box(numbers[column], ends[last], row - half, row + half, group_colour(group))
            boxes.append(box)
            stations.append(f"{group_title(group)} from round {numbers[column]}")
            column = last + 1
        if len(stations) > MOST_STATIONS:
            stations = ["…", *stations[-MOST_STATIONS:]]
        marks.append(NamedMarks(f"{names[row]}: {', '.join(stations)}", boxes))
    present = np.unique(moves.groups[columns][:, moves.shown]).tolist()
    y_axis = row_axis(names)
    return Figure(
        x=round_axis(ends[-1], "round (0: the start)"),
        y=y_axis,
        marks=marks,
        height=map_height(len(names)),
        legend=group_legend(present),
    )


def group_sizes(moves: Moves) -> Figure:
    """Draw the size of each group as areas on top of each other."""
    rounds = [round for round, _ in moves.sizes]
    below = np.zeros(len(rounds))
    marks: list[Mark] = []
    for group in range(moves.group_count):
        # a group that was not there yet has no size
        sizes = np.array([sum(counts[group : group + 1]) for _, counts in moves.sizes])
        top = below + sizes
        marks.append(
            Area(
                rounds, below.tolist(), top.tolist(), group_colour(group), group_title(group), 0.85
            )
        )
        below = top
    y_axis = number_axis(below, "clients", from_zero=True, whole=True)
    legend = group_legend(list(range(moves.group_count)))
    return Figure(round_axis(max(rounds, default=1)), y_axis, marks, 200, legend)


def churn(moves: Moves) -> Figure:
    """Draw the share of clients that moved in each round."""
    marks: list[Mark] = []
    for round, share in moves.churn:
        title = f"round {round}: {format_percent(share)}"
        marks.append(Box(round - 0.4, round + 0.4, 0, share, ACCENT, title))
    last = max((round for round, _ in moves.churn), default=1)
    shares = number_axis([share for _, share in moves.churn], "clients that moved", from_zero=True)
    ticks = [(value, format_percent(value)) for value, _ in shares.ticks]
    y_axis = Axis(shares.low, shares.high, ticks, shares.title)
    rounds = round_axis(last)
    x_axis = Axis(-0.5, last + 0.5, rounds.ticks, rounds.title, has_grid=False)
    return Figure(x_axis, y_axis, marks, 150)


# ------------------------------------------------------------------------------ models
def draw_coefficients(result: Coefficients) -> Figure:
    """Draw a point per column and group, at the coefficient."""
    columns = result.columns[:MOST_DRAWN]
    marks = []
    for row, name in enumerate(columns):
        dots = []
        texts = []
        for group, value in zip(result.groups, result.values[row].tolist()):
            if np.isfinite(value):
                dots.append(Dot(value, row, group_colour(group), radius=5.5))
            texts.append(f"group {group} {format_signed(value)}")
        marks.append(NamedMarks(f"{name}: {', '.join(texts)}", dots))
    y_axis = row_axis(columns)
    drawn = result.values[:MOST_DRAWN]
    x_axis = number_axis([0.0, *drawn[np.isfinite(drawn)]], "coefficient")
    height = 2 * map_height(len(columns)) - 10 * len(columns) // 2
    legend = group_legend(result.groups)
    return Figure(x_axis, y_axis, marks, height, legend)


# ------------------------------------------------------------------------------ clients
def scores_by_group(result: GroupScores, styles: Styles) -> Figure:
    """Draw a box per group and method over the clients' own scores, with a point per client."""
    groups = np.unique(result.groups).tolist()
    y_axis = metric_axis(result.metric, np.concatenate(list(result.scores.values())))
    width = STRIP / len(result.scores)
    marks: list[Mark] = []
    for i, (label, scores) in enumerate(result.scores.items()):
        colour = styles[label].colour
        for position, group in enumerate(groups):
            members = np.flatnonzero((result.groups == group) & np.isfinite(scores))
            middle = position + width * (i - (len(result.scores) - 1) / 2)
            marks += strip(label, colour, middle, width, members, scores, result)
    legend = [LegendEntry(label, styles[label].colour) for label in result.scores]
    x_axis = column_axis([group_title(group) for group in groups])
    return Figure(x_axis, y_axis, marks, 280, legend)


def strip(
    label: str,
    colour: str,
    middle: float,
    width: float,
    members: np.ndarray,
    scores: np.ndarray,
    result: GroupScores,
) -> list[Mark]:
    """Return a box from the lower to the upper quarter, the median, and a point per client."""
    if not len(members):
        return []
    marks: list[Mark] = []
    if len(members) >= FEWEST_IN_BOX:  # of fewer, the points say it all
        low, median, high = np.quantile(scores[members], [0.25, 0.5, 0.75]).tolist()
        title = f"{label}: median {format_score(median, result.metric)}"
        left = middle - 0.42 * width
        right = middle + 0.42 * width
        marks.append(Box(left, right, low, high, colour, title, opacity=0.2))
        marks.append(Polyline([left, right], [median, median], colour, title))
    radius = FEW_RADIUS
    if len(members) > FEW_DOTS:
        radius = MANY_RADIUS
    for i, client in enumerate(members.tolist()):
        aside = ((i + 0.5) * 0.618034 % 1 - 0.5) * 0.7 * width  # so that points do not overlap
        title = f"{result.names[client]}, {label}: " + format_score(scores[client], result.metric)
        marks.append(Dot(middle + aside, float(scores[client]), colour, title, radius))
    return marks


def client_group_map(result: ClientMap) -> Figure:
    """Draw a number for each client and group: how well its model fits, or its share."""
    if result.what == "loss":
        return fit_map(result)
    return share_map(result)


def fit_map(result: ClientMap) -> Figure:
    """Draw how much worse each group's model fits each client than the one that fits it best."""
    half = half_row(len(result.names))
    has_dots = result.groups is not None and len(result.names) <= MOST_LABELS
    marks: list[Mark] = []
    for row, values in enumerate(result.excess()):
        boxes: list[Polyline | Area | Dot | Box] = []
        texts = []
        for column, value in enumerate(values):
            if not np.isfinite(value):
                continue
            shade = SHADES[int(np.searchsorted(BOUNDS, value))]
            boxes.append(Box(column - 0.48, column + 0.48, row - half, row + half, shade))
            texts.append(f"group {column} {describe_excess(float(value))}")
        if has_dots and result.groups is not None and result.groups[row] >= 0:
            boxes.append(Dot(int(result.groups[row]), row, "own", radius=3.5))
        marks.append(NamedMarks(f"{result.names[row]}: {', '.join(texts)}", boxes))
    legend = [LegendEntry(name, shade) for name, shade in zip(name_bounds(), SHADES)]
    if has_dots:
        legend.append(LegendEntry("its own group", "own", is_round=True))
    return client_by_group(result, marks, legend)


def share_map(result: ClientMap) -> Figure:
    """Draw the share that each group's model has in each client."""
    half = half_row(len(result.names))
    marks: list[Mark] = []
    for row, values in enumerate(result.values):
        boxes = []
        texts = []
        for column, value in enumerate(values):
            if np.isfinite(value):
                boxes.append(cell(row, column, float(np.clip(value, 0, 1)), "", half=half))
                texts.append(f"group {column} {format_percent(round(float(value), 3))}")
        marks.append(NamedMarks(f"{result.names[row]}: {', '.join(texts)}", boxes))
    return client_by_group(result, marks, [])


def client_by_group(result: ClientMap, marks: list[Mark], legend: list[LegendEntry]) -> Figure:
    """Put a map together that has a row per client and a column per group."""
    y_axis = row_axis(result.names)
    columns = [group_title(group) for group in range(result.values.shape[1])]
    height = map_height(len(result.names))
    return Figure(column_axis(columns), y_axis, marks, height, legend)


def client_positions(result: ClientPositions) -> Figure:
    """Draw clients as points, coloured by group."""
    groups = np.unique(result.groups).tolist()
    marks: list[Mark] = []
    for name, (x, y), group in zip(result.names, result.points.tolist(), result.groups.tolist()):
        if np.isfinite(x) and np.isfinite(y):
            title = f"{name}, {group_title(group, result.word)}"
            marks.append(Dot(x, y, group_colour(group), title))
    x_axis = without_numbers(number_axis(result.points[:, 0], "first direction"))
    y_axis = without_numbers(number_axis(result.points[:, 1], "second direction"))
    legend = group_legend(groups, result.word)
    return Figure(x_axis, y_axis, marks, 320, legend)


def without_numbers(axis: Axis) -> Axis:
    """Keep the grid of an axis that has no unit."""
    return Axis(axis.low, axis.high, [(value, "") for value, _ in axis.ticks], axis.title)
