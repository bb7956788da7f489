"""Optimizers against torch.optim, schedules, accumulation of gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import coterie as ct
from cases import federation
from coterie.core.contract import Data, at_round
from coterie.core.schedules import schedule_factor
from coterie.core.settings import SOLVERS
from coterie.core.task import Batch, Task
from coterie.core.trees import tree_leaves
from coterie.optim.optimizers import OPTIMIZERS

L2 = 0.03
TORCH: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=L2),
    "heavy_ball": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, weight_decay=L2),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, weight_decay=L2, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=L2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=L2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, weight_decay=L2),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=L2),
}


def without_bias() -> nn.Module:
    """Torch decays biases too."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6, bias=False), nn.Tanh(), nn.Linear(6, 10, bias=False)
    )


def client(dtype: torch.dtype = torch.float64) -> Data:
    x, y = federation(2).train.client(1)
    return Data(Batch.of(x.to(dtype), y, dtype), torch.tensor(3), torch.tensor(4))


def task() -> Task:
    return Task(without_bias, "classification", client().own.x, 10, torch.float64)


def train_with_torch(optimizer: str, groups: list[list[Batch]]) -> dict[str, torch.Tensor]:
    module = without_bias().double()
    module.load_state_dict(task().init(0))
    steps = TORCH[optimizer](module.parameters())
    for batches in groups:
        steps.zero_grad()
        for batch in batches:
            loss = nn.functional.cross_entropy(module(batch.x), batch.y)
            (loss / len(batches)).backward()
        steps.step()
    return {k: v.detach() for k, v in module.named_parameters()}


