"""Local training against NumPy and torch.optim, the dual form against plain steps, and the batches that feed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn, tensor

import coterie as ct
from coterie import randomness
from coterie.contract import Data, Local, Repeat, Upload, client
from coterie.local import adam, descend, each, heavy_ball, moments, sgd, solvers, walk
from coterie.params import Params, zeros
from coterie.task import Batch, Task
from oracles import arrays, cross_entropy, federation, ready, squared, started_from

DIGITS_X, DIGITS_Y = load_digits(return_X_y=True)
X = torch.tensor(DIGITS_X / 16 - 0.3).view(-1, 8, 8)  # real pixels, of both signs
Y = torch.tensor(DIGITS_Y)
How = Local


def digits(n: int, start: int = 0) -> Batch:
    return Batch.of(X[start : start + n], Y[start : start + n], torch.float64)


def task_of(factory: Callable[[], nn.Module]) -> Task:
    return Task(factory, "classification", X[:2], 10, torch.float64)


def softmax() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


def equal(a: Params, b: Params) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def model_near(a: Params, b: Params, tolerance: float = 1e-9) -> None:
    started_from(arrays(a), arrays(b), tolerance)


# ---------------------------------------------------------------------------------------------- against NumPy
def linear_task(dim: int = 3) -> Task:
    return Task(lambda: nn.Linear(dim, 1), "regression", torch.zeros(2, dim), None, torch.float64)


def linear_batches(count: int = 4, dim: int = 3) -> list[Batch]:
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(n + 2, dim)), rng.normal(size=n + 2)) for n in range(count)]
    return [Batch.of(tensor(x), tensor(y), torch.float64) for x, y in pairs]


def by_hand(
    w: dict[str, np.ndarray],
    batches: list[Batch],
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
        g = {k: g[k] + l2 * w[k] + (pull * (w[k] - towards[k]) if towards else 0.0) for k in w}
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
    how = How(lr=0.05, l2=l2, clip=clip)
    terms = {"l2": l2, "pull": pull, "towards": arrays(centre), "clip": clip}
    started_from(
        arrays(sgd(task, w, batches, how, pull, centre)),
        by_hand(arrays(w), batches, 0.05, **terms)[0],
    )
    new, u = heavy_ball(task, w, zeros(w), batches, how, 0.8, pull, centre)
    want, momentum = by_hand(arrays(w), batches, 0.05, 0.8, **terms)
    started_from(arrays(new), want)
    started_from(arrays(u), momentum)


def test_heavy_ball_goes_on_from_the_momentum_it_is_given() -> None:
    """f = (w − 1)², w = 2, u = 4, β = ½, lr = ¼: u ← ½·4 + 2 = 4, w ← 2 − 1 = 1; then u ← 2 + 0, w ← ½."""
    task = Task(
        lambda: nn.Linear(1, 1, bias=False), "regression", torch.zeros(2, 1), None, torch.float64
    )
    batch = Batch.of(tensor([[1.0]]).double(), tensor([1.0]).double(), torch.float64)
    w, u = {"weight": tensor([[2.0]]).double()}, {"weight": tensor([[4.0]]).double()}
    w, u = heavy_ball(task, w, u, [batch, batch], How(lr=0.25), 0.5)
    assert (w["weight"].item(), u["weight"].item()) == (0.5, 2.0)


def test_adam_by_hand() -> None:
    task, batches = linear_task(), linear_batches()
    start, centre = task.init(0), task.init(1)
    w, c = arrays(start), arrays(centre)
    m, s = ({k: np.zeros_like(v) for k, v in w.items()} for _ in range(2))
    for t, b in enumerate(batches, 1):
        g = squared(w, b.x.numpy(), b.y.numpy())[1]
        for k in w:
            g[k] = g[k] + 0.3 * w[k] + 0.7 * (w[k] - c[k])
            m[k] = 0.9 * m[k] + 0.1 * g[k]
            s[k] = 0.999 * s[k] + 0.001 * g[k] ** 2
        w = {
            k: w[k] - 0.05 * (m[k] / (1 - 0.9**t)) / (np.sqrt(s[k] / (1 - 0.999**t)) + 1e-8)
            for k in w
        }
    new, state = adam(task, start, moments(start), batches, How(lr=0.05, l2=0.3), 0.7, centre)
    started_from(arrays(new), w)
    started_from(arrays(state.first), m)
    started_from(arrays(state.second), s)
    assert state.steps == 4


def test_adam_in_two_halves_is_adam_in_one() -> None:
    task, batches, how = linear_task(), linear_batches(), How(lr=0.05)
    w = task.init(0)
    whole, _ = adam(task, w, moments(w), batches, how)
    half, state = adam(task, w, moments(w), batches[:2], how)
    model_near(adam(task, half, state, batches[2:], how)[0], whole)


def test_softmax_steps_by_hand() -> None:
    task, batch = task_of(softmax), digits(20)
    w = {k.removeprefix("1."): v for k, v in arrays(task.init(0)).items()}
    for _ in range(3):
        g = cross_entropy(w, batch.x.flatten(1).numpy(), batch.y.numpy())[1]
        w = {k: w[k] - 0.2 * g[k] for k in w}
    got = arrays(sgd(task, task.init(0), [batch] * 3, How(lr=0.2)))
    started_from({k.removeprefix("1."): v for k, v in got.items()}, w)


# ---------------------------------------------------------------------------------------------- against torch.optim
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
    got = descend(task, task.init(3), batches, How(lr=0.1, solver=solver, momentum=0.8, l2=l2))
    module = mlp().double()
    module.load_state_dict(task.init(3))
    optimiser = OPTIMISERS[solver](module.parameters(), l2)
    for b in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(b.x), b.y).backward()
        optimiser.step()
    model_near(got, dict(module.named_parameters()))


# ---------------------------------------------------------------------------------------------- pull, l2, clip
@pytest.mark.parametrize("solver", ["sgd", "heavy_ball", "adam"])
def test_the_pull_goes_to_the_centre_that_was_given(solver: str) -> None:
    """No data to fit (every row's weight is 0): what moves the model is the pull alone, and it ends at the centre."""
    task, batch = task_of(softmax), digits(4)
    batch = batch._replace(weight=torch.zeros(4, dtype=torch.float64))
    w, centre = task.init(0), task.init(1)
    how = How(lr=0.02 if solver == "adam" else 0.3, solver=solver, momentum=0.5)
    model_near(descend(task, w, Repeat(batch, 150), how, pull=1.0, towards=centre), centre, 1e-2)
    model_near(descend(task, w, Repeat(batch, 5), how, pull=1.0, towards=w), w)


def test_one_pulled_step_by_hand() -> None:
    """w = 3, f = (w − 1)², centre 5, pull 2, l2 ½: ∇ = 2·2 + 2·(3 − 5) + ½·3 = 1.5; with lr 1: 1.5."""
    task = Task(
        lambda: nn.Linear(1, 1, bias=False), "regression", torch.zeros(2, 1), None, torch.float64
    )
    batch = Batch.of(tensor([[1.0]]).double(), tensor([1.0]).double(), torch.float64)
    w, centre = {"weight": tensor([[3.0]]).double()}, {"weight": tensor([[5.0]]).double()}
    assert sgd(task, w, [batch], How(lr=1.0, l2=0.5), 2.0, centre)[
        "weight"
    ].item() == pytest.approx(1.5, rel=1e-14)
    assert sgd(task, w, [batch], How(lr=1.0), 2.0, centre)["weight"].item() == 3.0
    assert sgd(task, w, [batch], How(lr=1.0, l2=0.5))["weight"].item() == -2.5


def test_a_pull_may_be_a_tensor() -> None:
    task, batch, how = task_of(mlp), digits(10), How(lr=0.1, l2=0.1)
    w, centre = task.init(0), task.init(1)
    for batches in (Repeat(batch, 4), [batch] * 4):
        got = heavy_ball(
            task, w, zeros(w), batches, how, 0.5, torch.tensor(0.7, dtype=torch.float64), centre
        )[0]
        model_near(got, heavy_ball(task, w, zeros(w), batches, how, 0.5, 0.7, centre)[0])


def test_clip_bounds_the_whole_gradient_and_only_long_ones() -> None:
    task, batch = task_of(mlp), digits(10)
    w = task.init(0)
    plain = sgd(task, w, [batch], How(lr=1.0))
    length = torch.sqrt(sum(((plain[k] - w[k]) ** 2).sum() for k in w)).item()
    clipped = sgd(task, w, [batch], How(lr=1.0, clip=length / 3))
    for k in w:
        torch.testing.assert_close(clipped[k] - w[k], (plain[k] - w[k]) / 3)
    model_near(sgd(task, w, [batch], How(lr=1.0, clip=length * 1.01)), plain)


# ---------------------------------------------------------------------------------------------- padding
def padded(batch: Batch, by: int) -> Batch:
    """The batch with `by` more rows, of the largest values there are, that count for nothing."""
    x = torch.cat([batch.x, 9 + torch.zeros(by, *batch.x.shape[1:], dtype=batch.x.dtype)])
    y = torch.cat([batch.y, batch.y[:1].expand(by)])
    mask = torch.cat([batch.mask, torch.zeros(by, dtype=torch.float64)])
    weight = torch.cat([batch.weight, torch.ones(by, dtype=torch.float64)])
    return Batch(x, y, mask, weight)


NOTHING = digits(6)._replace(mask=torch.zeros(6, dtype=torch.float64))


@pytest.mark.parametrize("form", ["plain", "dual"])
@pytest.mark.usefixtures("always")
def test_a_batch_of_padding_changes_nothing(form: str) -> None:
    task = task_of(mlp)
    w, u, centre = task.init(0), task.init(1), task.init(2)
    batches = [NOTHING] * 3 if form == "plain" else Repeat(NOTHING, 3)
    for how in (How(lr=0.1), How(lr=0.1, l2=0.2), How(lr=0.1, clip=1.0)):
        assert equal(sgd(task, w, batches, how), w)
        assert equal(sgd(task, w, batches, how, 0.5, centre), w)
        for pull, towards in ((0.0, None), (0.5, centre)):
            new, momentum = heavy_ball(task, w, u, batches, how, 0.9, pull, towards)
            assert equal(new, w)
            assert equal(momentum, u)
            state = moments(w)._replace(first=u, steps=tensor(3.0).double())
            new, after = adam(task, w, state, batches, how, pull, towards)
            assert equal(new, w)
            assert equal(after.first, u) and equal(after.second, state.second)
            assert after.steps == 3


@pytest.mark.parametrize("solver", ["sgd", "heavy_ball", "adam"])
def test_padding_in_between_does_not_count_as_a_step(solver: str) -> None:
    task, how = task_of(mlp), How(lr=0.1, solver=solver, l2=0.1)
    a, b = digits(8), digits(8, 8)
    w = task.init(0)
    model_near(
        descend(task, w, [NOTHING, a, NOTHING, NOTHING, b], how), descend(task, w, [a, b], how)
    )


@pytest.mark.parametrize("solver", ["sgd", "heavy_ball", "adam"])
def test_padded_rows_do_not_count(solver: str) -> None:
    task, how = task_of(mlp), How(lr=0.1, solver=solver, l2=0.1)
    w, batch = task.init(0), digits(8)
    want = descend(task, w, [batch] * 3, how)
    model_near(descend(task, w, [padded(batch, 5)] * 3, how), want)
    model_near(descend(task, w, Repeat(padded(batch, 5), 3), how), want)


def test_each_repeats() -> None:
    batch = digits(3)
    assert len(list(each(Repeat(batch, 4)))) == 4
    assert all(b is batch for b in each(Repeat(batch, 4)))
    assert list(each([batch, NOTHING]))[1] is NOTHING


# ---------------------------------------------------------------------------------------------- dual = plain
class Flattens(nn.Module):
    """Flattens in forward; the first layer is not the first attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.front = nn.Linear(12, 10), nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.front(x.reshape(len(x), -1))))


class Gated(nn.Module):
    """Two layers see the rows themselves, and the rows are used once more beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Linear(64, 10),
            nn.Linear(64, 10, bias=False),
            nn.Parameter(torch.randn(64, 10) / 8),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.a(x) * torch.sigmoid(self.b(x)) + x @ self.c


DUAL = {
    "softmax": softmax,
    "mlp": mlp,
    "softmax without bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)),
    "mlp without bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 9, bias=False), nn.ReLU(), nn.Linear(9, 10, bias=False)
    ),
    "flattens in forward": Flattens,
    "gated": Gated,
}
TERMS = {
    "plain": {},
    "l2": {"l2": 0.2},
    "pull": {"pull": 0.7},
    "pull and l2": {"pull": 0.7, "l2": 0.2},
}


