"""The model as a function: starts, refusals, outputs, losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, tensor
from torch.func import grad

import coterie as ct
from coterie.core.task import Batch, Scale, Task
from oracles import federation, ready

ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def task_of(model: Any, x: Tensor = ROWS, classes: int | None = 3) -> Task:
    kind = "regression" if classes is None else "classification"
    return Task(model, kind, x, classes, torch.float64)


# ------------------------------------------------------------------------------ starts
class Raw(nn.Module):
    """A bare parameter: no layer whose reset_parameters could be called again."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(3, 1, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 2, 3)
        return self.head(self.attention(x, x, x, need_weights=False)[0].flatten(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize("factory", [Raw, Attends, mlp])
def test_every_start_is_drawn_anew_and_the_seed_decides(factory: Callable[[], nn.Module]) -> None:
    task = task_of(factory)
    three = task.inits(0, 3)
    # attention's biases start at 0
    random = [k for k in three if "attention" not in k or "weight" in k]
    for k in random:
        assert three[k].shape[0] == 3 and three[k].dtype == torch.float64
        assert all(not torch.equal(three[k][a], three[k][b]) for a, b in ((0, 1), (0, 2), (1, 2)))
        assert torch.equal(task.inits(0, 2, start=1)[k], three[k][1:])
        assert torch.equal(task.init(0, 2)[k], three[k][2])
        assert not torch.equal(task.init(1)[k], task.init(0)[k])


def test_drawing_a_start_leaves_other_randomness_alone() -> None:
    task = task_of(mlp)
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    task.init(0)
    assert torch.equal(torch.rand(3), want)


def test_a_start_is_not_the_module_itself() -> None:
    module = mlp()
    task = task_of(module)
    start = task.init(0)
    start["0.weight"].zero_()
    assert task.module[0].weight.abs().sum() > 0


def test_a_module_means_its_own_weights() -> None:
    module = mlp()
    task = task_of(module)
    for seed in (0, 1):
        for k, v in task.init(seed).items():
            assert torch.equal(v, module.get_parameter(k).double())
    assert task.inits(0, 1)["0.weight"].shape == (1, 5, 6)


def test_separate_starts_from_one_module_are_refused() -> None:
    with pytest.raises(ct.CoterieError, match="3 separate random starts need a model factory"):
        task_of(mlp()).inits(0, 3)


def test_a_factory_that_gives_the_same_model_again_is_refused() -> None:
    """Equal centres would send every client to the first of them, for ever."""
    module = mlp()
    task = task_of(lambda: module)
    with pytest.raises(ct.CoterieError, match="equal"):
        task.inits(0, 2)


def test_a_module_that_was_given_stays_as_it_was() -> None:
    module = mlp()
    fed = federation([(ROWS, [0, 1, 2, 0])])
    ready(ct.FedAvg(), fed, module, rounds=1).train()
    assert module[0].weight.dtype == torch.float32


def test_a_factory_must_give_a_module() -> None:
    with pytest.raises(ct.CoterieError, match="gave a int: it must return a torch nn.Module"):
        task_of(lambda: 3)
    with pytest.raises(ct.CoterieError, match="no parameters"):
        task_of(lambda: nn.Flatten())


# ------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    "layer, word",
    [
        (lambda: nn.BatchNorm1d(5, momentum=None), "momentum"),
        (lambda: nn.BatchNorm1d(5, track_running_stats=False), "GroupNorm"),
        (lambda: nn.SyncBatchNorm(5), "BatchNorm2d"),
        (lambda: nn.InstanceNorm1d(5, track_running_stats=True), "batch norm"),
    ],
)
def test_layers_that_are_no_functions_are_refused_by_name(
    layer: Callable[[], nn.Module], word: str
) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.odd_one, self.last = nn.Linear(6, 5), layer(), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.odd_one(self.first(x)))

    with pytest.raises(ct.CoterieError, match=f"'odd_one' \\({type(layer()).__name__}\\).*{word}"):
        task_of(Named)


@pytest.mark.parametrize(
    "model, classes, words",
    [
        (lambda: nn.Linear(6, 2), 3, r"\(2,\) per row, but the data have 3 classes"),
        (
            lambda: nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)),
            3,
            r"shape \(\) per row, but the data have 3 classes",
        ),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Unflatten(1, (3, 1))), 3, r"\(3, 1\) per row"),
        (lambda: nn.Linear(6, 2), None, r"\(2,\) per row, but the target is one number"),
        (lambda: nn.Linear(5, 3), 3, r"cannot take a row of the data, of shape \(6,\)"),
    ],
)
def test_wrong_sizes_are_refused(
    model: Callable[[], nn.Module], classes: int | None, words: str
) -> None:
    with pytest.raises(ct.CoterieError, match=words):
        task_of(model, classes=classes)


def test_more_outputs_than_classes_are_allowed() -> None:
    task = task_of(lambda: nn.Linear(6, 5))
    assert task.outputs(task.init(0), ROWS.double()).shape == (4, 5)


# ------------------------------------------------------------------------------ outputs and losses
@pytest.mark.parametrize("flat", [True, False])
def test_regression_outputs_of_either_shape(flat: bool) -> None:
    """y = (1, 2), outputs (3, −2): squared errors 4 and 16, not the four of a broadcast."""
    last = [nn.Flatten(0)] if flat else []
    model = lambda: nn.Sequential(nn.Linear(1, 1, bias=False), *last)
    x = tensor([[3.0], [-2.0]]).double()
    task = task_of(model, x, None)
    params = {"0.weight": torch.ones(1, 1).double()}
    batch = Batch.of(x, tensor([1.0, 2.0]).double(), torch.float64)
    assert task.outputs(params, x).tolist() == [3.0, -2.0]
    assert task.losses(params, batch).tolist() == [4.0, 16.0]
    assert task.loss(params, batch) == 10.0


