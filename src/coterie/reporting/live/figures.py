"""The figures of the live page, drawn with the report's marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from coterie.metrics import METRICS
from coterie.reporting.drawing import (
    ACCENT,
    DASHES,
    Area,
    Axis,
    Figure,
    LegendEntry,
    Mark,
    NamedMarks,
    Polyline,
    column_axis,
    group_colour,
    group_title,
    label_ticks,
    linear_ticks,
    method_styles,
    metric_axis,
    round_axis,
)
from coterie.reporting.figures import draw_strip, group_legend
from coterie.reporting.live.folder import RunLine
from coterie.reporting.live.snapshot import Score, ScoreHistory, Snapshot
from coterie.reporting.model_fit import GroupScores

MAX_POINTS = 250  # of a line; longer ones are thinned out
FEW_POINTS = 4  # lines with fewer points also show the points
FEW_SITES = 8  # up to this number, each site has a line of its own
MIN_MEMBERS = 4  # smaller groups have no interquartile range
MIN_SPAN = 0.1  # of an accuracy axis, so that small changes do not fill the figure
BAND_OPACITY = 0.12
TALL = 260
LOW = 220


class ScoreCurve(NamedTuple):
    """A line of scores over rounds."""

    series: str  # the legend entry that toggles it
    title: str
    points: Sequence[Score]
    colour: str
    dash: str = ""


def draw_score(snapshot: Snapshot) -> Figure:
    """Draw the score of one run; the axis covers all requested rounds."""
    curve = ScoreCurve("", snapshot.label, snapshot.scores, ACCENT)
    return draw_curves([curve], snapshot.metric, snapshot.rounds, has_legend=False)


def draw_runs(runs: Sequence[RunLine], metric: str) -> Figure:
    """Draw the score of each run; runs of the same method share a colour."""
    styles = method_styles(dict.fromkeys(run.label for run in runs))
    curves = []
    for run in runs:
        colour, dash = styles[run.label]
        title = f"{run.label}, seed {run.seed}"
        curves.append(ScoreCurve(run.label, title, run.scores, colour, dash))
    return draw_curves(curves, metric, max(run.rounds for run in runs))


def draw_curves(
    curves: Sequence[ScoreCurve],
    metric: str,
    rounds: int,
    first_round: int = 0,
    has_legend: bool = True,
) -> Figure:
    """Draw lines of scores over rounds."""
    marks: list[Mark] = []
    values: list[float] = []
    for curve in curves:
        points = thin([point for point in curve.points if point.value is not None])
        x = [point.round for point in points]
        y = [float(point.value or 0.0) for point in points]
        values += y
        has_points = len(points) < FEW_POINTS
        line = Polyline(x, y, curve.colour, curve.title, curve.dash, has_points)
        marks.append(NamedMarks(curve.title, [line], curve.series))
    entries = {curve.series: curve for curve in curves}
    legend = []
    if has_legend:
        legend = [LegendEntry(name, c.colour, c.dash, is_line=True) for name, c in entries.items()]
    x_axis = make_round_axis(first_round, rounds)
    return Figure(x_axis, make_score_axis(metric, values), marks, TALL, legend)


def make_round_axis(first: int, last: int) -> Axis:
    """Return an axis of rounds that starts at `first`."""
    if first <= 0:
        return round_axis(last)
    ticks = label_ticks(linear_ticks(first, last, whole=True))
    return Axis(first, max(last, first + 1), ticks, "round")


def make_score_axis(metric: str, values: Iterable[float]) -> Axis:
    """Return the axis of a metric."""
    known = [value for value in values if np.isfinite(value)]
    if METRICS[metric].unit == "share" and known:
        middle = (min(known) + max(known)) / 2
        known += [max(0.0, middle - MIN_SPAN / 2), min(1.0, middle + MIN_SPAN / 2)]
    return metric_axis(metric, known)


def thin(points: Sequence[Score]) -> list[Score]:
    """Return at most `MAX_POINTS` evenly spaced points, including the first and the last."""
    count = min(len(points), MAX_POINTS)
    positions = np.unique(np.linspace(0, len(points) - 1, count).round().astype(int))
    return [points[i] for i in positions.tolist()]


# ------------------------------------------------------------------------------ groups and sites
def draw_group_scores(snapshot: Snapshot, scores: ScoreHistory) -> Figure:
    """Draw the scores by group over rounds, or by site if there are few."""
    if len(snapshot.sites) <= FEW_SITES:
        curves = make_site_curves(snapshot, scores)
        return draw_curves(curves, snapshot.metric, snapshot.rounds, scores.rounds[0])
    numbers = np.unique(scores.groups[np.isfinite(scores.values)]).tolist()
    marks: list[Mark] = []
    values: list[float] = []
    for number in numbers:
        name = name_group(number, snapshot.is_grouped)
        band = group_band(scores, number)
        values += [value for line in (band.low, band.mean, band.high) for value in line]
        colour = ACCENT
        if snapshot.is_grouped:
            colour = group_colour(number)
        rounds = list(scores.rounds)
        line = Polyline(rounds, band.mean, colour, name, has_points=len(rounds) < FEW_POINTS)
        title = f"{name}: interquartile range"
        area = Area(rounds, band.low, band.high, colour, title, BAND_OPACITY)
        marks.append(NamedMarks(name, [area, line], name))
    legend = []
    if snapshot.is_grouped:
        legend = group_legend(numbers)
    x_axis = make_round_axis(scores.rounds[0], snapshot.rounds)
    return Figure(x_axis, make_score_axis(snapshot.metric, values), marks, LOW, legend)


def make_site_curves(snapshot: Snapshot, scores: ScoreHistory) -> list[ScoreCurve]:
    """Return a line per site in the colour of its group."""
    places = {name: i for i, name in enumerate(snapshot.names)}
    curves = []
    drawn: dict[int | None, int] = {}  # number of lines so far, by group
    for site in snapshot.sites:
        values = scores.values[:, places[site.name]]
        points = [
            Score(round, float(value))
            for round, value in zip(scores.rounds, values)
            if np.isfinite(value)
        ]
        colour = ACCENT
        if site.group is not None:
            colour = group_colour(site.group)
        dash = DASHES[drawn.get(site.group, 0) % len(DASHES)]
        drawn[site.group] = drawn.get(site.group, 0) + 1
        curves.append(ScoreCurve(site.name, site.name, points, colour, dash))
    return curves


class Band(NamedTuple):
    """Mean and quartiles of a group's scores at each evaluation."""

    low: list[float]
    mean: list[float]
    high: list[float]


