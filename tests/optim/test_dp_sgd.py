"""DP-SGD: ghost clipping against gradients by row, steps against NumPy, batches and noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

import coterie as ct
from coterie.core.params import Params, stack
from coterie.core.randomness import scramble, uniform
from coterie.core.task import Batch, RowPrivacy, Task
from coterie.optim import descend
from coterie.optim.dp_sgd import clipped_sums
from coterie.optim.gradients import has_manual_backward

DOUBLE = torch.float64


# ------------------------------------------------------------------------------ clipped sums
class Residual(nn.Module):
    """A model without a written-out backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + torch.sin(self.first(x)))


MODELS: dict[str, tuple[Any, int | None]] = {
    "softmax": (lambda: nn.Linear(5, 3), 3),
    "linear": (lambda: nn.Linear(5, 1), None),
    "no bias": (lambda: nn.Linear(5, 1, bias=False), None),
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), 3),
    "deep": (
        lambda: nn.Sequential(
            nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4, bias=False), nn.Sigmoid(), nn.Linear(4, 3)
        ),
        3,
    ),
    "residual": (Residual, 3),
    "conv": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(6, 3)
        ),
        3,
    ),
}


def make_task(name: str) -> Task:
    model, classes = MODELS[name]
    kind = "classification" if classes else "regression"
    return Task(model, kind, torch.zeros(1, 5, dtype=DOUBLE), classes, dtype=DOUBLE)


def make_batch(task: Task, clients: int = 2, rows: int = 6) -> Batch:
    draw = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(clients, rows, 5, dtype=DOUBLE, generator=draw)
    y = torch.randn(clients, rows, dtype=DOUBLE, generator=draw)
    if task.classes:
        y = torch.randint(0, 3, (clients, rows), generator=draw)
    mask = torch.ones(clients, rows, dtype=DOUBLE)
    mask[1, 4:] = 0
    weight = 0.5 + torch.rand(clients, rows, dtype=DOUBLE, generator=draw)
    return Batch(x, y, mask, weight)


def explicit_sums(task: Task, w: Params, batch: Batch, clip: float) -> Params:
    """The definition: autograd for each row, clipped and added."""
    sums = {k: torch.zeros_like(v) for k, v in w.items()}
    for c in range(len(batch.mask)):
        for i in range(int(batch.mask[c].sum())):
            leaves = {k: v[c].clone().requires_grad_() for k, v in w.items()}
            loss = task.losses(
                leaves, Batch.of(batch.x[c, i : i + 1], batch.y[c, i : i + 1], DOUBLE)
            )
            loss = loss[0] * batch.weight[c, i]
            g = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))
            norm = torch.sqrt(sum(v.square().sum() for v in g.values()))
            for k, v in g.items():
                sums[k][c] += v * min(1.0, clip / float(norm))
    return sums


