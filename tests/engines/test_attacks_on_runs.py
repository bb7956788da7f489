"""Runs with attackers and robust means: who attacks, what it comes to, and that engines agree."""

from __future__ import annotations

import errno

import numpy as np
import pytest
import torch
from torch import tensor
from torch.utils._pytree import tree_leaves

import coterie as ct
from cases import federation
from coterie.aggregation import aggregator
from coterie.aggregation.attacks import Attack, choose_attackers, poison_labels
from coterie.runs.options import ATTACKS, RULES
from coterie.runs.start import prepare_run

FLIP = {"attack": "flip", "attackers": 2}
FLOAT64 = {"model": "mlp:12", "dtype": "float64", "seed": 1, "eval_every": 3, "rounds": 3}


def close(a, b) -> bool:
    pairs = list(zip(tree_leaves(a), tree_leaves(b), strict=True))
    return all(torch.allclose(u.double(), v.double(), rtol=1e-9, atol=1e-10) for u, v in pairs)


def equal(a, b) -> bool:
    return all(torch.equal(u, v) for u, v in zip(tree_leaves(a), tree_leaves(b), strict=True))


# ------------------------------------------------------------------------------ attackers
def test_attackers_are_spread_over_the_planted_groups():
    fed = ct.data.rotated("digits", clients=40, seed=3)
    attackers = choose_attackers(fed.roster, 8, seed=5)
    assert fed.truth[attackers].bincount(minlength=4).tolist() == [2, 2, 2, 2]
    assert not torch.equal(attackers, choose_attackers(fed.roster, 8, seed=6))


def test_scores_are_those_of_honest_clients():
    run = prepare_run(ct.FedAvg(), federation(), **{**FLOAT64, **FLIP})
    assert len(run.evaluated) == len(run.roster) - 2
    assert not torch.isin(run.pipeline.attack.attackers, run.evaluated).any()


def test_only_attackers_learn_from_flipped_labels():
    fed = federation()
    attack = Attack("labels", None, choose_attackers(fed.roster, 3, seed=0))
    poisoned = poison_labels(fed, attack)
    for i in range(len(fed)):
        before, after = (
            f.train.y[f.train.starts[i] :][: f.train.sizes[i]] for f in (fed, poisoned)
        )
        if i in attack.attackers:
            assert torch.equal(after, fed.classes - 1 - before)
        else:
            assert torch.equal(after, before)
    assert torch.equal(poisoned.test.y, fed.test.y)
    assert poison_labels(fed, Attack("flip", None, attack.attackers)) is fed


def test_a_flipped_upload_by_hand():
    """The mean of ten moves, two of which are turned round and three times as long."""
    honest = prepare_run(ct.FedAvg(weighted=False), federation(), **FLOAT64)
    start = honest.state
    moves = uploads(honest) - flat(start)
    run = prepare_run(
        ct.FedAvg(weighted=False), federation(), **{**FLOAT64, **FLIP, "attack_strength": 3.0}
    )
    run.step(), run.step()
    moves[run.pipeline.attack.attackers] *= -3
    expected = flat(start)[0] + moves.mean(0)
    np.testing.assert_allclose(flat(run.state)[0], expected, rtol=1e-9, atol=1e-12)


def flat(model) -> np.ndarray:
    return torch.cat([v.flatten(1) for v in model.values()], 1).numpy()


def uploads(run) -> np.ndarray:
    """What every client would send in round 1."""
    ask = run.round_context(1)
    stack = ask(run.method.train, shared=run.state, reduce="stack", stream="train")
    return flat(stack.values["model"])[stack.ids.argsort()]


@pytest.mark.parametrize(
    "attack", ["flip", *(pytest.param(a, marks=pytest.mark.slow) for a in ATTACKS[1:])]
)
def test_every_attack_changes_a_run_and_is_the_same_on_every_engine(attack):
    options = {**FLOAT64, "attack": attack, "attackers": 2, "dropout": 0.1}
    method = ct.IFCA(clusters=2)
    runs = [ct.run(method, federation(), engine=e, **options) for e in ("vectorised", "loop")]
    wire = ct.run(method, federation(), engine="wire", **options)
    assert close(runs[0].state, runs[1].state)
    assert equal(runs[1].state, wire.state)
    clean = ct.run(method, federation(), **FLOAT64, dropout=0.1)
    assert not close(runs[0].state, clean.state)


