"""MR-MTL: two rounds by hand, several in NumPy, λ = 0 and a large λ, what is measured."""

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
    "mr-mtl": [ct.MRMTL(lam=0.0, batch=4, weighted=False), ct.MRMTL(lam=1.0, solver="adam", l2=0.1)]
}


# ------------------------------------------------------------------------------ by hand
# w̄ = w = 2, lr = ¼, λ = 1, one step a round.  a: one row, f = (w − 1)².  b: two, f = (w − 4)².
# Round 1, no pull yet:  w_a = 2 − ¼·2 = 1.5,  w_b = 2 + ¼·4 = 3;  w̄ = (1.5 + 2·3)/3 = 2.5.
# Round 2:  w_a = 1.5 − ¼·(1 + (1.5 − 2.5)) = 1.5,  w_b = 3 − ¼·(−2 + (3 − 2.5)) = 3.375;
#           w̄ = (1.5 + 2·3.375)/3 = 2.75.
# Round 3:  w_a = 1.5 − ¼·(1 + (1.5 − 2.75)) = 1.5625,
#           w_b = 3.375 − ¼·(−1.25 + (3.375 − 2.75)) = 3.53125;  w̄ = 2.875.
TWO = {"b": [(1, 4), (1, 4)], "a": [(1, 1)]}


def test_three_rounds_by_hand() -> None:
    run = points(TWO, 2.0).ready(ct.MRMTL(lr=0.25, local_steps=1, lam=1.0), rounds=3)
    models = [(run.state["weight"].item(), flat(private_states(run))) for _ in run.rounds()]
    assert models == [
        (2.0, [2.0, 2.0]),
        (2.5, [3.0, 1.5]),
        (2.75, [3.375, 1.5]),
        (2.875, [3.53125, 1.5625]),
    ]


# Unweighted:  round 1: w̄ = (1.5 + 3)/2 = 2.25;  round 2: w_a = 1.5 − ¼·(1 − 0.75) = 1.4375,
# w_b = 3 − ¼·(−2 + 0.75) = 3.3125, w̄ = 2.375.
def test_unweighted_rounds_by_hand() -> None:
    method = ct.MRMTL(lr=0.25, local_steps=1, lam=1.0, weighted=False)
    run = points(TWO, 2.0).run(method, rounds=2)
    assert run.state["weight"].item() == 2.375
    assert flat(private_states(run)) == [3.3125, 1.4375]


# ------------------------------------------------------------------------------ in NumPy
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy_absent_clients_wait(problem: str, weighted: bool) -> None:
    p = PROBLEMS[problem]()
    method = ct.MRMTL(lr=0.05, local_steps=3, lam=1.5, weighted=weighted, decay=0.8, l2=0.1)
    run = p.ready(method, rounds=4, participation=0.6)
    mean_model = one(run.state)
    w = [mean_model] * len(p.clients)
    for t, who in enumerate(participants(run)):
        for i in who:
            batches = [p.clients[i]] * 3
            w[i] = descend(p.f, w[i], batches, 0.05 * 0.8**t, 0.1, pull=1.5, towards=mean_model)
        mean_model = mean([w[i] for i in who], [p.sizes[i] if weighted else 1 for i in who])
    finished(run)
    assert_same_models(one(run.state), mean_model)
    assert_same_models(personal(run), w)
    assert len({tuple(who) for who in participants(run)}) > 1


@pytest.mark.parametrize("how", [{"batch": 3, "local_steps": 4}, {"batch": 2, "local_epochs": 2}])
def test_mini_batches_in_numpy(how: dict) -> None:
    p = lines()
    run = p.ready(ct.MRMTL(lr=0.05, lam=1.5, **how), rounds=3)
    mean_model = one(run.state)
    w = [mean_model] * 7
    for r in (1, 2, 3):
        batches = [mini_batches(run, r, i) for i in range(7)]
        w = [descend(p.f, w[i], batches[i], 0.05, pull=1.5, towards=mean_model) for i in range(7)]
        mean_model = mean(w, p.sizes)
    finished(run)
    assert_same_models(one(run.state), mean_model)
    assert_same_models(personal(run), w)


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
    free = end(ct.MRMTL(lr=0.05, lam=0.0, **how))
    pulled = end(ct.MRMTL(lr=0.05, lam=1.0, **how))
    assert_same_models(personal(free), personal(alone))
    assert any(apart(a, b) for a, b in zip(personal(pulled), personal(alone)))


def test_one_step_with_lr_lambda_1_is_fedavg() -> None:
    """w_k − lr·(∇ + λ(w_k − w̄)) is w̄ − lr·∇F_k(w_k); the first round starts at w_k = w̄."""
    p = lines()
    end = lambda m: p.run(m, rounds=1, engine="vectorised")
    average = end(ct.FedAvg(lr=0.05, local_steps=1))
    tied = end(ct.MRMTL(lr=0.05, local_steps=1, lam=20.0))
    assert_same_models(one(tied.state), one(average.state))


def test_the_stronger_the_pull_the_nearer_to_fedavg() -> None:
    """Small steps from a common start: at lr·λ = 0.95 all models stay near FedAvg's."""
    p, far = lines(), []
    settings = {"lr": 0.002, "local_steps": 30}
    average = one(p.run(ct.FedAvg(lr=0.002, local_steps=1), rounds=6, engine="vectorised").state)
    for lam in (475.0, 5.0, 0.0):
        run = p.run(ct.MRMTL(lam=lam, **settings), rounds=6, engine="vectorised")
        far.append(sum(float(np.abs(v["weight"] - average["weight"]).sum()) for v in personal(run)))
    assert far[0] < 0.2 * far[1] < 0.2 * far[2]


def test_permuting_clients_permutes_their_models() -> None:
    plain, moved, order = lines().permuted(
        ct.MRMTL(lr=0.05, local_epochs=1, batch=2), rounds=3, participation=0.5
    )
    assert_same_models(personal(moved), [personal(plain)[i] for i in order])


# ------------------------------------------------------------------------------ evaluation
METHOD = ct.MRMTL(lr=0.05, local_steps=3, lam=1.0)


def test_each_client_is_measured_with_its_own_model() -> None:
    p = measured()
    run = p.run(METHOD, rounds=3)
    np.testing.assert_allclose(run.client_scores["mse"], p.test_losses(personal(run)), rtol=1e-12)
    assert all(apart(v, one(run.state), 1e-3) for v in personal(run))


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_new_client_takes_the_steps_of_some_rounds(rounds: int) -> None:
    p = measured(unseen=1)
    run = p.run(replace(METHOD, join_rounds=rounds), rounds=2)
    w = one(run.state)
    own = descend(p.f, w, [p.clients[3]] * 3 * rounds, 0.05, pull=1.0, towards=w)
    assert run.history[-1]["unseen_mse"] == pytest.approx(p.test_loss(own, 3), rel=1e-12)


def test_everyone_starts_at_the_common_model() -> None:
    run = lines().ready(METHOD, seed=4)
    assert_same_models(personal(run), [one(run.state)] * 7)
    assert_same_models(one(run.state), arrays(run.task.init(4)))


def test_a_negative_lambda_is_refused() -> None:
    with pytest.raises(ct.CoterieError, match="lam of mr-mtl is -1"):
        lines().ready(ct.MRMTL(lam=-1.0))
