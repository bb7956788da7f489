"""FedEM: a round by hand, several in NumPy, predictions, identities, planted mixtures."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

import coterie as ct
from cases import (
    PROBLEMS,
    Problem,
    classes,
    finished,
    lines,
    measured,
    mini_batches,
    participants,
    points,
    put,
    spoilt,
)
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from oracles import (
    Model,
    Rows,
    all_apart,
    arrays,
    assert_same_models,
    centres_of,
    decay,
    federation,
    flat,
    mean,
    numbers,
    one,
    private_states,
)

VARIANTS = {
    "fedem": [
        ct.FedEM(clusters=3, local_epochs=1, batch=6, floor=0.0),
        ct.FedEM(clusters=2, solver="heavy_ball"),
        ct.FedEM(clusters=2, l2=0.01, floor=0.1, join_steps=3),
    ]
}


# ------------------------------------------------------------------------------ by hand
# Outputs are x·w, centres 0 and 2, π uniform, lr ¼, one step. With x = 1 the losses differ by
# y² − (y − 2)² = 4y − 4: at Y = 1 + (ln 3)/4 by ln 3, so that q = (¼, ¾); at 1 not at all, so that
# q = (½, ½).
#   a: one row Y.          π = (¼, ¾).
#      ∇ of ¼(w − Y)² at 0 is −Y/2, of ¾(w − Y)² at 2 is 1.5·(2 − Y).
#   b: two rows, Y and 1.  π = ((¼ + ½)/2, (¾ + ½)/2) = (⅜, ⅝).
#      ∇ of [¼(w − Y)² + ½(w − 1)²]/2 at 0 is −(Y/2 + 1)/2; at 2, with ¾ and ½: (1.5·(2 − Y) + 1)/2.
#   By rows: ¼·(1·Y/2 + 2·(Y/2 + 1)/2)/3 = (Y + 1)/12,
#            2 − ¼·(1.5·(2 − Y) + 1.5·(2 − Y) + 1)/3 = 2 − (3·(2 − Y) + 1)/12.
Y = 1 + math.log(3) / 4
TWO = {"b": [(1, Y), (1, 1)], "a": [(1, Y)]}


def two(rounds: int, lr: float) -> Run:
    """With targets in float64: `from_memory` keeps float32."""
    p = points(TWO)
    y = torch.tensor([y for rows in TWO.values() for _, y in rows], dtype=torch.float64)
    p = p._replace(fed=replace(p.fed, train=p.fed.train._replace(y=y)))
    run = p.ready(ct.FedEM(clusters=2, lr=lr, local_steps=1), rounds=rounds)
    return finished(put(run, centres=numbers(0.0, 2.0)))


def test_one_round_by_hand() -> None:
    run = two(1, lr=0.25)
    assert flat(run.state.centres) == pytest.approx([(Y + 1) / 12, 2 - (7 - 3 * Y) / 12])
    for shares in (run.state.shares, private_states(run), run.method.groups(run.state)):
        assert shares.flatten().tolist() == pytest.approx([3 / 8, 5 / 8, 1 / 4, 3 / 4], rel=1e-12)


def test_shares_are_the_prior_of_the_next_round() -> None:
    """Centres that hardly move: q of a after two rounds is (¼·¼, ¾·¾)/Σ = (0.1, 0.9)."""
    assert private_states(two(2, lr=1e-12))[1].tolist() == pytest.approx([0.1, 0.9], rel=1e-9)


def test_a_share_that_vanished_can_return_unless_the_floor_is_0() -> None:
    """exp(−60²) is 0 in float64. The far centre is then set where the rows are."""
    p = points({"a": [(1, 1)], "b": [(1, 1)]})
    for floor, later in ((1e-6, 1.0), (0.0, 0.0)):
        run = p.ready(ct.FedEM(clusters=2, lr=1e-12, local_steps=1, floor=floor), rounds=2)
        put(run, centres=numbers(0.9, -59.0))
        next(run.rounds()), next(run.rounds())
        assert float(run.state.shares[0, 1]) == pytest.approx(floor, rel=1e-5)
        assert float(run.state.shares[0].sum()) == pytest.approx(1, rel=1e-15)
        put(run, centres=numbers(-59.0, 1.0))
        next(run.rounds())
        assert float(run.state.shares[0, 1]) == pytest.approx(later, abs=1e-5)


# ------------------------------------------------------------------------------ in NumPy
def row_losses(p: Problem, models: list[Model], xy: Rows) -> np.ndarray:
    x, y = xy
    return np.array(
        [[p.f(w, x[j : j + 1], y[j : j + 1])[0] for w in models] for j in range(len(y))]
    )


def explained(
    p: Problem, models: list[Model], pi: np.ndarray, xy: Rows, floor: float
) -> tuple[np.ndarray, np.ndarray]:
    """Bayes' rule for each row, then the mean."""
    q = pi * np.exp(-row_losses(p, models, xy))
    q = q / q.sum(1, keepdims=True)
    new = np.maximum(q.mean(0), floor)
    return q, new / new.sum()


