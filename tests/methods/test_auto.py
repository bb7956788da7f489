"""clusters="auto", and longer starts, in the methods that have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import coterie as ct
from cases import Problem, finished, points
from coterie.core.client_data import Data
from coterie.core.params import count
from coterie.core.task import Batch
from coterie.methods.held_out import drop_outliers, smallest_good
from oracles import federation, flat, ready, squared

QUICK = {"engine": "vectorised"}


def planted(groups: int, seed: int = 0) -> Problem:
    """12 clients of 60 rows, linear."""
    fed = ct.data.linear(clients=12, samples=60, dim=8, clusters=groups, seed=seed, test_samples=20)
    return Problem(fed, lambda: torch.nn.Linear(8, 1), squared)


AUTO = {
    "ifca": ct.IFCA(clusters="auto", lr=0.05),
    "cfl-mgd": ct.CFLMGD(clusters="auto", lr=0.04, beta=0.5),
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
    assert notes["curve"][0] == 1 and min(notes["curve"]) > notes["curve"][groups - 1] - 0.01
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
    with pytest.raises(ct.CoterieError, match="clusters='auto' needs init='updates'"):
        planted(2).ready(cls(clusters="auto", **more))


# ------------------------------------------------------------------------------ held-out rows
def opposite(sites: int, rows: int = 60, groups: int = 2) -> ct.data.Federation:
    """Sites whose target is x·w or −x·w, with noise; with one group, all alike."""
    rng = np.random.default_rng(0)
    clients = {}
    for i in range(sites):
        x = rng.normal(size=(rows, 3))
        sign = -1 if groups == 2 and i % 2 else 1
        clients[f"site-{i}"] = (x, sign * x @ [1.0, 2.0, -1.0] + rng.normal(size=rows))
    return ct.data.from_memory(clients)


@pytest.mark.parametrize("sites, rows", [(2, 60), (3, 60), (7, 20), (200, 10)])
@pytest.mark.parametrize("groups", [1, 2])
def test_opposite_sites_are_two_groups_and_alike_ones_one(
    sites: int, rows: int, groups: int
) -> None:
    fed = opposite(sites, rows, groups)
    result = ct.run(ct.IFCA(clusters="auto"), fed, "linear", rounds=1, eval_every=1)
    assert result.history[0]["notes"]["clusters"] == groups
    if groups == 2:
        of_each = result.clusters[-1]
        assert (of_each == of_each[np.arange(sites) % 2]).all()


def test_a_site_is_alone_only_where_that_pays() -> None:
    """Two opposite groups; one more site with few odd rows, then one with many."""
    rng = np.random.default_rng(1)

    def sizes(rows: int) -> list[int]:
        clients = {}
        for i in range(11):
            n = 40 if i < 10 else rows
            x = rng.normal(size=(n, 3))
            w = np.array([[1.0, 2, -1], [-1, -2, 1], [3, -3, 3]])[2 if i == 10 else i % 2]
            clients[f"site-{i:02d}"] = (x, x @ w + rng.normal(size=n))
        fed = ct.data.from_memory(clients)
        result = ct.run(ct.IFCA(clusters="auto"), fed, "linear", rounds=1, eval_every=1)
        return sorted(result.final["sizes"])

    assert sizes(rows=2) == [5, 6]
    assert sizes(rows=80) == [1, 5, 5]


def test_the_least_number_that_is_not_clearly_worse() -> None:
    """By hand: one model for all loses 100 + 100, so that 2 in all is never clearly worse.

    K = 3 is best. K = 2 loses 4 and 6 more, whose standard error is √2·√2 = 2: clearly worse.
    With 4 and −3 it is 1 in all.
    """
    losses = torch.tensor([[100.0, 54, 50], [100, 56, 50]], dtype=torch.float64)
    assert smallest_good(losses) == 3
    assert smallest_good(losses, errors=5.1) == 2
    close = torch.tensor([[100.0, 54, 50], [100, 47, 50]], dtype=torch.float64)
    assert smallest_good(close) == 2
    diverged = torch.tensor([[torch.inf, 54, torch.nan], [100, 56, 50]], dtype=torch.float64)
    assert smallest_good(diverged) == 2


def test_rows_are_held_out_from_training_and_each_is_held_out_once() -> None:
    x = torch.arange(8.0)[:, None]
    mask = torch.tensor([1.0] * 7 + [0.0])
    key = torch.tensor(5)
    data = Data(Batch(x, x[:, 0], mask, torch.ones(8)), key, key)
    seen: list[float] = []
    for fold in range(3):
        held, left = data.part(fold, 3), data.without(fold, 3).all
        held_rows = held.x[held.mask > 0][:, 0].tolist()
        left_rows = left.x[left.mask > 0][:, 0].tolist()
        assert sorted(held_rows + left_rows) == list(range(7))
        seen += held_rows
    assert sorted(seen) == list(range(7))


def test_clients_that_lie_about_held_out_rows_do_not_decide() -> None:
    """Two of twelve report that four groups are perfect: robust means leave them out."""
    honest = torch.tensor([[10.0, 11, 12, 13]] * 10, dtype=torch.float64)
    liars = torch.tensor([[1e6, 1e6, 1e6, 0]] * 2, dtype=torch.float64)
    losses = torch.cat([honest + torch.rand(10, 1), liars])
    assert smallest_good(losses) == 4
    assert smallest_good(drop_outliers(losses, 0.25)) == 1


def test_absent_clients_do_not_count() -> None:
    """With dropout some answer not every time; the count is of those who did."""
    fed = planted(3).fed
    result = ct.run(
        ct.IFCA(clusters="auto", lr=0.05), fed, "linear", rounds=1, dropout=0.02, eval_every=1
    )
    assert result.history[0]["notes"]["clusters"] == 3


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
    run = ready(
        ct.OneShot(clusters="auto", auto_by="careful", lr=0.5, solve_steps=1), fed, net, rounds=1
    )
    assert next(run.rounds())["notes"]["clusters"] == 2


# ------------------------------------------------------------------------------ the default
@pytest.mark.parametrize("cls", [ct.IFCA, ct.CFLMGD, ct.OneShot, ct.CGPFL, ct.FedSoft])
def test_auto_is_the_default(cls: type) -> None:
    assert cls().clusters == "auto"
    run = planted(2).run(cls(), rounds=1, **QUICK)
    assert (
        count(run.method.centres(run.state))
        == run.history[0 if cls is not ct.CGPFL else 1]["notes"]["clusters"]
    )


def test_fedsoft_has_as_many_centres_as_held_out_rows_say_and_at_least_two() -> None:
    for groups, centres in ((1, 2), (3, 3)):
        run = planted(groups).run(ct.FedSoft(lr=0.05), rounds=1, **QUICK)
        assert run.history[0]["notes"]["clusters"] == groups
        assert count(run.state.centres) == centres
        assert run.state.importance.shape == (12, centres)


def test_fedem_has_three_models_by_default() -> None:
    assert count(planted(2).run(ct.FedEM(), rounds=1, **QUICK).state.centres) == 3


def test_without_a_number_all_given_centres_are_used(tmp_path: Path) -> None:
    for j in range(3):
        save_file({"weight": torch.full((1, 1), float(j))}, tmp_path / f"group-{j}.safetensors")
    four = points({"a": [(1, 2)], "b": [(1, 0)], "c": [(1, 1)], "d": [(1, 2)]})
    for cls in (ct.IFCA, ct.CFLMGD, ct.CGPFL, ct.FedSoft):
        run = four.begun(cls(start_from=str(tmp_path)), rounds=1)
        assert flat(run.method.centres(run.state)) == [0.0, 1.0, 2.0]
        assert count(finished(run).method.centres(run.state)) == 3
