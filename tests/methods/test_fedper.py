"""FedPer: two rounds by hand, several in NumPy, least squares with an intercept per site, what is
kept and what is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from cases import PROBLEMS, find_data, finished, lines, measured, mini_batches, participants
from oracles import (
    Model,
    Rows,
    all_apart,
    apart,
    arrays,
    assert_same_models,
    descend,
    federation,
    mean,
    one,
    personal,
    private_states,
    ready,
    squared,
)

VARIANTS = {
    "fedper": [
        ct.FedPer(own=("1", "3.bias"), batch=4, weighted=False),
        ct.FedPer(own=("1.weight",), solver="adam", l2=0.1),
    ]
}


# ------------------------------------------------------------------------------ by hand
# f = mean (w·x + c − y)², w = c = 0, lr = ¼, one step a round.
# a: one row (1, 2).  b: two rows (2, 1).
# Round 1:  a: error −2,  w_a = 0 + ¼·2·2 = 1,    c_a = 1.
#           b: error −1,  w_b = 0 + ¼·2·2 = 1,    c_b = ½.      w = (1 + 2·1)/3 = 1.
# Round 2:  a: error 0,   w_a = 1,                c_a = 1.
#           b: error 1.5, w_b = 1 − ¼·6 = −½,     c_b = ½ − ¾ = −¼.   w = (1 − 2·½)/3 = 0.
# A mean over clients gives w = ¼; intercepts that are averaged, too, are both ⅔ after round 1.
def test_two_rounds_by_hand() -> None:
    fed = federation({"b": ([2.0, 2.0], [1.0, 1.0]), "a": ([1.0], [2.0])})
    module = nn.Linear(1, 1)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    run = ready(ct.FedPer(lr=0.25, local_steps=1), fed, module, rounds=2)
    seen = [(slope(run), intercepts(run)) for _ in run.rounds()]
    assert seen == [(0.0, [0.0, 0.0]), (1.0, [0.5, 1.0]), (0.0, [-0.25, 1.0])]


def slope(run: Any) -> float:
    return run.state["weight"].item()


def intercepts(run: Any) -> list[float]:
    return private_states(run)["bias"].flatten().tolist()


# ------------------------------------------------------------------------------ in NumPy
def rounds_in_numpy(
    f: Any, start: Model, own: str, rounds: list[dict[int, list[Rows]]], sizes: Any, how: dict
) -> tuple[Model, list[Model]]:
    """(the shared parameters, what each client keeps); rounds: each participant's batches."""
    base = {k: v for k, v in start.items() if k != own}
    kept = [{own: start[own]} for _ in sizes]
    for t, batches_of in enumerate(rounds):
        models = []
        for i, batches in batches_of.items():
            w = {k: base.get(k, kept[i].get(k)) for k in start}
            w = descend(f, w, batches, how["lr"] * how.get("decay", 1.0) ** t, how.get("l2", 0.0))
            kept[i] = {own: w[own]}
            models.append({k: w[k] for k in base})
        base = mean(models, [sizes[i] if how.get("weighted", True) else 1 for i in batches_of])
    return base, kept


def same_layers(run: Any, base: Model, kept: list[Model]) -> None:
    assert_same_models({k: one(run.state)[k] for k in base}, base)
    assert_same_models(personal(run), kept)


