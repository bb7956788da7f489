"""Numbers that figures show, on made-up histories."""

from __future__ import annotations

import re

import numpy as np
from made_up import compared, scored

from coterie.reporting.convergence import convergence
from coterie.reporting.drawing import (
    DASHES,
    GROUP_COLOURS,
    METHOD_COLOURS,
    Area,
    Axis,
    Box,
    Dot,
    Figure,
    Polyline,
    format_tick,
    group_colour,
    linear_ticks,
    log_axis,
    log_ticks,
    method_styles,
    row_axis,
)
from coterie.reporting.figures import (
    draw_calibration,
    draw_client_map,
    draw_confusion,
    draw_curves,
    draw_effect,
    draw_group_scores,
    draw_group_sizes,
    draw_history,
)
from coterie.reporting.group_membership import GroupChanges
from coterie.reporting.model_fit import (
    ClientMap,
    GroupScores,
    describe_uncertain_members,
    relative_excess,
)
from coterie.reporting.predictions import CalibrationPoint
from coterie.reporting.svg import draw
from coterie.serve.effects import Effect


def drawn(methods, over: str) -> list:
    """The lines and bands of all methods."""
    figure = draw_curves(convergence(methods, compared(methods)), over, method_styles(methods))
    return [mark for method in figure.marks for mark in method.marks]


def test_curves_are_means_in_a_band_over_rounds_or_bytes():
    methods = {
        "m": [scored([0.2, None, 0.6]), scored([0.4, None, 0.8], 1)],
        "n": [scored([0.1, 0.2, 0.3], label="n")],
    }
    band, line, other = drawn(methods, "rounds")
    assert line.x == [0, 2] and np.allclose(line.y, [0.3, 0.7]) and line.title.startswith("m: ")
    assert (band.low, band.high) == ([0.2, 0.6], [0.4, 0.8]) and other.y == [0.1, 0.2, 0.3]
    assert [mark.x for mark in drawn(methods, "bytes")][1:] == [[10, 30], [10, 20, 30]]


# ------------------------------------------------------------------------------ groups over rounds
def moved(
    groups: np.ndarray, shown: np.ndarray, names: list[str], group_count: int
) -> GroupChanges:
    return GroupChanges(
        groups=groups,
        rounds=list(range(len(groups))),
        names=names,
        shown=shown,
        group_count=group_count,
        changes=[],
        sizes=[(0, [2]), (1, [1, 1])],
        churn=[],
    )


def test_the_map_of_groups_has_a_row_per_client_and_grey_only_where_needed():
    groups = np.array([[-1, 0, 1], [1, 0, 1]])
    figure = draw_history(moved(groups, np.array([1, 0, 2]), ["a", "b", "<c>"], 2))
    colours = [[box.colour for box in row.marks] for row in figure.marks]
    one, two = group_colour(0), group_colour(1)
    assert colours == [[one], ["faint", two], [two]]  # equal cells are one
    assert figure.marks[1].title == "a: not seen from round 0, group 1 from round 1"
    assert [entry.name for entry in figure.legend] == ["not seen", "group 0", "group 1"]
    later = draw_history(moved(groups[1:], np.arange(3), ["a", "b", "c"], 2))
    assert [entry.name for entry in later.legend] == ["group 0", "group 1"]
    many = np.arange(1001)[:, None] % 2 * np.array([1, 1])
    long = draw_history(moved(many, np.arange(2), ["a", "b"], 2))
    assert len(long.marks[0].marks) <= 200 and long.x.high > 1000


def test_a_group_that_was_not_there_yet_has_the_size_0():
    groups = np.array([[0, 0], [0, 1]])
    first, second = draw_group_sizes(moved(groups, np.arange(2), ["a", "b"], 2)).marks
    assert (first.low, first.high) == ([0, 0], [2, 1])
    assert (second.low, second.high) == ([2, 1], [2, 2])


# ------------------------------------------------------------------------------ fit
def test_the_map_of_fit_is_relative_to_each_clients_best():
    losses = np.array([[1.0, 1.04], [20.0, 10.0], [np.nan, 1.0], [3.0, 3.3]])
    result = ClientMap("loss", ["a", "b", "c", "d"], losses, np.array([0, 1, 1, 1]))
    excess = relative_excess(losses)
    np.testing.assert_allclose(excess, [[0, 0.04], [1, 0], [np.nan, 0], [0, 0.1]])
    rows = draw_client_map(result).marks
    shades = [[mark.colour for mark in row.marks] for row in rows]
    assert shades[:3] == [["s0", "s1", "own"], ["s5", "s0", "own"], ["s0", "own"]]
    assert rows[1].title == "b: group 0 fits 100 % worse, group 1 fits best"
    assert describe_uncertain_members(result) == "", "nobody measured it"
    level = "(membership confidence below 80 %, on rows that formed no group)"
    some = result._replace(confidence=np.array([0.9, 0.3, np.nan, 0.79]))
    assert describe_uncertain_members(some) == (
        f"The group of 2 clients is uncertain {level}: b and d. The confidence of 1 client is "
        "unknown: it takes 10 rows that formed no group (test or validation rows)."
    )
    sure = result._replace(confidence=np.ones(4))
    assert describe_uncertain_members(sure) == f"The group of no client is uncertain {level}."


