"""Methods that diverged are named, and neither judged nor drawn."""

from __future__ import annotations

import numpy as np
import pytest
from made_up import GROUPS, grouped, scored, statistics

import coterie as ct
from coterie.reporting.comparison import compare, describe_diverged
from coterie.reporting.page import collect_page, render_page
from coterie.reporting.run_records import load_runs
from coterie.reporting.verdict import describe_verdict, group_benefit
from coterie.runs.folder import RunFolder


def errors(scores: list[float], label: str, seed: int = 0):
    return scored(scores, seed, label, "mse")


def test_an_error_that_grows_or_is_not_finite_has_diverged():
    methods = {
        "fedavg": [errors([2.0, 1.0], "fedavg")],
        "ifca": [errors([2.0, 15.0], "ifca"), errors([2.0, 21.0], "ifca", 1)],
        "local": [errors([1e9, np.inf], "local")],
    }
    for runs in methods.values():
        for run in runs:
            run.history[-1]["r2"] = 1 - run.history[-1]["mse"] / 1.7  # the variance
    found = compare(methods)
    assert found.diverged == {"ifca": 1, "local": 1}
    assert describe_diverged(found) == (
        "ifca (1 of 2 seeds) and local diverged: their loss or scores are not finite, or R² is "
        "below −10. They are excluded from the ranking and the figures; try a smaller step size "
        "(lr)."
    )
    assert describe_diverged(compare({"fedavg": methods["fedavg"]})) == ""


def test_an_accuracy_has_diverged_only_if_it_is_not_finite():
    methods = {"m": [scored([0.9, 0.01])], "n": [scored([0.9, np.nan], label="n")]}
    found = compare(methods)
    assert found.diverged == {"n": 1}
    assert describe_diverged(found).startswith("n diverged: its loss or scores are not finite. ")


def made(methods, by_method) -> str:
    return render_page(collect_page(methods, by_method, [], None))


def test_a_diverged_method_is_named_but_not_drawn():
    ifca = grouped(history=[GROUPS.tolist()] * 2, metric="mse")
    local = grouped("local", history=[None, None], metric="mse")
    local.history[-1]["mse"] = np.inf
    by_method = {
        "ifca": statistics([1, 2, 3, 4], GROUPS, metric="mse"),
        "local": statistics([1, np.inf, 3, 4], metric="mse"),
    }
    page = made({"ifca": [ifca], "local": [local]}, by_method)
    assert page.count("local diverged: its loss or scores are not finite, or R² is below") == 1
    assert 'data-line="ifca"' in page and 'data-line="local"' not in page
    assert "<td>local</td>" in page  # in the comparison
    assert '<th scope="col">local</th>' not in page and "a, local: " not in page
    assert "ifca has a typical error of 0.707 (the root of the test MSE)." in page


def test_the_page_concludes_what_the_command_line_does():
    """That a kind of method diverged is not the same as that it was never run."""
    labels = ("ifca", "fedavg", "local")
    methods = {label: [grouped(label, history=[None, None], metric="mse")] for label in labels}
    methods["ifca"][0].history[-1]["sizes"] = [2, 2]
    methods["fedavg"][0].history[-1] |= {"mse": 9e9, "loss": 9e9, "r2": -9e9}
    page = collect_page(methods, {}, [], None)
    assert page.benefit == group_benefit(compare(methods))
    assert page.benefit.missing == ["one model for all (fedavg diverged)"]
    assert page.verdict == describe_verdict(compare(methods))
    assert "R² is below −10" in page.verdict


def test_a_page_is_made_where_every_method_diverged():
    run = grouped(history=[GROUPS.tolist()] * 2, metric="mse")
    run.history[-1]["mse"] = np.nan
    page = made({"ifca": [run]}, {"ifca": statistics([np.nan] * 4, GROUPS, metric="mse")})
    assert "ifca diverged" in page and "<svg" not in page and "<h2>Groups</h2>" not in page


def test_a_run_that_ended_early_is_not_judged_by_its_start(tmp_path):
    fed = ct.data.linear(clients=4, dim=3, samples=10)
    ct.run(ct.FedAvg(lr=0.01, local_steps=1), fed, rounds=2, out=tmp_path / "good")
    with pytest.raises(ct.Diverged, match="round 1"):
        ct.run(ct.LocalOnly(lr=1e30), fed, rounds=2, out=tmp_path / "wild")
    runs, _ = load_runs([tmp_path])
    assert compare({run.label: [run] for run in runs}).diverged == {"local": 1}

    folder, _ = RunFolder.open(tmp_path / "wild")
    with folder.training():  # a run that is trained again may end otherwise
        assert not folder.has_diverged
