"""The figures of the live page, made of the marks of the report."""

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
from coterie.reporting.fit import GroupScores
from coterie.reporting.group_figures import group_legend, strip
from coterie.reporting.live.folder import RunLine
from coterie.reporting.live.snapshot import Score, SiteScores, Snapshot
from coterie.reporting.text import format_score

MOST_POINTS = 250  # of a line; of more, an even sample is drawn
FEW_POINTS = 4  # up to which a line has points, too
FEW_SITES = 8  # up to which each site has a line of its own
FEW_MEMBERS = 4  # below which a group has no quarters
LEAST_SPAN = 0.1  # of the axis of an accuracy
BAND = 0.12  # opacity
TALL = 260
LOW = 220


class Curve(NamedTuple):
    """A line of scores over rounds."""

    series: str  # the entry of the legend that hides it
    title: str
    points: Sequence[Score]
    colour: str
    dash: str = ""


def draw_score(snapshot: Snapshot) -> Figure:
    """Draw the score of one run over its rounds, on an axis that ends with the last round."""
    curve = Curve("", snapshot.label, snapshot.scores, ACCENT)
    return draw_curves([curve], snapshot.metric, snapshot.rounds, has_legend=False)


def draw_runs(runs: Sequence[RunLine], metric: str) -> Figure:
    """Draw the score of each run; runs of one method have one colour."""
    styles = method_styles(dict.fromkeys(run.label for run in runs))
    curves = []
    for run in runs:
        colour, dash = styles[run.label]
        curves.append(Curve(run.label, f"{run.label}, seed {run.seed}", run.scores, colour, dash))
    return draw_curves(curves, metric, max(run.rounds for run in runs))


def draw_curves(
    curves: Sequence[Curve],
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
    x_axis = rounds_from(first_round, rounds)
    return Figure(x_axis, score_axis(metric, values), marks, TALL, legend)


def rounds_from(first: int, last: int) -> Axis:
    """The axis of rounds from one on."""
    if first <= 0:
        return round_axis(last)
    ticks = label_ticks(linear_ticks(first, last, whole=True))
    return Axis(first, max(last, first + 1), ticks, "round")


def score_axis(metric: str, values: Iterable[float]) -> Axis:
    """The axis of a metric; a small change of an accuracy does not fill the figure."""
    known = [value for value in values if np.isfinite(value)]
    if METRICS[metric].unit == "share" and known:
        middle = (min(known) + max(known)) / 2
        known += [max(0.0, middle - LEAST_SPAN / 2), min(1.0, middle + LEAST_SPAN / 2)]
    return metric_axis(metric, known)


def thin(points: Sequence[Score]) -> list[Score]:
    """Return an even sample of many points, with the first and the last."""
    count = min(len(points), MOST_POINTS)
    places = np.unique(np.linspace(0, len(points) - 1, count).round().astype(int))
    return [points[i] for i in places.tolist()]


# ------------------------------------------------------------------------------ groups and sites
def draw_group_scores(snapshot: Snapshot, scores: SiteScores) -> Figure:
    """Draw the scores by group over rounds; of few sites, a line for each."""
    if len(snapshot.sites) <= FEW_SITES:
        curves = site_curves(snapshot, scores)
        return draw_curves(curves, snapshot.metric, snapshot.rounds, scores.rounds[0])
    numbers = np.unique(scores.groups[np.isfinite(scores.values)]).tolist()
    marks: list[Mark] = []
    values: list[float] = []
    for number in numbers:
        name = name_group(number, snapshot.is_grouped)
        band = quarters(scores, number)
        values += [value for line in (band.low, band.mean, band.high) for value in line]
        colour = ACCENT
        if snapshot.is_grouped:
            colour = group_colour(number)
        rounds = list(scores.rounds)
        line = Polyline(rounds, band.mean, colour, name, has_points=len(rounds) < FEW_POINTS)
        area = Area(rounds, band.low, band.high, colour, f"{name}: the middle half", BAND)
        marks.append(NamedMarks(name, [area, line], name))
    legend = []
    if snapshot.is_grouped:
        legend = group_legend(numbers)
    x_axis = rounds_from(scores.rounds[0], snapshot.rounds)
    return Figure(x_axis, score_axis(snapshot.metric, values), marks, LOW, legend)


def site_curves(snapshot: Snapshot, scores: SiteScores) -> list[Curve]:
    """A line for each of few sites, in the colour of its group."""
    places = {name: i for i, name in enumerate(snapshot.names)}
    curves = []
    drawn: dict[int | None, int] = {}  # by group, how many of its sites have a line
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
        curves.append(Curve(site.name, site.name, points, colour, dash))
    return curves


class Band(NamedTuple):
    """A group's sites over the evaluations."""

    low: list[float]  # the lower quarter
    mean: list[float]
    high: list[float]  # the upper quarter


def quarters(scores: SiteScores, number: int) -> Band:
    """The mean over the sites of a group and, of several, its quarters at each evaluation."""
    band = Band([], [], [])
    for values, groups in zip(scores.values, scores.groups):
        known = values[(groups == number) & np.isfinite(values)]
        low = mean = high = float("nan")
        if len(known):
            mean = float(known.mean())
        if len(known) >= FEW_MEMBERS:
            low, high = np.quantile(known, [0.25, 0.75]).tolist()
        for line, value in zip(band, (low, mean, high)):
            line.append(value)
    return band


def draw_sites(snapshot: Snapshot, scores: SiteScores) -> Figure:
    """Draw a point per site at its last score, group by group."""
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
        marks += strip(title, colour, position, 0.6, members, values, result)
    y_axis = score_axis(snapshot.metric, values.tolist())
    return Figure(column_axis(titles), y_axis, marks, LOW)


def name_group(number: int, is_grouped: bool) -> str:
    """Name a group, or all sites of a method without groups."""
    if not is_grouped:
        return "all sites"
    return group_title(number)


# ------------------------------------------------------------------------------ in words
def describe_curve(snapshot: Snapshot) -> str:
    """Say in words where the line of a run stands."""
    known = [score for score in snapshot.scores if score.value is not None]
    if not known:
        return f"Test {snapshot.metric} over rounds; none is known yet."
    last = known[-1]
    value = format_score(last.value or 0.0, snapshot.metric)
    return f"Test {snapshot.metric} over rounds; {value} in round {last.round}."
