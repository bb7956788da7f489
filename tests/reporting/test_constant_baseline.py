"""Which models are no better than a constant prediction for their site, on made-up scores."""

from __future__ import annotations

import numpy as np

from coterie.reporting.comparison import Comparison, site_scores
from coterie.reporting.predictions import (
    ConstantBaseline,
    NoGainAt,
    compare_with_constant,
    describe_constant_baseline,
)

SITES = ("Bern", "Celle", "Davos")


def accuracies(*seeds, commonest=(0.9, 0.6, 0.5), rows=(40, 40, 40)):
    """The accuracies of the three sites with each seed."""
    by_seed = {}
    for seed, values in enumerate(seeds):
        scores = {"accuracy": values, "commonest": commonest, "rows": rows}
        arrays = {name: np.array(numbers, dtype=float) for name, numbers in scores.items()}
        by_seed[seed] = site_scores(SITES, arrays, "accuracy")
    return by_seed


def compared(metric="accuracy", **by_site):
    """Methods with these scores by site; the first is the best, if more of the metric is better."""
    scores = {label: 0.9 - 0.1 * place for place, label in enumerate(by_site)}
    runs = {label: [{"method": label, metric: score}] for label, score in scores.items()}
    return Comparison(metric, runs, by_site)


def test_sites_are_named_whose_model_is_no_better_than_their_commonest_class():
    result = compare_with_constant(
        compared(
            ifca=accuracies([0.9, 0.5, 0.8]),
            fedavg=accuracies([0.95, 0.5, 0.8]),
            local=accuracies([0.9, 0.6, 0.8]),
        )
    )
    assert result.parts == [
        NoGainAt(["ifca", "local"], ["Bern", "Celle"]),
        NoGainAt(["fedavg"], ["Celle"]),
    ]
    assert describe_constant_baseline(result) == (
        "No better than always predicting the site's own most frequent class: ifca and local at "
        "Bern and Celle; fedavg at Celle."
    )


def test_all_seeds_count_together():
    one_good = accuracies([0.8, 0.7, 0.8], [0.97, 0.7, 0.8])
    assert compare_with_constant(compared(ifca=one_good)).parts == [NoGainAt(["ifca"], ["Bern"])]
    good = accuracies([0.8, 0.7, 0.8], [1.0, 0.7, 0.8], [0.92, 0.7, 0.8])
    assert compare_with_constant(compared(ifca=good)) is None


def test_few_rows_and_rows_of_one_class_are_not_judged():
    few = accuracies([0.5, 0.7, 0.8], [0.5, 0.7, 0.8], rows=(9, 40, 40))
    assert compare_with_constant(compared(ifca=few)) is None
    single = accuracies([0.9, 0.7, 0.8], commonest=(1, 0.6, 0.5))
    assert compare_with_constant(compared(ifca=single)) is None
    of_older_run = site_scores(SITES, {"accuracy": np.zeros(3), "rows": np.full(3, 40)}, "accuracy")
    assert compare_with_constant(compared(ifca={0: of_older_run})) is None


def test_regression_is_measured_against_the_sites_own_mean():
    # an R² of −0.5, with an MSE of 3, is a variance of 2; at the last site there is no variance
    scores = {"mse": [3.0, 1.0, 4.0], "r2": [-0.5, 0.5, np.nan], "rows": [40.0, 40.0, 40.0]}
    arrays = {name: np.array(values) for name, values in scores.items()}
    by_site = {0: site_scores(SITES, arrays, "mse")}
    np.testing.assert_allclose(by_site[0].constant, [2, 2, np.nan])
    result = compare_with_constant(compared("mse", ifca=by_site))
    assert describe_constant_baseline(result) == (
        "No better than always predicting the site's own mean: ifca at Bern."
    )


def test_many_sites_and_methods_are_counted():
    sites = [f"s{i}" for i in range(7)]
    everyone = ConstantBaseline("accuracy", [NoGainAt(["a", "b", "c"], sites)], 3, 9)
    words = "every method at 7 of 9 sites (s0, s1, s2, s3, s4, …)."
    assert describe_constant_baseline(everyone).endswith(words)
    parts = [NoGainAt([label], [f"s{i}"]) for i, label in enumerate("abcde")]
    text = describe_constant_baseline(ConstantBaseline("accuracy", parts, 6, 9))
    assert text.endswith(": a at s0; b at s1; c at s2; 2 more methods at others.")
