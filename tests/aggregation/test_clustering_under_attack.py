"""Attackers do not steer the groups that the server makes, where means are robust."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import tensor

import coterie as ct
from coterie.aggregation.attacks import ATTACKS
from coterie.aggregation.robust import robust_means
from coterie.methods.cfl import CFL
from coterie.methods.cgpfl import assign_to_nearest
from coterie.runs.start import prepare_run

SMALL = {"model": "softmax", "rounds": 2, "eval_every": 2, "seed": 0}
ONE_SHOT = ct.OneShot(clusters=2, solve_steps=20)


def federation():
    return ct.data.rotated("digits", clients=16, samples=40, angles=(0, 90), seed=0)


def honest_agreement(method, **options) -> float:
    """How well the groups of the honest clients agree with the truth."""
    fed = federation()
    run = prepare_run(method, fed, **SMALL, attackers=4, **options)
    for _ in run.rounds():
        pass
    honest = torch.ones(16, dtype=torch.bool)
    honest[run.pipeline.attack.attackers] = False
    return adjusted_rand_score(fed.truth[honest], run.groups()[honest.numpy()])


@pytest.mark.parametrize("attack", ATTACKS)
def test_one_shot_finds_the_honest_groups(attack):
    assert honest_agreement(ONE_SHOT, attack=attack, robust="mixing") == 1.0


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a != "labels"])
def test_cgpfl_finds_the_honest_groups(attack):
    method = ct.CGPFL(clusters=2, outer=5)
    assert honest_agreement(method, attack=attack, robust="mixing") == 1.0


def test_far_uploads_cannot_crowd_one_cluster_of_cgpfl():
    centres = {"w": tensor([[0.0], [10.0]])}
    omega = {"w": tensor([[1.0], [9.0], [-1.0], [11.0], [8.5], [90.0]])}
    before = tensor([0, 1, 0, 1, 0, 0])
    assert assign_to_nearest(centres, omega, before, 0.0).tolist() == [0, 1, 0, 1, 1, 1]
    assert assign_to_nearest(centres, omega, before, 0.15).tolist() == [0, 1, 0, 1, 1, 0]
    new = tensor([0, 1, 0, 1, 0, -1])
    assert assign_to_nearest(centres, omega, new, 0.15)[-1] == 1


def test_a_single_long_update_does_not_decide_about_a_split_of_cfl():
    """Six clients in two directions that cancel out; two attackers point a third way, far."""
    honest = tensor([[1.0, 0, 0]] * 3 + [[-1.0, 0, 0]] * 3).double()
    update = torch.cat([honest, tensor([[0, 0, 50.0], [0, 0, 50.0]]).double()])
    rows = torch.ones(8).double()
    method = CFL()
    assert method.split(update, rows, tensor(1.0)) is None
    side = method.split(update, rows, tensor(1.0), hostile=0.25)
    assert len(side[:3].unique()) == len(side[3:6].unique()) == 1
    assert side[0] != side[3]


def test_far_updates_leave_the_groups_of_flhc_alone():
    generator = torch.Generator().manual_seed(0)
    honest = torch.eye(40)[[0, 1]].repeat(6, 1) + 0.05 * torch.randn(12, 40, generator=generator)
    hostile = 100 * torch.eye(40)[10:14]
    labels = ct.FLHC().cut_tree(torch.cat([honest, hostile]))
    assert torch.equal(labels[:12], ct.FLHC().cut_tree(honest))
    assert not torch.isin(labels[12:], labels[:12]).any()


@pytest.mark.parametrize("method", [ONE_SHOT, ct.CGPFL(clusters=2, outer=3)])
@pytest.mark.parametrize("rule", ["mean", "median"])
def test_clients_rate_groups_only_where_means_are_robust(method, rule):
    history = ct.run(method, federation(), **SMALL, robust=rule).history
    rated = any("start_kept" in row.get("notes", {}) for row in history)
    assert rated == (rule != "mean")


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"robust_share": 0.1}, "robust_share does nothing with plain means"),
        ({"attack": "labels", "attack_strength": 2.0}, "attack labels has no strength"),
    ],
)
def test_idle_options_are_refused(options, sentence):
    with pytest.raises(ct.CoterieError, match=sentence):
        prepare_run(ct.FedAvg(), federation(), **{**SMALL, **options})


def test_an_infinite_valid_loss_does_not_end_a_robust_run():
    options = {**SMALL, "valid": 0.2, "stop_after": 1}
    run = prepare_run(ct.FedAvg(), federation(), **options, robust="median")
    run._stop_early({"valid_loss": float("inf")})
    assert not run.stopped
    run = prepare_run(ct.FedAvg(), federation(), **options)
    run._stop_early({"valid_loss": float("inf")})
    assert run.stopped


# ------------------------------------------------------------------------------ one cluster
@pytest.mark.parametrize(("colluders", "expected"), [(7, 1.0), (8, -3.0)])
def test_colluders_that_are_half_of_a_cluster_win(colluders, expected):
    """Eight honest updates near 1, and colluders that all send −3: the larger tight set counts."""
    honest = torch.linspace(0.93, 1.07, 8)
    values = {"w": torch.cat([honest, torch.full((colluders,), -3.0)])[:, None]}
    means = robust_means("krum", values, torch.ones(8 + colluders, 1), 0.45)
    assert float(means["w"]) == pytest.approx(expected, abs=0.6)


def test_krum_regains_most_of_what_colluders_below_half_of_a_cluster_cost():
    """Three of 16 clients claim one of two clusters, so they are three of nine or ten there.

    With so few rows the rule itself costs some accuracy: docs/security.md.
    """
    options = {**SMALL, "rounds": 5, "eval_every": 5}

    def scores(**more):
        run = ct.run(ct.IFCA(clusters=2), federation(), **options, **more)
        return run.trained.client_scores["accuracy"]  # NaN for attackers

    attack = {"attack": "collude", "attackers": 3}
    protected = scores(**attack, robust="krum", robust_share=0.45)
    honest = protected == protected
    clean = scores()[honest].mean()
    lost = clean - scores(**attack)[honest].mean()
    assert lost > 0.1 and clean - protected[honest].mean() < lost / 3
