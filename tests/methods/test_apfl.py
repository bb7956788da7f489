"""APFL: two rounds by hand, several in NumPy, α = 0 and 1, what α does, what is measured."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from cases import PROBLEMS, Problem, finished, lines, measured, mini_batches, participants, points
from coterie.runs.run import Run
from oracles import (
    Model,
    Rows,
    apart,
    assert_same_models,
    decay,
    federation,
    flat,
    give_private_states,
    mean,
    one,
    personal,
    private_states,
    vector,
)

VARIANTS = {
    "apfl": [
        ct.APFL(adaptive=False, alpha=0.8, batch=4, weighted=True),
        ct.APFL(local_epochs=2, batch=5),
    ]
}


def parts(run: Run, i: int) -> tuple[Model, Model, float]:
    """(w_i, v_i, α_i)"""
    me = private_states(run)
    return one(me.w, i), one(me.v, i), float(me.alpha[i])


def blend(w: Model, v: Model, alpha: float) -> Model:
    return {k: alpha * v[k] + (1 - alpha) * w[k] for k in w}


# ------------------------------------------------------------------------------ by hand
# w = v = 2, α = ½, lr = ¼, one step a round.  a: one row, f = (w − 1)².  b: two rows, f = (w − 4)².
# Round 1, v̄ = 2, v − w = 0, so α stays.
#          a: w 2 − ¼·2 = 1.5, v 2 − ⅛·2 = 1.75.   b: w 2 + ¼·4 = 3, v 2 + ⅛·4 = 2.5.
#          w = (1.5 + 3)/2 = 2.25.
# Round 2. a: w 2.25, v 1.75, v̄ 2, ∇f(v̄) 2, ∇f(w) 2.5:
#             w 2.25 − ¼·2.5 = 1.625, v 1.75 − ⅛·2 = 1.5, α ½ − ¼·(−½·2) = ¾.
#          b: w 2.25, v 2.5, v̄ 2.375, ∇f(v̄) −3.25, ∇f(w) −3.5:
#             w 2.25 + ¼·3.5 = 3.125, v 2.5 + ⅛·3.25 = 2.90625, α ½ + ¼·¼·3.25 = 0.703125.
#          w = 2.375.
TWO = {"b": [(1, 4), (1, 4)], "a": [(1, 1)]}


def test_two_rounds_by_hand() -> None:
    run = points(TWO, 2.0).ready(ct.APFL(lr=0.25, local_steps=1), rounds=2)
    models = []
    for _ in run.rounds():
        me = private_states(run)
        models.append((run.state["weight"].item(), flat(me.w), flat(me.v)))
    assert models == [
        (2.0, [2.0, 2.0], [2.0, 2.0]),
        (2.25, [3.0, 1.5], [2.5, 1.75]),
        (2.375, [3.125, 1.625], [2.90625, 1.5]),
    ]
    assert me.alpha.tolist() == [0.703125, 0.75]
    assert run.history[1]["notes"]["alpha"] == {"least": 0.5, "mean": 0.5, "most": 0.5}
    assert run.history[2]["notes"]["alpha"] == {"least": 0.703125, "mean": 0.7265625, "most": 0.75}


def test_alpha_is_kept_between_0_and_1() -> None:
    """w = 0, v = 10, α = ½, so that v̄ = 5.

    With y = 0 ∇ is 10 and α = ½ − ¼·10·10 < 0; with y = 10 ∇ is −10 and α = ½ + 25 > 1.
    """
    p = points({"a": [(1, 0)], "b": [(1, 10)]}, 0.0)
    run = p.ready(ct.APFL(lr=0.25, local_steps=1), rounds=1)
    me = private_states(run)
    give_private_states(run, me._replace(v={"weight": me.v["weight"] + 10}))
    assert private_states(finished(run)).alpha.tolist() == [0.0, 1.0]


# ------------------------------------------------------------------------------ in NumPy
Mine = tuple[Model, Model, float]  # w_i, v_i, α_i


def steps(
    p: Problem,
    start: Mine,
    batches: list[Rows],
    *,
    lr: float = 0.05,
    adaptive: bool = True,
    l2: float = 0.0,
) -> Mine:
    w, v, alpha = start

    def gradient(at: Model, x: np.ndarray, y: np.ndarray) -> Model:
        g = p.f(at, x, y)[1]
        d = decay(l2, at)
        return {k: g[k] + d[k] for k in g}

    for x, y in batches:
        g = gradient(blend(w, v, alpha), x, y)
        g_w = gradient(w, x, y)
        slope = float((vector(v) - vector(w)) @ vector(g))
        w = {k: w[k] - lr * g_w[k] for k in w}
        v = {k: v[k] - lr * alpha * g[k] for k in v}
        if adaptive:
            alpha = min(1.0, max(0.0, alpha - lr * slope))
    return w, v, alpha


@pytest.mark.parametrize("how", [{}, {"adaptive": False}, {"weighted": True}])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy_absent_clients_wait(problem: str, how: dict) -> None:
    p = PROBLEMS[problem]()
    method = ct.APFL(lr=0.05, local_steps=3, alpha=0.3, decay=0.8, l2=0.1, **how)
    run = p.ready(method, rounds=4, participation=0.6)
    w = one(run.state)
    mine = [(w, w, 0.3)] * len(p.clients)
    for t, who in enumerate(participants(run)):
        for i in who:
            start = (w, *mine[i][1:])
            adaptive = how.get("adaptive", True)
            batches = [p.clients[i]] * 3
            mine[i] = steps(p, start, batches, lr=0.05 * 0.8**t, adaptive=adaptive, l2=0.1)
        w = mean([mine[i][0] for i in who], [p.sizes[i] if "weighted" in how else 1 for i in who])
    finished(run)
    assert_same_models(one(run.state), w)
    for i, (wi, v, alpha) in enumerate(mine):
        my_w, my_v, my_alpha = parts(run, i)
        assert_same_models(my_w, wi)
        assert_same_models(my_v, v)
        assert my_alpha == pytest.approx(alpha, abs=1e-12)
    moved = {round(parts(run, i)[2], 6) for i in range(7)}
    assert moved == {0.3} if "adaptive" in how else len(moved) > 3


@pytest.mark.parametrize("how", [{"batch": 3, "local_steps": 4}, {"batch": 2, "local_epochs": 2}])
def test_mini_batches_in_numpy(how: dict) -> None:
    p = lines()
    run = p.ready(ct.APFL(lr=0.05, **how), rounds=3)
    w = one(run.state)
    mine = [(w, w, 0.5)] * 7
    for r in (1, 2, 3):
        mine = [steps(p, (w, *mine[i][1:]), mini_batches(run, r, i)) for i in range(7)]
        w = mean([m[0] for m in mine])
    finished(run)
    for i in range(7):
        assert_same_models(parts(run, i)[1], mine[i][1])
        assert parts(run, i)[2] == pytest.approx(mine[i][2], abs=1e-12)


# ------------------------------------------------------------------------------ identities
FAST = {"rounds": 2, "engine": "vectorised"}  # which test_contract.py holds to the loop
HOWS = [
    {"local_steps": 3},
    {"batch": 2, "local_epochs": 1},
    {"batch": 3, "local_steps": 2, "l2": 0.2, "clip": 0.5},
]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_alpha_1_fixed_is_local_training(how: dict, share: float) -> None:
    p = lines()
    end = lambda m: p.run(m, participation=share, **FAST)
    alone = end(ct.LocalOnly(lr=0.05, **how))
    mine = end(ct.APFL(lr=0.05, alpha=1.0, adaptive=False, **how))
    for i in range(7):
        assert_same_models(blend(*parts(mine, i)), personal(alone)[i])
    half = end(ct.APFL(lr=0.05, alpha=0.5, adaptive=False, **how))
    assert any(apart(blend(*parts(half, i)), personal(alone)[i]) for i in range(7))


@pytest.mark.parametrize("how", HOWS)
def test_the_global_model_is_fedavg_whatever_alpha(how: dict) -> None:
    p = lines()
    end = lambda m: one(p.run(m, participation=0.6, **FAST).state)
    want = end(ct.FedAvg(lr=0.05, weighted=False, **how))
    for settings in ({"alpha": 0.7}, {"alpha": 1.0, "adaptive": False}):
        assert_same_models(end(ct.APFL(lr=0.05, **settings, **how)), want)


def test_alpha_0_fixed_answers_with_the_clients_version_of_the_global_model() -> None:
    p = lines()
    run = p.run(ct.APFL(lr=0.05, local_steps=2, alpha=0.0, adaptive=False), rounds=2)
    for i in range(7):
        w, v, _ = parts(run, i)
        assert apart(w, v) and not apart(blend(*parts(run, i)), w)
        assert_same_models(v, parts(p.ready(ct.APFL()), i)[1])  # α = 0: v never moves


def test_alpha_grows_where_clients_differ() -> None:
    """Opposite tasks: the global model is of no use, and every α ends near 1; equal tasks: none."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(20, 3)) for _ in range(6)]
    truth = np.array([2.0, -1.0, 1.0])
    ends = {}
    for kind, sign in (("opposite", -1), ("equal", 1)):
        p = lines()._replace(fed=federation([(x, x @ truth * sign**i) for i, x in enumerate(xs)]))
        run = p.run(ct.APFL(lr=0.1, local_steps=3), rounds=12, engine="vectorised")
        ends[kind] = private_states(run).alpha
    assert float(ends["opposite"].min()) > 0.9
    assert float(ends["equal"].max()) < 0.9