def group_band(scores: ScoreHistory, number: int) -> Band:
    """Return the mean and quartiles over a group; NaN quartiles for a small group."""
    band = Band([], [], [])
    for values, groups in zip(scores.values, scores.groups):
        known = values[(groups == number) & np.isfinite(values)]
        low = mean = high = float("nan")
        if len(known):
            mean = float(known.mean())
        if len(known) >= MIN_MEMBERS:
            low, high = np.quantile(known, [0.25, 0.75]).tolist()
        for line, value in zip(band, (low, mean, high)):
            line.append(value)
    return band


def draw_sites(snapshot: Snapshot, scores: ScoreHistory) -> Figure:
    """Draw the last score of each site as a point, by group."""
    groups = scores.groups[-1]
    result = GroupScores(snapshot.metric, list(snapshot.names), groups, {})
    values = scores.values[-1]
    numbers = np.unique(groups[np.isfinite(values)]).tolist()
    marks: list[Mark] = []
    titles = []
    for position, number in enumerate(numbers):
        title = name_group(number, snapshot.is_grouped)
        titles.append(title)
        colour = ACCENT
        if snapshot.is_grouped:
            colour = group_colour(number)
        members = np.flatnonzero((groups == number) & np.isfinite(values))
        marks += draw_strip(title, colour, position, 0.6, members, values, result)
    y_axis = make_score_axis(snapshot.metric, values.tolist())
    return Figure(column_axis(titles), y_axis, marks, LOW)


def name_group(number: int, is_grouped: bool) -> str:
    """Return the title of a group, or of all sites if the method has no groups."""
    if not is_grouped:
        return "all sites"
    return group_title(number)
