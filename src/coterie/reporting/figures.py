"""The figures of a page as plain data: methods, predictions, groups and clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from coterie.reporting.coefficients import MOST_DRAWN, Coefficients, format_coefficient
from coterie.reporting.convergence import Convergence
from coterie.reporting.drawing import (
    ACCENT,
    METHOD_COLOURS,
    MOST_IN_LEGEND,
    MOST_LABELS,
    MOST_LETTERS,
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
    Shape,
    Styles,
    column_axis,
    format_percent,
    group_colour,
    group_title,
    half_row,
    label_ticks,
    linear_ticks,
    map_height,
    metric_axis,
    number_axis,
    round_axis,
    row_axis,
)
from coterie.reporting.group_membership import GroupChanges, Membership
from coterie.reporting.method import GroupCount, Transitions
from coterie.reporting.model_fit import (
    EXCESS_BOUNDS,
    MIN_BOX,
    ClientMap,
    ClientPositions,
    GroupScores,
    describe_excess,
    name_bounds,
    relative_excess,
)
from coterie.reporting.predictions import CalibrationPoint
from coterie.reporting.text import format_bytes, format_score
from coterie.serve.effects import Effect

FEW_POINTS = 4  # shorter lines have dots
MOST_ROUNDS = 200  # columns of a map; longer runs are sampled evenly
MOST_STATIONS = 6  # groups of a client over the rounds in a tooltip
FEW_DOTS = 12  # up to these dots are large
STRIP_WIDTH = 0.8  # of all methods of a group together; 1 is the distance between groups
LETTERS_OF_EFFECT = 44  # fit below a figure of an effect, of all names together


# ------------------------------------------------------------------------------ methods
def draw_curves(convergence: Convergence, over: str, styles: Styles) -> Figure:
    """Draw the metric over "rounds" or "bytes": mean and range over seeds of each method."""
    marks: list[Mark] = []
    legend = []
    values: list[float] = []
    farthest = 0.0
    for curve in convergence.curves:
        x = (curve.bytes if over == "bytes" else curve.rounds).tolist()
        colour, dash = styles[curve.label]
        title = curve.label
        if curve.label in convergence.final:
            end = format_score(convergence.final[curve.label], convergence.metric)
            title = f"{curve.label}: final {end}"
        has_points = len(x) < FEW_POINTS
        parts: list[Shape] = [Polyline(x, curve.mean.tolist(), colour, title, dash, has_points)]
        if curve.seeds > 1:
            parts.insert(0, Area(x, curve.low.tolist(), curve.high.tolist(), colour, title))
        marks.append(NamedMarks(curve.label, parts, curve.label))
        legend.append(LegendEntry(curve.label, colour, dash, is_line=True))
        farthest = max(farthest, *x)
        values += [*curve.low, *curve.high]
    x_axis = round_axis(farthest)
    if over == "bytes":
        ticks = label_ticks(
            linear_ticks(0.0, farthest), lambda size: format_bytes(size).replace(".0 ", " ")
        )
        x_axis = Axis(0.0, farthest, ticks, "bytes sent in both directions")
    return Figure(x_axis, metric_axis(convergence.metric, values), marks, 300, legend)


def draw_group_count(result: GroupCount) -> Figure:
    """Draw the criterion for each number of groups, and the chosen number."""
    numbers = list(range(1, len(result.criterion) + 1))
    marks: list[Mark] = [Polyline(numbers, result.criterion, ACCENT, "criterion", has_points=True)]
    legend = []
    if result.chosen is not None and 1 <= result.chosen <= len(numbers):
        name = f"chosen: {result.chosen}"
        chosen = result.criterion[result.chosen - 1]
        marks.append(Dot(result.chosen, chosen, METHOD_COLOURS[1], name, radius=7))
        legend.append(LegendEntry(name, METHOD_COLOURS[1]))
    x_axis = number_axis(numbers, "number of groups", whole=True)
    return Figure(x_axis, number_axis(result.criterion, "criterion"), marks, 200, legend)


def cut_name(name: str, letters: int) -> str:
    """Cut a name to this many letters; the mark that it names shows all of it on hover."""
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def draw_effect(effects: Sequence[Effect]) -> Figure:
    """Draw the effect of one column, a line for each group; texts as points."""
    marks: list[Mark] = []
    values: list[float] = []
    texts = [str(x) for x in effects[0].x if isinstance(x, str)]
    for effect in effects:
        colour = group_colour(effect.group) if len(effects) > 1 else ACCENT
        x = list(range(len(texts))) if texts else [float(value) for value in effect.x]
        low = effect.mean if effect.low is None else effect.low
        high = effect.mean if effect.high is None else effect.high
        name = group_title(effect.group) if len(effects) > 1 else effect.column
        if texts:
            for i, text in enumerate(texts):
                marks.append(Polyline([i, i], [low[i], high[i]], colour, f"{name}: {text}"))
                marks.append(Dot(i, effect.mean[i], colour, f"{name}: {text}"))
        else:
            marks.append(Area(x, low, high, colour, name))
            marks.append(Polyline(x, effect.mean, colour, name))
        values += [*low, *high]
    x_axis = number_axis([float(value) for value in x], effects[0].column)
    if texts:
        room = max(3, min(MOST_LETTERS, LETTERS_OF_EFFECT // len(texts) - 1))
        ticks = [(float(i), cut_name(text, room)) for i, text in enumerate(texts)]
        x_axis = Axis(-0.5, len(texts) - 0.5, ticks, effects[0].column, has_grid=False)
    legend = []
    if len(effects) > 1:
        legend = [LegendEntry(group_title(e.group), group_colour(e.group)) for e in effects]
    return Figure(x_axis, number_axis(values, ""), marks, 170, legend)


# ------------------------------------------------------------------------------ matrices
def draw_transitions(result: Transitions) -> Figure:
    """Draw the share of each group's members that came from each group."""
    marks: list[Mark] = []
    for i, row in enumerate(result.shares):
        for j, share in enumerate(row):
            if np.isfinite(share):
                text = format_percent(round(share, 2))
                marks.append(cell(i, j, share, f"from {i}, to {j}: {text}", text))
    groups = range(len(result.shares))
    return draw_matrix(marks, [f"from {i}" for i in groups], [f"to {i}" for i in groups])


