"""Solvers against NumPy and torch.optim: pull, l2, clipping, padding, steps of one's own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from local_cases import NOTHING, digits, equal, mlp, model_near, padded, softmax, task_of
from torch import Tensor, nn, tensor

from coterie.core.contract import Local, Repeat
from coterie.core.params import zeros
from coterie.core.task import Batch, Task
from coterie.optim import adam, descend, each, heavy_ball, moments, sgd, walk
from oracles import arrays, assert_same_models, cross_entropy, decay, squared


# ------------------------------------------------------------------------------ against NumPy
def linear_task(dim: int = 3) -> Task:
    return Task(lambda: nn.Linear(dim, 1), "regression", torch.zeros(2, dim), None, torch.float64)


def linear_batches(count: int = 4, dim: int = 3) -> list[Batch]:
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(n + 2, dim)), rng.normal(size=n + 2)) for n in range(count)]
    return [Batch.of(tensor(x), tensor(y), torch.float64) for x, y in pairs]


def by_hand(
    w: dict[str, np.ndarray],
    batches: list[Batch],
    *,
    lr: float,
    beta: float = 0.0,
    l2: float = 0.0,
    pull: float = 0.0,
    towards: Any = None,
    clip: float | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Heavy ball in NumPy: (model, momentum)."""
    u = {k: np.zeros_like(v) for k, v in w.items()}
    for b in batches:
        g = squared(w, b.x.numpy(), b.y.numpy())[1]
        d = decay(l2, w)
        g = {k: g[k] + d[k] + (pull * (w[k] - towards[k]) if towards else 0.0) for k in w}
        length = np.sqrt(sum((v**2).sum() for v in g.values()))
        factor = 1.0 if clip is None or length <= clip else clip / length
        u = {k: beta * u[k] + factor * g[k] for k in w}
        w = {k: w[k] - lr * u[k] for k in w}
    return w, u


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("pull", [0.0, 0.7])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_sgd_and_heavy_ball_by_hand(l2: float, pull: float, clip: float | None) -> None:
    task, batches = linear_task(), linear_batches()
    w, centre = task.init(0), task.init(1)
    how = Local(lr=0.05, l2=l2, clip=clip)
    terms = {"lr": 0.05, "l2": l2, "pull": pull, "towards": arrays(centre), "clip": clip}
    want, _ = by_hand(arrays(w), batches, **terms)
    assert_same_models(arrays(sgd(task, w, batches, how, pull=pull, towards=centre)), want)
    new, u = heavy_ball(task, w, zeros(w), batches, how, 0.8, pull=pull, towards=centre)
    want, momentum = by_hand(arrays(w), batches, beta=0.8, **terms)
    assert_same_models(arrays(new), want)
    assert_same_models(arrays(u), momentum)


def one_number() -> tuple[Task, Batch]:
    """The model x·w and the row (1, 1): f = (w − 1)²."""
    net = lambda: nn.Linear(1, 1, bias=False)
    task = Task(net, "regression", torch.zeros(2, 1), None, torch.float64)
    return task, Batch.of(tensor([[1.0]]).double(), tensor([1.0]).double(), torch.float64)


def test_heavy_ball_goes_on_from_the_momentum_it_is_given() -> None:
    """f = (w − 1)², w = 2, u = 4, β = ½, lr = ¼.

    u ← ½·4 + 2 = 4, w ← 2 − 1 = 1; then u ← 2 + 0, w ← ½.
    """
    task, batch = one_number()
    w, u = {"weight": tensor([[2.0]]).double()}, {"weight": tensor([[4.0]]).double()}
    w, u = heavy_ball(task, w, u, [batch, batch], Local(lr=0.25), 0.5)
    assert (w["weight"].item(), u["weight"].item()) == (0.5, 2.0)


def test_adam_by_hand() -> None:
    task, batches = linear_task(), linear_batches()
    start, centre = task.init(0), task.init(1)
    w, c = arrays(start), arrays(centre)
    m, s = ({k: np.zeros_like(v) for k, v in w.items()} for _ in range(2))
    for t, b in enumerate(batches, 1):
        g = squared(w, b.x.numpy(), b.y.numpy())[1]
        for k in w:
            g[k] = g[k] + decay(0.3, w)[k] + 0.7 * (w[k] - c[k])
            m[k] = 0.9 * m[k] + 0.1 * g[k]
            s[k] = 0.999 * s[k] + 0.001 * g[k] ** 2
        w = {
            k: w[k] - 0.05 * (m[k] / (1 - 0.9**t)) / (np.sqrt(s[k] / (1 - 0.999**t)) + 1e-8)
            for k in w
        }
    how = Local(lr=0.05, l2=0.3)
    new, state = adam(task, start, moments(start), batches, how, pull=0.7, towards=centre)
    assert_same_models(arrays(new), w)
    assert_same_models(arrays(state.first), m)
    assert_same_models(arrays(state.second), s)
    assert state.steps == 4