@pytest.fixture
def dual_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the dual form is taken."""
    calls: list[int] = []
    real = solvers.dual_steps
    monkeypatch.setattr(solvers, "dual_steps", lambda *a, **k: calls.append(1) or real(*a, **k))
    return calls


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dual form is taken even where it does not pay."""
    monkeypatch.setattr(solvers, "dual_pays", lambda *_: True)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("model", DUAL)
@pytest.mark.usefixtures("always")
def test_dual_is_plain(model: str, terms: str, dual_calls: list[int]) -> None:
    task = task_of(DUAL[model])
    assert task.first is not None
    batch = padded(digits(13), 4)
    batch = batch._replace(weight=torch.linspace(0.2, 2.0, 17, dtype=torch.float64))
    w, u, centre = task.init(0), task.init(1), task.init(2)
    how = How(lr=0.15, l2=TERMS[terms].get("l2", 0.0))
    pull = (TERMS[terms]["pull"], centre) if "pull" in TERMS[terms] else (0.0, None)
    for times in (1, 2, 7):
        repeat = Repeat(batch, times)
        model_near(sgd(task, w, repeat, how, *pull), sgd(task, w, repeat, how, *pull, dual=False))
        new, momentum = heavy_ball(task, w, u, repeat, how, 0.9, *pull)
        plain, plain_momentum = heavy_ball(task, w, u, repeat, how, 0.9, *pull, dual=False)
        model_near(new, plain)
        model_near(momentum, plain_momentum)
    assert len(dual_calls) == 6


