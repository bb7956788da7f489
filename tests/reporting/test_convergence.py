"""Scores over rounds and bytes, and the cost of a target, on made-up histories."""

from __future__ import annotations

from made_up import compared, scored

from coterie.reporting.convergence import (
    convergence,
    cost_table,
    cost_to_target,
    describe_cost,
    describe_curves,
    describe_final_scores,
    first_hit,
)


def test_curves_are_means_over_seeds_as_far_as_all_went():
    methods = {"m": [scored([0.2, None, 0.6, 0.9]), scored([0.4, None, 0.8], seed=1)]}
    result = convergence(methods, compared(methods))
    (curve,) = result.curves
    assert curve.rounds.tolist() == [0, 2] and curve.bytes.tolist() == [10, 30]
    assert curve.mean.round(9).tolist() == [0.3, 0.7]
    assert (curve.low.tolist(), curve.high.tolist()) == ([0.2, 0.6], [0.4, 0.8])
    assert curve.seeds == 2
    assert "higher is better; the band is the range over seeds." in describe_curves(result)
    words = "Test accuracy over bytes, one line per method. Final: m 0.850."
    assert describe_final_scores(result, "bytes") == words


def test_the_first_round_at_the_target():
    run = scored([0.2, None, 0.6, 0.9])
    assert first_hit(run, "accuracy", 0.5) == (2, 30)
    assert first_hit(run, "accuracy", 0.6) == (2, 30)
    assert first_hit(run, "accuracy", 0.95) is None
    assert first_hit(scored([9.0, 4.0, 1.0], metric="mse"), "mse", 4.0) == (1, 20)
    assert first_hit(scored([float("nan"), 1.0], metric="mse"), "mse", 4.0) == (1, 20)


def test_the_cost_of_a_target():
    # m is at 0.76 in round 1 with one seed of two, n never
    methods = {
        "m": [scored([0.1, 0.8]), scored([0.1, 0.7], seed=1)],
        "n": [scored([0.1, 0.2], label="n")],
    }
    cost = cost_to_target(methods, compared(methods), 0.76)
    assert cost_table(cost).rows == [["m", "1 (1 of 2 seeds)", "20 B"]]
    assert cost.never == ["n"] and cost.share_of_best is None
    assert describe_cost(cost).endswith("Round 0 is the initial model. Means over seeds.")


def test_the_target_follows_from_the_best_final_score_unless_it_is_given():
    methods = {"m": [scored([0.1, 0.75])]}
    cost = cost_to_target(methods, compared(methods), None)
    assert "with accuracy 0.712 or better, 95 % of" in describe_cost(cost)
    methods = {"m": [scored([3.0, 2.0], metric="mse")]}
    cost = cost_to_target(methods, compared(methods), None)
    assert "with MSE 2.1 or better, 105 % of" in describe_cost(cost)
    cost = cost_to_target(methods, compared(methods), 2.5)
    assert "with MSE 2.5 or better. Round 0 is the initial model." in describe_cost(cost)
