"""Per-FedAvg: rounds by hand and in NumPy, both forms, a = 0, adaptation on training rows only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import coterie as ct
from cases import (
    PROBLEMS,
    Problem,
    find_data,
    finished,
    lines,
    measured,
    mini_batches,
    participants,
    points,
)
from coterie.runs.run import Run
from oracles import (
    Model,
    Rows,
    apart,
    assert_same_models,
    decay,
    federation,
    in_numpy,
    mean,
    one,
    vector,
)

VARIANTS = {
    "perfedavg": [
        ct.PerFedAvg(order="fo", batch=4, clip=1.0),
        ct.PerFedAvg(local_epochs=2, batch=4, inner=0.1, weighted=True, l2=0.05),
    ]
}

# ------------------------------------------------------------------------------ by hand
# w = 2, β = ¼, a = ¼, one step.  a: one row, f = (w − 1)².  b: two rows, f = (w − 4)².  ∇²f = 2.
# a: adapted 2 − ¼·2 = 1.5, g = 1.   b: adapted 2 + ¼·4 = 3, g = −2.
# fo: a 2 − ¼·1 = 1.75, b 2 + ¼·2 = 2.5, mean 2.125 (by rows 2.25).
# hf: (1 − ¼·2)·g: a 2 − ¼·½ = 1.875, b 2 + ¼·1 = 2.25, mean 2.0625 (by rows 2.125).
# FedAvg would give 2.25 (by rows 2.5).
TWO = {"a": [(1, 1)], "b": [(1, 4), (1, 4)]}


@pytest.mark.parametrize(
    "order, weighted, want",
    [("fo", False, 2.125), ("fo", True, 2.25), ("hf", False, 2.0625), ("hf", True, 2.125)],
)
def test_one_round_by_hand(order: str, weighted: bool, want: float) -> None:
    method = ct.PerFedAvg(lr=0.25, inner=0.25, local_steps=1, order=order, weighted=weighted)
    run = points(TWO, 2.0).run(method, rounds=1)
    assert run.state["weight"].item() == pytest.approx(want, rel=1e-11)


# ------------------------------------------------------------------------------ in NumPy
def plus(w: Model, a: float, g: Model) -> Model:
    return {k: w[k] + a * g[k] for k in w}


def trained(
    p: Problem,
    w: Model,
    triples: list[tuple[Rows, Rows, Rows]],
    *,
    order: str,
    lr: float = 0.05,
    a: float = 0.1,
    delta: float = 1e-3,
    l2: float = 0.0,
) -> Model:
    """Steps on triples D, D′, D″."""
    grad = lambda w, rows: plus(p.f(w, *rows)[1], 1.0, decay(l2, w))
    for d, d1, d2 in triples:
        g = grad(plus(w, -a, grad(w, d)), d1)
        if order == "hf":
            up = grad(plus(w, delta, g), d2)
            down = grad(plus(w, -delta, g), d2)
            g = {k: g[k] - a * (up[k] - down[k]) / (2 * delta) for k in g}
        w = plus(w, -lr, g)
    return w


@pytest.mark.parametrize("order", ["fo", "hf"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy(problem: str, order: str) -> None:
    """δ is large, so that a wrong difference shows."""
    p = PROBLEMS[problem]()
    method = ct.PerFedAvg(
        lr=0.05, local_steps=3, inner=0.1, order=order, delta=0.5, decay=0.8, l2=0.1
    )
    run = p.ready(method, rounds=3, participation=0.6)
    w = one(run.state)
    for t, who in enumerate(participants(run)):
        how = {"order": order, "lr": 0.05 * 0.8**t, "delta": 0.5, "l2": 0.1}
        w = mean([trained(p, w, [(p.clients[i],) * 3] * 3, **how) for i in who])
    assert_same_models(one(finished(run).state), w)


def other_batches(run: Run, r: int, i: int, which: int) -> list[Rows]:
    """Client i's D (1) or D″ (2) in round r: as FedAvg's, from a shifted key."""
    data = find_data(run, r, i)
    return in_numpy(data._replace(key=data.key + which * 2**32).batches(run.method))


@pytest.mark.parametrize("order", ["fo", "hf"])
@pytest.mark.parametrize("how", [{"batch": 3, "local_steps": 4}, {"batch": 2, "local_epochs": 2}])
def test_three_batches_in_numpy(how: dict, order: str) -> None:
    """D′ is what FedAvg would draw; D and D″ are draws of their own."""
    p = lines()
    run = p.ready(ct.PerFedAvg(lr=0.05, inner=0.1, order=order, **how), rounds=2)
    w = one(run.state)
    for r in (1, 2):
        models = []
        for i in range(7):
            first, third = other_batches(run, r, i, 1), other_batches(run, r, i, 2)
            triples = list(zip(first, mini_batches(run, r, i), third))
            models.append(trained(p, w, triples, order=order))
        w = mean(models)
    assert_same_models(one(finished(run).state), w, 1e-8)


def test_the_three_batches_of_a_step_differ() -> None:
    """4 steps with three batches of 3 of 8 rows: 56 are possible, so hardly any is drawn twice."""
    run = lines().ready(ct.PerFedAvg(batch=3, local_steps=4), rounds=1)
    drawn = mini_batches(run, 1, 6) + other_batches(run, 1, 6, 1) + other_batches(run, 1, 6, 2)
    assert len({frozenset(y.tolist()) for _, y in drawn}) >= 9


def test_padding_does_not_change_the_batches() -> None:
    """Clients of 2 to 8 rows in passes of batches of 3: the vectorised engine pads all to 8."""
    p, method = lines(), ct.PerFedAvg(lr=0.05, inner=0.1, batch=3, local_epochs=2)
    loop, fast = (one(p.run(method, rounds=2, engine=e).state) for e in ("loop", "vectorised"))
    assert_same_models(fast, loop)


# ------------------------------------------------------------------------------ the Hessian
def test_hessian_free_is_the_gradient_of_the_adapted_loss() -> None:
    """Full batch, quadratic f: the direction is ∇ of F(w) = f(w − a∇f(w)), by differences of F."""
    x, y = lines().clients[5]
    p = lines()._replace(fed=federation({"a": (x, y)}))
    run = p.ready(ct.PerFedAvg(lr=0.1, inner=0.07, local_steps=1), rounds=1)
    w, step = one(run.state), 1e-5

    def adapted_loss(v: Model) -> float:
        return p.f(plus(v, -0.07, p.f(v, x, y)[1]), x, y)[0]

    slope = []
    for k in w:
        for j in range(w[k].size):
            e = {n: np.zeros_like(v) for n, v in w.items()}
            e[k].flat[j] = step
            slope.append((adapted_loss(plus(w, 1, e)) - adapted_loss(plus(w, -1, e))) / (2 * step))
    moved = vector(w) - vector(one(finished(run).state))
    np.testing.assert_allclose(moved, 0.1 * np.array(slope), rtol=1e-6)


# ------------------------------------------------------------------------------ identities
@pytest.mark.parametrize("order", ["fo", "hf"])
@pytest.mark.parametrize(
    "how",
    [
        {"local_steps": 3},
        {"batch": 3, "local_steps": 3},
        {"batch": 2, "local_epochs": 1, "l2": 0.1},
    ],
)
def test_a_0_is_fedavg(how: dict, order: str) -> None:
    p = lines()
    end = lambda m: one(p.run(m, rounds=2, participation=0.6, engine="vectorised").state)
    want = end(ct.FedAvg(lr=0.05, weighted=False, **how))
    assert_same_models(end(ct.PerFedAvg(lr=0.05, inner=0.0, order=order, **how)), want)
    assert apart(end(ct.PerFedAvg(lr=0.05, inner=0.1, order=order, **how)), want)


def test_permuting_clients_changes_nothing() -> None:
    plain, moved, _ = lines().permuted(
        ct.PerFedAvg(lr=0.05, local_steps=2, batch=3), rounds=3, participation=0.5
    )
    assert_same_models(one(moved.state), one(plain.state))


# ------------------------------------------------------------------------------ evaluation
METHOD = ct.PerFedAvg(lr=0.05, local_steps=2, inner=0.1)


def adapted(p: Problem, run: Run) -> list[Model]:
    """The global model after one step on each client's training rows."""
    w = one(run.state)
    return [plus(w, -0.1, p.f(w, *xy)[1]) for xy in p.clients]


