"""Uploads as integers: sums by hand and by NumPy, small clusters, and numbers that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import tensor

from coterie.aggregation.aggregator import Aggregator
from coterie.aggregation.fixed_point import SCALE, TOO_LARGE, FixedPoint
from coterie.core.contract import Declaration, Finite, OneHot, Report, Upload, Weight
from coterie.core.trees import tree_map

ONE_HOT = Declaration(
    weight=OneHot(rows=True),
    report={"seen": Report(secure="summed"), "own": Report(secure="withheld")},
)


def upload_of(values: list[list[float]], weight: list[list[float]], seen: list[int]) -> Upload:
    """Uploads of several clients."""
    n = len(values)
    report = {"seen": tensor(seen), "own": torch.arange(n)}
    return Upload({"model": {"w": tensor(values)}}, tensor(weight), report)


def aggregate(updates: Upload, declaration: Declaration, min_clients: int = 2, chunks: int = 1):
    """The finished aggregate of some clients, added in chunks."""
    template = tree_map(lambda v: torch.zeros_like(v[0]), updates)
    n = len(next(iter(updates.values["model"].values())))
    fixed_point = FixedPoint(template, declaration, n, min_clients)
    aggregator = Aggregator("sum", template, n, fixed_point=fixed_point)
    parts = [
        aggregator.add(at, tree_map(lambda v, at=at: v[at], updates))
        for at in torch.arange(n).chunk(chunks)
    ]
    return aggregator.finish(aggregator.merge(parts))


def test_sums_by_hand():
    """Clusters 0 and 1 get 2·(1, ½) + 4·(3, 0) = (14, 1) and 1·(5, 7) + 1·(1, 1) = (6, 8)."""
    updates = upload_of(
        [[1.0, 0.5], [5.0, 7.0], [3.0, 0.0], [1.0, 1.0]],
        [[2.0, 0.0], [0.0, 1.0], [4.0, 0.0], [0.0, 1.0]],
        seen=[1, 1, 1, 0],
    )
    result = aggregate(updates, ONE_HOT)
    assert result.totals["model"]["w"].tolist() == [[14.0, 1.0], [6.0, 8.0]]
    assert result.mass["model"].tolist() == [6.0, 2.0]
    assert result.updates.report["seen"].tolist() == [3]
    assert "own" not in result.updates.report  # withheld
    assert result.norms == {} and not result.updates.weight  # nothing is kept of a client


def test_a_small_cluster_is_hidden_and_counts_its_report():
    updates = upload_of(
        [[1.0, 0.5], [5.0, 7.0], [3.0, 0.0]],
        [[2.0, 0.0], [0.0, 1.0], [4.0, 0.0]],
        seen=[1, 1, 1],
    )
    result = aggregate(updates, ONE_HOT, min_clients=2)
    assert result.totals["model"]["w"].tolist() == [[14.0, 1.0], [0.0, 0.0]]
    assert result.mass["model"].tolist() == [6.0, 0.0]
    assert result.updates.report["seen"].tolist() == [3]


@pytest.mark.parametrize("chunks", [1, 3, 7])
def test_soft_weights_numpy(chunks):
    """Each client rounds its own products; the order of the sum does not matter."""
    rng = np.random.default_rng(0)
    values, weight = rng.normal(size=(7, 5)).astype(np.float32), rng.random((7, 3))
    updates = Upload({"model": {"w": torch.from_numpy(values)}}, torch.from_numpy(weight), {})
    result = aggregate(updates, Declaration(), chunks=chunks)
    products = weight[:, :, None] * values.astype(np.float64)[:, None]
    expected = np.rint(products * 2.0**24).astype(np.int64).sum(0) / 2.0**24
    np.testing.assert_array_equal(result.totals["model"]["w"], expected.astype(np.float32))
    np.testing.assert_allclose(result.mass["model"], weight.sum(0), atol=7 / SCALE)


def test_sums_over_rows_may_be_large():
    """2⁵⁰ + ¼ and −1½ would not fit into 2⁶⁴ with 24 binary places, times many clients."""
    declared = Declaration(weight=Weight(), sums=True, report={"y": Finite(secure="summed")})
    big = tensor([[2.0**50 + 0.25], [-1.5]], dtype=torch.float64)
    updates = Upload({"model": {"w": big}}, torch.ones(2, 1), {"y": big[:, 0]})
    result = aggregate(updates, declared)
    assert result.totals["model"]["w"].tolist() == [[2.0**50 - 1.25]]
    assert result.updates.report["y"].tolist() == [2.0**50 - 1.25]


@pytest.mark.parametrize("bad", [2.0**40, float("inf"), float("nan")])
def test_numbers_that_do_not_fit_are_rejected(bad):
    updates = upload_of([[1.0, 1.0], [bad, 1.0], [1.0, 1.0]], [[1.0]] * 3, seen=[1, 1, 1])
    result = aggregate(updates, Declaration(report=ONE_HOT.report))
    ((position, reason),) = result.rejected
    assert position == 1 and (reason == TOO_LARGE or "NaN or infinity" in reason)
    assert result.totals["model"]["w"].tolist() == [[2.0, 2.0]]
    infinite = updates._replace(
        values={"model": {"w": torch.ones(3, 2)}},
        report={"seen": tensor([1.0, torch.inf, 1.0]), "own": torch.zeros(3)},
    )
    assert aggregate(infinite, Declaration(report=ONE_HOT.report)).rejected == [(1, TOO_LARGE)]


def test_a_vector_and_back():
    updates = upload_of([[1.0, 0.5], [5.0, 7.0]], [[2.0, 0.0], [0.0, 1.0]], seen=[1, 0])
    template = tree_map(lambda v: torch.zeros_like(v[0]), updates)
    fixed_point = FixedPoint(template, ONE_HOT, 2, 2)
    sums = fixed_point.encode(updates)
    vector = fixed_point.flatten(sums)
    again = fixed_point.unflatten(vector, fixed_point.zeros())
    assert tree_map(torch.Tensor.tolist, again) == tree_map(torch.Tensor.tolist, sums)
