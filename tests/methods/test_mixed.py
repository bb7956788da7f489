"""Mixed: a step by hand, NumPy in the space of rows, statsmodels, planted groups, odd clients."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils._pytree import tree_leaves

import coterie as ct
from cases import Problem, finished, lines
from coterie.methods.random_effects import Design, find_mode
from oracles import Rows, federation, same_groups
from record_mixed_lm import MODELS, RECORD, read_rows

TABLES = Path(os.environ.get("COTERIE_DATA", "data")) / "sites"


def fit(clients: dict[str, Rows], method: ct.Mixed, model="linear", **options):
    options = {"dtype": "float64", "eval_every": 100, **options}
    return ct.run(method, federation(clients), model=model, **options)


def mixture(result):
    return result.trained.state.best.mixture


# ------------------------------------------------------------------------------ one step
def test_a_step_by_hand():
    """Two clients with the row x = 1, y = ±1, from μ = 0, τ = 1/20, s² = 1.

    A = 1 + τ = 21/20, so b = ±τ/A = ±1/21, u² = τ/A², and each determines 1 − 1/A = 1/21 of b.
    τ ← τ·u²/(1 − 1/A) = τ/A = 1/21. Residuals are ±20/21, so s² ← 2·(20/21)²/(2 − 2/21) = 20/21.
    Labels are N(0, τ + s²) = N(0, 21/20).
    """
    clients = {"a": (np.array([[1.0]]), np.array([1.0])), "b": (np.array([[1.0]]), np.array([-1]))}
    method = ct.Mixed(clusters=1, shrink=False, max_steps=1)
    result = fit(clients, method, model=lambda: nn.Linear(1, 1, bias=False))
    found = mixture(result)
    assert found.means.item() == pytest.approx(0)
    assert found.variances.item() == pytest.approx(1 / 21)
    assert found.noise.item() == pytest.approx(20 / 21)
    log_likelihood = -math.log(2 * math.pi * 21 / 20) - 20 / 21
    assert result.history[-1]["notes"]["log_likelihood"] == pytest.approx(log_likelihood)


# ------------------------------------------------------------------------------ NumPy
def step_in_numpy(clients: list[Rows], mu, tau, s2, pi):
    """One EM step of maximum likelihood, from covariances of labels instead of coefficients."""
    n, k = len(clients), len(mu)
    joint, parts = np.zeros((n, k)), {}
    for i, (x, y) in enumerate(clients):
        covariance = x @ np.diag(tau) @ x.T + s2 * np.eye(len(y))
        inverse = np.linalg.inv(covariance)
        for j in range(k):
            off = y - x @ mu[j]
            joint[i, j] = np.log(pi[j]) - 0.5 * (
                len(y) * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1] + off @ inverse @ off
            )
            b = mu[j] + np.diag(tau) @ x.T @ inverse @ off
            v = np.diag(tau) - np.diag(tau) @ x.T @ inverse @ x @ np.diag(tau)
            parts[i, j] = (b, v, x.T @ inverse @ x, x.T @ inverse @ y, ((y - x @ b) ** 2).sum())
    total = np.logaddexp.reduce(joint, 1)
    r = np.exp(joint - total[:, None])
    new = np.zeros_like(mu)
    for j in range(k):
        left = sum(r[i, j] * parts[i, j][2] for i in range(n))
        new[j] = np.linalg.solve(left, sum(r[i, j] * parts[i, j][3] for i in range(n)))
    pairs = [(i, j) for i in range(n) for j in range(k)]
    determined = sum(r[i, j] * (1 - np.diag(parts[i, j][1]) / tau) for i, j in pairs)
    squares = sum(r[i, j] * (parts[i, j][0] - mu[j]) ** 2 for i, j in pairs)
    residuals = sum(r[i, j] * parts[i, j][4] for i, j in pairs)
    rows = sum(len(y) for _, y in clients)
    shares = (r.sum(0) + 0.5) / (n + 0.5 * k)
    return (new, squares / determined, residuals / (rows - determined.sum()), shares), total.sum()


@pytest.mark.parametrize("groups", [1, 2])
def test_steps_are_those_of_numpy(groups, tmp_path):
    problem = lines(clients=7, groups=groups, dim=2, least=6, noise=0.7)
    rng = np.random.default_rng(1)
    for k in range(groups):
        start = {"weight": torch.tensor(rng.normal(size=(1, 2))), "bias": torch.zeros(1).double()}
        save_file(start, tmp_path / f"group-{k}.safetensors")
    method = ct.Mixed(clusters=groups, shrink=False, max_steps=4, start_from=str(tmp_path))
    run = finished(problem.ready(method))
    units, found = run.state.units, run.state.best.mixture

    clients = []
    for x, y in problem.clients:
        x = (x - units.shift.numpy()) / units.scale.numpy()
        y = (y - units.label_shift.item()) / units.label_scale.item()
        clients.append((np.column_stack([np.ones(len(y)), x]), y))
    pooled = np.concatenate([x for x, _ in clients])
    np.testing.assert_allclose(pooled.mean(0), [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(pooled.std(0), [0, 1, 1])
    starts = problem.begun(method).state.best.mixture.means[:, 0].numpy()
    values = (starts, np.full(3, 0.05), 1.0, np.full(groups, 1 / groups))
    for _ in range(4):
        values, likelihood = step_in_numpy(clients, *values)
    np.testing.assert_allclose(found.means[:, 0], values[0], rtol=1e-6)
    np.testing.assert_allclose(found.variances[0], values[1], rtol=1e-6)
    assert found.noise.item() == pytest.approx(values[2])
    np.testing.assert_allclose(found.shares, values[3])
    assert run.history[-1]["notes"]["log_likelihood"] == pytest.approx(likelihood)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", ["ordinary", "separable", "one class", "one row"])
def test_the_mode_is_a_minimum(classes, kind):
    torch.manual_seed(0)
    n = 1 if kind == "one row" else 40
    x = torch.randn(n, 3, dtype=torch.float64)
    labels = torch.randint(classes, (n,))
    if kind == "separable":
        labels = (x[:, 1] > 0).long()
    if kind == "one class":
        labels = torch.zeros(n, dtype=torch.long)
    y = torch.nn.functional.one_hot(labels, classes).double()
    outputs = 1 if classes == 2 else classes
    mean = torch.randn(outputs, 3, dtype=torch.float64)
    variances = torch.tensor([[4.0, 0.3, 0.0]], dtype=torch.float64).expand(outputs, 3)
    rows = Design(x, y[:, 1:] if classes == 2 else y, torch.ones(n).double())
    found = find_mode(rows, mean, variances, torch.ones(()).double())
    b = found.coefficients
    torch.testing.assert_close(b[:, 2], mean[:, 2])  # its variance is 0
    z = x @ b.T
    p = (torch.cat([0 * z, z], 1) if classes == 2 else z).softmax(1)
    gradient = ((p - y).T @ x)[-outputs:] * variances + (b - mean)
    assert gradient.abs().max() < 1e-3 * (1 + (b - mean).abs().max())


# ------------------------------------------------------------------------------ statsmodels
@pytest.mark.parametrize("table", MODELS)
def test_one_group_is_the_linear_mixed_model_of_statsmodels(table):
    if not (TABLES / f"{table}.csv").exists():
        pytest.skip(f"needs {table}.csv in the folder sites of COTERIE_DATA")
    rows = read_rows(TABLES, table)
    clients = {str(s): (rows.x[rows.site == s], rows.y[rows.site == s]) for s in set(rows.site)}
    method = ct.Mixed(clusters=1, shrink=False, tolerance=1e-5, max_steps=300)
    result = fit(clients, method)
    found, expected = mixture(result), json.loads(RECORD.read_text())[table]
    np.testing.assert_allclose(found.means[0, 0], expected["coefficients"], atol=1e-3)
    np.testing.assert_allclose(found.variances[0], expected["variances"], atol=1e-3)
    assert found.noise.item() == pytest.approx(expected["noise"], abs=1e-3)
    log_likelihood = result.history[-1]["notes"]["log_likelihood"]
    assert log_likelihood == pytest.approx(expected["log_likelihood"], abs=1e-3)


# ------------------------------------------------------------------------------ groups
def planted(groups: int, clients: int, seed: int, classes: int = 0, rows: int = 40) -> Problem:
    """Coefficients of groups from N(0, 1), of clients 0.2 around them; noise 1."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups, max(classes, 1), 5)) * (2 if classes > 2 else 1)
    data = []
    for i in range(clients):
        b = centres[i % groups] + 0.2 * rng.normal(size=centres.shape[1:])
        x = rng.normal(size=(rows, 4))
        z = b[:, 0] + x @ b[:, 1:].T
        y = z[:, 0] + rng.normal(size=rows)
        if classes:
            y = (z + rng.gumbel(size=z.shape)).argmax(1)
        data.append((x, y))
    truth = [i % groups for i in range(clients)]
    how = {"labels": tuple("abcdef"[:classes])} if classes else {}
    fed = federation(data, truth=truth, **how)
    return Problem(fed, lambda: nn.Linear(4, classes or 1), None)


