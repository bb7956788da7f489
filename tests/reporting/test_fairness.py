"""Who is served worst, on made-up scores."""

from __future__ import annotations

import numpy as np
from made_up import GROUPS, compared, grouped, statistics

from coterie.reporting.fairness import (
    Grouping,
    choose_grouping,
    describe_fairness,
    describe_few_rows_of_worst,
    describe_worst_groups,
    fairness,
    fairness_table,
)
from coterie.reporting.group_membership import group_means

BY = Grouping(GROUPS, "those found by ifca", "group", "x")


def measured(by_method, by, metric: str = "accuracy", seeds: int = 1):
    methods = {
        label: [grouped(label, seed, metric=metric) for seed in range(seeds)] for label in by_method
    }
    return fairness(compared(methods), by_method, by)


def test_group_means_leave_out_who_has_no_score_or_no_group():
    assert group_means(np.array([1.0, 3.0, np.nan, 9.0]), np.array([0, 0, 1, -1])) == {0: 2.0}


def test_a_small_gap_at_a_low_level_is_not_praised():
    by_method = {
        "fedavg": statistics([0.51, 0.5, 0.51, 0.5]),
        "ifca": statistics([0.9, 0.8, 0.9, 0.8], GROUPS),
    }
    result = measured(by_method, BY)
    table = fairness_table(result)
    assert table.head[:3] == ["method", "worst group", "worst 10 % of clients"]
    assert table.rows == [
        ["fedavg", "0.500 (group 0)", "0.500", "0.510 (group 1)", "0.010", "0.005"],
        ["ifca", "0.800 (group 0)", "0.800", "0.900 (group 1)", "0.100", "0.050"],
    ]
    assert table.marked == (1,) and result.leaders == ["ifca"]
    assert describe_worst_groups(result) == [
        "The worst-served group has 0.800 with ifca, and 0.500 with fedavg.",
        "fedavg has the smallest gap (0.010), but its worst group has only 0.500.",
    ]


def test_the_worst_of_regression_is_the_largest_error_and_tiny_clients_are_pointed_out():
    by_method = {
        "ifca": statistics([1, 2, 1, 5], GROUPS, metric="mse"),
        "local": statistics([4, 4, 4, 4], metric="mse"),
    }
    result = measured(by_method, BY, "mse")
    assert fairness_table(result).rows[0][:4] == ["ifca", "3.5 (group 0)", "5", "1 (group 1)"]
    words = "The worst 10 % under ifca include clients with fewer than 10 test rows."
    assert describe_few_rows_of_worst(result) == words


def test_the_worst_tenth_is_of_the_clients_that_were_evaluated():
    # 10 of 20 clients have a score, so the worst tenth is one client: the second, with 40 rows.
    # A tenth of all 20 would include the first, the second worst, with 3 rows.
    scores = [0.2, 0.1, *[0.9] * 8, *[np.nan] * 10]
    rows = [3, *[40] * 9, *[0] * 10]
    result = measured({"local": statistics(scores, test_rows=rows)}, None)
    assert result.methods[0].worst_clients == 0.1
    assert describe_few_rows_of_worst(result) == ""
    rows[:2] = [40, 3]
    result = measured({"local": statistics(scores, test_rows=rows)}, None)
    assert describe_few_rows_of_worst(result) != ""


def test_without_groups_only_clients_are_compared():
    result = measured({"local": statistics([0.1, 0.2, 0.3, 0.4])}, None)
    table = fairness_table(result)
    assert table.head == ["method", "worst 10 % of clients", "std over clients"]
    assert len(table.rows[0]) == 3
    assert "gap" not in describe_fairness(result) and describe_worst_groups(result) == []
    assert measured({"local": statistics([1.0] * 4, metric="mse")}, None) is None


def test_groups_of_other_clients_are_not_compared():
    by_method = {
        "ifca": statistics([0.9, 0.8, 0.9, 0.8], GROUPS),
        "cfl": statistics([1] * 4, fingerprint="y"),
    }
    rows = fairness_table(measured(by_method, BY)).rows
    assert rows[1][1:] == ["–", "1.000", "–", "–", "0.000"]


def test_methods_are_judged_by_the_true_groups_or_by_those_of_the_best_method():
    truth = np.array([0, 0, 1, 1])
    by_method = {
        "one": statistics([1] * 4, np.zeros(4, dtype=int)),
        "two": statistics([1] * 4, GROUPS),
    }
    assert choose_grouping(["one", "two"], by_method).whose == "those found by two"
    assert choose_grouping(["one"], by_method) is None
    all_in_group_1 = {"one": statistics([1] * 4, np.ones(4, dtype=int))}
    assert choose_grouping(["one"], all_in_group_1) is None
    by_method["two"] = statistics([1] * 4, GROUPS, truth=truth)
    by = choose_grouping(["one", "two"], by_method)
    assert (by.word, by.groups.tolist()) == ("true group", truth.tolist())


def test_several_seeds_are_mentioned():
    one = {"ifca": statistics([0.9, 0.8, 0.9, 0.8], GROUPS)}
    assert "Lowest seed" in describe_fairness(measured(one, BY, seeds=2))
    assert "Lowest seed" not in describe_fairness(measured(one, BY))
