"""Local training alone: every client its own model, by hand and in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie as ct
from cases import PROBLEMS, finished, lines, measured, mini_batches, participants, points
from oracles import (
    all_apart,
    apart,
    arrays,
    assert_same_models,
    descend,
    flat,
    personal,
    private_states,
)


def test_two_rounds_by_hand() -> None:
    """w = 2, lr ¼, one step a round.  f_a = (w − 1)²: 1.5, 1.25.  f_b = (w − 4)²: 3, 3.5."""
    two = points({"b": [(1, 4), (1, 4)], "a": [(1, 1)]}, 2.0)
    run = two.ready(ct.LocalOnly(lr=0.25, local_steps=1), rounds=2)
    models = [flat(private_states(run)) for _ in run.rounds()]
    assert models == [[2.0, 2.0], [3.0, 1.5], [3.5, 1.25]]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy_absent_clients_wait(problem: str) -> None:
    p = PROBLEMS[problem]()
    run = p.ready(
        ct.LocalOnly(lr=0.05, local_steps=3, decay=0.8, l2=0.1), rounds=4, participation=0.4
    )
    models = [arrays(run.task.init(0))] * len(p.clients)
    for t, who in enumerate(participants(run)):
        models = [
            descend(p.f, w, [p.clients[i]] * 3, 0.05 * 0.8**t, 0.1) if i in who else w
            for i, w in enumerate(models)
        ]
    assert_same_models(personal(finished(run)), models)
    assert all(len(who) == 3 for who in participants(run))


def test_mini_batches_in_numpy() -> None:
    p = lines()
    run = p.run(ct.LocalOnly(lr=0.05, local_steps=3, batch=2), rounds=2)
    for i in range(7):
        w = arrays(run.task.init(0))
        for r in (1, 2):
            w = descend(p.f, w, mini_batches(run, r, i), 0.05)
        assert_same_models(personal(run)[i], w)


def test_personal_models_differ_and_move() -> None:
    run = lines().ready(ct.LocalOnly(lr=0.05), rounds=1)
    before, after = personal(run), personal(finished(run))
    assert not any(apart(before[0], b) for b in before)
    assert all(apart(a, b) for a, b in zip(after, before))
    assert all_apart(after)


def test_permuting_clients_permutes_their_models() -> None:
    plain, moved, order = lines().permuted(
        ct.LocalOnly(lr=0.05, local_epochs=1, batch=2), rounds=3, participation=0.5
    )
    assert_same_models(personal(moved), [personal(plain)[i] for i in order])


def test_nothing_is_sent_but_the_start() -> None:
    run = lines().run(ct.LocalOnly(local_steps=1), rounds=2)
    size = 4 * 8  # three weights and a bias, in float64
    assert [row["bytes_down"] for row in run.history] == [0, 7 * size, 0]
    assert [row["bytes_up"] for row in run.history] == [0, 7 * 8, 7 * 8]  # how far each model moved


# ------------------------------------------------------------------------------ evaluation
TRAINER = ct.LocalOnly(lr=0.05, local_steps=3)


def test_each_client_is_measured_with_its_own_model() -> None:
    p = measured()
    run = p.run(TRAINER, rounds=2)
    np.testing.assert_allclose(run.client_scores["mse"], p.test_losses(personal(run)), rtol=1e-12)


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_new_client_takes_the_steps_of_some_rounds_from_the_common_start(rounds) -> None:
    p = measured(unseen=1)
    run = p.run(replace(TRAINER, join_rounds=rounds), rounds=2)
    w = descend(p.f, arrays(run.task.init(0)), [p.clients[3]] * 3 * rounds, 0.05)
    assert run.history[-1]["unseen_mse"] == pytest.approx(p.test_loss(w, 3), rel=1e-12)


def test_evaluation_leaves_no_trace() -> None:
    method = ct.LocalOnly(lr=0.05, local_steps=3, batch=2)
    often, once = (measured().run(method, rounds=4, eval_every=e) for e in (1, 4))
    before = {k: v.clone() for k, v in private_states(once).items()}
    assert all(torch.equal(private_states(often)[k], before[k]) for k in before)
    once.evaluate(4)
    assert all(torch.equal(private_states(once)[k], before[k]) for k in before)
