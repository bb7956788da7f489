"""Which method is best, whether groups pay, and the table of methods, on made-up scores."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from made_up import compared, scored, sites_of

from coterie.reporting.comparison import (
    Comparison,
    Lead,
    comparison_table,
    describe_comparison_table,
    has_diverged,
)
from coterie.reporting.intervals import ScoreDifference
from coterie.reporting.verdict import (
    describe_agreement,
    describe_benefit,
    describe_lead,
    describe_no_groups,
    describe_verdict,
    group_benefit,
)

NOISE = [0.1, -0.1, 0.05, -0.05, 0.02, -0.02, 0.08, -0.08]  # of eight sites


def methods_of(metric="accuracy", seeds=1, **levels):
    """Methods whose sites score their level, and noise by site that all of them have.

    A level may be (level, noise of this method alone).
    """
    methods = {}
    by_site = {}
    for label, level in levels.items():
        if not isinstance(level, tuple):
            level = (level, [0.0] * 8)
        values = [level[0] + noise + own for noise, own in zip(NOISE, level[1])]
        by_site[label] = sites_of(*[values] * seeds)
        methods[label] = [
            scored([float(np.mean(values))], seed, label, metric) for seed in range(seeds)
        ]
        if label == "ifca":
            for run in methods[label]:
                run.history[-1]["sizes"] = [5, 3]
    return compared(methods, by_site)


def verdict(comparison) -> str:
    return describe_verdict(comparison)


# ------------------------------------------------------------------------------ the best
def test_what_is_hard_for_all_methods_does_not_hide_who_is_better():
    """Sites differ by 0.2, methods by 0.02, on every site: level by spread, not in pairs."""
    comparison = methods_of(seeds=2, m=0.80, n=0.78)
    assert comparison.best == ["m"]
    assert verdict(comparison) == (
        "m scores best, with a test accuracy of 0.800. m's accuracy is 0.020 higher than n's "
        "(0.020 to 0.020, 8 sites, 2 seeds)."
    )


def test_methods_are_level_where_the_interval_holds_zero():
    own = [0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1]
    comparison = methods_of(metric="mse", m=1.0, n=(1.02, own), o=2.0)
    assert comparison.best == ["m", "n"]
    text = verdict(comparison)
    assert text.startswith(
        "m scores best, with a typical error of 1 (the root of the test MSE). n is level with it: "
        "m's error is 2.0 % lower than n's ("
    )
    assert re.search(r"\([\d.]+ % lower to [\d.]+ % higher, 8 sites, 1 seed\), which", text)
    assert text.endswith(
        "which may be chance. m's error is 50.0 % lower than o's (50.0 to 50.0 %, 8 sites, 1 seed)."
    )


def test_without_enough_sites_no_interval_is_given():
    methods = {label: [scored([s], label=label)] for label, s in (("m", 0.9), ("n", 0.5))}
    two = {"m": sites_of([0.9, 0.9]), "n": sites_of([0.5, 0.5])}
    assert "is unknown: an interval takes 3 sites or more, not 2." in verdict(
        compared(methods, two)
    )
    assert verdict(compared(methods)).endswith("the runs did not store scores by site.")
    assert compared(methods).best == ["m"]
    assert verdict(compared({"m": methods["m"]})) == "m has a test accuracy of 0.900."


def test_methods_with_equal_scores_are_level_without_an_interval():
    level = {label: [scored([1.0], metric="mse", label=label)] for label in "ab"}
    assert verdict(compared(level)).startswith(
        "a scores best, with a typical error of 1 (the root of the test MSE). b is level with it."
    )


def test_only_a_difference_whose_interval_holds_zero_may_be_chance():
    own = [0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1]
    comparison = methods_of(a=0.80, b=0.79, c=(0.785, own))
    assert comparison.best == ["a", "c"]
    assert "c is level with it: a's accuracy is 0.015 higher than c's" in verdict(comparison)
    assert "a's accuracy is 0.010 higher than b's (0.010 to 0.010, 8 sites" in verdict(comparison)

    rounded = methods_of(a=0.80001, b=0.8)
    assert rounded.best == ["a", "b"]
    assert verdict(rounded) == "a scores best, with a test accuracy of 0.800. b is level with it."


@pytest.mark.parametrize("infinite", [math.inf, None])  # None: as a folder has it
def test_a_run_that_diverged_is_named_and_never_wins(infinite):
    history = {"m": [1.0, 2.0], "n": [0.5, infinite]}
    methods = {}
    for label, scores in history.items():
        methods[label] = [scored([0.0], seed, label, "mse") for seed in range(2)]
        for run, score in zip(methods[label], scores):
            run.history[-1] |= {"mse": score, "mse_mean": 7.0, "r2": 0.5}
    comparison = compared(methods)
    assert comparison.best == ["m"] and comparison.ranking == ["m", "n"]
    assert comparison_table(comparison).rows[1][1:4] == ["diverged (1 of 2 seeds)", "–", "–"]
    assert "n (1 of 2 seeds) diverged: its loss or scores are not finite" in verdict(comparison)
    assert [has_diverged(run) for run in comparison.runs["n"]] == [False, True]
    assert not any(map(has_diverged, comparison.runs["m"]))
    absurd = {"mse": 3e35, "loss": 3e35, "r2": -3e35}
    assert has_diverged(absurd), "finite, and yet no model at all"
    alone = compared({"n": methods["n"][1:]})
    assert comparison_table(alone).rows[0][1] == "diverged"
    assert verdict(alone).startswith(
        "n diverged: its loss or scores are not finite, or R² is below"
    )


@pytest.mark.parametrize(
    "metric, order", [("accuracy", ["high", "low", "none"]), ("mse", ["low", "high", "none"])]
)
def test_methods_are_ranked_best_first_and_those_without_a_score_last(metric, order):
    scores = {"low": 0.2, "none": None, "high": 0.8}
    runs = {label: [{metric: score}] for label, score in scores.items()}
    comparison = Comparison(metric, runs)
    assert comparison.ranking == order
    assert comparison.best == order[:1]


# ------------------------------------------------------------------------------ whether groups pay
def test_groups_pay_if_they_beat_every_method_without():
    benefit = group_benefit(methods_of(ifca=0.90, fedavg=0.70, local=0.80))
    assert benefit.pays
    assert describe_benefit(benefit) == (
        "Groups pay: ifca beats every method without groups; ifca's accuracy is 0.100 higher than "
        "local's (0.100 to 0.100, 8 sites, 1 seed), the best without groups, and 0.200 higher than "
        "fedavg's (0.200 to 0.200, 8 sites, 1 seed)."
    )
    assert group_benefit(methods_of(fedavg=0.7, local=0.8)) is None
    assert group_benefit(methods_of(ifca=0.9)) is None


def test_groups_do_not_pay_where_a_method_without_is_better_for_certain():
    benefit = group_benefit(methods_of(ifca=0.8, fedavg=0.7, local=0.7, ditto=0.9))
    assert not benefit.pays
    assert describe_benefit(benefit) == (
        "Groups do not pay: ifca's accuracy is 0.100 lower than ditto's (0.100 to 0.100, 8 sites, "
        "1 seed), the best without groups, and 0.100 higher than fedavg's (0.100 to 0.100, 8 sites,"
        " 1 seed)."
    )


@pytest.mark.parametrize("ahead", [0.003, -0.003, 0.0])
@pytest.mark.parametrize("metric", ["accuracy", "mse"])
def test_nothing_is_concluded_from_an_interval_that_holds_zero(metric, ahead):
    own = [0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1]
    other = {"accuracy": 0.5, "mse": 2.0}[metric]
    level = {"ifca": 1.0, "fedavg": (1.0 - ahead, own), "local": other}
    text = describe_benefit(group_benefit(methods_of(metric=metric, **level)))
    assert text.startswith("Whether groups pay is undecided: ifca's ")
    assert text.endswith("8 sites, 1 seed), the best without groups.")
    assert re.search(r"\([\d.]+( %)? lower to [\d.]+( %)? higher, 8 sites", text)


def test_ends_of_an_interval_have_the_direction_of_the_number():
    difference = ScoreDifference(-0.015, -0.026, 0.006, sites=4, seeds=5)
    lead = Lead("ifca", "local", "accuracy", 0.8, difference)
    words = "0.015 lower than local's (0.026 lower to 0.006 higher, 4 sites, 5 seeds)"
    assert describe_lead(lead) == f"ifca's accuracy is {words}"
    worse = lead._replace(difference=ScoreDifference(-0.02, -0.03, -0.01, sites=4, seeds=5))
    assert "0.020 lower than local's (0.010 to 0.030, " in describe_lead(worse)
    # of errors, being ahead by 0.2 of 4 is an error that is 5 % lower
    error = Lead("ifca", "local", "mse", 4.0, ScoreDifference(0.2, -0.1, 0.4, sites=4, seeds=5))
    words = "5.0 % lower than local's (10.0 % lower to 2.5 % higher, 4 sites, 5 seeds)"
    assert describe_lead(error) == f"ifca's error is {words}"
    better = error._replace(difference=ScoreDifference(0.2, 0.1, 0.4, sites=4, seeds=5))
    assert "5.0 % lower than local's (2.5 to 10.0 %, 4 sites" in describe_lead(better)


def test_a_smaller_error_that_is_worse_for_half_of_the_sites_is_not_said_to_pay():
    own = [0.5, -0.3, 0.5, -0.3, 0.4, -0.3, 0.4, -0.3]
    benefit = group_benefit(methods_of(metric="mse", ifca=1.0, fedavg=(1.0, own), local=2.0))
    assert not benefit.pays
    text = describe_benefit(benefit)
    assert text.startswith("Whether groups pay is undecided: ifca's error is 7.0 % lower")


def test_on_two_sites_it_cannot_be_told_whether_groups_pay():
    methods = {label: [scored([0.5], label=label)] for label in ("ifca", "fedavg", "local")}
    methods["ifca"][0].history[-1]["sizes"] = [2, 1]
    two = {label: sites_of([0.9, 0.9]) for label in methods}
    assert describe_benefit(group_benefit(compared(methods, two))) == (
        "Whether groups pay is unknown: an interval takes 3 sites or more, not 2."
    )
    assert describe_benefit(group_benefit(compared(methods))) == (
        "Whether groups pay is unknown: the runs did not store scores by site."
    )


def test_groups_of_one_member_are_no_groups():
    comparison = methods_of(seeds=2, ifca=0.9, fedavg=0.7, local=0.9)
    for run in comparison.runs["ifca"]:
        run["sizes"] = [1, 0, 1, 1, 1]
    text = describe_benefit(group_benefit(comparison))
    assert text.startswith(
        "No two sites belong together: each of the 4 groups of ifca has one member, like local; "
        "ifca's accuracy is 0.000 "
    )
    assert "and 0.200 higher than fedavg's" in text
    comparison.runs["ifca"][1]["sizes"] = [2, 1, 1]
    text = describe_benefit(group_benefit(comparison))
    assert text.startswith("Whether groups pay is undecided: ")


def test_what_is_missing_to_say_that_groups_pay_is_named():
    benefit = group_benefit(methods_of(ifca=0.9, fedavg=0.7))
    assert not benefit.pays
    assert describe_benefit(benefit) == (
        "Whether groups pay is unknown without one model for each client (such as local): "
        "ifca's accuracy is 0.200 higher than fedavg's (0.200 to 0.200, 8 sites, 1 seed)."
    )
    comparison = methods_of(metric="mse", ifca=0.5, fedavg=0.7, local=0.8)
    comparison.runs["local"][0]["mse"] = math.inf
    assert "(local diverged)" in describe_benefit(group_benefit(comparison))


def test_any_method_with_personal_models_stands_for_one_model_for_each_client():
    comparison = methods_of(ifca=0.9, fedavg=0.7, **{"mr-mtl": 0.7})
    assert group_benefit(comparison).pays


def test_a_method_whose_clients_are_all_in_one_group_has_no_groups():
    comparison = methods_of(ifca=0.9, fedavg=0.7, local=0.7)
    comparison.runs["ifca"][0]["sizes"] = [8, 0]
    assert group_benefit(comparison) is None


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
        "Accuracy over all test rows, ± standard deviation over the 2 clients; worst 10 %: mean "
        "over the clients with the worst scores; * best, or level with it: no interval says that "
        "another method is better, or the scores are equal to three digits."
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
    assert legend.endswith("is better, or the scores are equal to three digits.")


def test_balanced_accuracy_is_shown_where_rare_classes_fare_worse():
    methods = {"m": [scored([0.9])]}
    methods["m"][0].history[-1] |= {"balanced_accuracy": 0.89, "commonest": 0.7}
    assert "balanced" not in comparison_table(compared(methods)).head
    methods["m"][0].history[-1]["balanced_accuracy"] = 0.6
    assert "balanced" in comparison_table(compared(methods)).head
    assert "always predicting the most frequent class: accuracy 0.700" in describe_comparison_table(
        compared(methods)
    )


# ------------------------------------------------------------------------------ groups found
def test_one_group_is_said_first_and_nothing_else_of_groups():
    comparison = methods_of(ifca=0.9, fedavg=0.7, local=0.7)
    assert describe_no_groups(comparison) == ""
    comparison.runs["ifca"][0]["sizes"] = [8, 0]
    assert describe_no_groups(comparison) == (
        "No groups were found: ifca puts all 2 sites together."
    )
    assert describe_no_groups(methods_of(fedavg=0.7, local=0.7)) == "", "nobody looked for any"


def test_groups_that_other_seeds_do_not_find_are_unstable():
    comparison = methods_of(seeds=2, ifca=0.90, fedavg=0.70, local=0.80)
    first, second = comparison.runs["ifca"]
    first["group_of"] = {"a": 0, "b": 0, "c": 1, "d": 1}
    second["group_of"] = {"a": 1, "b": 1, "c": 0, "d": 0}
    benefit = group_benefit(comparison)
    assert benefit.agreement == 1 and not benefit.is_unstable
    assert "find the same groups or nearly (ARI 1.00" in describe_agreement(benefit)
    second["group_of"] = {"a": 0, "b": 1, "c": 0, "d": 1}
    benefit = group_benefit(comparison)
    assert benefit.agreement == pytest.approx(-0.5)  # pairs together: 2 and 2, in both: none
    assert describe_agreement(benefit).startswith("The groups of ifca are unstable: other seeds")
    assert describe_agreement(group_benefit(methods_of(ifca=0.9, fedavg=0.7))) == ""


def test_a_method_that_is_worse_than_any_other_is_not_level_with_the_best():
    """m is best but uneven; o is surely worse than n, on every site, and so not level."""
    own = [0.3, -0.3, 0.3, -0.3, 0.3, -0.3, 0.3, -0.3]
    comparison = methods_of(m=(0.81, own), n=0.80, o=0.75)
    assert comparison.best == ["m", "n"]


def test_an_error_is_at_most_all_of_it_lower():
    own = [1.9, -1.9, 1.9, -1.9, 1.9, -1.9, 1.9, -1.9]
    text = describe_lead(methods_of(metric="mse", m=0.2, n=(2.1, own)).lead("m", "n"))
    assert "to 100.0 %, 8 sites" in text