def weighted_steps(
    p: Problem,
    w: Model,
    xy: Rows,
    q: np.ndarray,
    batches: list[list[int]],
    *,
    lr: float,
    l2: float,
) -> Model:
    """Steps on Σ_j q_j ℓ_j / (rows in the batch)."""
    x, y = xy
    for batch in batches:
        g = decay(l2, w)
        for j in batch:
            row = p.f(w, x[j : j + 1], y[j : j + 1])[1]
            g = {k: g[k] + q[j] * row[k] / len(batch) for k in g}
        w = {k: w[k] - lr * g[k] for k in w}
    return w


def positions(xy: Rows, batches: list[Rows]) -> list[list[int]]:
    """Which rows of the client each batch holds."""
    return [[int(np.flatnonzero((xy[0] == x).all(1))[0]) for x in b[0]] for b in batches]


def follow(p: Problem, run: Run, small: bool = False) -> None:
    """The run beside Algorithm 1 in NumPy, round by round."""
    m, n = run.method, p.sizes
    theta, pi = centres_of(run), np.full((len(n), m.clusters), 1 / m.clusters)
    asked: set[int] = set()
    next(run.rounds())
    for r, who in enumerate(participants(run), 1):
        new = {}
        for i in who:
            xy = p.clients[i]
            q, pi[i] = explained(p, theta, pi[i], xy, m.floor)
            batches = [list(range(n[i]))] * m.local_steps
            if small:
                batches = positions(xy, mini_batches(run, r, i))
            how = {"lr": m.lr * m.decay ** (r - 1), "l2": m.l2}
            new[i] = [
                weighted_steps(p, w, xy, q[:, k], batches, **how) for k, w in enumerate(theta)
            ]
        theta = [mean([new[i][j] for i in who], [n[i] for i in who]) for j in range(m.clusters)]
        asked |= set(who)
        assert not next(run.rounds())["rejected"]
        assert_same_models(centres_of(run), theta)
        for i in range(len(n)):
            np.testing.assert_allclose(private_states(run)[i].numpy(), pi[i], rtol=1e-9)
            reported = pi[i] if i in asked else 0 * pi[i]
            np.testing.assert_allclose(run.state.shares[i].numpy(), reported, rtol=1e-9)