# ------------------------------------------------------------------------------ evaluation
METHOD = ct.APFL(lr=0.05, local_steps=3)


def test_each_client_is_measured_with_its_mixture() -> None:
    p = measured()
    run = p.run(METHOD, rounds=3)
    want = p.test_losses([blend(*parts(run, i)) for i in range(4)])
    np.testing.assert_allclose(run.client_scores["mse"], want, rtol=1e-12)
    for i in range(4):
        w, v, alpha = parts(run, i)
        assert 0 < alpha < 1 and apart(w, v, 1e-3) and apart(w, one(run.state), 1e-3)


def test_a_newcomer_takes_one_rounds_steps_from_the_global_model() -> None:
    p = measured(unseen=1)
    run = p.run(METHOD, rounds=2)
    w = one(run.state)
    me = steps(p, (w, w, 0.5), [p.clients[3]] * 3)
    assert run.history[-1]["unseen_mse"] == pytest.approx(p.test_loss(blend(*me), 3), rel=1e-12)


@pytest.mark.parametrize(
    "how, why",
    [({"solver": "adam"}, "plain gradient steps"), ({"alpha": 1.5}, "alpha of apfl is 1.5")],
)
def test_what_makes_no_sense_is_refused(how: dict, why: str) -> None:
    with pytest.raises(ct.CoterieError, match=why):
        lines().ready(ct.APFL(**how))