@pytest.mark.parametrize("own", ["bias", "weight"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy_absent_clients_wait(problem: str, weighted: bool, own: str) -> None:
    p = PROBLEMS[problem]()
    how = {"lr": 0.05, "decay": 0.8, "l2": 0.1, "weighted": weighted}
    named = () if own == "bias" else (own,)  # of a linear model the bias is kept by default
    run = p.ready(ct.FedPer(own=named, local_steps=3, **how), rounds=4, participation=0.6)
    rounds = [{i: [p.clients[i]] * 3 for i in who} for who in participants(run)]
    want = rounds_in_numpy(p.f, one(run.state), own, rounds, p.sizes, how)
    same_layers(finished(run), *want)
    assert len({tuple(who) for who in participants(run)}) > 1


@pytest.mark.parametrize("how", [{"batch": 3, "local_steps": 4}, {"batch": 2, "local_epochs": 2}])
def test_mini_batches_in_numpy(how: dict) -> None:
    p = lines()
    run = p.ready(ct.FedPer(lr=0.05, **how), rounds=3)
    rounds = [{i: mini_batches(run, r, i) for i in range(7)} for r in (1, 2, 3)]
    want = rounds_in_numpy(p.f, one(run.state), "bias", rounds, p.sizes, {"lr": 0.05})
    same_layers(finished(run), *want)


def test_it_ends_at_least_squares_with_a_column_for_each_site() -> None:
    """With one step a round, where it stands still each site's and the common gradient are 0."""
    rng = np.random.default_rng(0)
    levels = [-3.0, 0.0, 2.0, 5.0]
    sites = []
    for i, level in enumerate(levels):
        x = rng.normal(size=(20 + i, 2)) + level / 9  # levels and columns go together
        sites.append((x, x @ [1.0, -2.0] - 4 * level + 0.3 * rng.normal(size=20 + i)))
    fed = federation(sites)
    how = {"rounds": 200, "engine": "vectorised", "eval_every": 200}
    run = finished(ready(ct.FedPer(lr=0.25, local_steps=1), fed, lambda: nn.Linear(2, 1), **how))

    x, y = (np.concatenate(v) for v in zip(*sites))
    site = np.repeat(np.eye(4), [len(rows) for _, rows in sites], 0)
    solution = np.linalg.lstsq(np.hstack([x, site]), y, rcond=None)[0]
    np.testing.assert_allclose(run.state["weight"][0, 0], solution[:2], atol=1e-6)
    np.testing.assert_allclose(intercepts(run), solution[2:], atol=1e-6)


# ------------------------------------------------------------------------------ identities
class WithIdle(nn.Linear):
    """A line with one more parameter, which changes nothing."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.idle = nn.Parameter(torch.zeros(1))


HOWS = [
    {"local_steps": 3},
    {"batch": 3, "local_epochs": 2},
    {"batch": 3, "local_steps": 2, "solver": "heavy_ball"},
]


def end(method: ct.Algorithm) -> Any:
    return (
        lines()
        ._replace(model=WithIdle)
        .run(method, rounds=2, engine="vectorised", participation=0.6)
    )


@pytest.mark.parametrize("how", HOWS)
def test_it_is_fedavg_where_nothing_that_matters_is_kept(how: dict) -> None:
    fedavg = one(end(ct.FedAvg(lr=0.05, **how)).state)
    assert_same_models(one(end(ct.FedPer(lr=0.05, own=("idle",), **how)).state), fedavg)
    assert apart(one(end(ct.FedPer(lr=0.05, own=("bias",), **how)).state), fedavg)


@pytest.mark.parametrize("how", HOWS)
def test_it_is_local_training_where_all_that_matters_is_kept(how: dict) -> None:
    alone = personal(end(ct.LocalOnly(lr=0.05, **how)))
    kept = personal(end(ct.FedPer(lr=0.05, own=("weight", "bias"), **how)))
    assert_same_models(kept, [{k: w[k] for k in ("weight", "bias")} for w in alone])


def test_permuting_clients_permutes_what_they_keep() -> None:
    plain, moved, order = lines().permuted(
        ct.FedPer(lr=0.05, local_epochs=1, batch=2), rounds=3, participation=0.5
    )
    assert_same_models(personal(moved), [personal(plain)[i] for i in order])


# ------------------------------------------------------------------------------ what is kept
def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("model", "own", "kept"),
    [
        (lambda: nn.Linear(3, 1), (), ["bias"]),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 1)), (), ["1.bias"]),
        (lambda: nn.Sequential(nn.Linear(3, 1), nn.Softplus()), ("0.bias",), ["0.bias"]),
        (two_layers, (), ["2.weight", "2.bias"]),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False)), (), ["1.weight"]),
        (two_layers, ("0",), ["0.weight", "0.bias"]),
        (two_layers, ("0.bias", "2.bias"), ["0.bias", "2.bias"]),
    ],
)
def test_which_layers_are_kept(model: Any, own: tuple[str, ...], kept: list[str]) -> None:
    run = lines()._replace(model=model).ready(ct.FedPer(own=own), rounds=1)
    before = personal(run)
    assert all(list(w) == kept for w in before)
    finished(run)
    assert all_apart(personal(run)), "each client has its own, and it moves"
    for name, value in run.state.items():
        stays = torch.equal(value[0], run.task.init(0)[name])
        assert stays == (name in kept), "the server never sees what clients keep"


def test_what_is_kept_is_never_sent() -> None:
    run = lines().run(ct.FedPer(local_steps=1), rounds=2)
    slopes, intercept, weight = 3 * 8, 8, 8
    assert [row["bytes_up"] for row in run.history] == [0, *[7 * (slopes + weight)] * 2]
    model = 7 * (slopes + intercept)
    assert [row["bytes_down"] for row in run.history] == [0, 2 * model, model]

    own = {"bias": torch.ones(1, dtype=torch.float64)}
    upload, new = run.method.train(run.task, run.state, (), own, find_data(run, 1, 0))
    assert {name: list(value) for name, value in upload.values.items()} == {"base": ["weight"]}
    assert list(new) == ["bias"]
    assert upload.report == {}


def test_moves_are_screened_by_how_far_the_shared_layers_went() -> None:
    """Models are long, and all moves are short but one: that of the last client."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 5, 3))
    module = nn.Linear(3, 1)
    nn.init.constant_(module.weight, 1000.0)
    y = x @ np.full(3, 1000.0)
    y[:5] += 0.1 * rng.normal(size=(5, 5))
    y[5] += 4 * x[5, :, 0]
    fed = federation(list(zip(x, y)))
    run = ready(ct.FedPer(lr=0.05), fed, module, rounds=1, clip_factor=10.0)
    for _ in run.rounds():
        pass
    assert run.history[1]["clipped"] == [fed.names[5]]


def test_everyone_starts_alike() -> None:
    run = lines().ready(ct.FedPer(), seed=4)
    assert_same_models(personal(run), [{"bias": arrays(run.task.init(4))["bias"]}] * 7)
    assert_same_models(one(run.state), arrays(run.task.init(4)))


def test_a_resumed_run_goes_on_with_what_clients_kept(tmp_path: Path) -> None:
    p = lines()
    method = ct.FedPer(lr=0.05)
    known = {"fed": p.fed, "model": p.model, "method": method}
    options = {"dtype": "float64", "engine": "vectorised", "clip_factor": 0.0}
    half = ct.run(method, p.fed, p.model, rounds=2, out=tmp_path / "run", **options)
    before = intercepts(half._run)
    resumed = ct.resume(tmp_path / "run", rounds=4, **known)
    straight = p.run(method, rounds=4, engine="vectorised")
    assert intercepts(resumed._run) == intercepts(straight)
    assert intercepts(straight) != before


# ------------------------------------------------------------------------------ evaluation
METHOD = ct.FedPer(lr=0.05, local_steps=3, join_steps=7)


def test_each_client_is_measured_with_its_own_layers_and_the_shared_ones() -> None:
    p = measured()
    run = p.run(METHOD, rounds=3)
    models = [{**one(run.state), **own} for own in personal(run)]
    np.testing.assert_allclose(run.client_scores["mse"], p.test_losses(models), rtol=1e-12)


@pytest.mark.parametrize("engine", ["loop", "vectorised", "wire"])
def test_a_newcomer_trains_its_own_layers_while_the_shared_ones_are_fixed(engine: str) -> None:
    p = measured(unseen=1)
    run = p.run(METHOD, rounds=2, engine=engine)
    w = one(run.state)
    for _ in range(7):
        gradient = squared(w, *p.clients[3])[1]
        w = {"weight": w["weight"], "bias": w["bias"] - 0.05 * gradient["bias"]}
    assert run.history[-1]["unseen_mse"] == pytest.approx(p.test_loss(w, 3), rel=1e-12)


def test_a_newcomer_uses_the_solver_of_the_others() -> None:
    """The first steps of Adam are as long as lr, whatever the gradient."""
    run = measured().ready(ct.FedPer(lr=0.01, solver="adam", join_steps=1))
    _, own = run.method.join(run.task, run.state, find_data(run, 1, 0))
    moved = own["bias"] - run.state["bias"][0]
    assert list(own) == ["bias"]
    assert moved.abs().item() == pytest.approx(0.01, rel=1e-4)


# ------------------------------------------------------------------------------ refusals
def test_a_layer_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(ct.CoterieError, match=r"own names the layer 'head'.*it has weight, bias"):
        lines().ready(ct.FedPer(own=("head",)))


def test_a_line_without_intercept_has_nothing_to_keep() -> None:
    p = lines()._replace(model=lambda: nn.Linear(3, 1, bias=False))
    with pytest.raises(ct.CoterieError, match=r"this model has none.*use .* fedavg"):
        p.ready(ct.FedPer())


class OneLayer(nn.Module):
    """A curve whose parameters stand in no layer of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight + self.bias)


@pytest.mark.parametrize(
    ("model", "own"), [(lambda: nn.Linear(3, 1), ("weight", "bias")), (OneLayer, ())]
)
def test_something_must_be_shared(model: Any, own: tuple[str, ...]) -> None:
    p = lines()._replace(model=model)
    with pytest.raises(ct.CoterieError, match=r"entire model \(weight, bias\).*method local"):
        p.ready(ct.FedPer(own=own))