def draw_confusion(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> Figure:
    """Draw the number of rows by true class (row) and predicted class (column)."""
    marks: list[Mark] = []
    for i, row in enumerate(matrix):
        total = max(1, sum(row))
        for j, count in enumerate(row):
            title = f"{labels[i]}, predicted {labels[j]}: {count:,} of {total:,}"
            marks.append(cell(i, j, count / total, title, f"{count:,}"))
    return draw_matrix(marks, labels, labels, "predicted")


def draw_matrix(
    marks: list[Mark], rows: Sequence[str], columns: Sequence[str], title: str = ""
) -> Figure:
    """Return a figure of cells with text."""
    height = max(2 * map_height(len(rows)), 80)
    return Figure(column_axis(columns, title), row_axis(rows), marks, height)


def cell(
    row: int, column: int, share: float, title: str, text: str = "", half: float = 0.46
) -> Box:
    """Return a cell of a map with the opacity of a share from 0 to 1; `half` is half its height."""
    opacity = 0.06 + 0.6 * share  # keeps the text readable
    return Box(column - 0.48, column + 0.48, row - half, row + half, ACCENT, title, opacity, text)


def draw_calibration(points: Sequence[CalibrationPoint]) -> Figure:
    """Draw observed frequencies over predicted probabilities; a calibrated model is diagonal."""
    ticks = label_ticks(linear_ticks(0.0, 1.0), format_percent)
    x_axis = Axis(0.0, 1.0, ticks, "predicted")
    y_axis = Axis(0.0, 1.0, ticks, "observed")
    predicted = [point.predicted for point in points]
    observed = [point.observed for point in points]
    marks: list[Mark] = [
        Polyline([0, 1], [0, 1], "#8A8A8A", "predicted = observed", "4 4"),
        Polyline(predicted, observed, ACCENT, ""),
    ]
    for point in points:
        title = (
            f"predicted {format_percent(point.predicted)}, observed "
            f"{format_percent(point.observed)}: {point.rows:,} rows"
        )
        marks.append(Dot(point.predicted, point.observed, ACCENT, title))
    return Figure(x_axis, y_axis, marks, 300)


# ------------------------------------------------------------------------------ groups
def group_colours(result: Membership) -> list[str]:
    """Return the colour of each row of a table of groups; "" for clients without a group."""
    return [group_colour(g.number) if g.number >= 0 else "" for g in result.groups]


def group_legend(groups: list[int], word: str = "group") -> list[LegendEntry]:
    """Return the legend of group colours; empty for more than MOST_IN_LEGEND groups."""
    if len(groups) > MOST_IN_LEGEND:
        return []
    return [LegendEntry(group_title(group, word), group_colour(group)) for group in groups]


def draw_history(changes: GroupChanges) -> Figure:
    """Draw the group of each client (row) over rounds as a map of colours."""
    rounds = len(changes.groups)
    columns = np.unique(np.linspace(0, rounds - 1, min(rounds, MOST_ROUNDS)).round().astype(int))
    numbers = [changes.rounds[i] for i in columns]
    ends = [*numbers[1:], numbers[-1] + max(1, numbers[-1] // MOST_ROUNDS)]
    names = [changes.names[i] for i in changes.shown]
    half = half_row(len(names))
    marks: list[Mark] = []
    for row, client in enumerate(changes.shown):
        boxes: list[Box] = []
        stations = []
        column = 0
        for group, same in groupby(changes.groups[columns, client].tolist()):
            last = column + len(list(same)) - 1
            box = Box(numbers[column], ends[last], row - half, row + half, group_colour(group))
            boxes.append(box)
            stations.append(f"{group_title(group)} from round {numbers[column]}")
            column = last + 1
        if len(stations) > MOST_STATIONS:
            stations = ["…", *stations[-MOST_STATIONS:]]
        marks.append(NamedMarks(f"{names[row]}: {', '.join(stations)}", boxes))
    present = np.unique(changes.groups[columns][:, changes.shown]).tolist()
    return Figure(
        x=round_axis(ends[-1], "round (0: start)"),
        y=row_axis(names),
        marks=marks,
        height=map_height(len(names)),
        legend=group_legend(present),
    )


def draw_group_sizes(changes: GroupChanges) -> Figure:
    """Draw the size of each group over rounds as stacked areas."""
    rounds = [round for round, _ in changes.sizes]
    below = np.zeros(len(rounds))
    marks: list[Mark] = []
    for group in range(changes.group_count):
        # a group that does not exist yet has size 0
        top = below + np.array([sum(counts[group : group + 1]) for _, counts in changes.sizes])
        marks.append(
            Area(
                rounds,
                below.tolist(),
                top.tolist(),
                colour=group_colour(group),
                title=group_title(group),
                opacity=0.85,
            )
        )
        below = top
    y_axis = number_axis(below, "clients", from_zero=True, whole=True)
    legend = group_legend(list(range(changes.group_count)))
    return Figure(round_axis(max(rounds, default=1)), y_axis, marks, 200, legend)


def draw_churn(changes: GroupChanges) -> Figure:
    """Draw the share of clients that changed their group in each round."""
    marks: list[Mark] = []
    for round, share in changes.churn:
        title = f"round {round}: {format_percent(share)}"
        marks.append(Box(round - 0.4, round + 0.4, 0, share, ACCENT, title))
    last = max((round for round, _ in changes.churn), default=1)
    shares = number_axis([share for _, share in changes.churn], "changed group", from_zero=True)
    ticks = [(value, format_percent(value)) for value, _ in shares.ticks]
    y_axis = Axis(shares.low, shares.high, ticks, shares.title)
    rounds = round_axis(last)
    x_axis = Axis(-0.5, last + 0.5, rounds.ticks, rounds.title, has_grid=False)
    return Figure(x_axis, y_axis, marks, 150)


def draw_coefficients(result: Coefficients) -> Figure:
    """Draw the coefficient of each column (row) in each group's model."""
    columns = result.columns[:MOST_DRAWN]
    marks = []
    for row, name in enumerate(columns):
        dots = []
        texts = []
        for group, value in zip(result.groups, result.values[row].tolist()):
            if np.isfinite(value):
                dots.append(Dot(value, row, group_colour(group), radius=5.5))
            texts.append(f"group {group} {format_coefficient(value)}")
        marks.append(NamedMarks(f"{name}: {', '.join(texts)}", dots))
    drawn = result.values[:MOST_DRAWN]
    x_axis = number_axis([0.0, *drawn[np.isfinite(drawn)]], "coefficient")
    height = 2 * map_height(len(columns)) - 10 * len(columns) // 2
    return Figure(x_axis, row_axis(columns), marks, height, group_legend(result.groups))


# ------------------------------------------------------------------------------ clients
def draw_group_scores(result: GroupScores, styles: Styles) -> Figure:
    """Draw the clients' scores as points, with a box per group and method."""
    groups = np.unique(result.groups).tolist()
    y_axis = metric_axis(result.metric, np.concatenate(list(result.scores.values())))
    width = STRIP_WIDTH / len(result.scores)
    marks: list[Mark] = []
    for i, (label, scores) in enumerate(result.scores.items()):
        for position, group in enumerate(groups):
            members = np.flatnonzero((result.groups == group) & np.isfinite(scores))
            middle = position + width * (i - (len(result.scores) - 1) / 2)
            marks += draw_strip(label, styles[label].colour, middle, width, members, scores, result)
    legend = [LegendEntry(label, styles[label].colour) for label in result.scores]
    x_axis = column_axis([group_title(group) for group in groups])
    return Figure(x_axis, y_axis, marks, 280, legend)


def draw_strip(
    label: str,
    colour: str,
    middle: float,
    width: float,
    members: np.ndarray,
    scores: np.ndarray,
    result: GroupScores,
) -> list[Mark]:
    """Return the quartile box, the median and the points of one group under one method.

    Args:
        label: The method.
        colour: Its colour.
        middle: Centre of the strip on the x axis.
        width: Width of the strip.
        members: Indices of the clients.
        scores: Scores of all clients, [shown].
        result: Names of the clients, and the metric.
    """
    if not len(members):
        return []
    marks: list[Mark] = []
    if len(members) >= MIN_BOX:
        low, median, high = np.quantile(scores[members], [0.25, 0.5, 0.75]).tolist()
        title = f"{label}: median {format_score(median, result.metric)}"
        left = middle - 0.42 * width
        right = middle + 0.42 * width
        marks.append(Box(left, right, low, high, colour, title, opacity=0.2))
        marks.append(Polyline([left, right], [median, median], colour, title))
    radius = 2.6 if len(members) > FEW_DOTS else 4.5
    for i, client in enumerate(members.tolist()):
        aside = ((i + 0.5) * 0.618034 % 1 - 0.5) * 0.7 * width  # avoids overlaps
        title = f"{result.names[client]}, {label}: {format_score(scores[client], result.metric)}"
        marks.append(Dot(middle + aside, float(scores[client]), colour, title, radius))
    return marks


def draw_client_map(result: ClientMap) -> Figure:
    """Draw the excess loss, or the weight, of each client (row) under each group's model."""
    is_loss = result.what == "loss"
    half = half_row(len(result.names))
    has_dots = is_loss and result.groups is not None and len(result.names) <= MOST_LABELS
    values = relative_excess(result.values) if is_loss else result.values
    marks: list[Mark] = []
    for row, of_client in enumerate(values.tolist()):
        shapes: list[Shape] = []
        texts = []
        for column, value in enumerate(of_client):
            if not np.isfinite(value):
                continue
            if is_loss:
                shade = SHADES[int(np.searchsorted(EXCESS_BOUNDS, value))]
                shapes.append(Box(column - 0.48, column + 0.48, row - half, row + half, shade))
                texts.append(f"group {column} {describe_excess(value)}")
            else:
                shapes.append(cell(row, column, float(np.clip(value, 0, 1)), "", half=half))
                texts.append(f"group {column} {format_percent(round(value, 3))}")
        if has_dots and result.groups is not None and result.groups[row] >= 0:
            shapes.append(Dot(int(result.groups[row]), row, "own", radius=3.5))
        marks.append(NamedMarks(f"{result.names[row]}: {', '.join(texts)}", shapes))
    legend = []
    if is_loss:
        legend = [LegendEntry(name, shade) for name, shade in zip(name_bounds(), SHADES)]
    if has_dots:
        legend.append(LegendEntry("its own group", "own", is_round=True))
    x_axis = column_axis([group_title(group) for group in range(result.values.shape[1])])
    return Figure(x_axis, row_axis(result.names), marks, map_height(len(result.names)), legend)


def draw_positions(result: ClientPositions) -> Figure:
    """Draw clients as points, coloured by group."""
    marks: list[Mark] = []
    for name, (x, y), group in zip(result.names, result.points.tolist(), result.groups.tolist()):
        if np.isfinite(x) and np.isfinite(y):
            title = f"{name}, {group_title(group, result.word)}"
            marks.append(Dot(x, y, group_colour(group), title))
    axes = []
    for i, title in enumerate(("first component", "second component")):
        axis = number_axis(result.points[:, i], title)
        ticks = [(value, "") for value, _ in axis.ticks]  # grid without numbers: there is no unit
        axes.append(Axis(axis.low, axis.high, ticks, title))
    legend = group_legend(np.unique(result.groups).tolist(), result.word)
    return Figure(axes[0], axes[1], marks, 320, legend)
