"""Server optimizers: two rounds by hand, several in NumPy, clusters, resume, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from cases import PROBLEMS, federation, finished, participants, points
from coterie.core.trees import tree_leaves
from oracles import Model, assert_same_models, centres_of, descend, mean, one

NAMES = ("momentum", "adam", "yogi", "adagrad")
ADAPTIVITY = 0.05


# ------------------------------------------------------------------------------ by hand
# One client with the row (1, 1), f = (w − 1)², w = 0, lr = ¼: one step goes half of the way to 1.
# η = ½, β_1 = ½, τ = ½, v_0 = τ² = ¼.
# Round 1, Δ = ½:
#   momentum  m = ½,                                          w = ½·½ = ¼
#   adam      m = ¼,  v = 0.99·¼ + 0.01·¼ = ¼,                w = ½·¼/(½ + ½) = ⅛
#   yogi      m = ¼,  v = ¼ − 0.01·¼·sign(0) = ¼,             w = ⅛
#   adagrad   m = ¼,  v = ¼ + ¼ = ½,                          w = ⅛/(√½ + ½)
# Round 2:
#   momentum  Δ = ⅜:  m = ¼ + ⅜ = ⅝,                          w = ¼ + 5/16 = 9/16
#   adam      Δ = 7/16, m = ⅛ + 7/32 = 11/32, v = ¼ − 0.01·(¼ − 49/256),
#   yogi      the same m, v = ¼ − 0.01·49/256, as v > Δ²
V_ADAM = 0.25 - 0.01 * (0.25 - 49 / 256)
V_YOGI = 0.25 - 0.01 * 49 / 256
HANDS = {
    "momentum": (1 / 4, 9 / 16),
    "adam": (1 / 8, 1 / 8 + 11 / 64 / (V_ADAM**0.5 + 0.5)),
    "yogi": (1 / 8, 1 / 8 + 11 / 64 / (V_YOGI**0.5 + 0.5)),
    "adagrad": (1 / 8 / (0.5**0.5 + 0.5), None),
}


@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_by_hand(name: str) -> None:
    method = ct.FedAvg(
        lr=0.25, local_steps=1, server_optimizer=name, server_lr=0.5, server_momentum=0.5,
        server_adaptivity=0.5,
    )  # fmt: skip
    run = points({"a": [(1.0, 1.0)]}, w=0.0).ready(method, rounds=2)
    seen = [run.state.model["weight"].item() for _ in run.rounds()]
    assert seen[0] == 0
    for found, want in zip(seen[1:], HANDS[name], strict=True):
        assert want is None or found == pytest.approx(want, rel=1e-12)


# ------------------------------------------------------------------------------ in NumPy
class Server:
    """The paper's Algorithm 2 for one model."""

    def __init__(self, name: str, lr: float, start: Model) -> None:
        self.name, self.lr = name, lr
        self.m = {k: np.zeros_like(v) for k, v in start.items()}
        self.v = {k: np.full_like(v, ADAPTIVITY**2) for k, v in start.items()}

    def step(self, old: Model, mean: Model) -> Model:
        new = {}
        for k, x in old.items():
            d = mean[k] - x
            if self.name == "momentum":
                self.m[k] = 0.9 * self.m[k] + d
                new[k] = x + self.lr * self.m[k]
                continue
            self.m[k] = 0.9 * self.m[k] + 0.1 * d
            if self.name == "adagrad":
                self.v[k] = self.v[k] + d**2
            elif self.name == "adam":
                self.v[k] = 0.99 * self.v[k] + 0.01 * d**2
            else:
                self.v[k] = self.v[k] - 0.01 * d**2 * np.sign(self.v[k] - d**2)
            new[k] = x + self.lr * self.m[k] / (np.sqrt(self.v[k]) + ADAPTIVITY)
        return new


def settings(name: str) -> dict[str, Any]:
    return {"server_optimizer": name, "server_lr": 0.3, "server_adaptivity": ADAPTIVITY}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", NAMES)
def test_rounds_of_fedavg_in_numpy(name: str, problem: str) -> None:
    p = PROBLEMS[problem]()
    method = ct.FedAvg(lr=0.05, local_steps=3, **settings(name))
    run = p.ready(method, rounds=5, participation=0.6)
    w = one(run.state.model)
    server = Server(name, 0.3, w)
    for who in participants(run):
        models = [descend(p.f, w, [p.clients[i]] * 3, 0.05, 0.0) for i in who]
        w = server.step(w, mean(models, [p.sizes[i] for i in who]))
    assert_same_models(one(finished(run).state.model), w)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", ["loop", "vectorised", "wire"])
