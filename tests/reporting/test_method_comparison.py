"""Which method is best, whether groups pay, and the table of methods, on made-up scores."""

from __future__ import annotations

import math

import pytest
from made_up import compared, scored

from coterie.reporting.benefit import GroupBenefit, describe_benefit, group_benefit
from coterie.reporting.comparison import Comparison, chance_margin, describe_verdict, judge
from coterie.reporting.comparison_table import comparison_table, describe_comparison_table


def verdict(methods, test_rows) -> str:
    return describe_verdict(judge(compared(methods, test_rows)))


def test_the_verdict_names_who_is_too_near_to_the_best():
    # 0.9 of 400 rows: two standard errors of a difference are 2 √(2 · 0.896 · 0.104 / 400) = 0.043
    scores = {"m": 0.9, "near": 0.86, "far": 0.85}
    methods = {label: [scored([score], label=label)] for label, score in scores.items()}
    assert chance_margin(0.9, 400) == pytest.approx(2 * math.sqrt(2 * 0.896 * 0.104 / 400), 1e-3)
    result = judge(compared(methods, 400))
    assert (result.best, result.near, result.score) == (["m"], ["near"], 0.9)
    assert verdict(methods, 400) == (
        "m scores best, with a test accuracy of 0.900; near is too near to tell apart from it. On "
        "400 test rows and one seed, differences below about 0.043 may be chance (two standard "
        "errors)."
    )
    assert verdict(methods, None) == "m scores best, with a test accuracy of 0.900."
    level = {label: [scored([1.0], metric="mse")] for label in "ab"}
    assert verdict(level, 400) == "a and b are level, with a test MSE of about 1."
    also_near = {
        label: [scored([s], label=label)] for label, s in (("a", 0.9), ("b", 0.9), ("c", 0.88))
    }
    assert "; c is too near to tell apart from them. On 400" in verdict(also_near, 400)
    assert verdict({"m": methods["m"]}, 400) == "m reaches a test accuracy of 0.900."


@pytest.mark.parametrize(
    "metric, order", [("accuracy", ["high", "low", "none"]), ("mse", ["low", "high", "none"])]
)
def test_methods_are_ranked_best_first_and_those_without_a_score_last(metric, order):
    scores = {"low": 0.2, "none": None, "high": 0.8}
    runs = {label: [{metric: score}] for label, score in scores.items()}
    comparison = Comparison(metric, runs, test_rows=None)
    assert comparison.ranking == order
    assert comparison.best == order[:1]


# ------------------------------------------------------------------------------ whether groups pay
def three(ifca: float, fedavg: float, local: float):
    scores = {"ifca": ifca, "fedavg": fedavg, "local": local}
    return {label: [scored([score], label=label)] for label, score in scores.items()}


@pytest.mark.parametrize(
    "ifca, fedavg, local, benefit, sentence",
    [
        (
            0.90,
            0.70,
            0.80,
            GroupBenefit("ifca", beats_one_for_all=True, beats_one_each=True),
            "Groups pay: ifca beats one model for all (fedavg) and one model for each client "
            "(local).",
        ),
        (
            0.90,
            0.70,
            0.89,
            GroupBenefit("ifca", beats_one_for_all=True, beats_one_each=False),
            "There are groups that matter, since ifca beats one model for all (fedavg); but "
            "clients have",
        ),
        (
            0.90,
            0.89,
            0.70,
            GroupBenefit("ifca", beats_one_for_all=False, beats_one_each=True),
            "The groups of ifca are no better than one model for all (fedavg)",
        ),
    ],
)
def test_whether_groups_pay(ifca, fedavg, local, benefit, sentence):
    methods = three(ifca, fedavg, local)
    assert group_benefit(compared(methods, 400)) is None, "without groups nothing is said"
    methods["ifca"][0].history[-1]["sizes"] = [3, 3]
    assert group_benefit(compared(methods, 400)) == benefit
    assert describe_benefit(benefit).startswith(sentence)
    del methods["local"]
    assert group_benefit(compared(methods, 400)) is None


def test_whether_groups_pay_by_the_spread_over_seeds():
    methods = {}
    for label, score, width in (
        ("ifca", 0.9, 0.01),
        ("fedavg", 0.7, 0.01),
        ("local", 0.88, 0.03),
    ):
        methods[label] = [scored([score + sign * width], label=label) for sign in (-1, 1)]
    for run in methods["ifca"]:
        run.history[-1]["sizes"] = [3, 3]
    benefit = group_benefit(compared(methods, 10))
    assert (benefit.beats_one_for_all, benefit.beats_one_each) == (True, False)
    assert describe_benefit(benefit).startswith("There are groups that matter")


# ------------------------------------------------------------------------------ the table
def test_the_table_has_the_columns_that_any_method_has_and_marks_the_best():
    methods = {"m": [scored([0.9])], "n": [scored([0.5], label="n")]}
    methods["n"][0].history[-1] |= {"sizes": [7, 5], "accuracy_std": 0.25}
    table = comparison_table(compared(methods))
    assert table.head == ["method", "accuracy ± clients", "group sizes", "traffic", "seconds"]
    assert table.rows == [
        ["m", "0.900 *", "–", "10 B", "0.0"],
        ["n", "0.500 ± 0.250", "7 5", "10 B", "0.0"],
    ]
    assert table.marked == (0,)
    assert describe_comparison_table(compared(methods)) == (
        "Accuracy over all test rows, ± standard deviation over the 2 clients; worst 10 %: mean of "
        "the clients that do worst; * best."
    )


def test_the_table_of_several_seeds_has_their_spread_and_sizes_where_they_agree():
    methods = {"m": [scored([0.4], 0), scored([0.6], 1)], "n": [scored([0.1], label="n")]}
    for run, sizes in zip(methods["m"], ([2, 3], [3, 2])):
        run.history[-1]["sizes"] = sizes
    table = comparison_table(compared(methods))
    assert table.head[1] == "accuracy ± seeds"
    assert table.rows[0][1:3] == ["0.500 ± 0.141 *", "3 2"]
    assert table.rows[1][1] == "0.100"
    methods["m"][1].history[-1]["sizes"] = [1, 4]
    assert comparison_table(compared(methods)).rows[0][2] == "vary"
    legend = describe_comparison_table(compared(methods))
    assert "over 2 seeds, means in the other columns" in legend
    assert legend.endswith("* best or within one standard deviation of it.")


def test_balanced_accuracy_is_shown_where_rare_classes_fare_worse():
    methods = {"m": [scored([0.9])]}
    methods["m"][0].history[-1] |= {"balanced_accuracy": 0.89, "commonest": 0.7}
    assert "balanced" not in comparison_table(compared(methods)).head
    methods["m"][0].history[-1]["balanced_accuracy"] = 0.6
    assert "balanced" in comparison_table(compared(methods)).head
    assert "always the commonest class: 0.700" in describe_comparison_table(compared(methods))
