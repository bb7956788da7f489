"""clusters="auto", and longer starts, in the methods that have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.params import count
from oracles import finished, ready


def planted(groups: int, seed: int = 0, samples: int = 60) -> ct.data.Federation:
    """24 clients, linear."""
    return ct.data.linear(clients=24, samples=samples, dim=8, clusters=groups, seed=seed, test_samples=20)


AUTO = {
    "ifca": ct.IFCA(clusters="auto", lr=0.05),
    "cfl-mgd": ct.CFLMGD(clusters="auto", lr=0.01, beta=0.5),
    "one-shot": ct.OneShot(clusters="auto", lr=0.05),
}


@pytest.mark.parametrize("method", AUTO.values(), ids=AUTO.keys())
@pytest.mark.parametrize("groups", [1, 3])
def test_planted_groups_are_counted_and_found(method: ct.Algorithm, groups: int) -> None:
    for seed in range(2):
        result = ct.run(method, planted(groups, seed), "linear", rounds=3, seed=seed, eval_every=3)
        notes = result.history[0]["notes"]
        assert notes["clusters"] == groups == count(result.centres)
        assert len(notes["curve"]) == 12 and (groups == 1 or notes["curve"][groups - 1] == min(notes["curve"]))
        assert result.final["ari"] == 1.0
        assert result.final["sizes"] == [24 // groups] * groups


@pytest.mark.parametrize("cls", [ct.IFCA, ct.CFLMGD, ct.OneShot])
def test_once_k_is_known_all_is_as_if_it_had_been_given(cls: type) -> None:
    fed = planted(3)
    more = {} if cls is ct.OneShot else {"start_steps": 50}
    auto, given = (
        finished(ready(cls(clusters=k, lr=0.01, **more), fed, lambda: torch.nn.Linear(8, 1), rounds=3))
        for k in ("auto", 3)
    )
    assert auto.state.group.tolist() == given.state.group.tolist()
    for name, centre in given.state.centres.items():
        torch.testing.assert_close(auto.state.centres[name], centre, rtol=0, atol=0)


def test_nobody_answers_the_start() -> None:
    run = ready(ct.IFCA(clusters="auto"), planted(2), lambda: torch.nn.Linear(8, 1), rounds=2)
    run.participants = lambda r: torch.arange(24 if r else 0)
    finished(run)
    assert count(run.state.centres) == 1 and run.state.group.tolist() == [0] * 24


@pytest.mark.parametrize("more", [{"init": "random"}, {"init": "balanced"}, {"restarts": 2}])
@pytest.mark.parametrize("cls", [ct.IFCA, ct.CFLMGD])
def test_other_starts_need_a_number(cls: type, more: dict) -> None:
    with pytest.raises(ct.CoterieError, match="clusters='auto' is found from the first updates"):
        ready(cls(clusters="auto", **more), planted(2), lambda: torch.nn.Linear(8, 1))


# ---------------------------------------------------------------------------------------------- start_steps
@pytest.mark.filterwarnings("ignore:4 of 4 clients have a single")
def test_the_start_takes_so_many_steps_and_the_rounds_their_own() -> None:
    """x = 1, f = (w − y)², η = ¼: a step halves the way. From 0, three steps: 7/8 of the way to y = ±8 and ±6.

    Centres (7 + 5.25)/2 and its negative; then one step each: half of the way from there, mean over 8 and 6.
    """
    x = np.ones((1, 1))
    fed = ct.data.from_memory([(x, np.array([y])) for y in (8.0, 6.0, -8.0, -6.0)], test_share=0.0)

    def line() -> torch.nn.Module:
        net = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(net.weight)
        return net

    run = ready(ct.IFCA(clusters=2, lr=0.25, local_steps=1, start_steps=3), fed, line, rounds=1)
    next(run.rounds())
    assert sorted(run.state.centres["weight"].flatten().tolist()) == [-6.125, 6.125]
    next(run.rounds())
    assert sorted(run.state.centres["weight"].flatten().tolist()) == [-6.5625, 6.5625]


def test_a_longer_start_overrides_epochs_in_round_0_alone() -> None:
    fed, line = planted(2), lambda: torch.nn.Linear(8, 1)
    how = {"clusters": 2, "lr": 0.05, "batch": 10, "start_steps": 4}
    epochs = ready(ct.IFCA(local_epochs=2, **how), fed, line, rounds=1)
    steps = ready(ct.IFCA(local_steps=7, **how), fed, line, rounds=1)
    for run in (epochs, steps):
        next(run.rounds())
    for name, centre in steps.state.centres.items():
        torch.testing.assert_close(epochs.state.centres[name], centre, rtol=0, atol=0)
    finished(epochs), finished(steps)
    assert not torch.equal(epochs.state.centres["weight"], steps.state.centres["weight"])


@pytest.mark.parametrize("how", [{"local_steps": 3}, {"local_epochs": 1, "batch": 20}])
def test_auto_starts_with_five_times_the_local_training(how: dict) -> None:
    starts = []
    for times, clusters in ((1, "auto"), (5, 2), (1, 2)):
        longer = {k: v if k == "batch" else times * v for k, v in how.items()}
        run = ready(ct.IFCA(clusters=clusters, lr=0.05, **longer), planted(2), lambda: torch.nn.Linear(8, 1), rounds=1)
        next(run.rounds())
        starts.append(run.state.centres["weight"])
    torch.testing.assert_close(starts[0], starts[1], rtol=0, atol=0)
    assert not torch.allclose(starts[0], starts[2])


def test_one_shot_counts_the_directions_of_the_moves_from_the_start() -> None:
    """Start (100, 0), x = e1 and e2: client i goes by about (0, ±½·i). Two directions, and no two groups of places."""
    rng = np.random.default_rng(0)
    goals = [(100 + 0.05 * y * rng.normal(), y) for y in (1, 2, 3, 4, 5, 6, 8, 10, -1, -2, -3, -4, -5, -6, -8, -10)]
    fed = ct.data.from_memory([(np.eye(2), np.array(goal)) for goal in goals], test_share=0.0)
    net = torch.nn.Linear(2, 1, bias=False)
    net.weight.data = torch.tensor([[100.0, 0.0]])
    run = ready(ct.OneShot(clusters="auto", lr=0.5, solve_steps=1), fed, net, rounds=1)
    assert next(run.rounds())["notes"]["clusters"] == 2
