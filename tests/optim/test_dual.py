"""The dual form against plain steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_cases import X, Y, digits, equal, mlp, model_near, padded, softmax, task_of
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from coterie.core.contract import Data, Drawn, Local, Repeat
from coterie.core.params import Params, zeros
from coterie.core.task import Batch, Task
from coterie.optim import descend, heavy_ball, sgd, solvers
from coterie.optim.dual_weights import gram_matrix
from coterie.optim.forms import DualForm

Force = Callable[[int | None], None]


# ------------------------------------------------------------------------------ dual = plain
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
        self.a = nn.Linear(64, 10)
        self.b = nn.Linear(64, 10, bias=False)
        self.c = nn.Parameter(torch.randn(64, 10) / 8)

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


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("model", DUAL)
@pytest.mark.usefixtures("always")
def test_dual_is_plain(model: str, terms: str, dual_calls: list[int]) -> None:
    task = task_of(DUAL[model])
    assert task.first is not None
    batch = padded(digits(13), 4)
    batch = batch._replace(weight=torch.linspace(0.2, 2.0, 17, dtype=torch.float64))
    w, u, centre = task.init(0), task.init(1), task.init(2)
    how = Local(lr=0.15, l2=TERMS[terms].get("l2", 0.0))
    pull = {"pull": 0.7, "towards": centre} if "pull" in TERMS[terms] else {}
    for times in (1, 2, 7):
        repeat = Repeat(batch, times)
        plain = sgd(task, w, repeat, how, **pull, dual=False)
        model_near(sgd(task, w, repeat, how, **pull), plain)
        new, momentum = heavy_ball(task, w, u, repeat, how, 0.9, **pull)
        plain, plain_momentum = heavy_ball(task, w, u, repeat, how, 0.9, **pull, dual=False)
        model_near(new, plain)
        model_near(momentum, plain_momentum)
    assert len(dual_calls) == 6


# ------------------------------------------------------------------------------ batches of own rows
def client(real: int = 13, padding: int = 4, key: int = 1) -> Data:
    """Rows with weights of their own, the last of them padding."""
    rows = padded(digits(real, start=20 * key), padding)
    weight = torch.linspace(0.2, 2.0, real + padding, dtype=torch.float64)
    return Data(rows._replace(weight=weight), torch.tensor(key), torch.tensor(key))


PASSES = Local(local_epochs=3, batch=4)  # the last batch of a pass has one real row
DRAWS = Local(local_steps=7, batch=5)
RULES: dict[str, Callable[[Data], Repeat | Drawn]] = {
    "passes": lambda data: data.batches(PASSES),
    "draws": lambda data: data.batches(DRAWS),
    "all rows": lambda data: data.batches(Local(local_steps=5)),
    "some passes": lambda data: data.first_batches(PASSES, torch.tensor(2)),
    "some draws": lambda data: data.first_batches(DRAWS, torch.tensor(3)),
    "some steps": lambda data: data.first_batches(Local(local_steps=5), torch.tensor(2)),
    "draws of one's own": lambda data: data.samples(5, [torch.tensor(9), 4, 9]),
}
SOLVERS: dict[str, dict[str, float]] = {
    "sgd": {},
    "sgd, l2": {"l2": 0.2},
    "sgd, pull": {"pull": 0.7},
    "sgd, pull and l2": {"pull": 0.7, "l2": 0.2},
    "heavy ball": {"beta": 0.9},
    "heavy ball, l2": {"beta": 0.9, "l2": 0.2},
    "heavy ball, pull": {"beta": 0.9, "pull": 0.7},
    "heavy ball, pull and l2": {"beta": 0.9, "pull": 0.7, "l2": 0.2},
}
TASKS = {name: task_of(DUAL[name]) for name in ("softmax", "mlp", "mlp without bias", "gated")}

STARTS = {task: [task.init(j) for j in range(3)] for task in TASKS.values()}


def trained(task: Task, data: Data, rule: str, solver: str, dual: bool) -> tuple[Params, Params]:
    """(model, momentum) after a local training."""
    terms = SOLVERS[solver]
    how = Local(lr=0.15, l2=terms.get("l2", 0.0))
    w, u, centre = STARTS[task]
    pull = {"pull": terms["pull"], "towards": centre} if "pull" in terms else {}
    batches = RULES[rule](data)
    if "beta" in terms:
        return heavy_ball(task, w, u, batches, how, terms["beta"], **pull, dual=dual)
    return sgd(task, w, batches, how, **pull, dual=dual), u


@pytest.mark.parametrize("rows", [None, 8, 11, 1000])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_dual_is_plain_for_batches_of_own_rows(
    solver: str, rule: str, rows: int | None, force: Force, dual_calls: list[int]
) -> None:
    force(rows)
    for task in TASKS.values():
        dual, plain = (trained(task, client(), rule, solver, dual) for dual in (True, False))
        model_near(dual[0], plain[0])
        model_near(dual[1], plain[1])
        assert not equal(plain[0], STARTS[task][0])
    assert len(dual_calls) == len(TASKS)


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize("rule", ["passes", "draws", "all rows", "some passes"])
@pytest.mark.parametrize("solver", ["sgd", "heavy ball, pull and l2"])
def test_dual_of_many_clients_is_dual_of_each(
    solver: str, rule: str, rows: int | None, force: Force
) -> None:
    """Ragged clients, padded to one length, and one that has only padding after its first rows."""
    force(rows)
    task = TASKS["mlp"]
    sizes = (13, 9, 3)
    ragged = [client(n, 13 - n, key) for key, n in enumerate(sizes, 1)]
    together = tree_map(lambda *leaves: torch.stack(leaves), *ragged)
    models, momenta = vmap(lambda data: trained(task, data, rule, solver, True))(together)
    for i, n in enumerate(sizes):
        alone = client(n, 0, i + 1)
        weight = ragged[i].all.weight[:n]
        alone = alone._replace(own=alone.own._replace(weight=weight))
        model, momentum = trained(task, alone, rule, solver, False)
        model_near({k: v[i] for k, v in models.items()}, model)
        model_near({k: v[i] for k, v in momenta.items()}, momentum)


@pytest.mark.usefixtures("always")
def test_steps_may_start_at_their_centre_and_leave_it_alone() -> None:
    """As in FedProx: the centre of the pull is the very model that training starts from."""
    task = TASKS["mlp"]
    w = task.init(0)
    before = {k: v.clone() for k, v in w.items()}
    dual, plain = (
        sgd(task, w, client().batches(PASSES), Local(), pull=0.7, towards=w, dual=dual)
        for dual in (True, False)
    )
    model_near(dual, plain)
    assert equal(w, before)


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 131])
def test_the_gram_matrix_is_that_of_all_pairs(rows: int) -> None:
    x = X[:rows].flatten(1)
    torch.testing.assert_close(gram_matrix(x), x @ x.T, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------ one repeated batch
def test_dual_is_plain_on_flat_rows(dual_calls: list[int]) -> None:
    x = X[:15].flatten(1)
    task = Task(lambda: nn.Linear(64, 10), "classification", x[:2], 10, torch.float64)
    w, centre = task.init(0), task.init(1)
    repeat = Repeat(Batch.of(x, Y[:15], torch.float64), 9)
    how = Local(l2=0.1)
    pull = {"pull": 0.3, "towards": centre}
    plain = sgd(task, w, repeat, how, **pull, dual=False)
    model_near(sgd(task, w, repeat, how, **pull), plain)
    assert dual_calls == [1]


def test_dual_leaves_what_it_was_given_alone() -> None:
    task, repeat = task_of(mlp), Repeat(digits(10), 5)
    w, u, centre = task.init(0), task.init(1), task.init(2)
    before = [{k: v.clone() for k, v in p.items()} for p in (w, u, centre)]
    heavy_ball(task, w, u, repeat, Local(l2=0.1), 0.9, pull=0.3, towards=centre)
    assert all(equal(a, b) for a, b in zip((w, u, centre), before))
    assert "forward" not in vars(task.module[1])  # the layer computes again


def test_the_dual_form_is_taken_only_where_it_is_exact_and_pays(dual_calls: list[int]) -> None:
    task, batch = task_of(mlp), digits(10)
    w = task.init(0)
    sgd(task, w, Repeat(batch, 5), Local(clip=1.0))
    sgd(task, w, Repeat(batch, 5), Local(), dual=False)
    sgd(task, w, [batch] * 5, Local())
    # 500 rows of 64 numbers: the Gram matrix would cost more
    sgd(task, w, Repeat(digits(500), 2), Local())
    assert not dual_calls
    sgd(task, w, Repeat(batch, 5), Local())
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
    n: int,
    shape: tuple[int, ...],
    hidden: int,
    bias: bool,
    times: int,
    beta: float | None,
    pull: float | None,
    l2: float,
    kind: Any,
    seed: int,
) -> None:
    d = int(np.prod(shape))
    classes = 3 if kind == "classification" else None
    outputs = classes or 1
    last = [nn.Tanh(), nn.Linear(hidden, outputs)] if hidden else []
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(d, hidden or outputs, bias=bias), *last)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=g, dtype=torch.float64)
    y = torch.randint(3, (n,), generator=g) if classes else x.flatten(1).sum(1)
    mask = (torch.rand(n, generator=g) < 0.8).double()
    batch = Batch(x, y, mask, torch.rand(n, generator=g, dtype=torch.float64))
    task = Task(make, kind, x, classes, torch.float64)
    assert task.first is not None
    w, u, centre = task.init(seed, 0), task.init(seed, 1), task.init(seed, 2)
    how = Local(lr=0.1, l2=l2)
    pulled = {} if pull is None else {"pull": pull, "towards": centre}
    repeat = Repeat(batch, times)
    ends = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "choose_form", lambda *_: DualForm(None, 1.0))
        for dual in (True, False):
            if beta is None:
                ends.append((sgd(task, w, repeat, how, **pulled, dual=dual), w))
            else:
                ends.append(heavy_ball(task, w, u, repeat, how, beta, **pulled, dual=dual))
    (model, momentum), (plain_model, plain_momentum) = ends
    model_near(model, plain_model)
    model_near(momentum, plain_momentum)


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pull", [None, 0.7])
def test_momentum_that_begins_with_rest_is_plain(
    rule: str, rows: int | None, pull: float | None, force: Force, dual_calls: list[int]
) -> None:
    """Nobody asks for the momentum afterwards, so the dual form leaves out its products."""
    force(rows)
    task = TASKS["mlp"]
    w, _, centre = STARTS[task]
    how = Local(lr=0.15, l2=0.1, solver="heavy_ball", momentum=0.8)
    terms = {} if pull is None else {"pull": pull, "towards": centre}
    batches = RULES[rule](client())
    plain, _ = heavy_ball(task, w, zeros(w), batches, how, 0.8, **terms, dual=False)
    model_near(descend(task, w, batches, how, **terms), plain)
    assert dual_calls == [1]


@pytest.mark.parametrize("rule", ["passes", "draws", "all rows"])
@pytest.mark.parametrize("solver", ["sgd", "heavy_ball"])
@pytest.mark.usefixtures("always")
def test_outputs_that_are_known_are_not_computed_again(rule: str, solver: str) -> None:
    task, data = TASKS["mlp"], client()
    w, *_ = STARTS[task]
    how = Local(lr=0.15, solver=solver)
    known = task.first_outputs([w], data.all.x)[:, 0]
    without = descend(task, w, RULES[rule](data), how)
    model_near(descend(task, w, RULES[rule](data), how, outputs=known), without)
    assert not equal(descend(task, w, RULES[rule](data), how, outputs=known + 1), without)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("solver", ["sgd", "heavy ball, pull and l2"])
def test_very_many_steps_are_drawn_some_at_a_time(
    rule: str, solver: str, force: Force, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs that are known serve the first block alone."""
    force(None)
    task = TASKS["mlp"]
    at_once = [trained(task, client(), rule, solver, dual) for dual in (True, False)]
    known = task.first_outputs([STARTS[task][0]], client().all.x)[:, 0]
    descended = descend(task, STARTS[task][0], RULES[rule](client()), Local(), outputs=known)
    monkeypatch.setattr("coterie.optim.dual.MAX_STEPS", 2)
    monkeypatch.setattr("coterie.optim.plain.MAX_STEPS", 2)
    for dual, (model, momentum) in zip((True, False), at_once):
        in_blocks = trained(task, client(), rule, solver, dual)
        model_near(in_blocks[0], model)
        model_near(in_blocks[1], momentum)
    again = descend(task, STARTS[task][0], RULES[rule](client()), Local(), outputs=known)
    model_near(again, descended)
