"""What is asked of clients for a page, against the same computed directly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import HOW, statistics_of, trained
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.core.params import unstack
from coterie.core.task import Batch
from coterie.reporting.client_statistics import (
    ask_for_values,
    principal_components,
    sample_clients,
)
from oracles import give_private_states, private_states

LOSSES = "losses under the groups' models"


@pytest.mark.parametrize("engine", ["vectorised", "loop", "wire"])
def test_losses_are_those_of_each_centre_on_each_clients_training_rows(engine):
    result = trained(ct.IFCA(clusters=2, **HOW), engine=engine, dtype="float64")
    fed = result._run.engine.federation
    task = result._run.task
    asked = statistics_of(result)
    for i, losses in zip(asked.shown, asked.losses):
        x, y = fed.train.client(int(i))
        ones = torch.ones(len(y), dtype=torch.float64)
        rows = Batch(x.double(), y, ones, ones)
        direct = [float(task.loss(centre, rows)) for centre in unstack(result.centres)]
        np.testing.assert_allclose(losses, direct, rtol=1e-9)
    assert asked.groups.tolist() == result.clusters[-1].tolist()


def test_a_portrait_leaves_the_run_as_it_was(ditto):
    result = trained(ct.Ditto(**HOW))
    statistics_of(result)
    leaves = [tree_leaves(private_states(run._run)) for run in (result, ditto)]
    for a, b in zip(*leaves, strict=True):
        assert torch.equal(a, b)


def test_personal_models_are_projected_where_there_are_any_else_losses_else_nothing(ditto, results):
    ifca, fedavg, _ = results
    models = statistics_of(ditto).projection
    assert models.of == "personal models" and statistics_of(ifca).projection.of == LOSSES
    assert statistics_of(fedavg).projection is None
    x, _ = models.points.T  # the two kinds of clients lie apart
    assert x[:3].max() < x[3:].min() or x[3:].max() < x[:3].min()
    mixture = statistics_of(trained(ct.FedEM(clusters=2, **HOW)))  # has no single model
    assert mixture.projection.of == LOSSES and mixture.weights.shape == (6, 2)


def test_principal_directions_keep_distances_of_flat_points():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(7, 2))
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0][:2]
    result = principal_components(flat @ turn + 3, "rows")
    distances = [
        np.linalg.norm(points[:, None] - points[None], axis=-1) for points in (result.points, flat)
    ]
    np.testing.assert_allclose(*distances, atol=1e-12)
    assert result.share > 1 - 1e-12
    assert principal_components(np.ones((5, 3)), "rows") is None
    line = principal_components(np.array([[0.0], [1.0], [5.0]]), "rows")
    assert line.points[:, 1].tolist() == [0, 0, 0]


def test_a_sample_keeps_the_shares_of_the_groups():
    groups = np.repeat([2, 0, 1], [1000, 500, 500])
    shown = sample_clients(groups, [f"c{i}" for i in range(2000)])
    assert len(set(shown.tolist())) == 500 and (np.diff(groups[shown]) >= 0).all()
    assert np.abs(np.bincount(groups[shown]) - [125, 125, 250]).max() <= 1
    assert sample_clients(None, ["a 10", "a 9", "A 1"]).tolist() == [2, 1, 0]  # numbers by size
    few = sample_clients(np.array([1, 0, 1]), ["school 10", "school 3", "school 2"])
    assert few.tolist() == [1, 2, 0]


def test_a_broken_personal_model_spoils_no_other(ditto):
    broken = trained(ct.Ditto(**HOW))
    states = private_states(broken._run)
    for leaf in tree_leaves(states):
        leaf[4] = torch.nan
    give_private_states(broken._run, states)
    ids = np.array([4, 2, 0])
    expected, answers = (
        ask_for_values(result._run, "model_sketch", ids, *result.method.use(result.state))
        for result in (ditto, broken)
    )
    assert np.isnan(answers[0]).all() and np.array_equal(answers[1:], expected[1:])
    is_missing = np.isnan(statistics_of(broken).projection.points).any(1).tolist()
    assert is_missing == [False] * 4 + [True, False]
