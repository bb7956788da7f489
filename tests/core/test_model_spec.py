"""Models with a loss of their own, class weights, frozen parts and augmentation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct
from cases import federation
from coterie.core.contract import Data
from coterie.core.task import Batch, Task
from coterie.core.trees import tree_leaves

SMOOTH = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.2)
WEIGHTS = [1.0 + k for k in range(10)]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


class LoRA(nn.Module):
    """A frozen layer plus a trained product of two thin matrices (Hu et al. 2022)."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), LoRA(nn.Linear(64, 16)), nn.BatchNorm1d(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def is_adapter(name: str) -> bool:
    return name.endswith((".down", ".up")) or name.startswith("head")


def scaled(x: Tensor, draws: ct.Draws) -> Tensor:
    """An augmentation of one's own."""
    return x * (0.5 + draws.rand(len(x), *[1] * (x.dim() - 1)))


SPECS: dict[str, Any] = {
    "own loss": ct.ModelSpec("mlp:8", loss=SMOOTH),
    "class weights": ct.ModelSpec(mlp, class_weights=WEIGHTS),
    "last layer": ct.ModelSpec(mlp, trainable=["3"]),
    "LoRA": ct.ModelSpec(Adapted, trainable=is_adapter),
    "augmentation": ct.ModelSpec(
        mlp,
        augment=ct.augment.Compose(
            [
                ct.augment.RandomHorizontalFlip(),
                ct.augment.RandomCrop(1),
                ct.augment.GaussianNoise(0.1),
                scaled,
            ]
        ),
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_engines_agree_resume_and_export(name, tmp_path):
    fed, spec = federation(5), SPECS[name]
    method = ct.IFCA(clusters=2, lr=0.1, batch=5, local_epochs=1)

    def run(**options: Any) -> ct.Result:
        return ct.run(method, fed, spec, dtype="float64", **{"rounds": 2, **options})

    one = run(engine="loop")
    for options in ({"plan": ct.Plan(vectorise=True, chunk=4, workers=1)}, {"engine": "wire"}):
        other = run(**options)
        for a, b in zip(tree_leaves(one.state), tree_leaves(other.state), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    half = run(rounds=1, out=tmp_path / "half", engine="loop")
    again = ct.resume(half.folder, fed, spec, rounds=2)
    assert all(map(torch.equal, tree_leaves(again.state), tree_leaves(one.state)))
    with pytest.raises(ct.CoterieError, match=r"is a ct.ModelSpec of your own: give it again"):
        ct.resume(half.folder, fed, rounds=2)
    x, _ = fed.test.client(0)
    exported = ct.load(one.export(tmp_path / "models"), model=spec)
    assert torch.equal(exported.predict(x, "group-1"), one.predict(x, cluster=1))


def train_with_torch(loss: Any) -> tuple[Task, dict[str, Tensor], dict[str, Tensor]]:
    """Five steps by us and by torch."""
    x, y = federation(2).train.client(1)
    spec = ct.ModelSpec(mlp, loss=SMOOTH)
    if loss is None:
        spec = ct.ModelSpec(mlp, class_weights=WEIGHTS)
        loss = lambda out, y: F.cross_entropy(out, y, reduction="none") * torch.tensor(WEIGHTS)[y]
    task = Task(spec, "classification", x, 10, torch.float64)
    w = task.init(0)
    data = Data(Batch.of(x, y, torch.float64), torch.tensor(0), torch.tensor(0))
    how = ct.Local(lr=0.1, local_steps=5)
    trained = ct.optim.descend(task, w, data.batches(how), how)
    module = mlp().double()
    module.load_state_dict(w)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss(module(x), y).mean().backward()
        optimizer.step()
    return task, trained, {k: v.detach() for k, v in module.named_parameters()}


@pytest.mark.parametrize("loss", [SMOOTH, None], ids=["own", "class weights"])
def test_losses_are_those_of_a_plain_loop(loss):
    _, trained, expected = train_with_torch(loss)
    torch.testing.assert_close(trained, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["own loss", "class weights"])
def test_the_log_loss_stays_the_log_loss(name):
    fed = federation(4)
    result = ct.run(ct.FedAvg(lr=0.1), fed, SPECS[name], rounds=2, dtype="float64")
    task, model = result.trained.task, {k: v[0] for k, v in result.state.items()}
    out = task.outputs(model, fed.test.x)
    expected = F.cross_entropy(out, fed.test.y)
    assert result.final["log_loss"] == pytest.approx(float(expected))
    own = task.row_loss.values(out, fed.test.y).mean()
    assert result.final["loss"] == pytest.approx(float(own)) != float(expected)


def test_only_what_is_trained_travels_and_changes():
    fed = federation(5)
    result = ct.run(ct.FedAvg(lr=0.1), fed, SPECS["LoRA"], rounds=2)
    assert result.state.keys() == {"body.1.down", "body.1.up", "head.weight", "head.bias"}
    task = result.trained.task
    assert "body.1.base.weight" in task.frozen and "body.2.running_mean" in task.frozen
    assert result.accuracy.mean > result.history[0]["accuracy_mean"]
    whole = ct.run(ct.FedAvg(lr=0.1), fed, Adapted, rounds=1)
    assert result.history[1]["bytes_up"] < whole.history[1]["bytes_up"] / 3


def test_augmentation_acts_in_training_only():
    x, y = federation(2).train.client(1)
    task = Task(SPECS["augmentation"], "classification", x, 10, torch.float64)
    plain = Task(mlp, "classification", x, 10, torch.float64)
    w = task.init(0)
    batch = Batch.of(x, y, torch.float64)._replace(key=torch.tensor(5))
    assert torch.equal(task.outputs(w, x), plain.outputs(w, x))
    assert torch.equal(task.loss(w, batch), plain.loss(w, batch))
    loss, _ = task.training_loss(w, batch)
    assert loss != plain.loss(w, batch)
    assert loss == task.training_loss(w, batch)[0]
    assert loss != task.training_loss(w, batch._replace(key=torch.tensor(6)))[0]


def test_crops_shift_and_flips_mirror():
    x = torch.arange(1.0, 10).view(1, 3, 3).repeat(200, 1, 1)
    draws = ct.Draws(torch.tensor(1), like=torch.zeros(()))
    flipped = ct.augment.RandomHorizontalFlip(0.25)(x, draws)
    is_mirror = (flipped == x.flip(-1)).flatten(1).all(1)
    assert bool(((flipped == x).flatten(1).all(1) | is_mirror).all())
    assert 0.15 < float(is_mirror.float().mean()) < 0.35
    cropped = ct.augment.RandomCrop(1)(x, draws)
    padded = F.pad(x[0], (1, 1, 1, 1))
    windows = [padded[i : i + 3, j : j + 3] for i in range(3) for j in range(3)]
    found = torch.stack([(cropped == window).flatten(1).all(1) for window in windows])
    assert bool(found.any(0).all()) and bool(found.any(1).all()), "all nine places occur"


def test_a_regression_with_two_outputs_and_its_own_loss_reports_squared_errors():
    fed = ct.data.linear(clients=4, samples=30, dim=3, clusters=1, noise=0.1, seed=1)

    def gaussian(out: Tensor, y: Tensor) -> Tensor:
        return 10 + F.gaussian_nll_loss(out[:, 0], y, out[:, 1].exp(), reduction="none")

    spec = ct.ModelSpec(lambda: nn.Linear(3, 2), loss=gaussian)  # torch's checks forbid `vmap`
    result = ct.run(ct.FedAvg(lr=0.1), fed, spec, rounds=30)
    errors = []
    for i in range(4):
        x, y = fed.test.client(i)
        out = result.trained.task.outputs({k: v[0] for k, v in result.state.items()}, x.float())
        errors.append((out[:, 0] - y) ** 2)
    assert result.final["mse"] == pytest.approx(float(torch.cat(errors).mean()), rel=1e-4)
    assert result.final["loss"] < result.history[0]["loss"] and result.final["r2"] > 0.9


@pytest.mark.parametrize(
    "spec, sentence",
    [
        (lambda: ct.ModelSpec(mlp, loss=nn.CrossEntropyLoss()), r"the loss gives shape \(\)"),
        (lambda: ct.ModelSpec(mlp, loss=lambda out, y: out), r"shape \(7, 10\) for 7 rows"),
        (lambda: ct.ModelSpec(mlp, loss=lambda out, y: out @ y), "the loss cannot take outputs of"),
        (lambda: ct.ModelSpec(mlp, loss="focal"), "loss is 'focal': it must be a function"),
        (lambda: ct.ModelSpec(mlp, class_weights=[1, 2]), "one positive number for each of the 10"),
        (lambda: ct.ModelSpec(mlp, loss=SMOOTH, class_weights=WEIGHTS), "in your loss"),
        (lambda: ct.ModelSpec(mlp, trainable=["4"]), "trainable names the layer '4'"),
        (lambda: ct.ModelSpec(mlp, trainable=lambda name: False), "no parameters that can be"),
        (lambda: ct.ModelSpec(mlp, augment=lambda x, draws: x[:, 1:]), "augment gives rows of sha"),
        (lambda: ct.ModelSpec(mlp, augment=lambda x, draws: None), "augment gives NoneType"),
        (lambda: ct.ModelSpec(mlp, autocast="yes"), "it must be True or False"),
        (lambda: ct.ModelSpec(mlp, augment=ct.augment.RandomCrop(0)), "padding is 0"),
    ],
)
def test_bad_specs_are_refused(spec, sentence):
    with pytest.raises(ct.CoterieError, match=sentence):
        ct.run(ct.FedAvg(), federation(4), spec(), rounds=1)


def test_a_spec_in_a_file_is_a_model_for_the_command(tmp_path):
    file = tmp_path / "my_net.py"
    file.write_text(
        "import coterie as ct\nfrom torch import nn\n"
        "SMOOTH = nn.CrossEntropyLoss(reduction='none', label_smoothing=0.2)\n"
        "MODEL = ct.ModelSpec('mlp:8', loss=SMOOTH)\n"
    )
    spec = ct.registry.model(f"{file}:MODEL")
    assert isinstance(spec, ct.ModelSpec) and spec.model == "mlp:8"


def test_mixed_refuses_other_losses():
    fed = ct.data.linear(clients=4, samples=10, dim=2, clusters=2)
    absolute = ct.ModelSpec("linear", loss=nn.L1Loss(reduction="none"))
    with pytest.raises(ct.CoterieError, match="likelihood and has no other loss"):
        ct.run(ct.Mixed(clusters=2), fed, absolute, rounds=1)
