"""FedBCD: two rounds by hand, several in NumPy, random steps, stale models, what is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie as ct
from cases import PROBLEMS, Problem, finished, lines, measured, mini_batches, participants, points
from coterie.core import randomness
from coterie.runs.run import Run
from oracles import (
    Model,
    Rows,
    apart,
    arrays,
    assert_same_models,
    decay,
    descend,
    flat,
    mean,
    one,
    personal,
    private_states,
)

VARIANTS = {
    "fedbcd": [
        ct.FedBCD(mixing=0.3, batch=4, lr=0.05),
        ct.FedBCD(rho=0.2, solver="sgd", batch=None, clip=1.0),
    ]
}
PLAIN = {"solver": "sgd", "l2": 0.0, "batch": None}


def steps_of(run: Run, r: int) -> dict[int, int]:
    """How many steps each client would take in round r: drawn in the order of names."""
    names, rng = run.roster.names, randomness.generator(run.options.seed, r, "steps", 1)
    drawn = torch.randint(1, run.method.local_steps + 1, (len(names),), generator=rng).tolist()
    by_name = sorted(range(len(names)), key=names.__getitem__)
    return dict(zip(by_name, drawn))


# ------------------------------------------------------------------------------ by hand
# z = x = 2, lr = ¼, ρ = ½ (2ρ = 1), a = ½, one step.
# a: one row, f = (x − 1)².  b: two rows, f = (x − 4)².
# Round 1: x_a = 1.5, x_b = 3, mean 2.25, z = 2 + ½·¼ = 2.125.
# Round 2: x_a = 1.5 − ¼·(1 + (1.5 − 2.125)) = 1.40625,  x_b = 3 − ¼·(−2 + (3 − 2.125)) = 3.28125,
#          mean 2.34375, z = 2.125 + ½·0.21875 = 2.234375.
# With ρ for 2ρ x_a is 1.328125; by rows the mean of round 1 is 2.5.
TWO = {"b": [(1, 4), (1, 4)], "a": [(1, 1)]}


def test_two_rounds_by_hand() -> None:
    method = ct.FedBCD(lr=0.25, local_steps=1, rho=0.5, mixing=0.5, **PLAIN)
    run = points(TWO, 2.0).ready(method, rounds=2)
    models = [(run.state.z["weight"].item(), flat(private_states(run))) for _ in run.rounds()]
    assert models == [(2.0, [2.0, 2.0]), (2.125, [3.0, 1.5]), (2.234375, [3.28125, 1.40625])]
    assert run.state.mean["weight"].item() == 2.34375


# ------------------------------------------------------------------------------ in NumPy
def heavy_ball(
    p: Problem,
    x: Model,
    z: Model,
    batches: list[Rows],
    *,
    lr: float,
    rho: float,
    beta: float,
    l2: float,
) -> Model:
    u = {k: np.zeros_like(v) for k, v in x.items()}
    for b in batches:
        g = p.f(x, *b)[1]
        d = decay(l2, x)
        u = {k: beta * u[k] + g[k] + d[k] + 2 * rho * (x[k] - z[k]) for k in x}
        x = {k: x[k] - lr * u[k] for k in x}
    return x


@pytest.mark.parametrize("beta", [0.0, 0.8])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy_stale_models_stay_in_the_mean(problem: str, beta: float) -> None:
    p = PROBLEMS[problem]()
    how = {"solver": "heavy_ball", "momentum": beta} if beta else {"solver": "sgd"}
    method = ct.FedBCD(
        lr=0.05, local_steps=4, rho=0.7, mixing=0.6, batch=None, l2=0.1, decay=0.8, **how
    )
    run = p.ready(method, rounds=5, participation=0.4)
    z = one(run.state.z)
    x = [z] * 7
    for r, who in enumerate(participants(run), 1):
        many = steps_of(run, r)
        for i in who:
            batches = [p.clients[i]] * many[i]
            lr = 0.05 * 0.8 ** (r - 1)
            x[i] = heavy_ball(p, x[i], z, batches, lr=lr, rho=0.7, beta=beta, l2=0.1)
        middle = mean(x)
        z = {k: z[k] - 0.6 * (z[k] - middle[k]) for k in z}
    finished(run)
    assert_same_models(one(run.state.z), z)
    assert_same_models(one(run.state.mean), mean(x))
    assert_same_models(personal(run), x)


def test_mini_batches_in_numpy() -> None:
    """The first of the batches that every method would draw, as many as the client takes steps."""
    p = lines()
    run = p.ready(ct.FedBCD(lr=0.05, local_steps=4, batch=2, momentum=0.8, l2=0.0), rounds=3)
    z = one(run.state.z)
    x = [z] * 7
    for r in (1, 2, 3):
        many = steps_of(run, r)
        how = {"lr": 0.05, "rho": 1.0, "beta": 0.8, "l2": 0.0}
        batches = [mini_batches(run, r, i)[: many[i]] for i in range(7)]
        x = [heavy_ball(p, x[i], z, batches[i], **how) for i in range(7)]
        z = mean(x)
    finished(run)
    assert_same_models(one(run.state.z), z)
    assert_same_models(personal(run), x)


def test_the_numbers_of_steps_cover_1_to_local_steps() -> None:
    run = lines().ready(ct.FedBCD(local_steps=4))
    drawn = [tuple(steps_of(run, r).values()) for r in range(1, 30)]
    assert {s for row in drawn for s in row} == {1, 2, 3, 4}
    assert len(set(drawn)) > 25 and all(len(set(row)) > 1 for row in drawn)


# ------------------------------------------------------------------------------ identities
@pytest.mark.parametrize("how", [PLAIN, {**PLAIN, "batch": 2}, {**PLAIN, "l2": 0.3, "clip": 0.5}])
def test_rho_0_and_one_step_is_local_training(how: dict) -> None:
    p = lines()
    end = lambda m: p.run(m, rounds=4, participation=0.6)
    mine = end(ct.FedBCD(lr=0.05, rho=0.0, local_steps=1, **how))
    alone = end(ct.LocalOnly(lr=0.05, local_steps=1, **how))
    assert_same_models(personal(mine), personal(alone))
    assert_same_models(one(mine.state.z), mean(personal(alone)))


def test_the_first_round_of_one_step_is_fedavg() -> None:
    """All start at z, where the pull is 0; a = 1 and all take part."""
    p, how = lines(), {"lr": 0.05, "local_steps": 1, "batch": 2}
    mine = p.run(ct.FedBCD(**how, l2=0.0), rounds=1)
    assert_same_models(
        one(mine.state.z), one(p.run(ct.FedAvg(**how, weighted=False), rounds=1).state)
    )


def test_permuting_clients_permutes_their_models() -> None:
    plain, moved, order = lines().permuted(
        ct.FedBCD(lr=0.05, local_steps=4, batch=2), rounds=3, participation=0.5
    )
    assert_same_models(one(moved.state.z), one(plain.state.z))
    assert_same_models(personal(moved), [personal(plain)[i] for i in order])


# ------------------------------------------------------------------------------ faults
def test_the_mean_counts_every_client_also_those_who_drop_out() -> None:
    run = lines().run(ct.FedBCD(lr=0.05, mixing=0.4), rounds=5, participation=0.7, dropout=0.3)
    assert_same_models(one(run.state.mean), mean(personal(run)))


def test_a_round_without_answers_changes_nothing() -> None:
    """With a < 1 z has not reached the mean, and would go on towards it."""
    run = lines().run(ct.FedBCD(lr=0.05, mixing=0.4), rounds=2)
    z, middle = one(run.state.z), one(run.state.mean)
    assert apart(z, middle)
    run.options = replace(run.options, dropout=1 - 1e-15, rounds=3)
    run.step()
    assert not apart(one(run.state.z), z, 0.0) and not apart(one(run.state.mean), middle, 0.0)


# ------------------------------------------------------------------------------ evaluation
METHOD = ct.FedBCD(lr=0.05, local_steps=3, rho=0.5, mixing=0.5, **PLAIN)


def test_each_client_is_measured_with_its_personal_model() -> None:
    p = measured()
    run = p.run(METHOD, rounds=3)
    np.testing.assert_allclose(run.client_scores["mse"], p.test_losses(personal(run)), rtol=1e-12)
    assert all(apart(x, one(run.state.z), 1e-3) for x in personal(run))


def test_a_newcomer_takes_all_steps_from_the_global_model() -> None:
    p = measured(unseen=1)
    run = p.run(METHOD, rounds=2)
    z = one(run.state.z)
    x = descend(p.f, z, [p.clients[3]] * 3, 0.05, pull=1.0, towards=z)
    assert run.history[-1]["unseen_mse"] == pytest.approx(p.test_loss(x, 3), rel=1e-12)


def test_everyone_starts_at_the_global_model() -> None:
    run = lines().ready(METHOD, seed=4)
    assert_same_models(
        [one(run.state.z), one(run.state.mean), *personal(run)], [arrays(run.task.init(4))] * 9
    )


@pytest.mark.parametrize(
    "how, why",
    [
        ({"local_epochs": 2}, "leave out local_epochs"),
        ({"mixing": 1.5}, "mixing of fedbcd"),
        ({"rho": -1.0}, "rho of fedbcd"),
    ],
)
def test_what_makes_no_sense_is_refused(how: dict, why: str) -> None:
    with pytest.raises(ct.CoterieError, match=why):
        lines().ready(ct.FedBCD(**how))
