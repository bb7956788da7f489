"""Models that behave differently in training: batch norm, dropout, attention, recurrent layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import coterie as ct
from cases import federation
from coterie.core.contract import Data
from coterie.core.task import Batch, Task
from coterie.core.trees import tree_leaves


def mlp(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *layers, nn.ReLU(), nn.Linear(8, 10))


class Convolutions(nn.Module):
    """Two convolutions with batch norms and channel dropout."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.second, self.norm2 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.last = nn.Dropout2d(p), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x[:, None])).relu()
        return self.last(self.drop(self.norm2(self.second(x)).relu()).flatten(1))


class Attention(nn.Module):
    """A transformer over the rows of an image."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.embed, self.last = nn.Linear(8, 8), nn.Linear(8, 10)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, p, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.cells, self.last = kind(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x)[0][:, -1])


class Noisy(nn.Module):
    """Random draws in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.training:
            x = x + 0.1 * torch.randn_like(x) + 0.1 * torch.rand(x.shape, device=x.device)
        return self.last(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.two(self.one(x).tanh()).tanh().mean(1))


MODELS: dict[str, Any] = {
    "batch norm": lambda: mlp(nn.BatchNorm1d(8)),
    "convolutions": lambda: Convolutions(0.2),
    "dropout": lambda: mlp(nn.Dropout(0.3)),
    "attention": Attention,
    "LSTM": Recurrent,
    "GRU": lambda: Recurrent(nn.GRU),
    "random draws": Noisy,
    "tied weights": Tied,
}