def test_a_method_has_the_same_colour_in_every_figure():
    styles = method_styles(["ifca", "fedavg", "local"])
    scores = {"local": np.array([0.1, 0.2]), "ifca": np.array([0.3, np.inf])}
    figure = draw_group_scores(GroupScores("mse", ["a", "b"], np.zeros(2, int), scores), styles)
    assert [(mark.title, mark.colour) for mark in figure.marks] == [
        ("a, local: 0.1", METHOD_COLOURS[2]),
        ("b, local: 0.2", METHOD_COLOURS[2]),
        ("a, ifca: 0.3", METHOD_COLOURS[0]),  # what is not finite is not drawn
    ]


# ------------------------------------------------------------------------------ predictions
def test_calibration_and_confusion_can_be_drawn():
    figure = draw_calibration([CalibrationPoint(0.2, 0.25, 40), CalibrationPoint(0.9, 0.8, 10)])
    assert figure.marks[2].title == "predicted 20 %, observed 25 %: 40 rows"
    assert "NaN" not in draw(figure, "calibration")
    figure = draw_confusion([[8, 2], [0, 0]], ["no", "<yes>"])
    assert [mark.text for mark in figure.marks] == ["8", "2", "0", "0"]
    assert figure.marks[0].opacity > figure.marks[1].opacity > figure.marks[2].opacity
    assert "no, predicted &lt;yes&gt;: 2 of 10" in draw(figure, "confusion")


# ------------------------------------------------------------------------------ axes
def test_ticks_are_round_numbers_and_those_of_logs_1_2_and_5():
    assert linear_ticks(0, 30) == [0, 5, 10, 15, 20, 25, 30]
    assert linear_ticks(0, 3, whole=True) == [0, 1, 2, 3]
    assert log_ticks(0.04, 3) == [0.05, 0.1, 0.2, 0.5, 1, 2]
    assert log_ticks(0.55, 0.72) == [0.55, 0.6, 0.65, 0.7]  # too narrow for 1, 2 and 5
    assert log_ticks(1, 1e12) == [1, 1e3, 1e6, 1e9, 1e12]
    texts = [format_tick(value) for value in (0.05, 2, 2000, 1e6, -0.5, 1e-9)]
    assert texts == ["0.05", "2", "2,000", "1e+06", "−0.5", "1e−09"]


def test_a_log_axis_takes_an_error_of_zero():
    axis = log_axis([0.0, 1e-40, 1.0], "error")
    assert axis.place(0.0) == axis.place(1e-40) == 0 and axis.place(1.0) < 1


def test_long_names_are_cut_and_many_are_not_shown():
    axis = row_axis(["short", "<a very long name>!"])
    assert [text for _, text in axis.ticks] == ["short", "<a very long name…"]
    many = row_axis(["x"] * 81)
    assert many.ticks == [] and many.title == "81 clients"


def test_a_picture_has_no_point_that_is_not_finite_and_widths_are_shares():
    axis = Axis(0, 10)
    marks = [
        Polyline([0, 5, 10], [0, np.inf, 10], "#000000", "a", has_points=True),
        Area([0, 5], [0, np.nan], [1, 2], "#000000", "b"),
        Dot(5, 5, "#000000"),
        Box(0, 5, 0, 10, "s0"),
    ]
    picture = draw(Figure(axis, axis, marks, 100), "x")
    assert 'd="M0 100M1000 0"' in picture and "nan" not in picture and "inf" not in picture
    assert '<circle cx="50%" cy="50" r="4.5" fill="#000000"/>' in picture
    assert '<rect x="0%" y="0" width="50%" height="100" class="s0"/>' in picture


# ------------------------------------------------------------------------------ colours
def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_colours_show_on_white_and_on_black_and_no_group_looks_like_a_method():
    for colour in (*METHOD_COLOURS, *GROUP_COLOURS):
        for back in ("#ffffff", "#14171b"):  # as in style.css
            low, high = sorted((luminance(colour), luminance(back)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, back)
    groups = [group_colour(group) for group in range(30)]
    assert len(set(groups)) == 30 and not set(groups) & set(METHOD_COLOURS)
    assert all(re.fullmatch("#[0-9A-Fa-f]{6}", colour) for colour in groups)


def test_no_two_of_21_methods_look_alike():
    methods = {f"m{i}": [scored([0.1, 0.2])] for i in range(21)}
    lines = drawn(methods, "rounds")
    assert len({(line.colour, line.dash) for line in lines}) == 21
    assert {line.dash for line in lines} <= {*DASHES}


def test_names_below_an_effect_do_not_overlap():
    names = ["charity", "commercial", "government", "medical assistance", "other", "self", "none"]
    zeros = [0.0] * len(names)
    effect = Effect("payor", 0, names, zeros, zeros, zeros)
    shown = [text for _, text in draw_effect([effect]).x.ticks]
    assert shown == ["char…", "comm…", "gove…", "medi…", "other", "self", "none"]
    few = effect._replace(x=names[:2], mean=zeros[:2], low=zeros[:2], high=zeros[:2])
    assert [text for _, text in draw_effect([few]).x.ticks] == names[:2]
