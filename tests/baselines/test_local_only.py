"""Local training alone: every client its own model, by hand and in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.engine.rounds import Run
from oracles import (
    PROBLEMS,
    Model,
    apart,
    arrays,
    descend,
    federation,
    finished,
    line,
    lines,
    loss_on_test,
    measured,
    mini_batches,
    near,
    participants,
    ready,
    rows,
    squared,
)


def personal(run: Run, i: int) -> Model:
    return {k: v[i].numpy().copy() for k, v in run.engine.snapshot().items()}


def test_two_rounds_by_hand() -> None:
    """w = 2, lr ¼, one step a round.  f_a = (w − 1)²: 1.5, 1.25.  f_b = (w − 4)²: 3, 3.5."""
    fed = federation({"b": ([[1.0], [1.0]], [4.0, 4.0]), "a": ([[1.0]], [1.0])})
    run = ready(ct.LocalOnly(lr=0.25, local_steps=1), fed, line(2.0), rounds=2)
    seen = [run.engine.snapshot()["weight"].flatten().tolist() for _ in run.rounds()]
    assert seen == [[2.0, 2.0], [3.0, 1.5], [3.5, 1.25]]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy_absent_clients_wait(problem: str) -> None:
    p = PROBLEMS[problem]()
    run = ready(ct.LocalOnly(lr=0.05, local_steps=3, decay=0.8, l2=0.1), p.fed, p.model, rounds=4, participation=0.4)
    models = [arrays(run.task.init(0))] * len(p.clients)
    for t, who in enumerate(participants(run)):
        models = [
            descend(p.f, w, [p.clients[i]] * 3, 0.05 * 0.8**t, 0.1) if i in who else w for i, w in enumerate(models)
        ]
    finished(run)
    for i, w in enumerate(models):
        near(personal(run, i), w)
    assert all(len(who) == 3 for who in participants(run))


def test_mini_batches_in_numpy() -> None:
    p = lines()
    run = finished(ready(ct.LocalOnly(lr=0.05, local_steps=3, batch=2), p.fed, p.model, rounds=2))
    for i in range(7):
        w = arrays(run.task.init(0))
        for r in (1, 2):
            w = descend(p.f, w, mini_batches(run, r, i), 0.05)
        near(personal(run, i), w)


def test_personal_models_differ_and_move() -> None:
    p = lines()
    run = ready(ct.LocalOnly(lr=0.05), p.fed, p.model, rounds=1)
    before = [personal(run, i) for i in range(7)]
    finished(run)
    after = [personal(run, i) for i in range(7)]
    assert not any(apart(before[0], b) for b in before)
    assert all(apart(a, b) for a, b in zip(after, before))
    assert all(apart(after[i], after[j]) for i in range(7) for j in range(i))


def test_permuting_clients_permutes_their_models() -> None:
    p, order = lines(), [4, 0, 6, 2, 5, 1, 3]
    method = ct.LocalOnly(lr=0.05, local_epochs=1, batch=2)
    plain, moved = (
        finished(ready(method, fed, p.model, rounds=3, participation=0.5)) for fed in (p.fed, p.fed.subset(order))
    )
    for place, i in enumerate(order):
        near(personal(moved, place), personal(plain, i))


def test_nothing_is_sent_but_the_start() -> None:
    p = lines()
    run = finished(ready(ct.LocalOnly(), p.fed, p.model, rounds=2))
    assert [row["bytes_down"] for row in run.history] == [7 * 4 * 8, 0, 0]  # three weights and a bias, in float64
    assert [row["bytes_up"] for row in run.history] == [0, 7 * 8, 7 * 8]  # how far each model moved


# ---------------------------------------------------------------------------------------------- evaluation
LINEAR = lambda: nn.Linear(3, 1)
TRAINER = ct.LocalOnly(lr=0.05, local_steps=3)


def test_each_client_is_measured_with_its_own_model() -> None:
    fed = measured()
    run = finished(ready(TRAINER, fed, LINEAR, rounds=2))
    np.testing.assert_allclose(
        run.clients["mse"], [loss_on_test(personal(run, i), fed, i) for i in range(4)], rtol=1e-12
    )


def test_a_newcomer_takes_one_rounds_steps_from_the_common_start() -> None:
    fed = measured(unseen=1)
    run = finished(ready(TRAINER, fed, LINEAR, rounds=2))
    w = descend(squared, arrays(run.task.init(0)), [rows(fed)[3]] * 3, 0.05)
    assert run.history[-1]["unseen_mse"] == pytest.approx(loss_on_test(w, fed, 3), rel=1e-12)


def test_evaluation_leaves_no_trace() -> None:
    method = ct.LocalOnly(lr=0.05, local_steps=3, batch=2)
    often, once = (finished(ready(method, measured(), LINEAR, rounds=4, eval_every=e)) for e in (1, 4))
    before = {k: v.clone() for k, v in once.engine.snapshot().items()}
    assert all(torch.equal(often.engine.snapshot()[k], before[k]) for k in before)
    once.evaluate(4)
    assert all(torch.equal(once.engine.snapshot()[k], before[k]) for k in before)
