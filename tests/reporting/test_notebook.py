"""Results as notebooks show them."""

from __future__ import annotations

import re

import numpy as np
from small_runs import NAMES

import coterie as ct


def test_a_result_with_groups_names_their_members(results):
    ifca = results[0]
    shown = ifca._repr_html_()
    score = f"{ifca.final['accuracy']:.3f}"
    assert f"ifca with 6 clients, after 3 rounds: a test accuracy of {score}." in shown
    assert len(re.findall("<tr", shown)) == 1 + len(np.unique(ifca.trained.groups))
    assert "&lt;/script&gt;" in shown and not any(name in shown for name in NAMES[:3])


def test_a_result_without_groups_has_its_clients_scores(results):
    shown = results[2]._repr_html_()
    assert "local with 6 clients" in shown and "worst 10 %" in shown
    assert f"<td>{results[2].accuracy.worst_decile:.3f}</td>" in shown


def test_a_diverged_result_says_so():
    fed = ct.data.linear(clients=4, samples=20, dim=3)
    result = ct.run(ct.LocalOnly(lr=0.1), fed, rounds=1)
    result.trained.history[-1]["mse"] = np.inf
    assert "it diverged. Try a smaller step size (lr)." in result._repr_html_()