def test_the_loss_is_weighted_and_masked_by_hand() -> None:
    """Errors 1, 2, 3, 100 with weights 2, ½, 0, 7, the last padding: (2·1 + ½·4 + 0·9)/3 = 4/3."""
    x = tensor([[1.0], [2.0], [3.0], [100.0]]).double()
    task = task_of(lambda: nn.Linear(1, 1, bias=False), x, None)
    mask, weight = tensor([1.0, 1, 1, 0]).double(), tensor([2.0, 0.5, 0, 7]).double()
    batch = Batch(x, torch.zeros(4).double(), mask, weight)
    loss = task.loss({"weight": torch.ones(1, 1).double()}, batch)
    assert loss.item() == pytest.approx(4 / 3, rel=1e-15)
    nothing = batch._replace(mask=torch.zeros(4).double())
    assert task.loss({"weight": torch.ones(1, 1).double()}, nothing) == 0.0


def test_classification_is_cross_entropy() -> None:
    """Outputs (ln 3, 0) give the first class ¾."""
    x = tensor([[1.0], [1.0]]).double()
    task = task_of(lambda: nn.Linear(1, 2, bias=False), x, 2)
    params = {"weight": tensor([[3.0], [1.0]]).double().log()}
    losses = task.losses(params, Batch.of(x, tensor([0, 1]), torch.float64))
    torch.testing.assert_close(losses.exp(), tensor([4 / 3, 4.0], dtype=torch.float64))


def test_a_copy_has_a_module_of_its_own() -> None:
    task = task_of(mlp)
    other = task.copy()
    assert other.module is not task.module
    w, x = task.init(0), ROWS.double()
    assert torch.equal(other.outputs(w, x), task.outputs(w, x))


def test_loss_after_first_is_the_loss() -> None:
    task = task_of(mlp)
    w, batch = task.init(0), Batch.of(ROWS.double(), tensor([0, 1, 2, 0]), torch.float64)
    z = batch.x @ w["0.weight"].T + w["0.bias"]
    rest = {k: v for k, v in w.items() if not k.startswith("0.")}
    torch.testing.assert_close(task.loss_after_first(z, rest, batch), task.loss(w, batch))


def test_fixed_parameters_are_as_given_and_the_loss_is_one_of_the_others() -> None:
    task = task_of(lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)))
    w = task.init(5)
    batch = Batch.of(ROWS.double(), tensor([0, 2, 1, 1]), torch.float64)
    fixed = {k: v for k, v in w.items() if k.startswith("0.")}
    others = {k: v for k, v in w.items() if k not in fixed}
    held = task.with_fixed(fixed)
    torch.testing.assert_close(held.loss(others, batch), task.loss(w, batch))
    gradient = grad(task.loss)(w, batch)
    torch.testing.assert_close(grad(held.loss)(others, batch), {k: gradient[k] for k in others})
    assert task.fixed == {}, "the task itself is as it was"


def test_frozen_parameters_stay_as_they_are() -> None:
    """Only what requires a gradient is trained, sent and averaged."""

    def net() -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        module[1].requires_grad_(False)
        return module

    fed = ct.data.rotated("digits", clients=4, samples=20, angles=(0,), seed=0)
    result = ct.run(ct.FedAvg(local_steps=2), fed, net, rounds=1)
    assert set(result.state) == {"3.weight", "3.bias"}
    assert result._run.task.first is None


# ------------------------------------------------------------------------------ units of a target
def test_a_scaled_task_learns_the_standardised_target() -> None:
    """Losses are those of (y − 900) / 50; outputs are in the unit of y."""
    y = tensor([850.0, 900.0, 1000.0, 925.0], dtype=torch.float64)
    x = ROWS.double()
    make = lambda: nn.Linear(6, 1)
    scaled = Task(make, "regression", ROWS, None, torch.float64, scale=Scale(900.0, 50.0))
    plain = task_of(make, classes=None)
    w = plain.init(0)
    z = (y - 900) / 50
    mine = scaled.losses(w, Batch.of(x, y, torch.float64))
    assert torch.allclose(mine, plain.losses(w, Batch.of(x, z, torch.float64)), rtol=1e-12)
    assert torch.allclose(scaled.outputs(w, x), plain.outputs(w, x) * 50 + 900, rtol=1e-12)
    assert scaled.row_loss.values(tensor([910.0]), tensor([900.0])).tolist() == [100.0]
    assert scaled.loss_unit == 2500.0


def _compile_in_place() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network.compile()
    return network


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.compile(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))),
        lambda: nn.Sequential(nn.Flatten(), torch.compile(nn.Linear(64, 10))),
        _compile_in_place,
    ],
)
def test_a_compiled_model_trains_as_the_module_it_was_made_of(make):
    fed = ct.data.rotated("digits", clients=4, samples=20)
    plain = ct.run(ct.FedAvg(lr=0.3), fed, "softmax", rounds=1).state
    given = make()
    before = repr(given), given._compiled_call_impl
    for model in (make, given):
        state = ct.run(ct.FedAvg(lr=0.3), fed, model, rounds=1).state
        assert list(state) == ["1.weight", "1.bias"]
        if model is make:
            assert all(torch.equal(state[k], plain[k]) for k in plain)
    assert (repr(given), given._compiled_call_impl) == before, "it is unchanged"
