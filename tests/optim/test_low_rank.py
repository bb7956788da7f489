"""A first layer as a combination of rows: the same model, and the same sums, as if written out."""

from __future__ import annotations

import pytest
import torch
from local_cases import digits, mlp, model_near, padded, softmax, task_of
from torch import Tensor, tensor
from torch.func import vmap

from coterie.core.contract import Data, Local
from coterie.core.execution import Execution
from coterie.core.params import Params, pick, stack
from coterie.core.task import Task
from coterie.optim import descend, descend_from
from coterie.optim.low_rank import LowRankUpdate, stack_models, sum_low_rank

HOW = {
    "all rows": Local(lr=0.15, local_steps=5),
    "passes": Local(lr=0.15, local_epochs=3, batch=4),
    "draws": Local(lr=0.15, local_steps=7, batch=5),
}


def client(key: int) -> Data:
    """Rows with weights of their own, the last of them padding."""
    rows = padded(digits(10 + key, start=20 * key), 4 - key)
    weight = torch.linspace(0.2, 2.0, 14, dtype=torch.float64)
    return Data(rows._replace(weight=weight), tensor(key), tensor(key))


def three_clients() -> Data:
    """Three clients, leaves [3, ...]."""
    one, two, three = (client(key) for key in (1, 2, 3))
    leaves = [torch.stack(v) for v in zip(one.all, two.all, three.all)]
    keys = tensor([1, 2, 3])
    return Data(type(one.all)(*leaves), keys, keys)


def written_out(task: Task, moved: Params, centre: Params) -> Params:
    """The model of one client, with its first layer as a tensor."""
    assert task.first is not None
    move = moved[task.first.weight]
    assert isinstance(move, LowRankUpdate)
    weights = centre[task.first.weight] - move.coefficients.T @ move.rows
    return {**moved, task.first.weight: weights}


@pytest.mark.parametrize("pull", [0.0, 0.7])
@pytest.mark.parametrize("knows_outputs", [False, True])
@pytest.mark.parametrize("rule", HOW)
@pytest.mark.parametrize("model", [mlp, softmax])
@pytest.mark.usefixtures("always")
def test_a_move_is_what_training_gives(model, rule, knows_outputs, pull):
    task, how = task_of(model), HOW[rule]
    centres = stack([task.init(0), task.init(1)])
    data, chosen = three_clients(), tensor([1, 0, 1])

    def train(data: Data, j: Tensor) -> Params:
        outputs = None
        if knows_outputs:
            outputs = data.all.x.flatten(1) @ centres[task.first.weight][j].T
        batches = data.batches(how)
        permitting = task.with_execution(Execution(low_rank=True))
        return descend_from(permitting, centres, j, batches, how, pull=pull, outputs=outputs)

    moved = vmap(train)(data, chosen)
    assert list(moved) == list(centres), "uploads keep the order of the parameters"
    for i, key in enumerate((1, 2, 3)):
        centre = pick(centres, int(chosen[i]))
        towards = {"pull": pull, "towards": centre} if pull else {}
        plain = descend(task, centre, client(key).batches(how), how, **towards)
        of_client = {k: LowRankUpdate(*(u[i] for u in v)) if isinstance(v, LowRankUpdate) else v[i]
                     for k, v in moved.items()}  # fmt: skip
        model_near(written_out(task, of_client, centre), plain)
        length = (plain[task.first.weight] - centre[task.first.weight]).square().sum()
        torch.testing.assert_close(of_client[task.first.weight].squared_norm, length)


@pytest.mark.parametrize(
    "how",
    [
        Local(lr=0.1, l2=0.1),
        Local(lr=0.1, clip=1.0),
        Local(lr=0.1, solver="heavy_ball"),
        Local(lr=0.1, solver="adam"),
    ],
)
@pytest.mark.usefixtures("always")
def test_other_steps_are_written_out(how):
    task = task_of(mlp)
    centres = stack([task.init(0)])
    data = client(1)
    permitting = task.with_execution(Execution(low_rank=True))
    model = descend_from(permitting, centres, 0, data.batches(how), how)
    model_near(model, descend(task, task.init(0), data.batches(how), how))


@pytest.mark.usefixtures("always")
def test_moves_are_written_out_where_nobody_takes_them():
    task = task_of(mlp)
    centres = stack([task.init(0)])
    for execution in (task.execution, Execution(low_rank=False)):
        how = HOW["draws"]
        model = descend_from(
            task.with_execution(execution), centres, 0, client(1).batches(how), how
        )
        assert all(isinstance(v, Tensor) for v in model.values())


def test_sums_by_hand():
    """Client 0 counts twice for centre 1; client 1 once for centre 0; nobody for centre 2."""
    move = LowRankUpdate(
        coefficients=tensor([[[1.0], [2.0]], [[3.0], [0.0]]]),  # two rows each, one output
        rows=tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [9.0, 9.0]]]),
        squared_norm=tensor([5.0, 18.0]),
    )
    starts = tensor([[[10.0, 10.0]], [[20.0, 20.0]], [[30.0, 30.0]]])
    w = tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    sums = sum_low_rank(w, move, starts)
    # centre 0: 10 − (3, 3); centre 1: 2·(20 − (1, 2)); centre 2: nothing
    assert sums.tolist() == [[[7.0, 7.0]], [[38.0, 36.0]], [[0.0, 0.0]]]


def test_sums_of_stacked_models_are_those_of_each():
    g = torch.Generator().manual_seed(0)
    rows, w = torch.randn(3, 4, 5, generator=g), tensor([[2.0], [1.0], [0.5]])
    each = [LowRankUpdate(torch.randn(3, 4, 2, generator=g), rows, torch.ones(3)) for _ in range(2)]
    starts = torch.randn(1, 2, 2, 5, generator=g)
    stacked = vmap(lambda a, b: stack_models([{"w": a}, {"w": b}]))(*each)["w"]
    assert stacked.matches(starts[0])
    assert stacked.squared_norm.tolist() == [2.0, 2.0, 2.0]
    sums = sum_low_rank(w, stacked, starts)
    for k, move in enumerate(each):
        torch.testing.assert_close(sums[:, k], sum_low_rank(w, move, starts[:, k]))


def test_a_move_that_would_count_for_two_centres_is_an_error():
    move = LowRankUpdate(torch.ones(1, 2, 3), torch.ones(1, 2, 4), torch.ones(1))
    with pytest.raises(ValueError, match="one centre"):
        sum_low_rank(tensor([[0.5, 0.5]]), move, torch.zeros(2, 3, 4))


def test_a_shorter_move_by_hand():
    move = LowRankUpdate(torch.ones(3, 2, 1), torch.ones(3, 2, 4), torch.ones(3))
    short = move.rescale(tensor([2]), tensor([0.25]))
    assert short.coefficients[:, 0, 0].tolist() == [1.0, 1.0, 0.25]