@pytest.mark.parametrize("groups, clients", [(1, 20), (2, 6), (3, 18)])
def test_planted_groups_are_found_and_no_others(groups, clients):
    found = 0
    for seed in range(2):
        problem = planted(groups, clients, seed)
        run = problem.run(ct.Mixed(), eval_every=100, engine="vectorised")
        labels = run.groups().tolist()
        found += same_groups(labels, [i % groups for i in range(clients)])
        assert run.history[-1]["finished"] and run.round < 10
    assert found == 2


@pytest.mark.slow
def test_planted_groups_of_every_size_are_found():
    right = agreement = 0
    tables = [(2, 6), (2, 12), (2, 40), (3, 6 * 3), (3, 24), (3, 40), (4, 24), (4, 32), (4, 40)]
    for seed, (groups, clients) in enumerate([*tables, (1, 30)]):
        run = planted(groups, clients, 50 + seed).run(ct.Mixed(), engine="vectorised")
        row = run.history[-1]
        right += len(row["sizes"]) == groups
        agreement += row["ari"] / 10
    assert right >= 9 and agreement >= 0.95


def test_planted_groups_of_classifiers_are_found():
    problem = planted(2, 8, seed=1, classes=3, rows=100)
    run = problem.run(ct.Mixed(), eval_every=100, engine="vectorised")
    assert same_groups(run.groups().tolist(), [i % 2 for i in range(8)])