# ------------------------------------------------------------------------------ robust means
def test_a_robust_run_takes_the_median_of_the_uploads():
    honest = prepare_run(ct.FedAvg(weighted=False), federation(), **FLOAT64)
    expected = np.median(uploads(honest), axis=0)
    run = prepare_run(ct.FedAvg(weighted=False), federation(), **FLOAT64, robust="median")
    run.step(), run.step()
    np.testing.assert_allclose(flat(run.state)[0], expected, rtol=1e-12)


def test_stacked_uploads_are_averaged_by_the_rule_too():
    run = prepare_run(ct.CGPFL(clusters=2), federation(), **FLOAT64, robust="median")
    values = {"w": tensor([[1.0], [2.0], [90.0], [5.0]])}
    empty = {"w": tensor([[-1.0], [-1.0], [-7.0]])}
    means = run.round_context(1).group_mean(values, tensor([0, 0, 0, 1]), torch.ones(4), empty)
    assert means["w"].tolist() == [[2.0], [5.0], [-7.0]]


@pytest.mark.parametrize(
    "rule", ["mixing", *(pytest.param(r, marks=pytest.mark.slow) for r in RULES[1:-1])]
)
@pytest.mark.parametrize("method", [ct.IFCA(clusters=2), ct.FedSoft(clusters=2), ct.CFL()])
def test_engines_agree_with_robust_means(method, rule):
    options = {**FLOAT64, **FLIP, "robust": rule, "dropout": 0.1}
    fast = ct.run(method, federation(), **options)
    loop = ct.run(method, federation(), engine="loop", **options)
    assert close(fast.state, loop.state)


def test_resume_under_attack_is_exact(tmp_path):
    options = {**FLOAT64, **FLIP, "robust": "trimmed"}
    straight = ct.run(ct.IFCA(clusters=2), federation(), **options)
    run = prepare_run(ct.IFCA(clusters=2), federation(), **options, out=tmp_path / "run")
    run.step(), run.step()
    with run.folder.log_file():
        run.folder.rewind(run.history, 3)
        run.save(always=True)
    resumed = ct.resume(tmp_path / "run", federation(), "mlp:12")
    assert equal(resumed.state, straight.state)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"attackers": 3}, "attackers and attack_strength need an attack"),
        ({"attack": "flip", "attackers": 10}, "must be honest"),
        ({"attack": "magic"}, "must be one of"),
        ({"robust_share": 0.5}, "must be < 0.5"),
    ],
)
def test_what_makes_no_sense_is_refused(options, sentence):
    with pytest.raises(ct.CoterieError, match=sentence):
        prepare_run(ct.FedAvg(), federation(), **{**FLOAT64, **options})


# ------------------------------------------------------------------------------ large tables
def test_uploads_on_disk_give_the_same_bits(monkeypatch):
    options = {**FLOAT64, "robust": "trimmed"}
    in_memory = ct.run(ct.FedAvg(), federation(), **options)
    monkeypatch.setattr(aggregator, "MAX_BUFFER_IN_MEMORY", 0)
    assert equal(ct.run(ct.FedAvg(), federation(), **options).state, in_memory.state)


def test_a_full_disk_is_one_sentence(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(aggregator, "MAX_BUFFER_IN_MEMORY", 0)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ct.CoterieError, match="set TMPDIR to a larger disk"):
        ct.run(ct.FedAvg(), federation(), **FLOAT64, robust="trimmed")


# ------------------------------------------------------------------------------ what it is for
@pytest.mark.slow
@pytest.mark.parametrize("attack", ["flip", "ipm"])
@pytest.mark.parametrize("method", [ct.IFCA(clusters=4), ct.CFLMGD(clusters=4)])
def test_attackers_cannot_take_a_group(method, attack):
    """Eight of forty, two in each group: the groups of the honest are found all the same."""
    fed = ct.data.rotated("digits", clients=40, seed=0)
    options = {"rounds": 12, "eval_every": 12, "robust": "trimmed"}
    clean = ct.run(method, fed, rounds=12, eval_every=12).history[-1]
    under_attack = ct.run(method, fed, **options, attack=attack, attackers=8)
    last = under_attack.history[-1]
    assert last["accuracy"] > clean["accuracy"] - 0.05
    attackers = {fed.names[int(i)] for i in choose_attackers(fed.roster, 8, 0)}
    assert all(set(row["rejected"]) <= attackers for row in under_attack.history)