# ------------------------------------------------------------------------------ engines
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", MODELS)
def test_engines_agree_and_runs_resume_to_the_bit(name, tmp_path):
    fed = federation(5)  # ragged
    method = ct.IFCA(clusters=2, lr=0.1, batch=5, local_epochs=1)
    if "norm" in name:  # a last batch of one row is refused
        method = ct.IFCA(clusters=2, lr=0.1, batch=5, local_steps=3)

    def run(**options: Any) -> ct.Result:
        options = {"dtype": "float64", "rounds": 2, **options}
        return ct.run(method, fed, MODELS[name], **options)

    one = run(engine="loop")
    for options in ({"plan": ct.Plan(vectorise=True, chunk=4, workers=1)}, {"engine": "wire"}):
        if "STM" in name or "GRU" in name:
            options.pop("plan", None)
        other = run(**options)
        for a, b in zip(tree_leaves(one.state), tree_leaves(other.state), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    half = run(rounds=1, out=tmp_path / "half", engine="loop")
    again = ct.resume(half.folder, fed, MODELS[name], rounds=2)
    assert all(map(torch.equal, tree_leaves(again.state), tree_leaves(one.state)))


# ------------------------------------------------------------------------------ batch norm
@pytest.mark.parametrize("make", [lambda: mlp(nn.BatchNorm1d(8)), Convolutions])
def test_batch_norm_of_one_client_is_pytorchs(make):
    x, y = federation(2).train.client(1)
    x = x.float()
    task = Task(make, "classification", x, 10)
    w = task.init(3)
    data = Data(Batch.of(x, y, torch.float32), torch.tensor(0), torch.tensor(0))
    how = ct.Local(lr=0.1, batch=4, local_epochs=1)
    batches = list(data.batches(how))
    trained = ct.optim.descend(task, w, data.batches(how), how)

    module = make()
    module.load_state_dict(w, strict=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(batch.x), batch.y).backward()
        optimizer.step()
    plain = {k: v for k, v in module.state_dict().items() if "num_batches" not in k}
    torch.testing.assert_close({k: trained[k] for k in plain}, plain, rtol=1e-5, atol=1e-6)
    module.eval()
    torch.testing.assert_close(task.outputs(trained, x), module(x), rtol=1e-5, atol=1e-6)


def test_fedavg_with_batch_norm_over_ragged_clients_is_an_independent_loop():
    fed = federation(5)
    make = lambda: mlp(nn.BatchNorm1d(8))
    for engine in ("loop", "vectorised"):
        run = ct.run(
            ct.FedAvg(lr=0.2, local_steps=3), fed, make, rounds=2, engine=engine, dtype="float64"
        )
        w = Task(make, "classification", torch.zeros(2, 8, 8), 10, torch.float64).init(0)
        for _ in range(2):
            total = {k: torch.zeros_like(v) for k, v in w.items()}
            for i in range(5):
                x, y = fed.train.client(i)
                module = make().double()
                module.load_state_dict(w, strict=False)
                optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
                for _ in range(3):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(module(x), y).backward()
                    optimizer.step()
                for k in total:
                    total[k] += len(y) * module.state_dict()[k]
            w = {k: v / len(fed.train.x) for k, v in total.items()}
        torch.testing.assert_close({k: v[0] for k, v in run.state.items()}, w, rtol=1e-9, atol=1e-9)


def test_padding_does_not_enter_the_statistics():
    make = lambda: mlp(nn.BatchNorm1d(8))
    x, y = federation(2).train.client(1)
    task = Task(make, "classification", x, 10, torch.float64)
    w, n = task.init(0), 6
    real = Batch.of(x[:n], y[:n], torch.float64)
    padded = Batch.of(x[: n + 3], y[: n + 3], torch.float64)
    padded = padded._replace(mask=padded.mask * (torch.arange(n + 3) < n))
    (loss, statistics), (other_loss, others) = (
        task.training_loss(w, batch) for batch in (real, padded)
    )
    torch.testing.assert_close(loss, other_loss)
    assert statistics.keys() == {"2.running_mean", "2.running_var"}
    torch.testing.assert_close(statistics, others)
    empty = padded._replace(mask=torch.zeros(n + 3, dtype=torch.float64))
    how = ct.Local(lr=0.1)
    same = ct.optim.descend(task, w, [empty], how)
    assert all(torch.equal(same[k], w[k]) for k in w), "an empty batch changes nothing"


def test_a_frozen_backbone_in_evaluation_mode_stays_as_it_is():
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(nn.BatchNorm1d(8), nn.Dropout(0.5)).requires_grad_(False).eval()
            self.last = nn.Linear(10, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.body(x))

    task = Task(Backbone, "classification", torch.zeros(2, 8, 8), 10)
    assert task.init(0).keys() == {"last.weight", "last.bias"} and not task.is_random
    before = task.fingerprint()
    ct.run(ct.FedAvg(lr=0.1), federation(4), Backbone, rounds=1)
    assert task.fingerprint() == before


@pytest.mark.parametrize("method", [ct.FedPer(own="2", lr=0.2), ct.CFL(lr=0.2), ct.Ditto(lr=0.2)])
def test_methods_train_batch_norm(method):
    fed = federation(5)
    result = ct.run(method, fed, lambda: mlp(nn.BatchNorm1d(8)), rounds=6)
    assert result.accuracy.mean > result.history[0]["accuracy_mean"] + 0.1


# ------------------------------------------------------------------------------ dropout
def test_dropout_acts_in_training_only_and_differs_by_step_client_and_round():
    x, y = federation(2).train.client(1)
    task = Task(lambda: mlp(nn.Dropout(0.5)), "classification", x, 10, torch.float64)
    w = task.init(0)
    batch = Batch.of(x, y, torch.float64)
    assert task.is_random
    plain = functional_call(mlp().double(), {k.replace("4.", "3."): v for k, v in w.items()}, (x,))
    torch.testing.assert_close(task.outputs(w, x), plain)
    losses = [
        float(task.training_loss(w, batch._replace(key=torch.tensor(k)))[0]) for k in range(9)
    ]
    assert len(set(losses)) == 9
    again = float(task.training_loss(w, batch._replace(key=torch.tensor(4)))[0])
    assert again == losses[4]
    data = Data(batch, torch.tensor(1), torch.tensor(2))
    keys = [int(b.key) for b in data.batches(ct.Local(local_steps=4))]
    assert len(set(keys)) == 4
    with pytest.raises(ct.CoterieError, match="these batches have no key"):
        task.training_loss(w, batch)


def test_random_numbers_of_a_client_are_keyed():
    batch = Batch.of(torch.zeros(3, 2), torch.zeros(3), torch.float32)
    data = Data(batch, torch.tensor(5), torch.tensor(6))
    uniform, normal = data.rand((4000,)), data.randn((4000,))
    assert uniform.dtype == torch.float32 and bool(((uniform >= 0) & (uniform < 1)).all())
    assert abs(float(uniform.mean()) - 0.5) < 0.03 and abs(float(uniform.var()) - 1 / 12) < 0.01
    assert abs(float(normal.mean())) < 0.06 and abs(float(normal.std()) - 1) < 0.05
    assert torch.equal(uniform, data.rand((4000,)))
    assert not torch.equal(uniform, data.rand((4000,), stream=1))
    assert not torch.equal(uniform, data._replace(key=torch.tensor(7)).rand((4000,)))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_is_pytorchs(masked, need_weights):
    from coterie.core.forward import ForwardPass

    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    options: dict[str, Any] = {"need_weights": need_weights}
    if masked:
        options["key_padding_mask"] = torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 5])
        options["attn_mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = layer(x, x, x, **options)
    with ForwardPass() as forward:
        found = layer(x, x, x, **options)
    assert forward.replaced
    torch.testing.assert_close(found[0], expected[0])
    if need_weights:
        torch.testing.assert_close(found[1], expected[1])


# ------------------------------------------------------------------------------ refused
@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: mlp(nn.BatchNorm1d(8, track_running_stats=False)), "has no running statistics"),
        (lambda: mlp(nn.BatchNorm1d(8, momentum=None)), "has momentum=None"),
        (lambda: mlp(nn.AlphaDropout(0.1)), "alpha_dropout, whose random numbers would differ"),
        (lambda: mlp(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))), "spectral norm"),
        (lambda: mlp(nn.utils.spectral_norm(nn.Linear(8, 8))), "spectral norm"),
        (lambda: nn.LSTM(8, 10, 2, dropout=0.1), "put nn.Dropout between single layers"),
        (lambda: nn.LSTM(8, 10), "the model returns a tuple"),
    ],
)
def test_layers_that_cannot_be_trained_are_refused(make, sentence):
    with pytest.raises(ct.CoterieError, match=sentence):
        ct.run(ct.FedAvg(), federation(4), make, rounds=1)