def test_adam_in_two_halves_is_adam_in_one() -> None:
    task, batches, how = linear_task(), linear_batches(), Local(lr=0.05)
    w = task.init(0)
    in_one, _ = adam(task, w, moments(w), batches, how)
    half, state = adam(task, w, moments(w), batches[:2], how)
    model_near(adam(task, half, state, batches[2:], how)[0], in_one)


def test_softmax_steps_by_hand() -> None:
    task, batch = task_of(softmax), digits(20)
    w = {k.removeprefix("1."): v for k, v in arrays(task.init(0)).items()}
    for _ in range(3):
        g = cross_entropy(w, batch.x.flatten(1).numpy(), batch.y.numpy())[1]
        w = {k: w[k] - 0.2 * g[k] for k in w}
    new = arrays(sgd(task, task.init(0), [batch] * 3, Local(lr=0.2)))
    assert_same_models({k.removeprefix("1."): v for k, v in new.items()}, w)


# ------------------------------------------------------------------------------ against torch.optim
OPTIMISERS = {
    "sgd": lambda p, l2: torch.optim.SGD(p, lr=0.1, weight_decay=l2),
    "heavy_ball": lambda p, l2: torch.optim.SGD(p, lr=0.1, momentum=0.8, weight_decay=l2),
    "adam": lambda p, l2: torch.optim.Adam(p, lr=0.1, weight_decay=l2),
}


@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize("solver", OPTIMISERS)
def test_descend_is_torch_optim(solver: str, l2: float) -> None:
    task = task_of(mlp)
    batches = [digits(10, start) for start in (0, 10, 20, 5)]
    how = Local(lr=0.1, solver=solver, momentum=0.8, l2=l2)
    new = descend(task, task.init(3), batches, how)
    module = mlp().double()
    module.load_state_dict(task.init(3))
    parts = {is_bias: [] for is_bias in (False, True)}
    for name, parameter in module.named_parameters():
        parts[name.endswith("bias")].append(parameter)
    decayed = {"params": parts[False]}
    spared = {"params": parts[True], "weight_decay": 0.0}
    optimiser = OPTIMISERS[solver]([decayed, spared], l2)
    for b in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(b.x), b.y).backward()
        optimiser.step()
    model_near(new, dict(module.named_parameters()))


# ------------------------------------------------------------------------------ pull, l2, clip
@pytest.mark.parametrize("solver", ["sgd", "heavy_ball", "adam"])
def test_the_pull_goes_to_the_centre_that_was_given(solver: str) -> None:
    """Every row's weight is 0: the pull alone moves the model, which ends at the centre."""
    task, batch = task_of(softmax), digits(4)
    batch = batch._replace(weight=torch.zeros(4, dtype=torch.float64))
    w, centre = task.init(0), task.init(1)
    how = Local(lr=0.02 if solver == "adam" else 0.3, solver=solver, momentum=0.5)
    model_near(descend(task, w, Repeat(batch, 150), how, pull=1.0, towards=centre), centre, 1e-2)
    model_near(descend(task, w, Repeat(batch, 5), how, pull=1.0, towards=w), w)


def test_one_pulled_step_by_hand() -> None:
    """w = 3, f = (w − 1)², centre 5, pull 2, l2 ½, lr 1: ∇ = 2·2 + 2·(3 − 5) + ½·3 = 1.5."""
    task, batch = one_number()
    w, centre = {"weight": tensor([[3.0]]).double()}, {"weight": tensor([[5.0]]).double()}
    step = lambda l2, **pull: sgd(task, w, [batch], Local(lr=1.0, l2=l2), **pull)["weight"].item()
    assert step(0.5, pull=2.0, towards=centre) == pytest.approx(1.5, rel=1e-14)
    assert step(0.0, pull=2.0, towards=centre) == 3.0
    assert step(0.5) == -2.5


