"""FedBN: a round by hand, an independent PyTorch loop, what is kept, new clients, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

import coterie as ct
from cases import federation as digits
from cases import finished, participants
from oracles import federation, private_states, ready

VARIANTS = {
    "fedbn": [
        ct.FedBN(keep="statistics", batch=4, weighted=False),
        ct.FedBN(own=("4",), solver="adamw", l2=0.1),
    ]
}


class Line(nn.Module):
    """w·norm(x)"""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, eps=0.0, momentum=0.5)
        self.last = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.last.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(x))


# ------------------------------------------------------------------------------ by hand
# f = mean (w·(γz + β) − y)², w = γ = 1, β = 0, lr = ¼, one step; both clients normalise to z = ∓1.
# a: x = (1, 3), y = (−2, 2): errors (1, −1), ∂w = ∂γ = −2, ∂β = 0: w_a = γ_a = 1½.
#    mean 2, unbiased variance 2; with momentum ½ the running ones are 1 and ½·1 + ½·2 = 1½.
# b: x = (0, 4), y = (−1, 1): errors 0, w_b = γ_b = 1; running 1 and ½·1 + ½·8 = 4½.
# w = (1½ + 1)/2 = 1¼; a keeps γ = 1½, or with keep="statistics" both get γ = 1¼.
@pytest.mark.parametrize("keep", ["layers", "statistics"])
def test_a_round_by_hand(keep: str) -> None:
    fed = federation({"a": ([1.0, 3.0], [-2.0, 2.0]), "b": ([0.0, 4.0], [-1.0, 1.0])})
    run = finished(ready(ct.FedBN(lr=0.25, local_steps=1, keep=keep), fed, Line(), rounds=1))
    kept = {k: v.flatten().tolist() for k, v in private_states(run).items()}
    assert run.state["last.weight"].item() == 1.25
    assert kept["norm.running_mean"] == [1.0, 1.0]
    assert kept["norm.running_var"] == [1.5, 4.5]
    scale, shift = kept.get("norm.weight"), kept.get("norm.bias")
    if keep == "layers":
        assert (scale, shift) == ([1.5, 1.0], [0.0, 0.0])
        assert run.state["norm.weight"].item() == 1.0, "the server never sees it"
        numbers_up = 1
    else:
        assert scale is None and run.state["norm.weight"].item() == 1.25
        numbers_up = 3
    assert run.history[1]["bytes_up"] == 2 * 8 * (numbers_up + 1), "and a weight each"


# ------------------------------------------------------------------------------ a plain loop
def net() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
    )


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("keep", ["layers", "statistics"])
def test_it_is_a_loop_in_plain_pytorch(keep: str, engine: str) -> None:
    fed = digits(5)
    method = ct.FedBN(lr=0.2, local_steps=3, keep=keep)
    run = ready(method, fed, net, rounds=3, participation=0.6, engine=engine)
    is_kept = lambda name: name.startswith("2.") and (keep == "layers" or "running" in name)
    model = {k: v[0].clone() for k, v in run.state.items()}
    kept = [{k: v for k, v in model.items() if is_kept(k)} for _ in range(5)]
    for who in participants(run):
        total, rows = {k: torch.zeros_like(v) for k, v in model.items()}, 0
        for i in who:
            x, y = fed.train.client(i)
            module = net().double()
            module.load_state_dict({**model, **kept[i]}, strict=False)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x.double()), y).backward()
                optimizer.step()
            trained = {k: v.detach() for k, v in module.state_dict().items() if k in model}
            kept[i] = {k: v.clone() for k, v in trained.items() if is_kept(k)}
            total = {k: v + len(y) * trained[k] for k, v in total.items()}
            rows += len(y)
        model = {k: v if is_kept(k) else total[k] / rows for k, v in model.items()}
    finished(run)
    assert len({tuple(who) for who in participants(run)}) > 1
    torch.testing.assert_close({k: v[0] for k, v in run.state.items()}, model, rtol=0, atol=1e-9)
    for i in range(5):
        own = {k: v[i] for k, v in private_states(run).items()}
        torch.testing.assert_close(own, kept[i], rtol=0, atol=1e-9)

    correct = []
    for i in range(5):  # and each client is evaluated with what it keeps
        x, y = fed.test.client(i)
        module = net().double().eval()
        out = functional_call(module, {**model, **kept[i]}, (x.double(),))
        correct.append(float((out.argmax(1) == y).double().mean()))
    assert run.client_scores["accuracy"].tolist() == pytest.approx(correct)


# ------------------------------------------------------------------------------ new clients
@pytest.mark.parametrize("engine", ["loop", "vectorised", "wire"])
@pytest.mark.parametrize("keep", ["layers", "statistics"])
def test_a_new_client_estimates_its_own_norms(keep: str, engine: str) -> None:
    fed = digits(5, unseen=1)
    method = ct.FedBN(lr=0.2, local_steps=2, join_steps=6, keep=keep)
    run = finished(ready(method, fed, net, rounds=2, engine=engine))
    module = net().double()
    module.load_state_dict({k: v[0] for k, v in run.state.items()}, strict=False)
    norms = [p for name, p in module.named_parameters() if name.startswith("2.")]
    optimizer = torch.optim.SGD(norms, lr=0.2 if keep == "layers" else 0.0)
    x, y = (v.double() if v.is_floating_point() else v for v in fed.train.client(4))
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    x, y = (v.double() if v.is_floating_point() else v for v in fed.test.client(4))
    loss = nn.functional.cross_entropy(module.eval()(x), y).detach()
    assert run.history[-1]["unseen_loss"] == pytest.approx(float(loss), rel=1e-9)


def test_clients_whose_features_are_scaled_differently_need_their_own_statistics() -> None:
    """Two groups see the same digits, one of them shifted and twice as bright."""
    base = ct.data.rotated("digits", clients=6, samples=60, angles=(0,))
    parts = [base.train.client(i) for i in range(6)]
    parts = [(x * 2 + 3 * (i % 2) if i % 2 else x, y) for i, (x, y) in enumerate(parts)]
    fed = ct.data.from_memory(parts)
    how: dict[str, Any] = {"lr": 0.1, "local_steps": 5}
    local = ct.run(ct.FedBN(**how), fed, "mlp_bn:16", rounds=15)
    averaged = ct.run(ct.FedAvg(**how), fed, "mlp_bn:16", rounds=15)
    assert local.accuracy.mean > averaged.accuracy.mean + 0.05


# ------------------------------------------------------------------------------ refused
@pytest.mark.parametrize("model", ["mlp:8", lambda: net().requires_grad_(True).eval()])
def test_a_model_without_trained_batch_norms_is_refused(model: Any) -> None:
    with pytest.raises(ct.CoterieError, match="this model has none that is trained: use a model"):
        ct.run(ct.FedBN(), digits(4), model, rounds=1)


def test_its_default_model_has_batch_norms() -> None:
    assert ct.run(ct.FedBN(), digits(4), rounds=1).accuracy is not None