def test_a_plan_cannot_vectorise_what_torch_cannot():
    with pytest.raises(ct.CoterieError, match="the plan vectorises, and torch has no rule"):
        ct.run(ct.FedAvg(), federation(4), Recurrent, rounds=1, plan=ct.Plan(True, 4, 1))


def test_batch_norm_needs_batches_of_two_rows():
    fed = federation(4)  # 9, 16, 23 and 30 rows
    make = lambda: mlp(nn.BatchNorm1d(8))
    for settings in ({"batch": 1}, {"batch": 4, "local_epochs": 1}):
        with pytest.raises(ct.CoterieError, match="a batch of one row"):
            ct.run(ct.FedAvg(**settings), fed, make, rounds=1)
    ct.run(ct.FedAvg(batch=1), fed, Convolutions, rounds=1)  # many pixels per row


# ------------------------------------------------------------------------------ bfloat16
@pytest.mark.parametrize("name", ["batch norm", "attention", "LSTM", "tied weights"])
def test_autocast_agrees_between_engines_as_far_as_bfloat16_allows(name, tmp_path):
    fed = federation(5)
    spec = ct.ModelSpec(MODELS[name], autocast=True)
    method = ct.IFCA(clusters=2, lr=0.1, batch=5, local_steps=3, init="random")

    def centres(model: Any, **options: Any) -> dict[str, Tensor]:
        return ct.run(method, fed, model, **{"rounds": 2, "engine": "loop", **options}).centres

    loop = centres(spec)
    full = centres(MODELS[name])
    assert all(v.dtype == torch.float32 for v in loop.values())
    assert any(not torch.equal(loop[k], full[k]) for k in loop)
    others = [full, centres(spec, engine="wire")]
    if name != "LSTM":
        others.append(centres(spec, engine="vectorised", plan=ct.Plan(True, 4, 1)))
    for other in others:  # bfloat16 has 8 binary digits
        torch.testing.assert_close(loop, other, rtol=0.02, atol=0.02)
    half = ct.run(method, fed, spec, rounds=1, engine="loop", out=tmp_path / "half")
    again = ct.resume(half.folder, fed, spec, rounds=2)
    assert all(torch.equal(again.centres[k], loop[k]) for k in loop)


def test_autocast_computes_in_bfloat16_in_training_only():
    seen: list[torch.dtype] = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x.flatten(1))
            seen.append(out.dtype)
            return out

    x, y = federation(2).train.client(1)
    x = x.float()
    task = Task(ct.ModelSpec(lambda: Watched(64, 10), autocast=True), "classification", x, 10)
    batch = Batch.of(x, y, torch.float32)
    seen.clear()
    loss, _ = task.training_loss(task.init(0), batch)
    assert (seen, loss.dtype) == ([torch.bfloat16], torch.float32)
    task.loss(task.init(0), batch)
    assert seen[1:] == [torch.float32]
    plain = Task(lambda: Watched(64, 10), "classification", x, 10)
    assert task.fingerprint() != plain.fingerprint()


def test_autocast_of_float64_is_refused():
    with pytest.raises(ct.CoterieError, match="autocast computes in bfloat16"):
        ct.run(
            ct.FedAvg(),
            federation(4),
            ct.ModelSpec("mlp:8", autocast=True),
            rounds=1,
            dtype="float64",
        )
