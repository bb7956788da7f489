"""Numbers that figures show, on made-up histories."""

from __future__ import annotations

import numpy as np
from made_up import compared, scored

from coterie.reporting.convergence import convergence
from coterie.reporting.drawing import COLOURS, DASHES, client_axis, colours, round_numbers
from coterie.reporting.figures import curves
from coterie.reporting.group_figures import group_sizes, history_map
from coterie.reporting.moves import Moves


def drawn(methods, over: str) -> list[dict]:
    return curves(convergence(methods, compared(methods)), over)["data"]


def test_curves_are_means_in_a_band_over_rounds_or_bytes():
    methods = {
        "m": [scored([0.2, None, 0.6]), scored([0.4, None, 0.8], 1)],
        "n": [scored([0.1, 0.2, 0.3], label="n")],
    }
    band, line, other = drawn(methods, "rounds")
    assert (line["x"], line["y"], line["name"]) == ([0, 2], [0.3, 0.7], "m")
    assert band["y"] == [0.4, 0.8, 0.6, 0.2] and other["y"] == [0.1, 0.2, 0.3]
    assert [t["x"] for t in drawn(methods, "bytes")][1:] == [[10, 30], [10, 20, 30]]


def moved(groups: np.ndarray, shown: np.ndarray, names: list[str], group_count: int) -> Moves:
    return Moves(
        groups=groups,
        rounds=list(range(len(groups))),
        names=names,
        shown=shown,
        group_count=group_count,
        moved=[],
        sizes=[(0, [2]), (1, [1, 1])],
        churn=[],
    )


def test_the_map_of_groups_has_a_row_per_client_and_grey_only_where_needed():
    groups = np.array([[-1, 0, 1], [1, 0, 1]])
    (heat,) = history_map(moved(groups, np.array([1, 0, 2]), ["a", "b", "<c>"], 2))["data"]
    assert heat["z"] == [[0, 0], [-1, 1], [1, 1]] and heat["y"] == ["b", "a", "&lt;c&gt;"]
    assert heat["zmin"] == -1.5 and len(heat["colorscale"]) == 6
    later = history_map(moved(groups[1:], np.arange(3), ["a", "b", "c"], 2))
    assert later["data"][0]["zmin"] == -0.5
    many = moved(np.zeros((1001, 2), dtype=int), np.arange(2), ["a", "b"], 1)
    (long,) = history_map(many)["data"]
    assert len(long["x"]) == 200 and (long["x"][0], long["x"][-1]) == (0, 1000)


def test_a_group_that_was_not_there_yet_has_the_size_0():
    groups = np.array([[0, 0], [0, 1]])
    first, second = group_sizes(moved(groups, np.arange(2), ["a", "b"], 2))["data"]
    assert (first["y"], second["y"]) == ([2, 1], [0, 1])


def test_long_names_are_cut_and_many_are_not_shown():
    axis = client_axis(["short", "<a very long name>"])
    assert axis["tickvals"] == ["short", "&lt;a very long name&gt;"]
    assert axis["ticktext"] == ["short", "&lt;a very long na…"]
    assert client_axis(["x"] * 41)["showticklabels"] is False


def test_colours_do_not_run_out_and_numbers_are_short():
    assert colours(3) == list(COLOURS[:3]) and len(set(colours(30))) == 30
    assert round_numbers([0.123456, np.nan, None, np.inf]) == [0.1235, None, None, None]


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_lines_show_on_white_and_on_black_and_no_two_of_21_methods_look_alike():
    for colour in COLOURS:
        for back in ("#ffffff", "#14171b"):  # as in style.css
            low, high = sorted((luminance(colour), luminance(back)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, back)
    methods = {f"m{i}": [scored([0.1, 0.2])] for i in range(21)}
    lines = [trace["line"] for trace in drawn(methods, "rounds")]
    assert len({(line["color"], line["dash"]) for line in lines}) == 21
    assert {line["dash"] for line in lines} <= {*DASHES}
