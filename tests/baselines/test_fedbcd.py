"""FedBCD: two rounds by hand, several in NumPy, its random steps, stale models in the mean, what is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie import randomness
from coterie.engine.rounds import Run
from oracles import (
    PROBLEMS,
    Function,
    Model,
    Rows,
    apart,
    arrays,
    descend,
    federation,
    finished,
    line,
    lines,
    loss_on_test,
    mean,
    measured,
    mini_batches,
    near,
    one,
    participants,
    ready,
    rows,
    squared,
)

VARIANTS = {"fedbcd": [ct.FedBCD(mixing=0.3, batch=4, lr=0.05), ct.FedBCD(rho=0.2, solver="sgd", batch=None, clip=1.0)]}
LINEAR = lambda: nn.Linear(3, 1)
PLAIN = {"solver": "sgd", "l2": 0.0, "batch": None}


def personal(run: Run, i: int) -> Model:
    return one(run.engine.snapshot(), i)


def steps_of(run: Run, r: int) -> dict[int, int]:
    """How many steps each client would take in round r: drawn in the order of names."""
    names, most = run.fed.names, run.method.local_steps
    drawn = torch.randint(
        1, most + 1, (len(names),), generator=randomness.generator(run.options.seed, r, "steps", 1)
    ).tolist()
    return {i: drawn[place] for place, i in enumerate(sorted(range(len(names)), key=names.__getitem__))}


# ---------------------------------------------------------------------------------------------- by hand
# z = x = 2, lr = ¼, ρ = ½, a = ½, one step.  a: one row, f = (x − 1)².  b: two rows, f = (x − 4)².  2ρ = 1.
# Round 1: x_a = 1.5, x_b = 3, mean 2.25, z = 2 + ½·¼ = 2.125.
# Round 2: x_a = 1.5 − ¼·(1 + (1.5 − 2.125)) = 1.40625,  x_b = 3 − ¼·(−2 + (3 − 2.125)) = 3.28125,
#          mean 2.34375, z = 2.125 + ½·0.21875 = 2.234375.
# With ρ for 2ρ x_a is 1.328125; by rows the mean of round 1 is 2.5.
TWO = {"b": ([[1.0], [1.0]], [4.0, 4.0]), "a": ([[1.0]], [1.0])}


def test_two_rounds_by_hand() -> None:
    method = ct.FedBCD(lr=0.25, local_steps=1, rho=0.5, mixing=0.5, **PLAIN)
    run = ready(method, federation(TWO), line(2.0), rounds=2)
    seen = [(run.state.z["weight"].item(), run.engine.snapshot()["weight"].flatten().tolist()) for _ in run.rounds()]
    assert seen == [(2.0, [2.0, 2.0]), (2.125, [3.0, 1.5]), (2.234375, [3.28125, 1.40625])]
    assert run.state.mean["weight"].item() == 2.34375


# ---------------------------------------------------------------------------------------------- in NumPy
def heavy_ball(
    f: Function, x: Model, z: Model, batches: list[Rows], lr: float, rho: float, beta: float, l2: float
) -> Model:
    u = {k: np.zeros_like(v) for k, v in x.items()}
    for b in batches:
        g = f(x, *b)[1]
        u = {k: beta * u[k] + g[k] + l2 * x[k] + 2 * rho * (x[k] - z[k]) for k in x}
        x = {k: x[k] - lr * u[k] for k in x}
    return x


@pytest.mark.parametrize("beta", [0.0, 0.8])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy_stale_models_stay_in_the_mean(problem: str, beta: float) -> None:
    p = PROBLEMS[problem]()
    how = {"solver": "heavy_ball", "momentum": beta} if beta else {"solver": "sgd"}
    method = ct.FedBCD(lr=0.05, local_steps=4, rho=0.7, mixing=0.6, batch=None, l2=0.1, decay=0.8, **how)
    run = ready(method, p.fed, p.model, rounds=5, participation=0.4)
    z = one(run.state.z)
    x = [z] * 7
    for r, who in enumerate(participants(run), 1):
        many = steps_of(run, r)
        for i in who:
            x[i] = heavy_ball(p.f, x[i], z, [p.clients[i]] * many[i], 0.05 * 0.8 ** (r - 1), 0.7, beta, 0.1)
        middle = mean(x)
        z = {k: z[k] - 0.6 * (z[k] - middle[k]) for k in z}
    finished(run)
    near(one(run.state.z), z)
    near(one(run.state.mean), mean(x))
    for i in range(7):
        near(personal(run, i), x[i])


def test_mini_batches_in_numpy() -> None:
    """The first so many batches of those that every method would draw."""
    p = lines()
    run = ready(ct.FedBCD(lr=0.05, local_steps=4, batch=2, momentum=0.8, l2=0.0), p.fed, p.model, rounds=3)
    z = one(run.state.z)
    x = [z] * 7
    for r in (1, 2, 3):
        many = steps_of(run, r)
        x = [heavy_ball(p.f, x[i], z, mini_batches(run, r, i)[: many[i]], 0.05, 1.0, 0.8, 0.0) for i in range(7)]
        z = mean(x)
    finished(run)
    near(one(run.state.z), z)
    for i in range(7):
        near(personal(run, i), x[i])


def test_the_numbers_of_steps_cover_1_to_local_steps() -> None:
    p = lines()
    run = ready(ct.FedBCD(local_steps=4), p.fed, p.model)
    drawn = [tuple(steps_of(run, r).values()) for r in range(1, 30)]
    assert {s for row in drawn for s in row} == {1, 2, 3, 4}
    assert len(set(drawn)) > 25 and all(len(set(row)) > 1 for row in drawn)


# ---------------------------------------------------------------------------------------------- identities
@pytest.mark.parametrize("how", [PLAIN, {**PLAIN, "batch": 2}, {**PLAIN, "l2": 0.3, "clip": 0.5}])
def test_rho_0_and_one_step_is_local_training(how: dict) -> None:
    p = lines()
    end = lambda m: finished(ready(m, p.fed, p.model, rounds=4, participation=0.6))
    mine, alone = (
        end(ct.FedBCD(lr=0.05, rho=0.0, local_steps=1, **how)),
        end(ct.LocalOnly(lr=0.05, local_steps=1, **how)),
    )
    for i in range(7):
        near(personal(mine, i), personal(alone, i))
    near(one(mine.state.z), mean([personal(alone, i) for i in range(7)]))


def test_the_first_round_of_one_step_is_fedavg() -> None:
    """All start at z, where the pull is 0; a = 1 and all take part."""
    p, how = lines(), {"lr": 0.05, "local_steps": 1, "batch": 2}
    mine = finished(ready(ct.FedBCD(**how, l2=0.0), p.fed, p.model, rounds=1))
    near(one(mine.state.z), one(finished(ready(ct.FedAvg(**how, weighted=False), p.fed, p.model, rounds=1)).state))


def test_permuting_clients_permutes_their_models() -> None:
    p, order = lines(), [4, 0, 6, 2, 5, 1, 3]
    method = ct.FedBCD(lr=0.05, local_steps=4, batch=2)
    plain, moved = (
        finished(ready(method, fed, p.model, rounds=3, participation=0.5)) for fed in (p.fed, p.fed.subset(order))
    )
    near(one(moved.state.z), one(plain.state.z))
    for place, i in enumerate(order):
        near(personal(moved, place), personal(plain, i))


# ---------------------------------------------------------------------------------------------- faults
def test_the_mean_counts_every_client_also_those_who_drop_out() -> None:
    p = lines()
    run = finished(ready(ct.FedBCD(lr=0.05, mixing=0.4), p.fed, p.model, rounds=5, participation=0.7, dropout=0.3))
    near(one(run.state.mean), mean([personal(run, i) for i in range(7)]))


def test_a_round_without_answers_changes_nothing() -> None:
    """With a < 1 z has not reached the mean, and would go on towards it."""
    p = lines()
    run = finished(ready(ct.FedBCD(lr=0.05, mixing=0.4), p.fed, p.model, rounds=2))
    z, middle = one(run.state.z), one(run.state.mean)
    assert apart(z, middle)
    run.options = replace(run.options, dropout=1 - 1e-15, rounds=3)
    run.step()
    assert not apart(one(run.state.z), z, 0.0) and not apart(one(run.state.mean), middle, 0.0)


# ---------------------------------------------------------------------------------------------- evaluation
METHOD = ct.FedBCD(lr=0.05, local_steps=3, rho=0.5, mixing=0.5, **PLAIN)


def test_each_client_is_measured_with_its_personal_model() -> None:
    fed = measured()
    run = finished(ready(METHOD, fed, LINEAR, rounds=3))
    want = [loss_on_test(personal(run, i), fed, i) for i in range(4)]
    np.testing.assert_allclose(run.clients["mse"], want, rtol=1e-12)
    assert all(apart(personal(run, i), one(run.state.z), 1e-3) for i in range(4))


def test_a_newcomer_takes_all_steps_from_the_global_model() -> None:
    fed = measured(unseen=1)
    run = finished(ready(METHOD, fed, LINEAR, rounds=2))
    z = one(run.state.z)
    x = descend(squared, z, [rows(fed)[3]] * 3, 0.05, pull=1.0, towards=z)
    assert run.history[-1]["unseen_mse"] == pytest.approx(loss_on_test(x, fed, 3), rel=1e-12)


def test_everyone_starts_at_the_global_model() -> None:
    p = lines()
    run = ready(METHOD, p.fed, p.model, seed=4)
    start = arrays(run.task.init(4))
    for w in (one(run.state.z), one(run.state.mean), *(personal(run, i) for i in range(7))):
        near(w, start)


@pytest.mark.parametrize(
    "how, why",
    [
        ({"local_epochs": 2}, "leave local_epochs"),
        ({"mixing": 1.5}, "mixing of fedbcd"),
        ({"rho": -1.0}, "rho of fedbcd"),
    ],
)
def test_what_makes_no_sense_is_refused(how: dict, why: str) -> None:
    p = lines()
    with pytest.raises(ct.CoterieError, match=why):
        ready(ct.FedBCD(**how), p.fed, p.model)