def test_dual_is_plain_on_flat_rows(dual_calls: list[int]) -> None:
    x = X[:15].flatten(1)
    task = Task(lambda: nn.Linear(64, 10), "classification", x[:2], 10, torch.float64)
    w, centre = task.init(0), task.init(1)
    repeat = Repeat(Batch.of(x, Y[:15], torch.float64), 9)
    how = How(l2=0.1)
    plain = sgd(task, w, repeat, how, 0.3, centre, dual=False)
    model_near(sgd(task, w, repeat, how, 0.3, centre), plain)
    assert dual_calls == [1]


def test_dual_leaves_what_it_was_given_alone() -> None:
    task, repeat = task_of(mlp), Repeat(digits(10), 5)
    w, u, centre = task.init(0), task.init(1), task.init(2)
    before = [{k: v.clone() for k, v in p.items()} for p in (w, u, centre)]
    heavy_ball(task, w, u, repeat, How(l2=0.1), 0.9, 0.3, centre)
    assert all(equal(a, b) for a, b in zip((w, u, centre), before))
    assert "forward" not in vars(task.module[1])  # the layer computes again


def test_the_dual_form_is_taken_only_where_it_is_exact_and_pays(dual_calls: list[int]) -> None:
    task, batch = task_of(mlp), digits(10)
    w = task.init(0)
    sgd(task, w, Repeat(batch, 5), How(clip=1.0))
    sgd(task, w, Repeat(batch, 5), How(), dual=False)
    sgd(task, w, [batch] * 5, How())
    sgd(
        task, w, Repeat(digits(500), 2), How()
    )  # 500 rows of 64 numbers: the Gram matrix would cost more
    assert not dual_calls
    sgd(task, w, Repeat(batch, 5), How())
    assert len(dual_calls) == 1


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 6),
    shape=st.sampled_from([(1,), (5,), (2, 3)]),
    hidden=st.integers(0, 3),
    bias=st.booleans(),
    times=st.integers(1, 6),
    beta=st.sampled_from([None, 0.0, 0.5, 0.9]),
    pull=st.sampled_from([None, 0.0, 0.8]),
    l2=st.sampled_from([0.0, 0.3]),
    kind=st.sampled_from(["classification", "regression"]),
    seed=st.integers(0, 99),
)
def test_dual_is_plain_whatever_the_shapes(
    n: int, shape: tuple[int, ...], hidden: int, bias: bool, times: int, beta: float | None, pull: float | None,
    l2: float, kind: Any, seed: int,
) -> None:  # fmt: skip
    d, outputs = int(np.prod(shape)), 3 if kind == "classification" else 1
    last = [nn.Tanh(), nn.Linear(hidden, outputs)] if hidden else []
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(d, hidden or outputs, bias=bias), *last)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=g, dtype=torch.float64)
    y = torch.randint(3, (n,), generator=g) if kind == "classification" else x.flatten(1).sum(1)
    mask = (torch.rand(n, generator=g) < 0.8).double()
    batch = Batch(x, y, mask, torch.rand(n, generator=g, dtype=torch.float64))
    task = Task(make, kind, x, 3 if kind == "classification" else None, torch.float64)
    assert task.first is not None
    w, u, centre = task.init(seed, 0), task.init(seed, 1), task.init(seed, 2)
    how, pulled = How(lr=0.1, l2=l2), (0.0, None) if pull is None else (pull, centre)
    repeat, got = Repeat(batch, times), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "dual_pays", lambda *_: True)
        for dual in (True, False):
            if beta is None:
                got.append((sgd(task, w, repeat, how, *pulled, dual=dual), w))
            else:
                got.append(heavy_ball(task, w, u, repeat, how, beta, *pulled, dual=dual))
    model_near(got[0][0], got[1][0])
    model_near(got[0][1], got[1][1])


