"""FedAvg: a round by hand, several rounds in NumPy, its identities."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie as ct
from cases import PROBLEMS, Problem, finished, lines, measured, mini_batches, participants, points
from oracles import Model, apart, arrays, assert_same_models, descend, mean, one

VARIANTS = {"fedavg": [ct.FedAvg(weighted=False, local_epochs=2, batch=4)]}


# ------------------------------------------------------------------------------ by hand
# w = 2.  a: one row (x 1, y 1), f = (w − 1)².  b: two rows (x 1, y 4), f = (w − 4)².  lr = ¼.
# One step: a: 2 − ¼·2 = 1.5.  b: 2 + ¼·4 = 3.
# By rows: (1·1.5 + 2·3)/3 = 2.5.  By clients: 2.25.
# A second step: a: 1.5 − ¼·1 = 1.25.  b: 3 + ¼·2 = 3.5.  By rows (1.25 + 7)/3 = 2.75.
TWO = {"a": [(1, 1)], "b": [(1, 4), (1, 4)]}


def after(method: ct.Algorithm, rounds: int = 1) -> float:
    return points(TWO, 2.0).run(method, rounds=rounds).state["weight"].item()


def test_one_round_by_hand() -> None:
    assert after(ct.FedAvg(lr=0.25, local_steps=1)) == 2.5
    assert after(ct.FedAvg(lr=0.25, local_steps=1, weighted=False)) == 2.25
    assert after(ct.FedAvg(lr=0.25, local_steps=2)) == 2.75


def test_the_second_round_starts_from_the_mean() -> None:
    """From 2.5: a: 2.5 − ¼·3 = 1.75, b: 2.5 + ¼·3 = 3.25; by rows 2.75."""
    assert after(ct.FedAvg(lr=0.25, local_steps=1), rounds=2) == 2.75


def test_decay_halves_the_second_step() -> None:
    """From 2.5 with lr ⅛: a: 2.5 − ⅛·3 = 2.125, b: 2.5 + ⅛·3 = 2.875; by rows 2.625."""
    assert after(ct.FedAvg(lr=0.25, local_steps=1, decay=0.5), rounds=2) == 2.625


def test_full_batch_epochs_are_steps() -> None:
    assert after(ct.FedAvg(lr=0.25, local_epochs=2, local_steps=9)) == 2.75


# ------------------------------------------------------------------------------ in NumPy
def fedavg(
    p: Problem,
    w: Model,
    rounds: list[list[int]],
    *,
    lr: float,
    steps: int,
    weighted: bool,
    decay: float,
    l2: float,
) -> list[Model]:
    """The model after every round."""
    after = []
    for t, who in enumerate(rounds):
        models = [descend(p.f, w, [p.clients[i]] * steps, lr * decay**t, l2) for i in who]
        w = mean(models, [p.sizes[i] if weighted else 1.0 for i in who])
        after.append(w)
    return after


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy(problem: str, weighted: bool) -> None:
    p = PROBLEMS[problem]()
    method = ct.FedAvg(lr=0.05, local_steps=3, weighted=weighted, decay=0.8, l2=0.1)
    run = p.ready(method, rounds=4, participation=0.6)
    how = {"lr": 0.05, "steps": 3, "weighted": weighted, "decay": 0.8, "l2": 0.1}
    want = fedavg(p, one(run.state), participants(run), **how)
    next(run.rounds())
    for w in want:
        next(run.rounds())
        assert_same_models(one(run.state), w)
    who = participants(run)
    assert len(who[0]) == 4 and len({tuple(x) for x in who}) > 1


@pytest.mark.parametrize("how", [{"batch": 3, "local_steps": 4}, {"batch": 2, "local_epochs": 2}])
def test_mini_batches_in_numpy(how: dict) -> None:
    p = lines()
    run = p.ready(ct.FedAvg(lr=0.05, **how), rounds=3, participation=0.6)
    w = one(run.state)
    for r, who in enumerate(participants(run), 1):
        models = [descend(p.f, w, mini_batches(run, r, i), 0.05) for i in who]
        w = mean(models, [p.sizes[i] for i in who])
    assert_same_models(one(finished(run).state), w)


OPTIMISERS = {
    "heavy_ball": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.7),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
}


@pytest.mark.parametrize("solver", OPTIMISERS)
def test_other_solvers_start_afresh_each_round(solver: str) -> None:
    p = lines()
    run = p.ready(ct.FedAvg(lr=0.05, local_steps=3, solver=solver, momentum=0.7), rounds=2)
    w = one(run.state)
    for _ in range(2):
        models = []
        for x, y in p.clients:
            x, y = torch.tensor(x), torch.tensor(y)
            module = p.model().double()
            module.load_state_dict({k: torch.tensor(v) for k, v in w.items()})
            optimiser = OPTIMISERS[solver](module.parameters())
            for _ in range(3):
                optimiser.zero_grad()
                ((module(x)[:, 0] - y) ** 2).mean().backward()
                optimiser.step()
            models.append(arrays(dict(module.named_parameters())))
        w = mean(models, p.sizes)
    assert_same_models(one(finished(run).state), w)


# ------------------------------------------------------------------------------ identities
def test_permuting_clients_changes_nothing() -> None:
    for method in (ct.FedAvg(lr=0.05, local_steps=2), ct.FedAvg(lr=0.05, local_epochs=1, batch=3)):
        for share in (1.0, 0.5):
            plain, moved, _ = lines().permuted(method, rounds=2, participation=share)
            assert_same_models(one(moved.state), one(plain.state))


@pytest.mark.parametrize("weighted", [True, False])
def test_duplicating_every_client_changes_nothing(weighted: bool) -> None:
    plain, twice = lines().doubled(ct.FedAvg(lr=0.05, local_steps=2, weighted=weighted), rounds=3)
    assert_same_models(one(twice.state), one(plain.state))


def test_the_seed_decides_the_start() -> None:
    p = lines()
    starts = [one(p.ready(ct.FedAvg(), seed=s).state) for s in (0, 0, 1)]
    assert_same_models(starts[0], starts[1])
    assert apart(starts[0], starts[2])


def test_a_round_that_nobody_answers_changes_nothing() -> None:
    """With two clients and 99 % dropout nobody does."""
    run = lines(clients=2).run(ct.FedAvg(), rounds=1, dropout=0.99)
    assert_same_models(one(run.state), arrays(run.task.init(0)))


# ------------------------------------------------------------------------------ evaluation
LOOP = {"rounds": 2, "engine": "loop", "dtype": "float64"}


def test_the_global_model_is_measured_on_test_rows() -> None:
    p = measured()
    result = ct.run(ct.FedAvg(lr=0.05, local_steps=2), p.fed, p.model, **LOOP)
    np.testing.assert_allclose(
        result.per_client["mse"], p.test_losses([one(result.state)] * 4), rtol=1e-12
    )


def test_fine_tuning_takes_more_steps_on_training_rows_and_changes_nothing_else() -> None:
    p = measured()
    plain = ct.run(ct.FedAvg(lr=0.05, local_steps=2), p.fed, p.model, **LOOP)
    tuned = ct.run(ct.FineTuned(lr=0.05, local_steps=2, finetune=4), p.fed, p.model, **LOOP)
    assert_same_models(one(tuned.state), one(plain.state))
    models = [descend(p.f, one(plain.state), [xy] * 4, 0.05) for xy in p.clients]
    np.testing.assert_allclose(tuned.per_client["mse"], p.test_losses(models), rtol=1e-12)
