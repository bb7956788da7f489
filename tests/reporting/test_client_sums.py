"""ClientSums over clients' rows, against means and correlations of the pooled rows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from row_clients import client, side

from coterie.reporting import client_sums as module
from coterie.reporting.client_sums import ClientSums, batch_clients, sum_clients, sum_in_blocks
from coterie.reporting.group_differences import NamedColumn, find_differences


def test_sums_of_clients_are_those_of_the_pooled_rows():
    rng = np.random.default_rng(0)
    parts = [(rng.normal(3, 2, (n, 2)), rng.normal(size=n)) for n in (5, 9, 2)]
    result = sum_clients([(torch.tensor(x), torch.tensor(y)) for x, y in parts], None)
    x = np.concatenate([x for x, _ in parts])
    y = np.concatenate([y for _, y in parts])
    np.testing.assert_allclose(result.mean(), [*x.mean(0), y.mean()])
    np.testing.assert_allclose(result.variance(), [*x.var(0), y.var()])
    # inside the clients: the correlation of what is left when each client's means are taken off
    x, y = (np.concatenate([part - part.mean(0) for part in column]) for column in zip(*parts))
    expected = [np.corrcoef(x[:, j], y)[0, 1] for j in range(2)]
    np.testing.assert_allclose(result.correlation()[0][:2, 0], expected)


def test_standard_errors_are_those_of_drawing_clients_anew():
    # 400 groups of 12 clients whose means and slopes differ: the spread of the groups' statistics
    # is the error
    rng = np.random.default_rng(0)
    means = []
    slopes = []
    errors = []
    for _ in range(400):
        clients = []
        for _ in range(12):
            x = rng.normal(rng.normal(), 1, 20)
            clients.append(client(x, rng.normal(1, 1) * x + rng.normal(0, 1, 20)))
        group = side(*clients)
        r, r_error = group.correlation()
        means.append(group.mean()[0])
        slopes.append(r[0, 0])
        errors.append((group.mean_error()[0], r_error[0, 0]))
    expected = [np.std(means), np.std(slopes)]
    np.testing.assert_allclose(np.sqrt(np.mean(errors, 0)), expected, rtol=0.12)


def test_the_error_of_a_correlation_is_the_sum_of_squared_influences():
    rng = np.random.default_rng(0)
    clients = [(torch.tensor(rng.normal(size=(n, 3))), torch.arange(n) % 4) for n in (9, 12, 5, 7)]
    group = sum_clients(clients, 4)
    r, error = group.correlation()
    spread = group.scatter.sum(0)
    share = group.scatter / spread
    scale = np.sqrt(spread[:3, None] * spread[3:])
    influence = group.cross / scale - r * (share[:, :3, None] + share[:, None, 3:]) / 2
    expected = (influence**2).sum(0) * 4 / 3
    np.testing.assert_allclose(error, np.maximum(expected, 1 / (33 - 4)), rtol=1e-12)
    assert (expected > 1 / (33 - 4)).any()


def test_small_units_change_nothing():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    y = x + 0.1 * rng.normal(size=50)
    r = [side(client(x * unit, y * unit)).correlation()[0][0, 0] for unit in (1, 1e-6, 1e-12)]
    np.testing.assert_allclose(r, r[0])
    assert side(client([1e-9] * 5, [1.0] * 5)).correlation()[0][0, 0] == 0


# ------------------------------------------------------------------------------ blocks
def drawn(clients: int, columns: int, classes: int, rows: int = 10):
    """Clients with random rows and labels."""
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(clients * rows, columns)).astype("float32"))
    y = torch.tensor(rng.integers(0, classes, clients * rows))
    return list(zip(x.split(rows), y.split(rows)))


@pytest.mark.parametrize("classes", [2, 4, 30])
def test_sums_of_a_few_columns_at_a_time_are_those_of_all(monkeypatch, classes):
    clients = drawn(7, 11, classes)
    at_once = sum_clients(clients, classes)
    monkeypatch.setattr(module, "BLOCK_BYTES", 8 * 7 * 6 * 3)
    monkeypatch.setattr(module, "BATCH_VALUES", 30)
    blocks = list(sum_in_blocks(clients, classes))
    assert len(blocks) > 1
    assert [i for block, _ in blocks for i in range(11)[block]] == list(range(11))
    for block, part in blocks:
        labels = np.arange(11, at_once.value.shape[1])
        columns = [*range(11)[block], *labels]
        np.testing.assert_array_equal(part.rows, at_once.rows)
        np.testing.assert_allclose(part.value, at_once.value[:, columns], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(part.scatter, at_once.scatter[:, columns], rtol=1e-12)
        np.testing.assert_allclose(part.cross, at_once.cross[:, block], rtol=1e-9, atol=1e-12)


def test_batches_have_a_limited_number_of_rows_unless_one_client_has_more():
    clients = [(torch.zeros(n, 1), torch.zeros(n)) for n in (2, 3, 9, 1, 1)]
    sizes = [[len(y) for _, y in batch] for batch in batch_clients(clients, 5)]
    assert sizes == [[2, 3], [9], [1, 1]]


def test_comparing_many_columns_takes_no_more_memory_than_a_few(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 2_000_000)
    monkeypatch.setattr(module, "BATCH_VALUES", 100_000)
    clients = drawn(1000, 100, 20, rows=2)
    half = np.arange(1000) % 2 == 0
    columns = [NamedColumn(str(i), str(i)) for i in range(100)]
    labels = [NamedColumn(str(i), str(i)) for i in range(20)]
    few = sum_clients(clients[:9], 20, slice(0, 0))
    find_differences([], labels, few, few, tests=9)  # loads what it needs
    tracemalloc.start()
    for block, each in sum_in_blocks(clients, 20):
        find_differences(columns[block], labels, each.select(half), each.select(~half), tests=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6  # `cross` of all columns at once would take 16 MB, and each side as much


def test_what_holds_only_0_and_1_is_a_share():
    group = ClientSums(
        rows=np.array([4.0]),
        value=np.array([[2.0, 2.0]]),
        scatter=np.array([[1.0, 2.0]]),  # of 0, 1, 0, 1 and of other numbers
        cross=np.zeros((1, 1, 1)),
    )
    assert group.is_binary().tolist() == [True, False]