def test_each_cluster_of_ifca_has_its_own_optimizer(name: str, engine: str) -> None:
    """A cluster that nobody chose in a round keeps its model and its state."""
    p = PROBLEMS["linear"]()
    method = ct.IFCA(clusters=3, init="random", lr=0.05, local_steps=2, **settings(name))
    run = p.ready(method, rounds=4, participation=0.5, engine=engine)
    next(run.rounds())
    centres = centres_of(run)
    servers = [Server(name, 0.3, w) for w in centres]
    skipped = 0
    for who in participants(run):
        chosen = {i: p.best(centres, i) for i in who}
        for j, w in enumerate(list(centres)):
            members = [i for i in who if chosen[i] == j]
            skipped += not members
            if members:
                models = [descend(p.f, w, [p.clients[i]] * 2, 0.05, 0.0) for i in members]
                centres[j] = servers[j].step(w, mean(models, [1] * len(members)))
    assert_same_models(centres_of(finished(run)), centres)
    assert skipped, "some cluster was left out in some round"


# ------------------------------------------------------------------------------ other methods
METHODS = [
    ct.FedProx(**settings("adam")),
    ct.FineTuned(**settings("yogi")),
    ct.Ditto(**settings("momentum")),
    ct.Given(given=("a", "b", "a", "b", "a"), **settings("adam")),
    ct.OneShot(clusters=2, **settings("adagrad")),
    ct.FLHC(**settings("adam"), warm=1),
    ct.IFCA(share=("1.bias",), clusters=2, **settings("yogi")),
    ct.MRMTL(**settings("adam")),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_engines_agree_and_runs_resume_to_the_bit(method: Any, tmp_path: Path) -> None:
    fed = federation(5)
    options: dict[str, Any] = {"model": "softmax", "dtype": "float64", "rounds": 4}
    one_run = ct.run(method, fed, engine="loop", **options)
    fast = ct.run(method, fed, plan=ct.Plan(True, 3, 2), **options)
    for a, b in zip(tree_leaves(one_run.state), tree_leaves(fast.state), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    half = ct.run(method, fed, engine="loop", out=tmp_path / "half", **{**options, "rounds": 3})
    again = ct.resume(half.folder, fed, "softmax", rounds=4)
    assert all(map(torch.equal, tree_leaves(again.state), tree_leaves(one_run.state)))
    plain = replace(method, server_optimizer="average", server_lr=None)
    averaged = ct.run(plain, fed, engine="loop", **options)
    pairs = zip(tree_leaves(averaged.state), tree_leaves(one_run.state))
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_running_statistics_are_averaged_as_they_are() -> None:
    fed = federation(4)
    how: dict[str, Any] = {"model": "mlp_bn:6", "rounds": 1, "dtype": "float64"}
    adam = ct.run(ct.FedAvg(**settings("adam")), fed, **how).state.model
    plain = ct.run(ct.FedAvg(), fed, **how).state
    assert torch.equal(adam["2.running_mean"], plain["2.running_mean"])
    assert not torch.equal(adam["2.weight"], plain["2.weight"])


def test_momentum_of_zero_and_step_size_one_is_the_mean() -> None:
    fed = federation(4)
    method = ct.FedAvg(server_optimizer="momentum", server_momentum=0.0)
    found = ct.run(method, fed, "softmax", rounds=3, dtype="float64").state.model
    plain = ct.run(ct.FedAvg(), fed, "softmax", rounds=3, dtype="float64").state
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------ refused
@pytest.mark.parametrize("cls", [ct.FedPer, ct.APFL, ct.CFL, ct.CFLMGD])
def test_a_method_that_averages_otherwise_says_so(cls: Any) -> None:
    with pytest.raises(ct.CoterieError, match=f"{cls.name} has no server optimizers: leave out"):
        ct.run(cls(server_optimizer="adam"), federation(4), rounds=1)


def test_an_unknown_server_optimizer_is_refused() -> None:
    with pytest.raises(ct.CoterieError, match="must be one of average, momentum, adam"):
        ct.run(ct.FedAvg(server_optimizer="lion"), federation(4), nn.Flatten(), rounds=1)
    with pytest.raises(ct.CoterieError, match="give server_optimizer, too"):
        ct.run(ct.FedAvg(server_lr=0.1), federation(4), "softmax", rounds=1)
