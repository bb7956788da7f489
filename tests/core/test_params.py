"""Maths on models: every function by hand."""

import pytest
import torch
from torch import tensor

from coterie.core import params as p

X = {"a": tensor([1.0, 2.0]), "b": tensor([[3.0]])}
Y = {"a": tensor([10.0, 20.0]), "b": tensor([[-1.0]])}
STACKED = {"w": tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), "shared": tensor([[7.0]])}


def same(params: p.Params, **want: list) -> None:
    assert {k: v.tolist() for k, v in params.items()} == want


def test_arithmetic() -> None:
    same(p.axpy(2.0, X, Y), a=[12.0, 24.0], b=[[5.0]])
    same(p.minus(X, Y), a=[-9.0, -18.0], b=[[4.0]])
    same(p.mix(0.25, X, Y), a=[3.25, 6.5], b=[[2.0]])  # ¾·x + ¼·y
    same(p.scale(-2.0, X), a=[-2.0, -4.0], b=[[-6.0]])
    same(p.zeros(X), a=[0.0, 0.0], b=[[0.0]])


def test_dot_and_norm_go_over_all_leaves() -> None:
    assert p.dot(X, Y) == 10 + 40 - 3
    assert p.norm({"a": tensor([2.0, 3.0]), "b": tensor([[6.0]])}) == 7


def test_where_goes_through_nests() -> None:
    for condition, kept in ((True, X), (False, Y)):
        model, nothing = p.where(tensor(condition), (X, None), (Y, None))
        assert nothing is None
        same(model, **{k: v.tolist() for k, v in kept.items()})


def test_stacked_models() -> None:
    assert p.count(STACKED) == 3
    same(p.pick(STACKED, 1), w=[3.0, 4.0], shared=[7.0])
    same(p.pick(STACKED, tensor(2)), w=[5.0, 6.0], shared=[7.0])
    same(p.pick_rows(STACKED, tensor([2, 0])), w=[[5.0, 6.0], [1.0, 2.0]], shared=[[7.0], [7.0]])
    assert [m["w"].tolist() for m in p.unstack(STACKED)] == STACKED["w"].tolist()
    same(p.stack([X, Y]), a=[[1.0, 2.0], [10.0, 20.0]], b=[[[3.0]], [[-1.0]]])


def test_repeated_copies_do_not_share_memory() -> None:
    twice = p.repeated(X, 2)
    twice["a"][0] = 0.0
    same(twice, a=[[0.0, 0.0], [1.0, 2.0]], b=[[[3.0]], [[3.0]]])
    assert X["a"].tolist() == [1.0, 2.0]


def test_flatten_and_back() -> None:
    flat = p.flatten(p.stack([X, Y]))
    assert flat.tolist() == [[1.0, 2.0, 3.0], [10.0, 20.0, -1.0]]
    same(p.unflatten(flat, X), a=[[1.0, 2.0], [10.0, 20.0]], b=[[[3.0]], [[-1.0]]])


def test_as_column_multiplies_models() -> None:
    models = torch.ones(2, 1, 2)
    assert (p.as_column(tensor([2.0, 3.0]), models) * models).tolist() == [[[2, 2]], [[3, 3]]]


@pytest.mark.parametrize(
    "losses, index",
    [
        ([3.0, 1.0, 2.0], 1),
        ([2.0, 1.0, 1.0], 1),  # ties: the lowest index
        ([torch.nan, 5.0, 6.0], 1),
        ([5.0, torch.nan, 4.0], 2),
        ([-torch.inf, torch.inf, 9.0], 2),
        ([torch.nan, torch.inf, -torch.inf], -1),
    ],
)
def test_argmin_finite(losses: list[float], index: int) -> None:
    assert p.argmin_finite(tensor(losses)) == index


def test_argmin_finite_takes_the_last_axis() -> None:
    losses = tensor([[2.0, 1.0], [torch.nan, torch.nan], [0.0, 1.0]])
    assert p.argmin_finite(losses).tolist() == [1, -1, 0]


def test_one_hot_of_no_choice_is_nan() -> None:
    hot = p.one_hot(tensor([2, 0, -1]), 3, torch.float64)
    assert hot.dtype == torch.float64
    assert hot[:2].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert hot[2].isnan().all()


def test_nbytes() -> None:
    nest = {"a": torch.zeros(2, 3), "b": [torch.zeros(5, dtype=torch.int64), "word"]}
    assert p.nbytes(nest) == 24 + 40