def test_memberships_are_probabilities_and_the_number_of_groups_can_be_given():
    problem = lines(clients=8, groups=2, least=6, noise=1.0)
    run = problem.run(ct.Mixed(clusters=3), eval_every=100)
    assert run.round == 1 and run.state.memberships.shape == (8, 3)
    torch.testing.assert_close(run.state.memberships.sum(1), torch.ones(8).double())


# ------------------------------------------------------------------------------ clients
def alike(clients: int, rows: int, seed: int = 0) -> dict[str, Rows]:
    """Clients with the same coefficients."""
    rng = np.random.default_rng(seed)
    xs = [rng.normal(size=(rows, 2)) for _ in range(clients)]
    return {f"c{i}": (x, 1 + x @ [2.0, -1.0] + rng.normal(size=rows)) for i, x in enumerate(xs)}


def test_clients_that_do_not_differ_get_the_pooled_model():
    clients = alike(clients=30, rows=10)
    result = fit(clients, ct.Mixed(shrink=False, max_steps=300))
    x, y = (np.concatenate(parts) for parts in zip(*clients.values()))
    pooled = np.linalg.lstsq(np.column_stack([np.ones(len(y)), x]), y, rcond=None)[0]
    assert mixture(result).means.shape[0] == 1
    for name in ("c0", "c7"):
        outputs = result.predict(np.array([[0.0, 0], [1, 0], [0, 1]]), client=name).numpy()
        expected = np.array([0, 1, 1]) * pooled + [pooled[0], pooled[0], pooled[0]]
        np.testing.assert_allclose(outputs, expected, atol=0.15)


