"""pFedMe: rounds by hand, several rounds in NumPy, three models kept apart, newcomers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import coterie as ct
from cases import PROBLEMS, Problem, lines, local_rounds, measured, participants, points
from coterie.runs.run import Run
from oracles import (
    Model,
    Rows,
    all_apart,
    apart,
    arrays,
    assert_same_models,
    descend,
    flat,
    mean,
    one,
    personal,
    private_states,
    unstacked,
)

VARIANTS = {
    "pfedme": [
        ct.PFedMe(restart=False, beta=1.5, batch=None, l2=0.01),
        ct.PFedMe(evaluate="local", batch=5, solver="heavy_ball", lam=3.0, lr=0.1),
    ]
}


# ------------------------------------------------------------------------------ by hand
# w = 2, η = ¼, λ = 2, two local rounds of two inner steps of ¼.
# a: one row, f = (θ − 1)².  b: two rows, f = (θ − 4)².
# a: θ 2 − ¼·2 = 1.5; 1.5 − ¼·(1 + 2·(1.5 − 2)) = 1.5.  w 2 − ½·½ = 1.75.
#    θ 1.5 − ¼·(1 + 2·(1.5 − 1.75)) = 1.375; 1.375 − ¼·(¾ − ¾) = 1.375.  w 1.75 − ½·0.375 = 1.5625.
# b: θ 2 + ¼·4 = 3; 3 − ¼·(−2 + 2) = 3.  w 2.5.
#    θ 3 − ¼·(−2 + 1) = 3.25; 3.25 − ¼·(−1.5 + 1.5) = 3.25.  w 2.5 + ½·¾ = 2.875.
# The mean of the w_i is 2.21875, by clients; β = 2 goes as far again: 2.4375.
def two(rounds: int = 1, **how: Any) -> Run:
    method = ct.PFedMe(**{"lr": 0.25, "lam": 2.0, "outer": 2, "inner": 2, "inner_lr": 0.25, **how})
    return points({"b": [(1, 4), (1, 4)], "a": [(1, 1)]}, 2.0).run(method, rounds=rounds)


@pytest.mark.parametrize("beta, want", [(1.0, 2.21875), (2.0, 2.4375), (0.5, 2.109375)])
def test_one_round_by_hand(beta: float, want: float) -> None:
    run = two(beta=beta, evaluate="local")
    assert run.state["weight"].item() == want
    private = private_states(run)
    assert flat(private.model) == [3.25, 1.375]
    assert flat(private.local) == [2.875, 1.5625]
    assert private.asked.tolist() == [1, 1]


def test_the_second_round_begins_at_w_or_goes_on() -> None:
    """One local round of one step, from w = 2, with inner_lr ⅛: half of the start stays.

    Round 1: θ 1.75 and 2.5, w_i 1.875 and 2.25, w = 2.0625.
    Round 2, begun at w:  a 2.0625 − ⅛·2.125,  b 2.0625 + ⅛·3.875;
             or going on: a 1.75 − ⅛·(1.5 − 0.625),  b 2.5 − ⅛·(−3 + 0.875).
    With inner_lr ¼ both would end alike, since f'' + λ = 4.
    """
    for restart, want in ((True, [2.546875, 1.796875]), (False, [2.765625, 1.640625])):
        run = two(rounds=2, outer=1, inner=1, inner_lr=0.125, restart=restart)
        assert flat(private_states(run).model) == want


def test_decay_halves_the_local_models_step_and_not_the_inner_one() -> None:
    """One local round of one step: round 1 gives θ 1.5 and 3, w_i 1.75 and 2.5, w = 2.125.

    Round 2: θ 2.125 − ¼·2.25 = 1.5625 and 2.125 + ¼·3.75 = 3.0625, and w_i a quarter of the way
    there: 2.125 − 0.140625 and 2.125 + 0.234375.
    """
    run = two(rounds=2, outer=1, inner=1, decay=0.5)
    assert flat(private_states(run).model) == [3.0625, 1.5625]
    assert run.state["weight"].item() == 2.125 + (0.234375 - 0.140625) / 2


# ------------------------------------------------------------------------------ in NumPy
def pfedme(
    p: Problem,
    start: Model,
    clients: int,
    rounds: list[dict[int, list[Rows]]],
    *,
    lr: float,
    lam: float,
    inner: int,
    inner_lr: float,
    beta: float,
    restart: bool,
    l2: float = 0.0,
    decay: float = 1.0,
) -> list[tuple[Model, list[Model], list[Model]]]:
    """(w, θ_i, w_i) after every round.

    rounds: for each client that takes part, the batch of each of its local rounds.
    """
    w = start
    theta, local = [start] * clients, [start] * clients
    met = set()
    states = []
    for t, who in enumerate(rounds):
        for i, batches in who.items():
            mine = w if restart or i not in met else theta[i]
            at = w
            for batch in batches:
                mine = descend(p.f, mine, [batch] * inner, inner_lr, l2, pull=lam, towards=at)
                at = {k: at[k] - lr * decay**t * lam * (at[k] - mine[k]) for k in at}
            theta[i], local[i] = mine, at
            met.add(i)
        average = mean([local[i] for i in who])
        w = {k: (1 - beta) * w[k] + beta * average[k] for k in w}
        states.append((w, list(theta), list(local)))
    return states


CASES = {
    "begun at w": {},
    "going on": {"restart": False},
    "mini-batches, going on": {"batch": 3, "restart": False},
    "mini-batches, beta, decay": {"batch": 2, "beta": 1.5, "decay": 0.7},
    "l2, small beta": {"l2": 0.2, "beta": 0.6},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy(problem: str, case: str) -> None:
    """Seven ragged clients, four of them a round; the absent keep their models."""
    p = PROBLEMS[problem]()
    plain = {
        "batch": None,
        "restart": True,
        "beta": 1.0,
        "lr": 0.1,
        "lam": 3.0,
        "inner": 2,
        "inner_lr": 0.05,
    }
    how = {**plain, **CASES[case]}
    run = p.ready(ct.PFedMe(outer=3, evaluate="local", **how), rounds=3, participation=0.6, seed=4)
    who = participants(run)
    batches = [{i: local_rounds(run, r, i) for i in ids} for r, ids in enumerate(who, 1)]
    how.pop("batch")
    want = pfedme(p, arrays(run.task.init(4)), 7, batches, **how)
    next(run.rounds())
    for w, theta, local in want:
        next(run.rounds())
        assert_same_models(one(run.state), w)
        assert_same_models(personal(run), theta)
        assert_same_models(unstacked(private_states(run).local), local)
    assert any(set(a) - set(b) for a, b in pairwise(who))
    assert not any(row["rejected"] for row in run.history)


def test_permuting_clients_permutes_their_models() -> None:
    plain, moved, order = lines().permuted(ct.PFedMe(batch=2, outer=2), rounds=2, participation=0.5)
    assert_same_models(one(plain.state), one(moved.state))
    assert_same_models(personal(moved), [personal(plain)[i] for i in order])


# ------------------------------------------------------------------------------ models kept apart
def test_personal_local_and_global_models_are_three() -> None:
    """Public code stores w_i under the name of θ_i, and overwrites both with w before measuring."""
    run = lines().run(ct.PFedMe(evaluate="local", outer=3), rounds=2)
    for theta, w_i in zip(personal(run), unstacked(private_states(run).local)):
        assert all_apart([theta, w_i, one(run.state)])
    assert all_apart(personal(run))


def test_the_tie_has_a_gradient() -> None:
    """The stronger λ, the nearer θ_i to w_i; a tie to itself, or a detached one, does nothing."""
    p = lines()
    gaps = []
    for lam in (0.01, 2.0, 10.0):
        method = ct.PFedMe(lam=lam, lr=1e-9, outer=1, inner=20, inner_lr=0.05, batch=None)
        run = p.run(method, rounds=1)
        gaps.append(np.abs(personal(run)[3]["weight"] - one(run.state)["weight"]).max())
    assert gaps[0] > gaps[1] > 1.5 * gaps[2] > 0


TRAINER = {"lr": 0.05, "lam": 4.0, "outer": 2, "inner": 3, "inner_lr": 0.05}


@pytest.mark.parametrize("which", ["personal", "local", "global"])
def test_each_client_is_measured_with_the_model_that_was_asked_for(which: str) -> None:
    p = measured()
    run = p.run(ct.PFedMe(**TRAINER, evaluate=which), rounds=2)
    local = private_states(run).local
    models = {
        "personal": personal(run),
        "local": unstacked(local) if local else [],
        "global": [one(run.state)] * 4,
    }
    np.testing.assert_allclose(run.client_scores["mse"], p.test_losses(models[which]), rtol=1e-12)
    assert bool(local) == (which == "local")


def test_who_never_took_part_answers_with_w() -> None:
    """And at its first turn θ_i begins there, also where it goes on from its last."""
    p = measured()
    run = p.run(ct.PFedMe(**TRAINER, restart=False), rounds=1, participation=0.5)
    asked = participants(run)[0]
    want = p.test_losses([w if i in asked else one(run.state) for i, w in enumerate(personal(run))])
    assert len(asked) == 2 and apart(arrays(run.task.init(0)), one(run.state))
    np.testing.assert_allclose(run.client_scores["mse"], want, rtol=1e-12)


@pytest.mark.parametrize("which", ["personal", "local", "global"])
def test_a_newcomer_takes_one_rounds_steps_from_w(which: str) -> None:
    p = measured(unseen=1)
    run = p.run(ct.PFedMe(**TRAINER, batch=None, evaluate=which), rounds=2)
    w = one(run.state)
    how = {"lr": 0.05, "lam": 4.0, "inner": 3, "inner_lr": 0.05, "beta": 1.0, "restart": True}
    _, theta, local = pfedme(p, w, 1, [{0: [p.clients[3]] * 2}], **how)[0]
    model = {"personal": theta[0], "local": local[0], "global": w}[which]
    assert run.history[-1]["unseen_mse"] == pytest.approx(p.test_loss(model, 3), rel=1e-12)


def test_evaluation_leaves_no_trace() -> None:
    method = ct.PFedMe(batch=2, outer=2)
    often, once = (measured().run(method, rounds=4, eval_every=e) for e in (1, 4))
    assert_same_models(one(often.state), one(once.state), 0)
    assert_same_models(personal(often), personal(once), 0)


# ------------------------------------------------------------------------------ settings
@pytest.mark.parametrize(
    "how, words",
    [
        ({"lr": 0.1}, "lr·lam is 1.5.*at most 1"),
        ({"lam": 20.0}, "inner_lr·lam is 2.*inner_lr < 0.1"),
        ({"local_epochs": 2}, "leave out local_epochs"),
        ({"beta": 0.0}, "beta"),
        ({"evaluate": "test"}, "evaluate"),
    ],
)
def test_settings_that_make_no_sense_are_refused(how: dict, words: str) -> None:
    with pytest.raises(ct.CoterieError, match=words):
        lines().ready(ct.PFedMe(**how))


def test_settings_at_the_limits_are_taken() -> None:
    for how in (
        {"lr": 0.125, "lam": 8.0},
        {"lam": 30.0, "clip": 1.0},
        {"lam": 30.0, "solver": "adam"},
    ):
        lines().ready(ct.PFedMe(**how))


def test_one_model_goes_each_way_and_the_start_once() -> None:
    run = lines().run(ct.PFedMe(outer=1), rounds=2)
    size = 4 * 8  # three weights and a bias, in float64
    assert [row["bytes_down"] for row in run.history] == [0, 2 * 7 * size, 7 * size]
    assert [row["bytes_up"] for row in run.history] == [0, 7 * (size + 8), 7 * (size + 8)]