@pytest.mark.parametrize("solver", TORCH)
def test_each_optimizer_is_torchs(solver):
    assert set(TORCH) <= set(SOLVERS)
    how = ct.Local(lr=0.1, l2=L2, solver=solver, momentum=0.8, batch=5, local_epochs=2)
    data = client()
    trained = ct.optim.descend(task(), task().init(0), data.batches(how), how)
    expected = train_with_torch(solver, [[batch] for batch in data.batches(how)])
    torch.testing.assert_close(trained, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("solver", ["sgd", "heavy_ball", "adam"])
def test_accumulated_gradients_make_one_step(solver):
    how = ct.Local(lr=0.1, l2=L2, solver=solver, momentum=0.8, batch=4, local_steps=5, accumulate=2)
    data = client()
    trained = ct.optim.descend(task(), task().init(0), data.batches(how), how)
    one, two, three, four, five = data.batches(how)
    expected = train_with_torch(solver, [[one, two], [three, four], [five]])
    torch.testing.assert_close(trained, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ct.CoterieError, match="steps along single gradients"):
        ct.run(ct.PerFedAvg(accumulate=2), federation(4), "mlp:4", rounds=1)


@pytest.mark.parametrize("solver", ["nesterov", "adamw", "rmsprop", "adagrad"])
def test_engines_agree_and_resume(solver, tmp_path):
    fed = federation(5)
    method = ct.IFCA(
        clusters=2, lr=0.01, solver=solver, l2=0.1, batch=5, local_epochs=1,
        schedule="warmup:2+cosine:4", accumulate=2, clip=1.0,
    )  # fmt: skip

    def run(**options: Any) -> ct.Result:
        return ct.run(method, fed, "mlp:6", dtype="float64", **{"rounds": 2, **options})

    one = run(engine="loop")
    for options in ({}, {"engine": "wire"}):
        other = run(**options)
        for a, b in zip(tree_leaves(one.state), tree_leaves(other.state), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    half = run(rounds=1, out=tmp_path / "half", engine="loop")
    again = ct.resume(half.folder, fed, rounds=2)
    assert all(map(torch.equal, tree_leaves(again.state), tree_leaves(one.state)))


def test_an_optimizer_of_ones_own_works_in_every_method():
    @ct.optim.register_optimizer("halved", slots=("last",))
    def halved(g, state, step):
        mean = (g + state["last"]) / 2
        state["last"].copy_(g)
        return mean

    try:
        how = ct.Local(lr=0.1, solver="halved", local_steps=2)
        data, model = client(), task()
        w = model.init(0)
        first = ct.optim.gradient(model, w, data.all, how)
        middle = {k: v - 0.05 * first[k] for k, v in w.items()}
        second = ct.optim.gradient(model, middle, data.all, how)
        expected = {k: v - 0.05 * (first[k] + second[k]) for k, v in middle.items()}
        found = ct.optim.descend(model, w, data.batches(how), how)
        torch.testing.assert_close(found, expected)
        ct.run(ct.Ditto(solver="halved"), federation(4), "mlp:4", rounds=1)
    finally:
        SOLVERS.remove("halved")
        del OPTIMIZERS["halved"]


# ------------------------------------------------------------------------------ schedules
@pytest.mark.parametrize(
    "schedule, factors",
    [
        ("constant", [1, 1, 1, 1]),
        ("exponential:0.5", [1, 0.5, 0.25, 0.125]),
        ("step:2,0.1", [1, 1, 0.1, 0.1]),
        ("cosine:2", [1, 0.5, 0.5, 0.5]),
        ("warmup:4", [0.25, 0.5, 0.75, 1]),
        ("warmup:2+exponential:0.5", [0.5, 0.5, 0.25, 0.125]),
        (lambda round: 1 / round, [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_schedules(schedule, factors):
    method = ct.FedAvg(lr=0.2, schedule=schedule)
    found = [at_round(method, r).lr for r in range(1, 5)]
    assert found == pytest.approx([0.2 * factor for factor in factors])
    assert at_round(method, 0).lr == pytest.approx(0.2 * factors[0]), "as in round 1"


@pytest.mark.parametrize(
    "schedule, sentence",
    [
        ("cosin:5", "unknown schedule 'cosin': did you mean 'cosine'"),
        ("cosine", "write it as cosine:100"),
        ("step:3", "write it as step:30,0.1"),
        ("exponential:-1", "with positive numbers"),
        ("constant:3", "write it as constant"),
        (lambda round: "much", "must return the factor"),
    ],
)
def test_wrong_schedules_are_refused(schedule, sentence):
    with pytest.raises(ct.CoterieError, match=sentence):
        schedule_factor(schedule, 1)
    with pytest.raises(ct.CoterieError, match=sentence):
        ct.run(ct.FedAvg(schedule=schedule), federation(4), "mlp:4", rounds=1)


def test_a_run_with_a_function_as_schedule_resumes_with_its_method(tmp_path):
    fed = federation(4)
    method = ct.FedAvg(lr=0.2, schedule=lambda round: 1 / round)
    straight = ct.run(method, fed, "mlp:4", rounds=2)
    ct.run(method, fed, "mlp:4", rounds=1, out=tmp_path / "run")
    with pytest.raises(ct.CoterieError, match="give the method again, with method="):
        ct.resume(tmp_path / "run", fed, rounds=2)
    again = ct.resume(tmp_path / "run", fed, method=method, rounds=2)
    assert all(map(torch.equal, tree_leaves(again.state), tree_leaves(straight.state)))


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"solver": "adamax"}, "solver of fedavg is 'adamax': it must be one of sgd"),
        ({"batch": 20.0}, "batch of fedavg is 20.0: it must be a whole number"),
        ({"local_epochs": 1.5}, "local_epochs of fedavg is 1.5: it must be a whole number"),
        ({"lr": lambda round: 0.1}, "it must be a number"),
        ({"accumulate": 0}, "accumulate of fedavg is 0: it must be ≥ 1"),
    ],
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(ct.CoterieError, match=sentence):
        ct.run(ct.FedAvg(**settings), federation(4), "mlp:4", rounds=1)