# ---------------------------------------------------------------------------------------------- steps of one's own
class Count(NamedTuple):
    total: dict[str, Tensor]
    steps: Tensor


def test_walk_takes_a_step_per_batch_and_none_for_padding() -> None:
    """4 rows, 5 of padding, 3 of padding and 2 real, 1 real: sums of rows 4 + 0 + 2 + 1, in three steps."""
    masks = [[1.0] * 4, [0.0] * 5, [0.0, 1.0, 0.0, 1.0, 0.0], [1.0]]
    batches = [Batch(tensor(m), tensor(m), tensor(m), tensor(m)) for m in masks]

    def step(c: Count, b: Batch) -> Count:
        return Count({"rows": c.total["rows"] + b.mask.sum()}, c.steps + 1)

    zero = Count({"rows": tensor(0.0)}, tensor(0))
    got = walk(zero, batches, step)
    assert (got.total["rows"], got.steps) == (7, 3)
    assert zero.total["rows"] == 0
    got = walk(zero, Repeat(batches[0], 3), step)
    assert (got.total["rows"], got.steps) == (12, 3)


# ---------------------------------------------------------------------------------------------- batches
def owned(n: int, padding: int = 0, key: int = 1, client_key: int = 2) -> Data:
    """A client whose rows hold their own numbers; padding repeats the last row."""
    x = torch.cat([torch.arange(n), torch.full((padding,), n - 1)]).double()[:, None]
    mask = torch.cat([torch.ones(n), torch.zeros(padding)]).double()
    return Data(Batch(x, x[:, 0], mask, torch.ones_like(mask)), tensor(key), tensor(client_key))