def test_units_do_not_matter():
    problem = planted(1, 10, seed=3)
    clients = {f"c{i}": rows for i, rows in enumerate(problem.clients)}
    other = {k: (1000 * x + [5, 0, -3, 1e4], 7 * y + 100) for k, (x, y) in clients.items()}
    one, two = fit(clients, ct.Mixed()), fit(other, ct.Mixed())
    x = np.eye(4)
    expected = 7 * one.predict(x, client="c3").numpy() + 100
    found = two.predict(1000 * x + [5, 0, -3, 1e4], client="c3").numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_new_client_with_few_rows_gets_nearly_its_group_and_with_many_its_own():
    problem = planted(1, 20, seed=0)
    clients = {f"c{i}": rows for i, rows in enumerate(problem.clients)}
    result = fit(clients, ct.Mixed(), rounds=1)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(5000, 4))
    at = np.ones((1, 4))
    group = result.predict(at, cluster=0).item()
    y = result.predict(x, cluster=0).numpy() + 1 + rng.normal(size=5000)
    few, many = (result.predict(at, support=(x[:n], y[:n])).item() for n in (1, 5000))
    assert abs(few - group) < 0.5
    assert many == pytest.approx(group + 1, abs=0.2)


@pytest.mark.parametrize("classes", [2, 3])
def test_clients_with_one_row_one_class_or_separable_classes_harm_nobody(classes):
    rng = np.random.default_rng(0)
    labels = tuple("abc"[:classes])
    data = {}
    for i in range(12):
        n = [1, 2, 8, 60][i % 4]
        x = rng.normal(size=(n, 3))
        z = x @ rng.normal(size=(3, classes)) * 0.3 + x[:, :1] * np.arange(classes)
        y = (z + rng.gumbel(size=z.shape)).argmax(1)
        if i % 3 == 0:
            y[:] = i % classes
        if i == 11:  # separable, by a column that is large
            x[:, 2] = 50 * (2 * (y > 0) - 1)
        data[f"c{i}"] = (x, y)
    fed = federation(data, test=data, labels=labels)
    result = ct.run(ct.Mixed(clusters=1, max_steps=30), fed, model="linear")
    state = result.trained.state
    assert all(v.isfinite().all() for v in tree_leaves(state) if v.is_floating_point())
    assert result.final["loss"] < math.log(classes)
    assert not any(row["rejected"] or row["clipped"] for row in result.history)


def test_a_large_client_is_not_clipped():
    clients = alike(clients=6, rows=5) | {"large": alike(1, 3000, seed=9)["c0"]}
    result = fit(clients, ct.Mixed(clusters=1))
    assert not any(row["clipped"] or row["rejected"] for row in result.history)


# ------------------------------------------------------------------------------ runs
def test_engines_agree_and_a_finished_run_stays_finished(tmp_path):
    problem = planted(2, 6, seed=2)
    states = []
    for engine in ("loop", "vectorised", "wire"):
        run = finished(problem.ready(ct.Mixed(clusters=2), engine=engine))
        states.append(tree_leaves(run.state))
    for a, b, c in zip(*states):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        assert torch.equal(a, c)
    result = ct.run(ct.Mixed(clusters=2), problem.fed, model="linear", out=tmp_path / "run")
    rounds = len(result.history)
    again = ct.resume(tmp_path / "run", fed=problem.fed, rounds=90)
    assert len(again.history) == rounds == 2


def test_a_fit_can_start_from_exported_models(tmp_path):
    problem = planted(2, 12, seed=4)
    first = ct.run(ct.Mixed(clusters=2), problem.fed, model="linear", dtype="float64")
    first.export(tmp_path / "models")
    second = ct.run(
        ct.Mixed(start_from=str(tmp_path / "models")), problem.fed, model="linear", dtype="float64"
    )
    assert same_groups(first.clusters[-1].tolist(), second.clusters[-1].tolist())
    for name, v in first.centres.items():
        torch.testing.assert_close(second.centres[name], v, atol=0.02, rtol=0.02)


def test_other_models_are_refused():
    fed = ct.data.rotated("digits", clients=4, samples=20)
    with pytest.raises(ct.CoterieError, match="linear"):
        ct.run(ct.Mixed(), fed, model="mlp:4")
    with pytest.raises(ct.CoterieError, match="all clients"):
        ct.run(ct.Mixed(), fed, model="softmax", participation=0.5)
