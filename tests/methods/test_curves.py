"""Curves, intervals and effects of Mixed: by hand, against scikit-learn, through files."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.core.additive import KNOTS, Additive
from coterie.methods.features import (
    BINS,
    from_models,
    place_knots,
    sum_histogram,
    to_models,
    unknown_units,
)
from coterie.methods.random_effects import (
    SCORES,
    Design,
    Mixture,
    Predictive,
    class_log_probabilities,
    memberships,
    predict_rows,
    quantile_of_rows,
    score_at,
    sum_scores,
)
from coterie.reporting.coefficients import collect_coefficients
from oracles import federation

TABLES = Path(os.environ.get("COTERIE_DATA", "data")) / "sites"
rng = np.random.default_rng


def tables(sites: int = 6, rows: int = 60, bend: float = 1.0, seed: int = 0) -> dict:
    """y = 2 |age − 50| / 10 · bend + 0.1 weight + site + noise."""
    draw = rng(seed)
    made = {}
    for i in range(sites):
        age, weight = draw.uniform(20, 80, rows), draw.normal(70, 10, rows)
        y = 2 * abs(age - 50) / 10 * bend + 0.1 * weight + i + draw.normal(size=rows)
        sex = draw.choice(["f", "m"], rows)
        made[f"s{i}"] = pd.DataFrame({"age": age, "weight": weight, "sex": sex, "score": y})
    return made


@pytest.fixture(scope="module")
def bent() -> ct.Result:
    return ct.run(ct.Mixed(clusters=1), ct.data.from_frames(tables(), label="score"))


# ------------------------------------------------------------------------------ features
def test_an_additive_model_by_hand():
    """Weight 2, hinge 3 at knot 1, bias 5: at 0 → 5, at 1 → 7, at 2 → 9 + 3."""
    model = Additive(columns=1, outputs=1)
    hinges, knots = torch.zeros(1, 1, KNOTS), torch.zeros(1, KNOTS)
    hinges[0, 0, 2], knots[0, 2] = 3.0, 1.0
    values = {"weight": [[2.0]], "bias": [5.0]}
    model.load_state_dict(
        {k: torch.tensor(v) for k, v in values.items()} | {"hinges": hinges, "knots": knots}
    )
    assert model(torch.tensor([[0.0], [1.0], [2.0]])).tolist() == [[5.0], [7.0], [12.0]]


def test_knots_lie_at_quantiles_and_two_values_have_none():
    values = rng(0).normal(size=(1000, 3))
    values[:, 1] = values[:, 1] > 0
    values[:, 2] = values[:, 2].round().clip(-1, 1)
    units = unknown_units(3)
    batch = ct.Batch.of(torch.tensor(values), torch.zeros(1000), torch.float64)
    counts = sum_histogram(units, ct.Data(batch, torch.tensor(1), torch.tensor(1)))
    assert counts.shape == (3, BINS) and counts.sum(1).tolist() == [1000.0] * 3
    placed = place_knots(units, counts)
    of = lambda j: placed.knots[placed.bent == j].numpy()
    levels = np.arange(1, KNOTS + 1) / (KNOTS + 1)
    np.testing.assert_allclose(of(0), np.quantile(values[:, 0], levels), atol=0.05)
    assert len(of(1)) == 0  # a line through two values is all there is
    np.testing.assert_allclose(of(2), [0.0], atol=0.02)  # one bend, at the middle of three
    shift = np.maximum(0, values[:, [0]] - of(0)).mean(0)
    np.testing.assert_allclose(placed.hinge_shift[placed.bent == 0], shift, atol=0.02)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_models_are_coefficients_and_back(classes):
    fed = federation({"a": (rng(0).normal(size=(60, 2)), np.arange(60) % max(classes, 1))})
    kind = "classification" if classes else "regression"
    task = ct.Task(lambda: Additive(2, classes or 1), kind, fed.train.x[:1], classes or None)
    units = unknown_units(2)._replace(
        shift=torch.tensor([1.0, -2.0]).double(), scale=torch.tensor([2.0, 0.5]).double()
    )
    units = units._replace(
        bent=torch.tensor([0, 1, 1]),
        knots=torch.tensor([0.3, -1.0, 1.0]).double(),
        hinge_shift=torch.tensor([0.1, 0.2, 0.3]).double(),
    )
    outputs = 1 if classes in (0, 2) else classes
    b = torch.randn(2, outputs, 6, dtype=torch.float64)
    if classes == 3:
        b = b - b.mean(1, keepdim=True)
    models = to_models(task, units, b)
    torch.testing.assert_close(from_models(task, units, models), b, atol=1e-5, rtol=1e-5)
    x = torch.randn(7, 2)
    z = (x - units.shift) / units.scale
    f = torch.cat([torch.ones(7, 1), z, (z[:, [0, 1, 1]] - units.knots).relu()], 1).double()
    f[:, 3:] -= units.hinge_shift
    for k in range(2):
        out = task.outputs({name: v[k] for name, v in models.items()}, x).double()
        if classes == 2:
            out = out[:, 1] - out[:, 0]
        torch.testing.assert_close(out, (f @ b[k].T).squeeze(1), atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------ choice
def test_the_evidence_chooses_curves_where_effects_bend_and_lines_where_not(bent):
    units = bent.trained.state.units
    assert units.is_smooth
    straight = ct.run(
        ct.Mixed(clusters=1), ct.data.from_frames(tables(bend=0.0), label="score")
    ).trained.state
    line = ct.run(
        ct.Mixed(clusters=1, features="linear"), ct.data.from_frames(tables(), label="score")
    )
    assert bent.final["mse"] < 0.7 * line.final["mse"]
    hinges = [v for name, v in straight.centres.items() if name.endswith("hinges")]
    assert all(float(v.abs().max()) < 0.05 for v in hinges)


def test_a_curve_is_near_a_spline_of_scikit_learn(bent):
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import SplineTransformer

    fed = ct.data.from_frames(tables(), label="score")
    sites = torch.eye(6, dtype=torch.float64)

    def rows(part):
        x, y = part.x.double(), part.y.double().numpy()
        site = sites.repeat_interleave(part.sizes, 0).numpy()
        return x.numpy(), site, y

    (x, site, y), (xt, site_t, yt) = rows(fed.train), rows(fed.test)
    spline = SplineTransformer(n_knots=7, degree=1, extrapolation="linear").fit(x)
    model = RidgeCV(np.logspace(-4, 3, 15))
    model.fit(np.hstack([spline.transform(x), site]), y)
    error = np.mean((model.predict(np.hstack([spline.transform(xt), site_t])) - yt) ** 2)
    assert bent.final["mse"] < 1.2 * error  # whose middle knot is where the effect bends


# ------------------------------------------------------------------------------ predictions
def test_probabilities_average_over_what_is_unknown_by_hand():
    """Logit 2 with variance 8/π·3: divided by √(1 + 3) = 2, so p = σ(1); ±2 in equal shares: ½."""
    variance = torch.full((2, 1, 1), 24 / math.pi, dtype=torch.float64)
    means = torch.tensor([2.0, -2.0], dtype=torch.float64).reshape(2, 1, 1)
    one = Predictive(torch.ones(1).double(), means[:1], variance[:1])
    assert class_log_probabilities(one).exp()[0, 1].item() == pytest.approx(1 / (1 + math.exp(-1)))
    both = Predictive(torch.tensor([0.5, 0.5]).double(), means, variance)
    assert class_log_probabilities(both).exp()[0].tolist() == pytest.approx([0.5, 0.5])


def test_the_variance_of_a_prediction_is_that_of_the_joint_posterior():
    """μ ~ N(0, C), b ~ N(μ, τ), y = x b + noise: condition the joint normal in NumPy."""
    draw = rng(3)
    x, new = draw.normal(size=(9, 3)), draw.normal(size=(4, 3))
    tau, s2 = np.array([0.5, 0.2]), 0.7  # the third coefficient is the same for all
    y = draw.normal(size=9)
    root = draw.normal(size=(3, 3))
    # what all rows say about μ includes this client's: prior C0 without them, C with them
    c0 = root @ root.T + np.eye(3)
    t = np.diag([*tau, 0.0])
    noise = x @ t @ x.T + s2 * np.eye(9)
    precision = np.linalg.inv(c0) + x.T @ np.linalg.inv(noise) @ x
    c, mu = np.linalg.inv(precision), np.linalg.solve(precision, x.T @ np.linalg.solve(noise, y))
    rows = Design(*(torch.tensor(v) for v in (x, y, np.ones(9))))
    shared = Mixture(
        torch.tensor(mu)[None, None], torch.tensor(tau)[None], torch.tensor(s2), torch.ones(1)
    )
    found = memberships(rows, shared._replace(shares=torch.ones(1).double()))
    got = predict_rows(found, torch.tensor(c)[None, None], torch.tensor(new))
    prior = c0 + t  # of b
    gain = prior @ x.T @ np.linalg.inv(x @ prior @ x.T + s2 * np.eye(9))
    b, v = gain @ y, prior - gain @ x @ prior
    np.testing.assert_allclose(got.means[0, :, 0], new @ b)
    np.testing.assert_allclose(got.variances[0, :, 0], np.diag(new @ v @ new.T))
    # leaving out row 0: the score is that of refitting without it
    counts = sum_scores(found, torch.tensor(c)[None, None], torch.tensor(s2), rows)
    scores = []
    for i in range(9):
        keep = np.arange(9) != i
        gain = prior @ x[keep].T @ np.linalg.inv(x[keep] @ prior @ x[keep].T + s2 * np.eye(8))
        m, var = gain @ y[keep], prior - gain @ x[keep] @ prior
        scores.append((y[i] - x[i] @ m) / np.sqrt(x[i] @ var @ x[i] + s2))
    expected, _ = np.histogram(scores, bins=SCORES, range=(-10, 10))
    np.testing.assert_array_equal(counts, expected)


def test_intervals_of_normal_scores_are_normal_and_of_mixtures_their_quantiles():
    edges = torch.linspace(-10, 10, SCORES + 1, dtype=torch.float64)
    normal = 1e6 * torch.special.ndtr(edges).diff()
    for level in (0.025, 0.5, 0.95):
        score = torch.special.ndtri(torch.tensor(level).double())
        assert float(score_at(normal, level)) == pytest.approx(float(score), abs=2e-3)
    means = torch.tensor([[0.0], [10.0]], dtype=torch.float64)[..., None]
    two = Predictive(torch.tensor([0.5, 0.5]).double(), means, torch.zeros_like(means))
    score = torch.special.ndtri(torch.tensor(0.25).double())
    found = quantile_of_rows(two, torch.ones(()).double(), score)
    assert found.item() == pytest.approx(0.0, abs=1e-3)  # the median of the first of two groups


def test_intervals_hold_the_labels(bent):
    fed = ct.data.from_frames(tables(), label="score")
    inside = []
    for i, name in enumerate(fed.names):
        x, y = fed.test.client(i)
        out = bent.predict(x, client=name, interval=0.9)
        assert torch.allclose(out[:, 0], bent.predict(x, client=name))
        inside += ((out[:, 1] <= y) & (y <= out[:, 2])).tolist()
    assert 0.8 < np.mean(inside) < 0.97  # of 90 rows
    wide = bent.predict(x, client=name, interval=0.99)
    assert bool((wide[:, 1] < out[:, 1]).all() and (wide[:, 2] > out[:, 2]).all())


def test_a_new_site_gets_an_interval_that_narrows_with_its_rows(bent):
    frame = tables(sites=1, rows=200, seed=9)["s0"]
    width = lambda rows: float(
        (lambda v: v[:, 2] - v[:, 1])(
            bent.predict(frame[-5:], support=frame[:rows], interval=0.9)
        ).mean()
    )
    assert width(2) > width(150)


def test_skewed_labels_have_skewed_intervals():
    draw = rng(1)
    clients = {}
    for i in range(8):
        x = draw.normal(size=(80, 1))
        clients[f"c{i}"] = (x, x[:, 0] + draw.exponential(3, 80))
    result = ct.run(ct.Mixed(clusters=1), federation(clients), dtype="float64")
    middle, low, high = result.predict(np.zeros((1, 1)), client="c0", interval=0.9)[0].tolist()
    assert middle - low < 0.7 * (high - middle)


# ------------------------------------------------------------------------------ other methods
@pytest.fixture(scope="module")
def pooled() -> ct.Result:
    fed = ct.data.from_frames(tables(bend=0.0), label="score")
    return ct.run(ct.FedAvg(), fed, rounds=5, valid=0.3)


def test_conformal_intervals_cover_by_errors_on_validation_rows(pooled):
    fed = ct.data.from_frames(tables(bend=0.0), label="score")
    inside = []
    for i, name in enumerate(fed.names):
        x, y = fed.test.client(i)
        out = pooled.predict(x, client=name, interval=0.9)
        inside += ((out[:, 1] <= y) & (y <= out[:, 2])).tolist()
    assert 0.8 < np.mean(inside) < 0.98
    group = pooled.predict(x, cluster=0, interval=0.9)
    assert torch.allclose(group[:, 2] - group[:, 1], out[0, 2] - out[0, 1])  # few rows: all sites'


def test_what_has_no_interval_is_refused(pooled, bent):
    x = np.zeros((1, 5), dtype=np.float32)
    for level in (0, 1, -0.5, 90, math.nan):
        with pytest.raises(ct.CoterieError, match="between 0 and 1"):
            bent.predict(x, client="s0", interval=level)
    with pytest.raises(ct.CoterieError, match="needs 999 validation rows"):
        pooled.predict(x, client="s0", interval=0.999)
    fed = ct.data.from_frames(tables(bend=0.0), label="score")
    plain = ct.run(ct.FedAvg(), fed, rounds=1)
    with pytest.raises(ct.CoterieError, match="--valid 0.2"):
        plain.predict(x, client="s0", interval=0.9)
    classes = federation({"a": (np.eye(4), [0, 1, 0, 1]), "b": (np.eye(4), [0, 1, 1, 0])})
    result = ct.run(ct.FedAvg(), classes, model="softmax", rounds=1)
    with pytest.raises(ct.CoterieError, match="class"):
        result.predict(np.eye(4), cluster=0, interval=0.9)


def test_smooth_features_need_a_table():
    fed = ct.data.rotated("digits", clients=4, samples=20)
    for model in (None, "softmax"):
        with pytest.raises(ct.CoterieError, match="linear or additive|smooth features"):
            ct.run(ct.Mixed(features="smooth"), fed, model=model)
    with pytest.raises(ct.CoterieError, match="additive is for tables"):
        ct.run(ct.FedAvg(), fed, model="additive")


# ------------------------------------------------------------------------------ files
def test_curves_survive_export_resume_and_a_start_from_files(bent, tmp_path):
    fed = ct.data.from_frames(tables(), label="score")
    x = fed.test.client(2)[0]
    models = ct.load(bent.export(tmp_path / "clients", per="client"))
    expected = bent.predict(x, client="s2")
    torch.testing.assert_close(models.predict(x, "s2"), expected, atol=1e-4, rtol=1e-4)
    groups = ct.load(bent.export(tmp_path / "groups"))
    torch.testing.assert_close(groups.predict(x, "group-0"), bent.predict(x, cluster=0))
    again = ct.run(ct.Mixed(start_from=str(tmp_path / "groups")), fed)
    torch.testing.assert_close(again.predict(x, client="s2"), expected, atol=0.05, rtol=0.01)


@pytest.mark.slow
def test_curves_are_written_as_onnx(bent, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = bent.export(tmp_path / "models", onnx=True)
    x = ct.data.from_frames(tables(), label="score").test.x[:7]
    session = onnxruntime.InferenceSession(str(folder / "group-0.onnx"))
    found = session.run(None, {"x": x.float().numpy()})[0]
    np.testing.assert_allclose(found, bent.predict(x, cluster=0), rtol=1e-4)


# ------------------------------------------------------------------------------ effects
def test_effects_have_the_shape_that_was_planted_and_bands_that_widen(bent):
    effects = {e.column: e for e in bent.effects()}
    assert list(effects) == ["age", "sex", "weight"]
    age = effects["age"]
    x, mean = np.array(age.x), np.array(age.mean)
    truth = 2 * abs(x - 50) / 10
    inside = (x > 25) & (x < 75)
    off = (mean - truth) - (mean - truth)[inside].mean()
    assert abs(off[inside]).max() < 0.8 and mean[len(mean) // 2] == 0
    slope = np.polyfit(effects["weight"].x, effects["weight"].mean, 1)[0]
    assert slope == pytest.approx(0.1, abs=0.05)
    assert effects["sex"].x == ["f", "m"] and effects["sex"].mean[0] == 0
    low, high = np.array(age.low), np.array(age.high)
    assert (low <= mean).all() and (mean <= high).all() and (high - low)[0] > (high - low)[18]


def test_standard_errors_are_those_of_generalised_least_squares():
    """Without shrinkage: (Σ Xᵀ (X τ Xᵀ + s²)⁻¹ X)⁻¹ over sites, in original units."""
    draw = rng(2)
    clients = {f"c{i}": (draw.normal(size=(30, 2)), draw.normal(size=30)) for i in range(12)}
    method = ct.Mixed(clusters=1, shrink=False, features="linear", tolerance=1e-6, max_steps=300)
    trained = ct.run(method, federation(clients), dtype="float64").trained
    units, mixture = trained.state.units, trained.state.best.mixture
    tau, s2 = np.diag(mixture.variances[0].numpy()), mixture.noise.item()
    information = 0
    for x, _ in clients.values():
        z = np.column_stack([np.ones(30), (x - units.shift.numpy()) / units.scale.numpy()])
        information = information + z.T @ np.linalg.solve(z @ tau @ z.T + s2 * np.eye(30), z)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))[1:]
    expected = errors * units.label_scale.item() / units.scale.numpy()
    at = torch.eye(2, dtype=torch.float64)
    found = trained.method.standard_errors(trained.task, trained.state, at, 0 * at[:1])
    np.testing.assert_allclose(found[0], expected, rtol=1e-3)


def test_the_report_has_mean_slopes(bent):
    found = collect_coefficients(bent.trained, np.zeros(6, dtype=int))
    slopes = dict(zip(found.columns, found.values[:, 0]))
    deviation = next(c.deviation for c in bent.trained.roster.schema.features if c.name == "weight")
    assert slopes["weight"] == pytest.approx(0.1 * deviation, abs=0.4)
    effect = {e.column: e for e in bent.effects()}["weight"]
    change = np.interp(1, np.linspace(-2, 2, 41), effect.mean)
    change -= np.interp(-1, np.linspace(-2, 2, 41), effect.mean)
    assert slopes["weight"] == pytest.approx(change / 2, abs=1e-4)


def test_effects_need_tables(pooled):
    assert pooled.effects()[0].low is None
    with pytest.raises(ct.CoterieError, match="tables"):
        ct.run(ct.FedAvg(), ct.data.linear(clients=4, samples=9, dim=2), rounds=1).effects()


# ------------------------------------------------------------------------------ new sites
@pytest.mark.parametrize("method", [ct.LocalOnly(), ct.Mixed()], ids=lambda m: m.name)
def test_a_new_site_is_as_good_as_ridge_on_its_own_rows(method):
    from sklearn.linear_model import RidgeCV

    made = tables(sites=6, rows=200, bend=0.0)
    new = tables(sites=1, rows=400, bend=0.0, seed=7)["s0"]
    new["score"] = 50 - 3 * new["score"]  # unlike any site that trained
    result = ct.run(method, ct.data.from_frames(made, label="score"))
    found = result.predict(new[200:], support=new[:200]).numpy()
    x, y = result.trained.roster.schema.encode(new)
    ridge = RidgeCV(np.logspace(-3, 2, 12)).fit(x[:200], y[:200]).predict(x[200:])
    error, reference = (np.mean((v - y[200:]) ** 2) for v in (found, ridge))
    assert error < 1.05 * reference


# ------------------------------------------------------------------------------ real tables
@pytest.mark.slow
@pytest.mark.parametrize("table", ["exam", "hsb82", "star", "azpro", "radon", "sites"])
def test_nine_in_ten_held_out_rows_lie_within_their_intervals(table):
    site_tables = pytest.importorskip("benchmarks.site_tables")
    if not TABLES.exists():
        pytest.skip("needs the folder sites of COTERIE_DATA")
    inside, of_small_sites = [], []
    for seed in (0, 1, 2):
        fed = site_tables.load(table, seed)
        result = ct.run(ct.Mixed(), fed, seed=seed, eval_every=100)
        hits, is_small = site_tables.covered(fed, result)
        inside.append(hits)
        of_small_sites.append(hits[is_small])
    assert holds_nine_in_ten(np.concatenate(inside), within=0.02)
    assert holds_nine_in_ten(np.concatenate(of_small_sites), within=0.05)


def holds_nine_in_ten(hits: np.ndarray, within: float) -> bool:
    """Whether the share of hits is near 0.9, or as near as so few rows can tell (two errors)."""
    chance = 2 * np.sqrt(0.9 * 0.1 / max(len(hits), 1))
    return len(hits) == 0 or abs(hits.mean() - 0.9) <= max(within, chance)
