"""FedProx: a round by hand, several rounds in NumPy, stragglers, μ = 0."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from cases import PROBLEMS, find_data, finished, lines, mini_batches, participants, points
from coterie.core import randomness
from coterie.runs.run import Run
from oracles import apart, assert_same_models, descend, mean, one

VARIANTS = {
    "fedprox": [
        ct.FedProx(stragglers=0.5),
        ct.FedProx(stragglers=0.8, local_epochs=3, batch=4, solver="heavy_ball"),
    ]
}


# w = 2, lr = ¼, μ = 2, two steps.  a: one row, f = (w − 1)².  b: two rows, f = (w − 4)².
# a: 2 − ¼·2 = 1.5;  then 1.5 − ¼·(1 + 2·(1.5 − 2)) = 1.5.
# b: 2 + ¼·4 = 3;  then 3 − ¼·(−2 + 2·(3 − 2)) = 3.
# By rows (1.5 + 2·3)/3 = 2.5, by clients 2.25. Without the pull, or with one to itself, it is 2.75.
def test_one_round_by_hand() -> None:
    two = points({"a": [(1, 1)], "b": [(1, 4), (1, 4)]}, 2.0)
    for weighted, want in ((True, 2.5), (False, 2.25)):
        run = two.run(ct.FedProx(lr=0.25, local_steps=2, mu=2.0, weighted=weighted), rounds=1)
        assert run.state["weight"].item() == want


@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy(problem: str) -> None:
    p = PROBLEMS[problem]()
    run = p.ready(ct.FedProx(lr=0.05, local_steps=4, mu=1.5, l2=0.1), rounds=3, participation=0.6)
    w = one(run.state)
    for who in participants(run):
        models = [
            descend(p.f, w, [p.clients[i]] * 4, 0.05, l2=0.1, pull=1.5, towards=w) for i in who
        ]
        w = mean(models, [p.sizes[i] for i in who])
    assert_same_models(one(finished(run).state), w)


@pytest.mark.parametrize(
    "how",
    [
        {"local_steps": 3},
        {"batch": 3, "local_epochs": 2},
        {"local_steps": 2, "solver": "adam"},
    ],
)
def test_mu_0_is_fedavg(how: dict) -> None:
    p = lines()
    end = lambda m: one(p.run(m, rounds=2, participation=0.6, engine="vectorised").state)
    fedavg = end(ct.FedAvg(lr=0.05, **how))
    assert_same_models(end(ct.FedProx(lr=0.05, mu=0.0, **how)), fedavg)
    assert apart(end(ct.FedProx(lr=0.05, mu=1.0, **how)), fedavg)


# ------------------------------------------------------------------------------ stragglers
# As above with μ = 1, for one or two steps.
# a: 1.5, then 1.5 − ¼·(1 + (1.5 − 2)) = 1.375.  b: 3, then 3 − ¼·(−2 + (3 − 2)) = 3.25.
# By clients: (1.5 + 3)/2, (1.5 + 3.25)/2, (1.375 + 3)/2 or (1.375 + 3.25)/2.
def test_stragglers_by_hand() -> None:
    two = points({"a": [(1, 1)], "b": [(1, 4), (1, 4)]}, 2.0)

    def end(stragglers: float, seed: int) -> float:
        method = ct.FedProx(lr=0.25, local_steps=2, mu=1.0, weighted=False, stragglers=stragglers)
        return two.run(method, rounds=1, seed=seed).state["weight"].item()

    assert end(0.0, seed=0) == 2.3125
    assert {end(1.0, seed) for seed in range(8)} == {2.25, 2.375, 2.1875, 2.3125}


def turns(run: Run, r: int, i: int) -> int:
    """How many steps or passes client i takes in round r."""
    method, key = run.method, find_data(run, r, i).key
    draw = lambda tag: float(randomness.uniform(key + randomness.digest(tag)))
    everything = method.local_epochs or method.local_steps
    if draw("straggler") >= method.stragglers:
        return everything
    return 1 + int(draw("work") * everything)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize(
    "how",
    [{"local_steps": 4}, {"local_steps": 4, "batch": 2}, {"local_epochs": 3, "batch": 2}],
    ids=["all rows", "steps", "passes"],
)
def test_stragglers_in_numpy(how: dict, engine: str) -> None:
    """Clients have 2 to 8 rows, so that a pass is 1 to 4 batches, and padded ones are skipped."""
    p = lines()
    method = ct.FedProx(lr=0.05, mu=1.5, stragglers=0.6, **how)
    run = p.ready(method, rounds=3, engine=engine)
    w = one(run.state)
    for r in (1, 2, 3):
        models = []
        for i in range(7):
            batches = mini_batches(run, r, i) if method.batch else [p.clients[i]] * 4
            per_turn = 1 if method.local_epochs is None else -(-p.sizes[i] // 2)
            batches = batches[: turns(run, r, i) * per_turn]
            models.append(descend(p.f, w, batches, 0.05, pull=1.5, towards=w))
        w = mean(models, p.sizes)
    assert_same_models(one(finished(run).state), w)


def test_stragglers_are_as_many_as_asked_for_and_take_1_to_all_steps() -> None:
    run = lines(10).ready(ct.FedProx(local_steps=4, stragglers=0.5))
    drawn = np.array([[turns(run, r, i) for i in range(10)] for r in range(1, 101)])
    shares = np.bincount(drawn.ravel(), minlength=5)[1:] / drawn.size
    # half take all four, and of the other half a quarter takes each number
    np.testing.assert_allclose(shares, [0.125, 0.125, 0.125, 0.625], atol=0.05)
    assert len({tuple(row) for row in drawn}) > 90  # anew in each round


def test_stragglers_are_a_share() -> None:
    with pytest.raises(ct.CoterieError, match="stragglers of fedprox is 1.5: it must be ≤ 1"):
        lines().ready(ct.FedProx(stragglers=1.5))