def test_a_client_is_measured_after_one_step_on_its_training_rows() -> None:
    p = measured()
    run = p.run(METHOD, rounds=2)
    np.testing.assert_allclose(run.client_scores["mse"], p.test_losses(adapted(p, run)), rtol=1e-12)


def test_test_rows_play_no_part_in_the_adaptation() -> None:
    """Other test targets change what is measured, and not the adapted models."""
    p = measured()
    other = p._replace(fed=replace(p.fed, test=p.fed.test._replace(y=p.fed.test.y + 5)))
    run = other.run(METHOD, rounds=2)
    np.testing.assert_allclose(
        run.client_scores["mse"], other.test_losses(adapted(p, run)), rtol=1e-12
    )


def test_a_newcomer_adapts_on_its_own_rows() -> None:
    p = measured(unseen=1)
    run = p.run(METHOD, rounds=2)
    want = p.test_loss(adapted(p, run)[3], 3)
    assert run.history[-1]["unseen_mse"] == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    "how, why",
    [
        ({"solver": "adam"}, "plain gradient steps"),
        ({"clip": 1.0}, "order='fo'"),
        ({"order": "second"}, "one of fo, hf"),
        ({"inner": -0.1}, "inner of perfedavg"),
    ],
)
def test_what_makes_no_sense_is_refused(how: dict, why: str) -> None:
    with pytest.raises(ct.CoterieError, match=why):
        lines().ready(ct.PerFedAvg(**how))
    lines().ready(ct.PerFedAvg(clip=1.0, order="fo"))