def test_a_pull_may_be_a_tensor() -> None:
    task, batch, how = task_of(mlp), digits(10), Local(lr=0.1, l2=0.1)
    w, centre = task.init(0), task.init(1)
    for batches in (Repeat(batch, 4), [batch] * 4):
        by_number, by_tensor = (
            heavy_ball(task, w, zeros(w), batches, how, 0.5, pull=pull, towards=centre)[0]
            for pull in (0.7, torch.tensor(0.7, dtype=torch.float64))
        )
        model_near(by_tensor, by_number)


def test_clip_bounds_the_length_of_all_leaves_together_and_only_long_ones() -> None:
    task, batch = task_of(mlp), digits(10)
    w = task.init(0)
    plain = sgd(task, w, [batch], Local(lr=1.0))
    length = torch.sqrt(sum(((plain[k] - w[k]) ** 2).sum() for k in w)).item()
    clipped = sgd(task, w, [batch], Local(lr=1.0, clip=length / 3))
    for k in w:
        torch.testing.assert_close(clipped[k] - w[k], (plain[k] - w[k]) / 3)
    model_near(sgd(task, w, [batch], Local(lr=1.0, clip=length * 1.01)), plain)


# ------------------------------------------------------------------------------ padding
@pytest.mark.parametrize("form", ["plain", "dual"])
@pytest.mark.usefixtures("always")
def test_a_batch_of_padding_changes_nothing(form: str) -> None:
    task = task_of(mlp)
    w, u, centre = task.init(0), task.init(1), task.init(2)
    batches = [NOTHING] * 3 if form == "plain" else Repeat(NOTHING, 3)
    for how in (Local(lr=0.1), Local(lr=0.1, l2=0.2), Local(lr=0.1, clip=1.0)):
        assert equal(sgd(task, w, batches, how), w)
        assert equal(sgd(task, w, batches, how, pull=0.5, towards=centre), w)
        for pull in ({}, {"pull": 0.5, "towards": centre}):
            new, momentum = heavy_ball(task, w, u, batches, how, 0.9, **pull)
            assert equal(new, w)
            assert equal(momentum, u)
            state = moments(w)._replace(first=u, steps=tensor(3.0).double())
            new, after = adam(task, w, state, batches, how, **pull)
            assert equal(new, w)
            assert equal(after.first, u) and equal(after.second, state.second)
            assert after.steps == 3


@pytest.mark.parametrize("solver", ["sgd", "heavy_ball", "adam"])
def test_padding_in_between_does_not_count_as_a_step(solver: str) -> None:
    task, how = task_of(mlp), Local(lr=0.1, solver=solver, l2=0.1)
    a, b = digits(8), digits(8, 8)
    w = task.init(0)
    model_near(
        descend(task, w, [NOTHING, a, NOTHING, NOTHING, b], how), descend(task, w, [a, b], how)
    )


@pytest.mark.parametrize("solver", ["sgd", "heavy_ball", "adam"])
def test_padded_rows_do_not_count(solver: str) -> None:
    task, how = task_of(mlp), Local(lr=0.1, solver=solver, l2=0.1)
    w, batch = task.init(0), digits(8)
    want = descend(task, w, [batch] * 3, how)
    model_near(descend(task, w, [padded(batch, 5)] * 3, how), want)
    model_near(descend(task, w, Repeat(padded(batch, 5), 3), how), want)


def test_each_repeats() -> None:
    batch = digits(3)
    assert len(list(each(Repeat(batch, 4)))) == 4
    assert all(b is batch for b in each(Repeat(batch, 4)))
    assert list(each([batch, NOTHING]))[1] is NOTHING


# ------------------------------------------------------------------------------ steps of one's own
class Count(NamedTuple):
    total: dict[str, Tensor]
    steps: Tensor


def test_walk_takes_a_step_per_batch_and_none_for_padding() -> None:
    """4 rows, 5 of padding, 2 real among 3 of padding, 1: 4 + 0 + 2 + 1 rows in three steps."""
    masks = [[1.0] * 4, [0.0] * 5, [0.0, 1.0, 0.0, 1.0, 0.0], [1.0]]
    batches = [Batch(tensor(m), tensor(m), tensor(m), tensor(m)) for m in masks]

    def step(c: Count, b: Batch) -> Count:
        return Count({"rows": c.total["rows"] + b.mask.sum()}, c.steps + 1)

    zero = Count({"rows": tensor(0.0)}, tensor(0))
    end = walk(zero, batches, step)
    assert (end.total["rows"], end.steps) == (7, 3)
    assert zero.total["rows"] == 0
    end = walk(zero, Repeat(batches[0], 3), step)
    assert (end.total["rows"], end.steps) == (12, 3)