def real(batch: Batch) -> list[int]:
    """The numbers of the rows that count."""
    return batch.x[batch.mask > 0, 0].long().tolist()


@pytest.mark.parametrize("n, size", [(10, 3), (10, 5), (10, 10), (4, 7), (1, 2)])
def test_an_epoch_covers_each_row_once(n: int, size: int) -> None:
    batches = list(owned(n).batches(Local(local_epochs=2, batch=size)))
    per_epoch = -(-n // size)
    assert len(batches) == 2 * per_epoch
    epochs = [
        [row for b in half for row in real(b)]
        for half in (batches[:per_epoch], batches[per_epoch:])
    ]
    assert all(sorted(e) == list(range(n)) for e in epochs)
    assert all(len(real(b)) == size for b in batches[: per_epoch - 1])
    if n >= 10:
        assert epochs[0] != epochs[1] and epochs[0] != list(range(n))


def test_steps_draw_without_replacement_and_anew() -> None:
    batches = [real(b) for b in owned(10).batches(Local(local_steps=30, batch=4))]
    assert len(batches) == 30
    assert all(len(set(b)) == 4 for b in batches)
    assert len({tuple(b) for b in batches}) > 25
    counts = np.bincount(np.concatenate(batches), minlength=10)
    assert (
        counts.min() >= 4 and counts.max() <= 22
    )  # 12 in the mean, ± 4 standard deviations of 2.7


def test_full_batches_are_repeated() -> None:
    data = owned(5)
    for how, times in ((Local(local_steps=7), 7), (Local(local_epochs=3, local_steps=7), 3)):
        got = data.batches(how)
        assert isinstance(got, Repeat)
        assert got.batch is data.all and got.times == times


@pytest.mark.parametrize("padding", [1, 6])
def test_padding_does_not_change_the_rows(padding: int) -> None:
    bare, wide = owned(7), owned(7, padding)
    for how in (Local(local_steps=5, batch=3), Local(local_steps=2, batch=9)):
        assert [real(b) for b in wide.batches(how)] == [real(b) for b in bare.batches(how)]
    how = Local(local_epochs=2, batch=3)
    assert [real(b) for b in wide.batches(how) if real(b)] == [real(b) for b in bare.batches(how)]
    assert [real(wide.part(p, 3)) for p in range(3)] == [real(bare.part(p, 3)) for p in range(3)]


def test_a_small_client_gives_all_its_rows() -> None:
    assert sorted(real(owned(3).sample(8, 0))) == [0, 1, 2]


@pytest.mark.parametrize("n, of", [(12, 4), (13, 4), (3, 4), (1, 2), (20, 1)])
def test_parts_are_a_disjoint_cover_for_the_whole_run(n: int, of: int) -> None:
    parts = [real(owned(n, key=1).part(p, of)) for p in range(of)]
    assert sorted(row for part in parts for row in part) == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == [
        real(owned(n, key=99).part(p, of)) for p in range(of)
    ]  # another round, the same cut
    if n > 10 and of > 1:
        assert parts != [real(owned(n, client_key=3).part(p, of)) for p in range(of)]
        assert parts[0] != sorted(parts[0])


def test_weights_travel_with_their_rows() -> None:
    data = owned(6).weighted(torch.arange(6).double() * 10)
    for batch in (
        data.sample(4, 0),
        data.part(1, 2),
        *data.batches(Local(local_epochs=1, batch=4)),
    ):
        assert batch.weight.tolist() == [10 * v for v in batch.x[:, 0].tolist()]
    assert data.size == 6


@dataclass(frozen=True, kw_only=True)
class Probe(ct.Local, ct.Algorithm):
    """Reports the two rows that each of four exchanges would draw."""

    name: ClassVar[str] = "probe"
    paper: ClassVar[str] = "none"

    def start(self, task: Task, clients: int, seed: int) -> tuple[Tensor, Any]:
        return torch.zeros(4, clients, 2), ()

    @client
    def look(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        return Upload({}, {}, {"rows": data.sample(2, 0).x[:, 0]}), private

    def round(self, state: Tensor, ask: Any) -> Tensor:
        asked = [ask(self.look, ask.everyone, stream=s) for s in (None, None, "named", "named")]
        return torch.stack([a.report["rows"] for a in asked])


def seen_by_probe(
    seed: int = 0, rounds: int = 2, engine: str = "loop"
) -> list[list[list[list[float]]]]:
    """[round][exchange][client] → the rows."""
    fed = federation({name: (np.arange(1000.0), np.arange(1000.0)) for name in ("b", "a")})
    run = ready(Probe(), fed, lambda: nn.Linear(1, 1), rounds=rounds, seed=seed, engine=engine)
    next(run.rounds())
    return [run.state.tolist() for _ in run.rounds()]


def test_orders_differ_by_round_exchange_client_and_seed_but_not_within_a_stream() -> None:
    (first, second), (other, _) = seen_by_probe(), seen_by_probe(seed=1)
    assert first[2] == first[3] and second[2] == second[3]
    different = [*first[:3], *second[:3], *other[:3]]
    flat = [tuple(rows) for exchange in different for rows in exchange]
    assert len(set(flat)) == len(flat) == 18
    assert seen_by_probe() == [first, second]


@pytest.mark.parametrize("engine", ["vectorised", "wire"])
def test_orders_are_the_same_on_every_engine(engine: str) -> None:
    assert seen_by_probe(engine=engine) == seen_by_probe()


def test_the_engine_gives_each_client_its_own_key() -> None:
    """Client "a" of round 2, named stream: worked out from the name alone."""
    client_key = randomness.client_keys(["a"], 0)
    key = randomness.keys(client_key, 2, "named")
    x = torch.arange(1000.0, dtype=torch.float64)
    data = Data(Batch.of(x, x, torch.float64), key[0], client_key[0])
    assert (
        seen_by_probe()[1][2][0] == data.sample(2, 0).x.tolist()
    )  # rows of answers are in the order of names
