"""FedProx: a round by hand, several rounds in NumPy, μ = 0."""

from __future__ import annotations

import pytest

import coterie as ct
from cases import PROBLEMS, finished, lines, participants, points
from oracles import apart, descend, mean, one, started_from


# w = 2, lr = ¼, μ = 2, two steps.  a: one row, f = (w − 1)².  b: two rows, f = (w − 4)².
# a: 2 − ¼·2 = 1.5;  then 1.5 − ¼·(1 + 2·(1.5 − 2)) = 1.5.
# b: 2 + ¼·4 = 3;  then 3 − ¼·(−2 + 2·(3 − 2)) = 3.
# By rows (1.5 + 2·3)/3 = 2.5, by clients 2.25. Without the pull, or with a pull to itself, it is 2.75.
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
    started_from(one(finished(run).state), w)


@pytest.mark.parametrize(
    "how", [{"local_steps": 3}, {"batch": 2, "local_epochs": 2}, {"solver": "adam"}]
)
def test_mu_0_is_fedavg(how: dict) -> None:
    p = lines()
    end = lambda m: one(p.run(m, rounds=3, participation=0.6).state)
    started_from(end(ct.FedProx(lr=0.05, mu=0.0, **how)), end(ct.FedAvg(lr=0.05, **how)))
    assert apart(end(ct.FedProx(lr=0.05, mu=1.0, **how)), end(ct.FedAvg(lr=0.05, **how)))
