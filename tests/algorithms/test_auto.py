"""clusters="auto", and longer starts, in the methods that have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie as ct
from cases import Problem, finished, points
from coterie.params import count
from oracles import federation, flat, ready, squared

QUICK = {"engine": "vectorised"}


def planted(groups: int, seed: int = 0) -> Problem:
    """12 clients of 60 rows, linear."""
    fed = ct.data.linear(clients=12, samples=60, dim=8, clusters=groups, seed=seed, test_samples=20)
    return Problem(fed, lambda: torch.nn.Linear(8, 1), squared)


AUTO = {
    "ifca": ct.IFCA(clusters="auto", lr=0.05),
    "cfl-mgd": ct.CFLMGD(clusters="auto", lr=0.01, beta=0.5),
    "one-shot": ct.OneShot(clusters="auto", lr=0.05),
}


@pytest.mark.parametrize("method", AUTO.values(), ids=AUTO.keys())
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_planted_groups_are_counted_and_found(method: ct.Algorithm, groups: int, seed: int) -> None:
    how = {"rounds": 2, "seed": seed, "eval_every": 2}
    result = ct.run(method, planted(groups, seed).fed, "linear", **how)
    notes = result.history[0]["notes"]
    assert notes["clusters"] == groups == count(result.centres)
    assert len(notes["curve"]) == 6
    if groups > 1:
        assert notes["curve"][groups - 1] == min(notes["curve"])
    assert result.final["ari"] == 1.0
    assert result.final["sizes"] == [12 // groups] * groups


@pytest.mark.parametrize("cls", [ct.IFCA, ct.CFLMGD, ct.OneShot])
def test_once_k_is_known_all_is_as_if_it_had_been_given(cls: type) -> None:
    longer = {"solve_steps": 50} if cls is ct.OneShot else {"start_steps": 50}
    auto, given = (
        planted(3).run(cls(clusters=k, lr=0.01, **longer), rounds=2, **QUICK).state
        for k in ("auto", 3)
    )
    assert count(auto.centres) == 3
    assert auto.group.tolist() == given.group.tolist()
    torch.testing.assert_close(auto.centres, given.centres, rtol=0, atol=0)


def test_nobody_answers_the_start() -> None:
    run = planted(2).ready(ct.IFCA(clusters="auto"), rounds=2, **QUICK)
    run.participants = lambda r: torch.arange(12 if r else 0)
    finished(run)
    assert count(run.state.centres) == 1 and run.state.group.tolist() == [0] * 12


@pytest.mark.parametrize("more", [{"init": "random"}, {"init": "balanced"}, {"restarts": 2}])
@pytest.mark.parametrize("cls", [ct.IFCA, ct.CFLMGD])
def test_other_starts_need_a_number(cls: type, more: dict) -> None:
    with pytest.raises(ct.CoterieError, match="clusters='auto' is found from the first updates"):
        planted(2).ready(cls(clusters="auto", **more))


# ------------------------------------------------------------------------------ start_steps
def test_the_start_takes_so_many_steps_and_the_rounds_their_own() -> None:
    """x = 1, f = (w − y)², η = ¼: a step halves the way.

    From 0, three steps: 7/8 of the way to y = ±8 and ±6.

    Centres (7 + 5.25)/2 and its negative; then one step each: half of the way from there, mean over
    8 and 6.
    """
    four = points({"a": [(1, 8)], "b": [(1, 6)], "c": [(1, -8)], "d": [(1, -6)]}, 0.0)
    run = four.begun(ct.IFCA(clusters=2, lr=0.25, local_steps=1, start_steps=3), rounds=1)
    assert sorted(flat(run.state.centres)) == [-6.125, 6.125]
    next(run.rounds())
    assert sorted(flat(run.state.centres)) == [-6.5625, 6.5625]


def test_a_longer_start_overrides_epochs_in_round_0_alone() -> None:
    how = {"clusters": 2, "lr": 0.05, "batch": 10, "start_steps": 4}
    epochs = planted(2).begun(ct.IFCA(local_epochs=2, **how), rounds=1, **QUICK)
    steps = planted(2).begun(ct.IFCA(local_steps=7, **how), rounds=1, **QUICK)
    torch.testing.assert_close(epochs.state.centres, steps.state.centres, rtol=0, atol=0)
    finished(epochs), finished(steps)
    assert not torch.equal(epochs.state.centres["weight"], steps.state.centres["weight"])


@pytest.mark.parametrize("how", [{"local_steps": 3}, {"local_epochs": 1, "batch": 20}])
def test_auto_starts_with_five_times_the_local_training(how: dict) -> None:
    starts = []
    for times, clusters in ((1, "auto"), (5, 2), (1, 2)):
        longer = {k: v if k == "batch" else times * v for k, v in how.items()}
        method = ct.IFCA(clusters=clusters, lr=0.05, **longer)
        run = planted(2).begun(method, rounds=1, **QUICK)
        starts.append(run.state.centres["weight"])
    torch.testing.assert_close(starts[0], starts[1], rtol=0, atol=0)
    assert not torch.allclose(starts[0], starts[2])


def test_one_shot_counts_the_directions_of_the_moves_from_the_start() -> None:
    """Start (100, 0), x = e1 and e2: client i goes by about (0, ±½·i).

    Two directions, and no two groups of places.
    """
    rng = np.random.default_rng(0)
    goals = [
        (100 + 0.05 * y * rng.normal(), y)
        for y in (1, 2, 3, 4, 5, 6, 8, 10, -1, -2, -3, -4, -5, -6, -8, -10)
    ]
    fed = federation([(np.eye(2), np.array(goal)) for goal in goals])
    net = torch.nn.Linear(2, 1, bias=False)
    net.weight.data = torch.tensor([[100.0, 0.0]])
    run = ready(ct.OneShot(clusters="auto", lr=0.5, solve_steps=1), fed, net, rounds=1)
    assert next(run.rounds())["notes"]["clusters"] == 2