@pytest.mark.parametrize("clip", [0.05, 1.0, 1e6])
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sums_equal_those_of_explicit_gradients(name: str, clip: float) -> None:
    task = make_task(name)
    assert has_manual_backward(task) == (name not in ("residual", "conv"))
    w = stack([task.init(0), task.init(1)])
    batch = make_batch(task)
    found, expected = clipped_sums(task, w, batch, clip), explicit_sums(task, w, batch, clip)
    for k in w:
        torch.testing.assert_close(found[k], expected[k], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_one_row_moves_the_sum_by_at_most_the_clipping_norm(name: str) -> None:
    task = make_task(name)
    w = stack([task.init(0), task.init(1)])
    batch = make_batch(task)
    batch = batch._replace(x=batch.x.clone())
    batch.x[0, 3] *= 1e4
    without = batch._replace(mask=batch.mask.clone())
    without.mask[0, 3] = 0
    a, b = (clipped_sums(task, w, each, 0.5) for each in (batch, without))
    moved = torch.sqrt(sum((a[k] - b[k])[0].square().sum() for k in w))
    assert float(moved) == pytest.approx(0.5, rel=1e-9)


def test_a_row_without_a_finite_gradient_counts_as_0() -> None:
    task = make_task("mlp")
    w = stack([task.init(0), task.init(1)])
    batch = make_batch(task)
    spoilt = batch._replace(x=batch.x.clone(), mask=batch.mask)
    spoilt.x[0, 2, 0] = torch.inf
    without = batch._replace(mask=batch.mask.clone())
    without.mask[0, 2] = 0
    found, expected = clipped_sums(task, w, spoilt, 1.0), clipped_sums(task, w, without, 1.0)
    for k in w:
        torch.testing.assert_close(found[k], expected[k], rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------ steps, in NumPy
SEED, CLIP, NOISE = 7, 0.8, 1.3
HOW = ct.Local(lr=0.2, local_steps=4, batch=3)


def private(task: Task, seed: int | None = SEED, clip: float = CLIP) -> Task:
    return task.with_row_privacy(RowPrivacy(clip, torch.full((2,), NOISE), seed))


def make_data(rows: int = 8, key: int = 11, noise: float = NOISE) -> ct.Data:
    draw = torch.Generator().manual_seed(key)
    x = torch.randn(rows, 5, dtype=DOUBLE, generator=draw)
    y = torch.randn(rows, dtype=DOUBLE, generator=draw)
    keys = torch.tensor(key), torch.tensor(0)
    multiplier = torch.tensor(noise, dtype=DOUBLE)
    return ct.Data(Batch.of(x, y, DOUBLE), *keys, noise_multiplier=multiplier)


def numpy_steps(data: ct.Data, w: Params, how: ct.Local, steps: int, pull: float) -> list[Any]:
    """(w, b) of a linear model after DP-SGD, written out."""
    x, y = data.own.x.numpy(), data.own.y.numpy()
    n, key = len(y), int(data.key)
    slope, bias = w["weight"][0].numpy().copy(), w["bias"].numpy().copy()
    start = slope.copy(), bias.copy()
    b = min(how.batch or n, n)
    noise = np.random.Generator(np.random.Philox(key=[SEED, key]))
    for step in range(steps):
        numbers = uniform(scramble(data.key + step) + torch.arange(n)).numpy()
        total = np.zeros(6)
        for i in np.flatnonzero(numbers < b / n):
            g = 2 * (x[i] @ slope + bias[0] - y[i]) * np.append(x[i], 1.0)
            total += g * min(1.0, CLIP / np.linalg.norm(g))
        z = np.append(noise.standard_normal((1, 5))[0], noise.standard_normal(1))
        mean = (total + NOISE * CLIP * z) / b
        slope = slope - how.lr * (mean[:5] + pull * (slope - start[0]) + how.l2 * slope)
        bias = bias - how.lr * (mean[5] + pull * (bias - start[1]))
    return [slope, bias]


@pytest.mark.parametrize(
    "how, steps, pull",
    [
        (replace(HOW, local_steps=1), 1, 0.0),
        (HOW, 4, 0.0),
        (replace(HOW, l2=0.1), 4, 0.7),
        (replace(HOW, batch=None), 4, 0.0),
        (replace(HOW, local_epochs=2), 6, 0.0),  # ⌈8/3⌉ = 3 steps an epoch
        (replace(HOW, batch=100), 4, 0.0),
    ],
)
def test_steps_in_numpy(how: ct.Local, steps: int, pull: float) -> None:
    task, data = private(make_task("linear")), make_data()
    w = task.init(3)
    towards = w if pull else None
    found = descend(task, w, data.batches(how), how, pull=pull, towards=towards)
    slope, bias = numpy_steps(data, w, how, steps, pull)
    np.testing.assert_allclose(found["weight"][0].numpy(), slope, atol=1e-10)
    np.testing.assert_allclose(found["bias"].numpy(), bias, atol=1e-10)


# f = (w·x − y)², one row x = 1, y = 2, at w = 0: the gradient −4 is clipped to −1; without noise
# the step of 0.5 ends at 0.5. A second row with x = 1, y = 0.25 has the gradient −0.5: −1.5/2.
def test_a_step_by_hand() -> None:
    x, y = torch.ones(2, 1, dtype=DOUBLE), torch.tensor([2.0, 0.25], dtype=DOUBLE)
    task = Task(lambda: nn.Linear(1, 1, bias=False), "regression", x, dtype=DOUBLE)
    how = ct.Local(lr=0.5, local_steps=1)
    for rows, expected in ((1, 0.5), (2, 0.375)):
        batch = Batch.of(x[:rows], y[:rows], DOUBLE)
        zero = torch.tensor(0.0, dtype=DOUBLE)
        data = ct.Data(batch, torch.tensor(1), torch.tensor(1), noise_multiplier=zero)
        w = {"weight": torch.zeros(1, 1, dtype=DOUBLE)}
        found = descend(private(task, clip=1.0), w, data.batches(how), how)
        assert found["weight"].item() == pytest.approx(expected, rel=1e-12)


def test_optimizers_follow_the_noised_gradient() -> None:
    """The first step: g for heavy ball, (1 + β)·g for Nesterov, the sign of g for Adam."""
    task, data = private(make_task("linear")), make_data()
    w = task.init(3)
    moved = {}
    for solver in ("sgd", "heavy_ball", "nesterov", "adam"):
        how = replace(HOW, local_steps=1, solver=solver, momentum=0.5)
        found = descend(task, w, data.batches(how), how)
        moved[solver] = found["weight"] - w["weight"]
    torch.testing.assert_close(moved["heavy_ball"], moved["sgd"])
    torch.testing.assert_close(moved["nesterov"], 1.5 * moved["sgd"])
    torch.testing.assert_close(moved["adam"], HOW.lr * moved["sgd"].sign(), rtol=1e-4, atol=0)


# ------------------------------------------------------------------------------ all clients at once
@pytest.mark.parametrize("how", [HOW, replace(HOW, local_epochs=1), replace(HOW, solver="adam")])
def test_clients_of_different_sizes_at_once_equal_each_alone(how: ct.Local) -> None:
    task = private(make_task("linear"))
    w = task.init(3)
    clients = [make_data(rows, key) for rows, key in ((8, 11), (3, 12), (5, 13))]
    alone = [descend(task, w, data.batches(how), how) for data in clients]

    def pad(v: Tensor) -> Tensor:
        return torch.cat([v, v.new_zeros(8 - len(v), *v.shape[1:])])

    owns = [data.own.map_rows(pad) for data in clients]
    own = Batch(*(torch.stack([getattr(o, f) for o in owns]) for f in ("x", "y", "mask", "weight")))
    keys = torch.stack([data.key for data in clients])
    noise = torch.full((3,), NOISE, dtype=DOUBLE)
    together = ct.Data(own, keys, keys, noise_multiplier=noise)
    found = vmap(lambda data: descend(task, w, data.batches(how), how))(together)
    for c, expected in enumerate(alone):
        for k in w:
            torch.testing.assert_close(found[k][c], expected[k], rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------ draws
def test_noise_and_batches_without_a_seed_differ_each_time() -> None:
    task, data = private(make_task("linear"), seed=None), make_data()
    w = task.init(3)
    found = [descend(task, w, data.batches(HOW), HOW)["weight"] for _ in range(2)]
    assert not torch.equal(*found)


def test_the_noise_has_the_promised_deviation() -> None:
    """4,000 steps on a row whose gradient is 0: (Δw/lr)·b = N(0, σ²C²)."""
    x = torch.zeros(1, 100, dtype=DOUBLE)
    task = Task(lambda: nn.Linear(100, 1, bias=False), "regression", x, dtype=DOUBLE)
    batch = Batch.of(x.expand(4, 100), torch.zeros(4, dtype=DOUBLE), DOUBLE)
    multiplier = torch.tensor(NOISE, dtype=DOUBLE)
    data = ct.Data(batch, torch.tensor(1), torch.tensor(1), noise_multiplier=multiplier)
    how = ct.Local(lr=1.0, local_steps=40)
    w = {"weight": torch.zeros(1, 100, dtype=DOUBLE)}
    ends = [
        descend(private(task, seed=None), w, data.batches(how), how)["weight"] for _ in range(40)
    ]
    sums = torch.cat(ends).flatten() * 4  # 4,000 sums of 40 draws each
    deviation = NOISE * CLIP * 40**0.5
    assert float(sums.std()) == pytest.approx(deviation, rel=0.05)
    assert abs(float(sums.mean())) < 5 * deviation / len(sums) ** 0.5


def test_each_row_is_drawn_with_probability_q() -> None:
    """Over 2,000 steps without noise, on rows whose clipped gradients are different coordinates."""
    x = 10 * torch.eye(6, dtype=DOUBLE)
    task = Task(lambda: nn.Linear(6, 1, bias=False), "regression", x, dtype=DOUBLE)
    batch = Batch.of(x, torch.full((6,), -1e6, dtype=DOUBLE), DOUBLE)
    zero = torch.tensor(0.0, dtype=DOUBLE)
    data = ct.Data(batch, torch.tensor(1), torch.tensor(1), noise_multiplier=zero)
    how = ct.Local(lr=2.0, batch=2, local_steps=2000)  # a row that is drawn moves by −lr/2 = −1
    w = {"weight": torch.zeros(1, 6, dtype=DOUBLE)}
    for seed in (None, 4):
        found = descend(private(task, seed=seed, clip=1.0), w, data.batches(how), how)
        counts = -found["weight"][0]
        torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-6)
        assert counts.sum() != 2 * 2000  # not a fixed batch size
        assert bool(((counts / 2000 - 1 / 3).abs() < 5 * (2 / 9 / 2000) ** 0.5).all())


# ------------------------------------------------------------------------------ what is refused
def test_rows_cannot_be_read_in_other_ways() -> None:
    data = make_data()
    for read in (
        lambda: data.all,
        lambda: data.sample(2, 0),
        lambda: data.samples(2, [0]),
        lambda: data.part(0, 2),
        lambda: data.repeated(3),
        lambda: list(data.batches(HOW)),
        lambda: ct.optim.sgd(
            make_task("linear"), make_task("linear").init(0), data.batches(HOW), HOW
        ),
    ):
        with pytest.raises(ct.CoterieError, match="only noised gradients leave the rows"):
            read()


def test_models_that_mix_rows_and_other_clipping_are_refused() -> None:
    model = lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    normed = Task(model, "regression", torch.zeros(1, 5, dtype=DOUBLE), dtype=DOUBLE)
    data = make_data()
    with pytest.raises(ct.CoterieError, match="batch norm mixes the rows"):
        descend(private(normed), normed.init(0), data.batches(HOW), HOW)
    task = private(make_task("linear"))
    for how in (replace(HOW, clip=1.0), replace(HOW, accumulate=2)):
        with pytest.raises(ct.CoterieError, match="leave out clip and accumulate"):
            descend(task, task.init(0), data.batches(how), how)
