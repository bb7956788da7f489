"""What is asked of clients for a page, against the same computed directly."""

from __future__ import annotations

import numpy as np
import torch
from small_runs import trained, two_kinds

import coterie as ct
from coterie.params import unstack
from coterie.reporting.portrait import ask, portrait, principal, sample
from coterie.task import Batch
from oracles import private_states

HOW = {"lr": 0.5, "local_steps": 3}
LOSSES = "losses under the groups' models"


def test_losses_are_those_of_each_centre_on_each_clients_training_rows():
    for engine in ("vectorised", "loop", "wire"):
        result = trained(ct.IFCA(clusters=2, **HOW), engine=engine, dtype="float64")
        fed, task, seen = result._run.fed, result._run.task, portrait(result)
        for i, losses in zip(seen.shown, seen.losses):
            x, y = fed.train.client(int(i))
            ones = torch.ones(len(y), dtype=torch.float64)
            rows = Batch(x.double(), y, ones, ones)
            direct = [float(task.loss(centre, rows)) for centre in unstack(result.centres)]
            np.testing.assert_allclose(losses, direct, rtol=1e-9)
        assert seen.groups.tolist() == result.clusters[-1].tolist()


def test_a_portrait_leaves_the_run_as_it_was():
    result, other = (trained(ct.Ditto(**HOW)) for _ in range(2))
    portrait(result)
    for a, b in zip(
        *(torch.utils._pytree.tree_leaves(private_states(r._run)) for r in (result, other))
    ):
        assert torch.equal(a, b)


def test_personal_models_are_projected_where_there_are_any_else_losses_else_nothing():
    found = {
        m.name: portrait(trained(m)).projection
        for m in (ct.Ditto(**HOW), ct.IFCA(clusters=2, **HOW), ct.FedAvg())
    }
    assert found["ditto"].of == "personal models" and found["ifca"].of == LOSSES
    assert found["fedavg"] is None
    x, _ = found["ditto"].points.T
    assert (
        x[:3].max() < x[3:].min() or x[3:].max() < x[:3].min()
    )  # the two kinds of clients lie apart
    mixture = portrait(trained(ct.FedEM(clusters=2, **HOW)))  # has no single model
    assert mixture.projection.of == LOSSES and mixture.weights.shape == (6, 2)


def test_principal_directions_keep_distances_of_flat_points():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(7, 2))
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0][:2]
    got = principal(flat @ turn + 3, "rows")
    apart = lambda p: np.linalg.norm(p[:, None] - p[None], axis=-1)
    np.testing.assert_allclose(apart(got.points), apart(flat), atol=1e-12)
    assert got.share > 1 - 1e-12
    assert principal(np.ones((5, 3)), "rows") is None
    line = principal(np.array([[0.0], [1.0], [5.0]]), "rows")
    assert line.points[:, 1].tolist() == [0, 0, 0]


def test_a_sample_keeps_the_shares_of_the_groups():
    groups = np.repeat([2, 0, 1], [1000, 500, 500])
    shown = sample(groups, 2000)
    assert len(set(shown.tolist())) == 500 and (np.diff(groups[shown]) >= 0).all()
    assert np.abs(np.bincount(groups[shown]) - [125, 125, 250]).max() <= 1
    assert sample(None, 3).tolist() == [0, 1, 2] and len(two_kinds()) == 6


def test_a_broken_personal_model_spoils_no_other():
    good, bad = (trained(ct.Ditto(**HOW)) for _ in range(2))
    for leaf in torch.utils._pytree.tree_leaves(private_states(bad._run)):
        leaf[4] = torch.nan
    ids = np.array([4, 2, 0])
    expected, got = (ask(r._run, "personal", ids, *r.method.use(r.state)) for r in (good, bad))
    assert got[0].isnan().all() and torch.equal(got[1:], expected[1:])
    assert np.isnan(portrait(bad).projection.points).any(1).tolist() == [False] * 4 + [True, False]