CASES = {
    "plain": {},
    "decay, l2": {"decay": 0.7, "l2": 0.3},
    "floor": {"floor": 0.2},
    "no floor": {"floor": 0.0},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy(problem: str, case: str) -> None:
    """Seven ragged clients, four of them a round, three models."""
    p = PROBLEMS[problem]()
    method = ct.FedEM(clusters=3, lr=0.1, local_steps=2, **CASES[case])
    follow(p, p.ready(method, rounds=3, participation=0.6, seed=2))


@pytest.mark.parametrize("how", [{"batch": 3, "local_steps": 4}, {"batch": 2, "local_epochs": 2}])
def test_mini_batches_in_numpy(how: dict) -> None:
    """Each row takes its own q into whichever batch it falls; π comes from all rows."""
    p = lines()
    follow(p, p.ready(ct.FedEM(clusters=2, lr=0.05, **how), rounds=2), small=True)


def test_padding_does_not_count() -> None:
    p, method = lines(), ct.FedEM(clusters=2, lr=0.05, local_steps=2, batch=3, floor=0.2)
    loop, padded = (p.run(method, rounds=2, engine=e) for e in ("loop", "vectorised"))
    torch.testing.assert_close(padded.state.shares, loop.state.shares)
    assert_same_models(one(padded.state.centres, 1), one(loop.state.centres, 1))


def test_a_client_without_finite_losses_is_refused() -> None:
    p = lines()
    run = p._replace(fed=spoilt(p.fed, 0)).ready(ct.FedEM(clusters=2, local_steps=2), rounds=1)
    next(run.rounds())
    assert next(run.rounds())["rejected"] == [p.fed.names[0]]
    assert run.state.shares[0].tolist() == [0, 0]
    assert private_states(run)[0].tolist() == [0.5, 0.5]
    assert all(v.isfinite().all() for v in run.state.centres.values())


@pytest.mark.parametrize(
    "how, match",
    [
        ({"floor": 0.5}, "below 0.5"),
        ({"clusters": 8}, "number of clients"),
        ({"floor": -0.1}, "≥ 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(how: dict, match: str) -> None:
    with pytest.raises(ct.CoterieError, match=match):
        lines().ready(ct.FedEM(**{"clusters": 2, **how}))


# ------------------------------------------------------------------------------ identities
FAST = {"rounds": 2, "engine": "vectorised"}  # which test_contract.py holds to the loop


@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    "how",
    [
        {"local_steps": 2, "l2": 0.1},
        {"batch": 3, "local_epochs": 2},
        {"local_steps": 2, "batch": 3},
        {"local_steps": 2, "solver": "heavy_ball"},
        {"local_steps": 2, "solver": "adam"},
    ],
)
def test_one_model_is_fedavg(problem: str, how: dict, share: float) -> None:
    p = PROBLEMS[problem]()
    mixture = p.run(ct.FedEM(clusters=1, lr=0.05, **how), participation=share, **FAST)
    fedavg = p.run(ct.FedAvg(lr=0.05, **how), participation=share, **FAST)
    assert_same_models(one(mixture.state.centres), one(fedavg.state))
    assert private_states(mixture).tolist() == [[1.0]] * 7


@pytest.mark.parametrize("how", [{}, {"batch": 2}])
def test_permuting_clients_permutes_the_result(how: dict) -> None:
    plain, moved, order = lines().permuted(
        ct.FedEM(clusters=2, lr=0.05, local_steps=2, **how), rounds=2, participation=0.6
    )
    torch.testing.assert_close(moved.state.shares, plain.state.shares[order])
    assert_same_models(centres_of(moved), centres_of(plain))


def test_permuting_centres_permutes_the_mixture() -> None:
    p, order = lines(), [2, 0, 1]
    method = ct.FedEM(clusters=3, lr=0.05, local_steps=2)
    plain, moved = (p.ready(method, rounds=2) for _ in range(2))
    put(moved, centres=[centres_of(plain)[j] for j in order])
    finished(plain), finished(moved)
    torch.testing.assert_close(moved.state.shares, plain.state.shares[:, order])
    assert_same_models(centres_of(moved), [centres_of(plain)[j] for j in order])


def test_duplicating_every_client_changes_nothing() -> None:
    plain, twice = lines().doubled(ct.FedEM(clusters=2, lr=0.05, local_steps=2), rounds=2)
    torch.testing.assert_close(twice.state.shares, plain.state.shares.repeat(2, 1))
    assert_same_models(centres_of(twice), centres_of(plain))


def test_centres_start_apart() -> None:
    run = lines().ready(ct.FedEM(clusters=3), seed=5)
    centres = centres_of(run)
    assert_same_models(centres, [arrays(run.task.init(5, j)) for j in range(3)])
    assert all_apart(centres)


# ------------------------------------------------------------------------------ evaluation
def mixed_error(theta: list[Model], pi: np.ndarray, xy: Rows) -> float:
    outputs = np.stack([xy[0] @ w["weight"][0] + w["bias"][0] for w in theta], 1)
    return float(((outputs @ pi - xy[1]) ** 2).mean())


def mixed_entropy(theta: list[Model], pi: np.ndarray, xy: Rows) -> tuple[float, float]:
    """(−log of the mixed probability, accuracy)"""
    z = np.stack([xy[0] @ w["weight"].T + w["bias"] for w in theta])
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    p = np.einsum("m,mnc->nc", pi, p)
    return float(-np.log(p[np.arange(len(p)), xy[1]]).mean()), float((p.argmax(1) == xy[1]).mean())


def test_regression_mixes_the_outputs() -> None:
    p = measured()
    run = p.run(ct.FedEM(clusters=2, lr=0.05, local_steps=3), rounds=3)
    theta, pi = centres_of(run), run.state.shares.numpy()
    np.testing.assert_allclose(
        run.client_scores["mse"], [mixed_error(theta, pi[i], p.tests[i]) for i in range(4)]
    )
    assert pi.min() > 0.01  # both count


def test_classification_mixes_the_probabilities() -> None:
    rng = np.random.default_rng(0)
    draw = lambda n: [(rng.normal(size=(n, 3)), rng.integers(3, size=n)) for _ in range(5)]
    p = classes()._replace(fed=federation(draw(6), test=draw(8), labels=("a", "b", "c"), unseen=1))
    run = p.run(ct.FedEM(clusters=2, lr=0.5, local_steps=4), rounds=3)
    theta, pi = centres_of(run), run.state.shares.numpy()
    want = np.array([mixed_entropy(theta, pi[i], p.tests[i]) for i in range(4)])
    np.testing.assert_allclose(run.client_scores["loss"], want[:, 0])
    np.testing.assert_allclose(run.client_scores["accuracy"], want[:, 1])
    loss, accuracy = mixed_entropy(theta, joined(p, theta, 4, 20), p.tests[4])
    assert run.history[-1]["unseen_loss"] == pytest.approx(loss, rel=1e-9)
    assert run.history[-1]["unseen_accuracy"] == accuracy


def joined(p: Problem, theta: list[Model], i: int, steps: int) -> np.ndarray:
    pi = np.full(len(theta), 1 / len(theta))
    for _ in range(steps):
        pi = explained(p, theta, pi, p.clients[i], 1e-6)[1]
    return pi


@pytest.mark.parametrize("steps", [1, 7])
def test_a_newcomer_finds_its_shares_on_its_training_rows(steps: int) -> None:
    p = measured(unseen=1)
    run = p.run(ct.FedEM(clusters=2, lr=0.05, local_steps=3, join_steps=steps), rounds=2)
    theta = centres_of(run)
    want = mixed_error(theta, joined(p, theta, 3, steps), p.tests[3])
    assert run.history[-1]["unseen_mse"] == pytest.approx(want, rel=1e-9)
    assert len(run.state.shares) == 3


def test_evaluation_leaves_no_trace() -> None:
    method = ct.FedEM(clusters=2, lr=0.05, local_steps=2, batch=2)
    often, once = (measured().run(method, rounds=4, eval_every=e) for e in (1, 4))
    assert torch.equal(private_states(often), private_states(once))
    assert_same_models(one(often.state.centres), one(once.state.centres), 0)


# ------------------------------------------------------------------------------ recovery
def errors(seed: int) -> tuple[float, float]:
    """(the largest error of a share, the largest distance of θ) after 16 rounds.

    12 clients of 150 rows, in which two planted models have shares of 10:90.
    """
    fed = ct.data.linear("fedsoft", clients=12, samples=150, seed=seed, test_samples=0)
    method = ct.FedEM(clusters=2, lr=0.2, local_steps=5)
    run = finished(prepare_run(method, fed, "linear", rounds=16, seed=seed))
    gap = lambda o: float((run.state.shares[:, list(o)] - fed.truth).abs().max())
    order = min(permutations(range(2)), key=gap)
    weights = next(iter(run.state.centres.values()))[list(order), 0]
    return gap(order), float((weights - fed.planted).norm(dim=1).max())


def test_a_planted_mixture_is_found() -> None:
    share, distance = errors(seed=0)
    assert share <= 0.05 and distance <= 0.5


@pytest.mark.slow
def test_planted_mixtures_are_found_for_nine_of_ten_seeds() -> None:
    shares, distances = zip(*map(errors, range(10)))
    assert sum(share <= 0.05 for share in shares) >= 9, shares
    assert sum(distance <= 0.5 for distance in distances) >= 9, distances
