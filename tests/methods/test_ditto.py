"""Ditto: two rounds by hand, several in NumPy, λ = 0, what is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import coterie as ct
from cases import PROBLEMS, finished, lines, measured, mini_batches, participants, points
from oracles import (
    apart,
    arrays,
    assert_same_models,
    descend,
    flat,
    mean,
    one,
    personal,
    private_states,
)

VARIANTS = {
    "ditto": [ct.Ditto(lam=0.0, batch=4, weighted=False), ct.Ditto(lam=1.0, solver="adam", l2=0.1)]
}


# ------------------------------------------------------------------------------ by hand
# w = v = 2, lr = ¼, λ = 1, one step a round.  a: one row, f = (w − 1)².  b: two rows, f = (w − 4)².
# Round 1, w received 2, no pull yet:  v_a = 2 − ¼·2 = 1.5,  v_b = 2 + ¼·4 = 3;
#                                      w = (1.5 + 2·3)/3 = 2.5.
# Round 2, w received 2.5:  v_a = 1.5 − ¼·(1 + (1.5 − 2.5)) = 1.5,
#                           v_b = 3 − ¼·(−2 + (3 − 2.5)) = 3.375;
#                           w: a 2.5 − ¼·3, b 2.5 + ¼·3, by rows 2.75.
# Others get v_a = 1.25 (a pull towards itself, or none), 1.3125 (towards the client's own new w,
# 1.75), 1 (away from w), 1.75 (starting again from w).
TWO = {"b": [(1, 4), (1, 4)], "a": [(1, 1)]}


def test_two_rounds_by_hand() -> None:
    run = points(TWO, 2.0).ready(ct.Ditto(lr=0.25, local_steps=1, lam=1.0), rounds=2)
    models = [(run.state["weight"].item(), flat(private_states(run))) for _ in run.rounds()]
    assert models == [(2.0, [2.0, 2.0]), (2.5, [3.0, 1.5]), (2.75, [3.375, 1.5])]


# ------------------------------------------------------------------------------ in NumPy
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy_absent_clients_wait(problem: str, weighted: bool) -> None:
    p = PROBLEMS[problem]()
    method = ct.Ditto(lr=0.05, local_steps=3, lam=1.5, weighted=weighted, decay=0.8, l2=0.1)
    run = p.ready(method, rounds=4, participation=0.6)
    w = one(run.state)
    v = [w] * len(p.clients)
    for t, who in enumerate(participants(run)):
        lr, models = 0.05 * 0.8**t, []
        for i in who:
            models.append(descend(p.f, w, [p.clients[i]] * 3, lr, 0.1))
            v[i] = descend(p.f, v[i], [p.clients[i]] * 3, lr, 0.1, pull=1.5, towards=w)
        w = mean(models, [p.sizes[i] if weighted else 1 for i in who])
    finished(run)
    assert_same_models(one(run.state), w)
    assert_same_models(personal(run), v)
    assert len({tuple(who) for who in participants(run)}) > 1


@pytest.mark.parametrize("how", [{"batch": 3, "local_steps": 4}, {"batch": 2, "local_epochs": 2}])
def test_mini_batches_in_numpy(how: dict) -> None:
    p = lines()
    run = p.ready(ct.Ditto(lr=0.05, lam=1.5, **how), rounds=3)
    w = one(run.state)
    v = [w] * 7
    for r in (1, 2, 3):
        batches = [mini_batches(run, r, i) for i in range(7)]
        v = [descend(p.f, v[i], batches[i], 0.05, pull=1.5, towards=w) for i in range(7)]
        w = mean([descend(p.f, w, b, 0.05) for b in batches], p.sizes)
    finished(run)
    assert_same_models(one(run.state), w)
    assert_same_models(personal(run), v)


# ------------------------------------------------------------------------------ identities
FAST = {"rounds": 2, "engine": "vectorised"}  # which test_contract.py holds to the loop
HOWS = [
    {"local_steps": 3},
    {"batch": 3, "local_epochs": 2},
    {"batch": 3, "local_steps": 2, "solver": "heavy_ball"},
]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_lambda_0_is_local_training(how: dict, share: float) -> None:
    p = lines()
    end = lambda m: p.run(m, participation=share, **FAST)
    alone = end(ct.LocalOnly(lr=0.05, **how))
    free = end(ct.Ditto(lr=0.05, lam=0.0, **how))
    pulled = end(ct.Ditto(lr=0.05, lam=1.0, **how))
    assert_same_models(personal(free), personal(alone))
    assert any(apart(a, b) for a, b in zip(personal(pulled), personal(alone)))


@pytest.mark.parametrize("how", HOWS)
def test_the_global_model_is_fedavg_whatever_lambda(how: dict) -> None:
    p = lines()
    end = lambda m: one(p.run(m, participation=0.6, **FAST).state)
    want = end(ct.FedAvg(lr=0.05, **how))
    for lam in (0.0, 2.0):
        assert_same_models(end(ct.Ditto(lr=0.05, lam=lam, **how)), want)


def test_a_strong_pull_keeps_personal_models_near_the_global_one() -> None:
    """The farther apart, the weaker the pull: lr·λ = 0.95, 0.1 and 0."""
    p, far = lines(), []
    for lam in (19.0, 2.0, 0.0):
        run = p.run(ct.Ditto(lr=0.05, lam=lam, local_steps=3), rounds=6, engine="vectorised")
        w = one(run.state)["weight"]
        far.append(sum(float(np.abs(v["weight"] - w).sum()) for v in personal(run)))
    assert far[0] < 0.5 * far[1] < 0.5 * far[2]


def test_permuting_clients_permutes_their_models() -> None:
    plain, moved, order = lines().permuted(
        ct.Ditto(lr=0.05, local_epochs=1, batch=2), rounds=3, participation=0.5
    )
    assert_same_models(personal(moved), [personal(plain)[i] for i in order])


# ------------------------------------------------------------------------------ evaluation
METHOD = ct.Ditto(lr=0.05, local_steps=3, lam=1.0)


def test_each_client_is_measured_with_its_personal_model() -> None:
    p = measured()
    run = p.run(METHOD, rounds=3)
    np.testing.assert_allclose(run.client_scores["mse"], p.test_losses(personal(run)), rtol=1e-12)
    assert all(apart(v, one(run.state), 1e-3) for v in personal(run))


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_new_client_takes_the_personal_steps_of_some_rounds(rounds) -> None:
    p = measured(unseen=1)
    run = p.run(replace(METHOD, join_rounds=rounds), rounds=2)
    w = one(run.state)
    v = descend(p.f, w, [p.clients[3]] * 3 * rounds, 0.05, pull=1.0, towards=w)
    assert run.history[-1]["unseen_mse"] == pytest.approx(p.test_loss(v, 3), rel=1e-12)


def test_everyone_starts_at_the_global_model() -> None:
    run = lines().ready(METHOD, seed=4)
    assert_same_models(personal(run), [one(run.state)] * 7)
    assert_same_models(one(run.state), arrays(run.task.init(4)))


def test_a_negative_lambda_is_refused() -> None:
    with pytest.raises(ct.CoterieError, match="lam of ditto is -1"):
        lines().ready(ct.Ditto(lam=-1.0))
