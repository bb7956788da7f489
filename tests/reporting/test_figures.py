"""Numbers that figures and tables show, on made-up histories."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.reporting.compared import first_hit, groups_pay, to_target, verdict
from coterie.reporting.drawing import COLOURS, DASHES, colours, short
from coterie.reporting.fairness import group_means
from coterie.reporting.figures import curves, history_map
from coterie.reporting.html import listed, safe, table, tag
from coterie.reporting.source import Source


def made(
    scores: list[float | None], seed: int = 0, label: str = "m", metric: str = "accuracy"
) -> Source:
    """A run that sends 10 bytes in every round; None: not evaluated."""
    rows = [
        {
            "round": r,
            "bytes_down": 6,
            "bytes_up": 4,
            "seconds": 0.0,
            **({} if s is None else {metric: s}),
        }
        for r, s in enumerate(scores)
    ]
    config = {
        "options": {"seed": seed},
        "clients": ["a", "b"],
        "unseen": 0,
        "data": "d",
        "method": {"name": label},
    }
    return Source(config, rows, None, label)


def test_curves_are_means_in_a_band_over_rounds_or_bytes():
    runs = {
        "m": [made([0.2, None, 0.6]), made([0.4, None, 0.8], 1)],
        "n": [made([0.1, 0.2, 0.3], label="n")],
    }
    band, line, other = curves(runs, "accuracy", "rounds")["data"]
    assert (line["x"], line["y"], line["name"]) == ([0, 2], [0.3, 0.7], "m")
    assert band["y"] == [0.4, 0.8, 0.6, 0.2] and other["y"] == [0.1, 0.2, 0.3]
    assert [t["x"] for t in curves(runs, "accuracy", "bytes")["data"]][1:] == [
        [10, 30],
        [10, 20, 30],
    ]


def test_the_first_round_at_the_target():
    run = made([0.2, None, 0.6, 0.9])
    assert first_hit(run, "accuracy", 0.5, high=True) == (2, 30)
    assert first_hit(run, "accuracy", 0.95, high=True) is None
    assert first_hit(made([9.0, 4.0, 1.0], metric="mse"), "mse", 4.0, high=False) == (1, 20)
    # the best final accuracy is 0.8, its 95 % are 0.76: m is there in round 1 with one seed of two, n never
    told = to_target(
        {"m": [made([0.1, 0.8]), made([0.1, 0.7], 1)], "n": [made([0.1, 0.2], label="n")]}, 0.76
    )
    assert (
        "<td>m</td><td>1 (1 of 2 seeds)</td><td>20 B</td>" in told
        and "Never, in these runs: n." in told
    )
    assert "at accuracy 0.712 or better, 95 % of" in to_target({"m": [made([0.1, 0.75])]}, None)
    assert "at MSE 2.1 or better, 105 % of" in to_target(
        {"m": [made([3.0, 2.0], metric="mse")]}, None
    )


def test_the_map_of_groups_has_a_row_per_client_and_grey_only_where_needed():
    found = np.array([[-1, 0, 1], [1, 0, 1]])
    figure = history_map(found, np.array([1, 0, 2]), ["a", "b", "<c>"], 2)
    (heat,) = figure["data"]
    assert heat["z"] == [[0, 0], [-1, 1], [1, 1]] and heat["y"] == ["b", "a", "&lt;c&gt;"]
    assert heat["zmin"] == -1.5 and len(heat["colorscale"]) == 6
    assert history_map(found[1:], np.arange(3), ["a", "b", "c"], 2)["data"][0]["zmin"] == -0.5
    long = history_map(np.zeros((1001, 2), dtype=int), np.arange(2), ["a", "b"], 1)["data"][0]
    assert len(long["x"]) == 200 and (long["x"][0], long["x"][-1]) == (0, 1000)


def test_group_means_leave_out_who_has_no_score_or_no_group():
    assert group_means(np.array([1.0, 3.0, np.nan, 9.0]), np.array([0, 0, 1, -1])) == {0: 2.0}


def test_colours_do_not_run_out_and_numbers_are_short():
    assert colours(3) == list(COLOURS[:3]) and len(set(colours(30))) == 30
    assert short([0.123456, np.nan, None, np.inf]) == [0.1235, None, None, None]


def test_text_is_escaped_and_markup_is_not():
    assert safe('<a href="x">') == "&lt;a href=&quot;x&quot;&gt;"
    assert tag("p", "<", tag("b", "&"), kind='"') == '<p class="&quot;">&lt;<b>&amp;</b></p>'
    assert tag("p", aria_label="<") == '<p aria-label="&lt;"></p>'
    assert '<tr class="best"><td>2</td>' in table(["a"], [[1], [2]], best=[1])


def test_lists_of_names_read_like_a_sentence():
    assert [listed(list("abcd")[:n], most=3) for n in (1, 2, 3, 4)] == [
        "a",
        "a and b",
        "a, b and c",
        "a, b, c and 1 more",
    ]


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
    lines = [
        t["line"]
        for t in curves({f"m{i}": [made([0.1, 0.2])] for i in range(21)}, "accuracy", "rounds")[
            "data"
        ]
    ]
    assert len({(line["color"], line["dash"]) for line in lines}) == 21 and {
        line["dash"] for line in lines
    } <= {*DASHES}


def test_the_verdict_names_who_is_too_near_to_the_best():
    # 0.9 of 400 rows: two standard errors of a difference are 2 √(2 · 0.896 · 0.104 / 400) = 0.043
    runs = {
        "m": [made([0.9], label="m")],
        "near": [made([0.86], label="near")],
        "far": [made([0.85], label="far")],
    }
    assert verdict(runs, 400) == (
        "m scores best, with a test accuracy of 0.900; near is too near to tell apart from it. On 400 test rows and "
        "one seed, differences below about 0.043 may be chance (two standard errors)."
    )
    assert verdict(runs, None) == "m scores best, with a test accuracy of 0.900."
    assert "level, with a test MSE of about 1" in verdict(
        {k: [made([1.0], metric="mse")] for k in "ab"}, 400
    )


@pytest.mark.parametrize(
    "ifca, fedavg, local, says",
    [
        (
            0.90,
            0.70,
            0.80,
            "Groups pay: ifca beats one model for all (fedavg) and one model for each client (local).",
        ),
        (
            0.90,
            0.70,
            0.89,
            "There are groups that matter, since ifca beats one model for all (fedavg); but clients have",
        ),
        (0.90, 0.89, 0.70, "The groups of ifca are no better than one model for all (fedavg)"),
    ],
)
def test_whether_groups_pay(ifca, fedavg, local, says):
    runs = {
        k: [made([v], label=k)] for k, v in (("ifca", ifca), ("fedavg", fedavg), ("local", local))
    }
    assert groups_pay(runs, 400) == "", "without groups nothing is said"
    runs["ifca"][0].history[-1]["sizes"] = [3, 3]
    assert groups_pay(runs, 400).startswith(says)
    assert groups_pay({k: v for k, v in runs.items() if k != "local"}, 400) == ""


def test_whether_groups_pay_by_the_spread_over_seeds():
    runs = {k: [made([v - w], label=k), made([v + w], label=k)] for k, v, w in (
        ("ifca", 0.9, 0.01), ("fedavg", 0.7, 0.01), ("local", 0.88, 0.03)
    )}  # fmt: skip
    for run in runs["ifca"]:
        run.history[-1]["sizes"] = [3, 3]
    assert groups_pay(runs, 10).startswith("There are groups that matter")
