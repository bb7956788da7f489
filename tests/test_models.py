"""Models by name: shapes, options, refusals."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

import coterie as ct
from coterie import models
from coterie.core.errors import CoterieError
from coterie.data import Federation, from_memory


def fed_of(
    *shape: int, kind: str = "classification", dtype: torch.dtype = torch.float32
) -> Federation:
    x = torch.rand(8, *shape, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    y = torch.arange(8) % 4
    return from_memory([(x, y.float() if kind == "regression" else y)], test_share=0)


TABLE, GREY, COLOUR = fed_of(5), fed_of(8, 8), fed_of(3, 12, 10)
TARGETS = fed_of(5, kind="regression")


def shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in module.parameters()]


@pytest.mark.parametrize(
    "name, fed, expected",
    [
        ("linear", TARGETS, [(1, 5), (1,)]),
        ("linear:nobias", TARGETS, [(1, 5)]),
        ("linear", TABLE, [(4, 5), (4,)]),
        ("softmax", GREY, [(4, 64), (4,)]),
        ("mlp", GREY, [(200, 64), (200,), (4, 200), (4,)]),
        ("mlp:7", TARGETS, [(7, 5), (7,), (1, 7), (1,)]),
        ("mlp:16,8", TABLE, [(16, 5), (16,), (8, 16), (8,), (4, 8), (4,)]),
        (
            "cnn",
            GREY,
            [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 256), (512,), (4, 512), (4,)],
        ),
        (
            "cnn",
            COLOUR,
            [(32, 3, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 384), (512,), (4, 512), (4,)],
        ),
        (
            "cnn:8",
            GREY,
            [(4, 1, 5, 5), (4,), (8, 4, 5, 5), (8,), (64, 32), (64,), (4, 64), (4,)],
        ),
        (  # a third pooling leaves one pixel of 12×10, and of 8×8, too
            "cnn6:16",
            COLOUR,
            [(2, 3, 3, 3), (2,), (4, 2, 3, 3), (4,), (8, 4, 3, 3), (8,), (8, 8, 3, 3), (8,)]
            + [(16, 8, 3, 3), (16,), (16, 16, 3, 3), (16,)]
            + [(64, 16), (64,), (32, 64), (32,), (4, 32), (4,)],
        ),
    ],
)
def test_parameters_and_outputs(
    name: str, fed: Federation, expected: list[tuple[int, ...]]
) -> None:
    factory = models.build(name, fed.roster)
    module = factory()
    assert isinstance(module, nn.Sequential) and shapes(module) == expected
    outputs = module(fed.train.x)
    assert outputs.shape == (8, fed.classes or 1) and outputs.isfinite().all()
    assert factory() is not module


def test_layers_stand_in_order() -> None:
    assert [type(part).__name__ for part in models.build("mlp:6,4", TABLE.roster)()] == [
        "Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear",
    ]  # fmt: skip


def test_factories_follow_the_seed_and_can_be_pickled() -> None:
    factory = pickle.loads(pickle.dumps(models.build("cnn", GREY.roster)))
    torch.manual_seed(3)
    one = factory()
    torch.manual_seed(3)
    assert all(a.equal(b) for a, b in zip(one.parameters(), factory().parameters()))


@pytest.mark.parametrize(
    "name, fed",
    [("mlp", GREY), ("cnn", GREY), ("cnn", COLOUR), ("cnn6:8", GREY), ("linear", TARGETS)],
)
def test_many_clients_at_once(name: str, fed: Federation) -> None:
    many = [models.build(name, fed.roster)() for _ in range(3)]
    stacked = {
        key: torch.stack([m.state_dict()[key] for m in many]) for key in many[0].state_dict()
    }
    x = fed.train.x[:6].unflatten(0, (3, 2))
    together = vmap(lambda params, rows: functional_call(many[0], params, (rows,)))(stacked, x)
    apart = torch.stack([m(rows) for m, rows in zip(many, x)])
    assert torch.allclose(together, apart, atol=1e-5)


def test_cnn6_starts_by_xaviers_rule() -> None:
    torch.manual_seed(0)
    last, bias = list(models.build("cnn6", GREY.roster)().parameters())[-4:-2]
    assert last.shape == (512, 1024) and not bias.any()
    assert abs(last.std().item() / (2 / (512 + 1024)) ** 0.5 - 1) < 0.01


def test_default_and_list() -> None:
    assert models.default(TARGETS.roster) == "linear" and models.default(GREY.roster) == "mlp"
    assert set(models.models()) == {
        "linear", "softmax", "additive", "mlp", "mlp_bn", "cnn", "cnn6", "resnet18", "lstm",
    }  # fmt: skip
    assert all(models.models().values())


@pytest.mark.parametrize(
    "name, fed, words",
    [
        ("mpl", GREY, ["'mpl'", "'mlp'"]),
        ("cnn", TABLE, ["cnn", "images", "(5,)", "mlp"]),
        ("cnn", fed_of(2, 8, 8), ["cnn", "1 or 3 channels", "(2, 8, 8)"]),
        ("cnn", fed_of(3, 3), ["4×4", "(3, 3)"]),
        ("cnn:3", GREY, ["'3'", "cnn:2"]),
        ("cnn6", fed_of(7, 9), ["cnn6", "8×8", "(7, 9)"]),
        ("softmax:3", GREY, ["softmax", "no options"]),
        ("softmax", TARGETS, ["softmax", "regression", "linear"]),
        ("linear:bias", TARGETS, ["'bias'", "'nobias'"]),
        ("mlp:12,x", GREY, ["'12,x'", "mlp:128"]),
        ("mlp:0", GREY, ["'0'"]),
        ("mlp", fed_of(5, dtype=torch.int64), ["floats", "whole numbers"]),
    ],
)
def test_errors(name: str, fed: Federation, words: list[str]) -> None:
    with pytest.raises(CoterieError) as error:
        models.build(name, fed.roster)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("option", ["", ":16", ":16,group"])
def test_resnet18_is_the_network_for_small_images(option):
    shape = (3, 32, 32) if not option else (8, 8)
    fed = ct.data.from_memory([(torch.randn(8, *shape), torch.arange(8) % 10)] * 2)
    network = ct.models.build(f"resnet18{option}", fed.roster)()
    if not option:  # the published size for ten classes, here for eight
        assert sum(p.numel() for p in network.parameters()) == 11_173_962 - 2 * 513
    norms = {type(part) for part in network.modules() if "Norm" in type(part).__name__}
    assert norms == {torch.nn.GroupNorm if "group" in option else torch.nn.BatchNorm2d}
    assert network(torch.randn(2, *shape)).shape == (2, 8)


def test_resnet18_has_one_size():
    fed = ct.data.rotated("digits", clients=4, samples=10)
    with pytest.raises(ct.CoterieError, match="has two sizes of resnet18"):
        ct.models.build("resnet18:4,8", fed.roster)


def test_mlp_bn_has_a_batch_norm_before_every_relu():
    fed = ct.data.rotated("digits", clients=4, samples=10)
    network = ct.models.build("mlp_bn:8,4", fed.roster)()
    names = [type(part).__name__ for part in network]
    assert names == ["Flatten", *["Linear", "BatchNorm1d", "ReLU"] * 2, "Linear"]
    assert [part.bias is None for part in network if isinstance(part, torch.nn.Linear)] == [
        True, True, False,
    ]  # fmt: skip
