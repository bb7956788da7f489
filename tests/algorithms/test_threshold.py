"""PFL-TC and PDL-TC: rounds by hand, several rounds in NumPy, their identities, recovery."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.engine.rounds import Run
from oracles import (
    PROBLEMS,
    Function,
    Model,
    Rows,
    apart,
    arrays,
    best_partition,
    descend,
    federation,
    finished,
    line,
    lines,
    loss_on_test,
    measured,
    mini_batches,
    near,
    one,
    participants,
    ready,
    rows,
    same_groups,
    squared,
    vector,
)

VARIANTS = {
    "pfl-tc": [
        ct.PFLTC(clusters=2, average="models", batch=4, threshold="gap"),
        ct.PFLTC(clusters=3, init="per_client", threshold="theory", alpha=0.2),
        ct.PFLTC(clusters=2, threshold="k-means", sample=5, moves=3),
    ],
    "pdl-tc": [
        ct.PDLTC(clusters=2, threshold=0.5, batch=4),
        ct.PDLTC(clusters=2, threshold="gap", alpha=1.0),
    ],
}


def personal(run: Run, i: int) -> Model:
    return {k: v[i].numpy().copy() for k, v in run.engine.snapshot().model.items()}


def momentum(run: Run, i: int) -> Model:
    return {k: v[i].numpy().copy() for k, v in run.engine.snapshot().momentum.items()}


# ---------------------------------------------------------------------------------------------- by hand
# Outputs are x·w, f = (w − y)², ∇ = 2(w − y), all start at w = 5; η = ¼, α = ½. y: a 0, b 1, c 10, d 11.
#   round 1 (α = 1):  m = 10, 8 | −10, −12: means 9 and −11, 20 apart, τ = 10: all members inside, none of the others.
#                     a, b: 5 − 9/4 = 2.75.   c, d: 5 + 11/4 = 7.75.
#   round 2:  ∇ = 5.5, 3.5 | −4.5, −6.5.  m = ½∇ + ½m = 7.75, 5.75 | −7.25, −9.25: means 6.75 and −8.25.
#                     a, b: 2.75 − 1.6875 = 1.0625.   c, d: 7.75 + 2.0625 = 9.8125.
FOUR = {"d": ([[1.0]], [11.0]), "b": ([[1.0]], [1.0]), "c": ([[1.0]], [10.0]), "a": ([[1.0]], [0.0])}


def four(method: ct.Algorithm, **options: Any) -> Run:
    return ready(method, federation(FOUR), line(5.0), **{"rounds": 2, **options})


def models(run: Run) -> list[float]:
    """Of a, b, c, d."""
    return run.engine.snapshot().model["weight"].flatten()[[3, 1, 2, 0]].tolist()


def test_pfl_two_rounds_by_hand() -> None:
    run = four(ct.PFLTC(clusters=2, lr=0.25, alpha=0.5))
    steps = run.rounds()
    next(steps)
    assert run.state.group.tolist() == [-1] * 4
    for low, high in ((2.75, 7.75), (1.0625, 9.8125)):
        next(steps)
        assert models(run) == pytest.approx([low, low, high, high], rel=1e-12)
        first = int(run.state.group[3])
        assert run.state.group.tolist() == [1 - first, first, 1 - first, first]
        kept = run.state.centres["weight"].flatten().tolist()  # what a client that always had the label holds
        assert kept[first] == pytest.approx(low) and kept[1 - first] == pytest.approx(high)
    assert run.engine.snapshot().momentum["weight"].flatten().tolist() == [-9.25, 5.75, -7.25, 7.75]


def test_pfl_option_2_by_hand() -> None:
    """Two steps of ¼ halve the way twice: a 5 → 1.25, b → 2, c → 8.75, d → 9.5.

    So g̃ = 15, 12 | −15, −18 and v = 13.5, −16.5.
    a, b: 5 − 13.5/4 = 1.625, the mean of 1.25 and 2; c, d: 9.125. The printed sign would climb to 8.375.
    """
    run = finished(four(ct.PFLTC(clusters=2, lr=0.25, average="models", local_steps=2), rounds=1))
    assert models(run) == pytest.approx([1.625, 1.625, 9.125, 9.125], rel=1e-12)


def test_the_step_is_the_balls_estimate_not_the_members_mean() -> None:
    """y = 0, 4, 0 give gradients 10, 2, 10, mean 22/3; τ = 3 holds the two, and v goes to 10: all move by 10/4."""
    fed = federation({"a": ([[1.0]], [0.0]), "b": ([[1.0]], [4.0]), "e": ([[1.0]], [0.0])})
    run = finished(ready(ct.PFLTC(clusters=1, lr=0.25, threshold=3.0), fed, line(5.0), rounds=1))
    assert models_of(run) == pytest.approx([2.5] * 3, rel=1e-5)


def models_of(run: Run) -> list[float]:
    return run.engine.snapshot().model["weight"].flatten().tolist()


@pytest.mark.parametrize("how", [{"threshold": 4.0}, {"threshold": "quantile", "quantile": 0.5}])
def test_pdl_one_move_by_hand(how: dict) -> None:
    """τ = 4, one move: v_a = (10 + 8 + 10 + 10)/4 = 9.5, v_b = 8.5, v_c = −10.5, v_d = −11.5; x = 5 − v/4.

    The median of the distances 0, 2, 20, 22 from a is 11, from b 10, and so on: the same balls.
    """
    run = finished(four(ct.PDLTC(clusters=2, lr=0.25, moves=1, **how), rounds=1))
    assert models(run) == pytest.approx([2.625, 2.875, 7.625, 7.875], rel=1e-12)
    assert run.history[1]["notes"]["inside"] == [2, 2, 2, 2]


def test_pdl_one_move_that_sees_one_momentum() -> None:
    """Alone, x = 5 − m/4 = 2.5, 3 | 7.5, 8. The one that is drawn takes itself and its neighbour to its own."""
    run = finished(four(ct.PDLTC(clusters=2, lr=0.25, threshold=4.0, moves=1, sample=1), rounds=1))
    assert models(run) in ([2.5, 2.5, 7.5, 8.0], [3.0, 3.0, 7.5, 8.0], [2.5, 3.0, 7.5, 7.5], [2.5, 3.0, 8.0, 8.0])


def test_pdl_settles_at_the_means_of_the_balls() -> None:
    run = finished(four(ct.PDLTC(clusters=2, lr=0.25, threshold=4.0, alpha=0.5)))
    assert models(run) == pytest.approx([1.0625, 1.0625, 9.8125, 9.8125], abs=1e-4)


def test_pdl_counts_n_squared_messages() -> None:
    """Each of 4 is sent 4 momenta of one number, and its 4 weights; each sends one number and a weight of 1."""
    run = finished(four(ct.PDLTC(clusters=2), rounds=1))
    assert run.history[1]["bytes_down"] == 4 * (4 * 8 + 4 * 8)
    assert run.history[1]["bytes_up"] == 4 * (8 + 8)


# ---------------------------------------------------------------------------------------------- in NumPy
def moved(x: np.ndarray, start: list[np.ndarray], tau: Any, rounds: int = 50) -> list[np.ndarray]:
    """Algorithm 1; tau(v, c): of centre c among v."""
    v = list(start)
    for _ in range(rounds):
        radius = [tau(v, c) for c in range(len(v))]
        new = [np.mean([p if np.linalg.norm(p - u) <= t else u for p in x], axis=0) for u, t in zip(v, radius)]
        still = all(np.linalg.norm(a - b) <= 1e-6 * t for a, b, t in zip(new, v, radius))
        v = new
        if still:
            break
    return v


def half(v: list[np.ndarray], c: int) -> float:
    return min((np.linalg.norm(v[c] - u) / 2 for j, u in enumerate(v) if j != c), default=np.inf)


def towards(w: Model, v: np.ndarray, step: float) -> Model:
    """w − step·v, with v as one vector."""
    at, new = 0, {}
    for k, p in w.items():
        new[k] = p - step * v[at : at + p.size].reshape(p.shape)
        at += p.size
    return new


def pfl(
    f: Function,
    clients: list[Rows],
    start: Model,
    rounds: list[list[int]],
    k: int,
    lr: float,
    alpha: float,
    average: str = "gradients",
    steps: int = 3,
    decay: float = 1.0,
    batches: Any = None,
) -> list[tuple[list[Model], dict[int, int]]]:
    """(models, labels of those who took part) after every round."""
    x, m, found = [start] * len(clients), [None] * len(clients), []
    for t, who in enumerate(rounds):
        eta = lr * decay**t
        for i in who:
            mine = batches(i, t + 1) if batches else [clients[i]] * steps
            if average == "gradients":
                g = vector(f(x[i], *mine[0])[1])
            else:
                g = (vector(x[i]) - vector(descend(f, x[i], mine, eta))) / eta
            m[i] = g if m[i] is None else alpha * g + (1 - alpha) * m[i]
        points = np.stack([m[i] for i in who])
        label = np.array(best_partition(list(points), k))
        v = moved(points, [points[label == j].mean(0) for j in range(k)], half)
        label = [int(np.argmin([np.linalg.norm(p - u) for u in v])) for p in points]
        for i, j in zip(who, label):
            x[i] = towards(x[i], v[j], eta)
        found.append((list(x), dict(zip(who, label))))
    return found


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    "how", [{}, {"average": "models", "decay": 0.8}, {"alpha": 1.0, "decay": 0.8}, {"average": "models", "batch": 2}]
)
def test_pfl_rounds_in_numpy(problem: str, how: dict) -> None:
    """Seven ragged clients, five of them a round: absent ones keep model, momentum and label."""
    p = PROBLEMS[problem]()
    method = ct.PFLTC(clusters=2, **{"lr": 0.05, "alpha": 0.3, "local_steps": 3, **how})
    run = ready(method, p.fed, p.model, rounds=4, participation=0.7, seed=3)
    batches = (lambda i, r: mini_batches(run, r, i)) if "batch" in how else None
    settings = {"alpha": 0.3, **{k: v for k, v in how.items() if k != "batch"}}
    want = pfl(p.f, p.clients, arrays(run.task.init(3)), participants(run), 2, 0.05, **settings, batches=batches)
    next(run.rounds())
    before = run.state.group.tolist()
    for who, (x, label) in zip(participants(run), want):
        next(run.rounds())
        group = run.state.group.tolist()
        assert same_groups([group[i] for i in who], [label[i] for i in who])
        assert all(group[i] == before[i] for i in range(7) if i not in who)
        for i in range(7):
            near(personal(run, i), x[i], 1e-5)
        before = group
    assert not any(row["refused"] for row in run.history)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_pdl_rounds_in_numpy(problem: str) -> None:
    """The default: 0.99 × the 1/(2K)-quantile of the distances from where the centre is now."""
    p, lr, alpha = PROBLEMS[problem](), 0.05, 0.4
    run = ready(ct.PDLTC(clusters=2, lr=lr, alpha=alpha, decay=0.9), p.fed, p.model, rounds=4)
    x = [arrays(run.task.init(0))] * 7
    m = [None] * 7
    next(run.rounds())
    for t in range(4):
        g = [vector(p.f(w, *xy)[1]) for w, xy in zip(x, p.clients)]
        m = [a if b is None else alpha * a + (1 - alpha) * b for a, b in zip(g, m)]
        points = np.stack(m)
        tau = lambda v, c: 0.99 * np.quantile([np.linalg.norm(q - v[c]) for q in points], 0.25)  # noqa: B023
        # the centres settle together: the last to stand still ends the rounds
        v = moved(points, list(points), tau)
        x = [towards(w, u, lr * 0.9**t) for w, u in zip(x, v)]
        next(run.rounds())
        for i in range(7):
            near(personal(run, i), x[i], 1e-5)
    assert max(run.history[-1]["notes"]["inside"]) > 1


# ---------------------------------------------------------------------------------------------- identities
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("threshold", [torch.inf, "half"])
def test_pfl_with_one_ball_is_gradient_descent(problem: str, threshold: Any) -> None:
    p = PROBLEMS[problem]()
    method = ct.PFLTC(clusters=1, lr=0.1, alpha=1.0, threshold=threshold)
    run = ready(method, p.fed, p.model, rounds=5)
    w = arrays(run.task.init(0))
    for _ in range(5):
        w = {k: w[k] - 0.1 * np.mean([p.f(w, *xy)[1][k] for xy in p.clients], axis=0) for k in w}
    finished(run)
    for i in range(7):
        near(personal(run, i), w)
    near(one(run.state.centres), w)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("how", [{}, {"batch": 2}, {"batch": 2, "local_epochs": 2}, {"solver": "adam"}, {"decay": 0.5}])
def test_pfl_option_2_with_one_ball_is_unweighted_fedavg(problem: str, how: dict) -> None:
    p = PROBLEMS[problem]()
    method = ct.PFLTC(clusters=1, lr=0.05, alpha=1.0, threshold=torch.inf, average="models", **how)
    balls = finished(ready(method, p.fed, p.model, rounds=3))
    fedavg = finished(ready(ct.FedAvg(lr=0.05, weighted=False, **how), p.fed, p.model, rounds=3))
    for i in range(7):
        near(personal(balls, i), one(fedavg.state))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("how", [{}, {"batch": 2}, {"l2": 0.1, "decay": 0.7}])
def test_pdl_at_threshold_0_is_local_gradient_descent(problem: str, how: dict) -> None:
    p = PROBLEMS[problem]()
    peers = ready(ct.PDLTC(clusters=2, lr=0.05, alpha=1.0, threshold=0.0, **how), p.fed, p.model, rounds=4)
    alone = ready(ct.LocalOnly(lr=0.05, local_steps=1, **how), p.fed, p.model, rounds=4)
    finished(peers), finished(alone)
    for i in range(7):
        near(personal(peers, i), {k: v[i].numpy() for k, v in alone.engine.snapshot().items()})


def test_pdl_at_threshold_0_is_local_momentum() -> None:
    """α < 1: m ← α∇ + (1 − α)m, w ← w − ηm."""
    p = lines()
    run = finished(ready(ct.PDLTC(clusters=2, lr=0.05, alpha=0.3, threshold=0.0), p.fed, p.model, rounds=4))
    for i, xy in enumerate(p.clients):
        w, m = arrays(run.task.init(0)), None
        for _ in range(4):
            g = p.f(w, *xy)[1]
            m = g if m is None else {k: 0.3 * g[k] + 0.7 * m[k] for k in g}
            w = {k: w[k] - 0.05 * m[k] for k in w}
        near(personal(run, i), w)
        near(momentum(run, i), m)


@pytest.mark.parametrize(
    "method, share",
    [(ct.PFLTC(clusters=2, lr=0.05, batch=2), 0.7), (ct.PFLTC(clusters=2, lr=0.05, init="per_client"), 0.7),
     (ct.PDLTC(clusters=2, lr=0.05, batch=2), 1.0)],
)  # fmt: skip
def test_permuting_clients_permutes_the_result(method: ct.Algorithm, share: float) -> None:
    p, order = lines(), [4, 0, 6, 2, 5, 1, 3]
    plain, permuted = (
        finished(ready(method, fed, p.model, rounds=3, participation=share)) for fed in (p.fed, p.fed.subset(order))
    )
    for place, i in enumerate(order):
        near(personal(permuted, place), personal(plain, i))
    if method.name == "pfl-tc":
        assert permuted.state.group.tolist() == plain.state.group[order].tolist()


# ---------------------------------------------------------------------------------------------- labels, starts, faults
def test_labels_keep_their_meaning() -> None:
    """Five clear groups: whatever order k-means finds them in, no client changes its label from round to round."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(100, 6)) for _ in range(15)]
    fed = federation([(x, x @ (9 * np.eye(6)[i % 5])) for i, x in enumerate(xs)])
    run = ready(ct.PFLTC(clusters=5, lr=0.02), fed, lambda: nn.Linear(6, 1), rounds=6)
    seen = []
    for _ in run.rounds():
        seen.append(run.state.group.tolist())
    assert all(s == seen[1] for s in seen[2:])
    assert same_groups(seen[1], [i % 5 for i in range(15)])
    for i in range(15):  # and so the server's models are those of the clients
        near(one(run.state.centres, seen[1][i]), personal(run, i))


def test_fewer_participants_than_clusters() -> None:
    p = lines()
    run = finished(ready(ct.PFLTC(clusters=4, lr=0.05), p.fed, p.model, rounds=6, participation=0.3))
    assert int(run.state.group.min()) >= -1 and int(run.state.group.max()) < 4


def test_each_its_own_start_keeps_its_offset() -> None:
    """Starts are separate draws in the order of names; one ball then moves all clients alike."""
    p = lines()
    run = ready(ct.PFLTC(clusters=1, lr=0.05, init="per_client"), p.fed, p.model, rounds=2, seed=4)
    common = personal(run, 0)
    next(run.rounds())
    starts = [personal(run, i) for i in range(7)]
    for place, i in enumerate(run.everyone.tolist()):
        near(starts[i], arrays(run.task.init(4, 1 + place)))
        assert apart(starts[i], common)
    finished(run)
    for i in range(1, 7):
        offset = lambda a, b: {k: a[k] - b[k] for k in a}
        near(offset(personal(run, i), personal(run, 0)), offset(starts[i], starts[0]))
    with pytest.raises(ct.CoterieError, match="factory"):
        finished(ready(ct.PFLTC(clusters=1, init="per_client"), p.fed, p.model(), rounds=1))


def test_pdl_refuses_partial_participation_but_not_faults() -> None:
    p = lines()
    with pytest.raises(ct.CoterieError, match="everyone takes part"):
        finished(ready(ct.PDLTC(clusters=2), p.fed, p.model, rounds=1, participation=0.5))
    run = finished(ready(ct.PDLTC(clusters=2, lr=0.05), p.fed, p.model, rounds=4, dropout=0.3))
    assert len(run.history) == 5


@pytest.mark.parametrize(
    "method, says",
    [
        (ct.PFLTC(clusters=2, threshold="wide"), "threshold of pfl-tc is 'wide'"),
        (ct.PFLTC(clusters=2, threshold=-1.0), "threshold of pfl-tc is -1.0: it must be ≥ 0"),
        (ct.PFLTC(clusters=2, alpha=0.0), "alpha of pfl-tc is 0.0: it must be > 0"),
        (ct.PFLTC(clusters=2, quantile=0.2), "quantile=0.2 needs threshold='quantile'"),
        (ct.PFLTC(clusters=9), "clusters is 9"),
        (ct.PDLTC(clusters=2, threshold="half"), "threshold of pdl-tc is 'half'"),
        (ct.PDLTC(clusters=2, threshold="theory"), "threshold of pdl-tc is 'theory'"),
    ],
)
def test_what_makes_no_sense_is_refused(method: ct.Algorithm, says: str) -> None:
    p = lines()
    with pytest.raises(ct.CoterieError, match=says):
        ready(method, p.fed, p.model)


# ---------------------------------------------------------------------------------------------- evaluation
LINEAR = lambda: nn.Linear(3, 1)


@pytest.mark.parametrize("method", [ct.PFLTC(clusters=2, lr=0.05), ct.PDLTC(clusters=2, lr=0.05)])
def test_each_client_is_measured_with_its_own_model(method: ct.Algorithm) -> None:
    fed = measured()
    run = finished(ready(method, fed, LINEAR, rounds=2))
    want = [loss_on_test(personal(run, i), fed, i) for i in range(4)]
    np.testing.assert_allclose(run.clients["mse"], want, rtol=1e-12)


def test_newcomers() -> None:
    """PFL-TC: the server's model of least loss on the newcomer's training rows. PDL-TC: local steps from the start."""
    fed = measured(unseen=1)
    run = finished(ready(ct.PFLTC(clusters=2, lr=0.05), fed, LINEAR, rounds=2))
    kept = [one(run.state.centres, j) for j in range(2)]
    best = kept[int(np.argmin([squared(c, *rows(fed)[3])[0] for c in kept]))]
    for _ in range(2):  # whichever label that has
        assert run.evaluate(2)["unseen_mse"] == pytest.approx(loss_on_test(best, fed, 3), rel=1e-12)
        run.state = run.state._replace(centres={k: v.flip(0) for k, v in run.state.centres.items()})
    run = finished(ready(ct.PDLTC(clusters=2, lr=0.05, local_steps=4), fed, LINEAR, rounds=2))
    alone = descend(squared, arrays(run.task.init(0)), [rows(fed)[3]] * 4, 0.05)
    assert run.history[-1]["unseen_mse"] == pytest.approx(loss_on_test(alone, fed, 3), rel=1e-12)


# ---------------------------------------------------------------------------------------------- recovery
def planted(seed: int, samples: int, dim: int) -> ct.data.Federation:
    """24 clients in three groups."""
    return ct.data.linear(clients=24, samples=samples, dim=dim, clusters=3, seed=seed, test_samples=50)


@pytest.mark.parametrize("average", ["gradients", "models"])
def test_pfl_finds_planted_lines(average: str) -> None:
    """80 rows in 10 dimensions: exact groups in each of the first two rounds, for nine of ten seeds."""
    found = []
    for seed in range(10):
        method = ct.PFLTC(clusters=3, lr=0.05, average=average, local_steps=3)
        result = ct.run(method, planted(seed, 80, 10), "linear", rounds=2, seed=seed, eval_every=2)
        found.append(min(row["ari"] for row in result.history[1:]))
    assert sum(ari == 1.0 for ari in found) >= 9, found


def test_pdl_learns_from_its_like_and_from_no_one_else() -> None:
    """20 rows in 15 dimensions, 10 rounds: the test error is below that of training alone, for nine of ten seeds."""
    better = []
    for seed in range(10):
        how = {"rounds": 10, "seed": seed, "eval_every": 10}
        peers = ct.run(ct.PDLTC(clusters=3, lr=0.2, alpha=1.0), planted(seed, 20, 15), "linear", **how)
        alone = ct.run(ct.LocalOnly(lr=0.2, local_steps=1), planted(seed, 20, 15), "linear", **how)
        better.append(peers.history[-1]["mse"] < alone.history[-1]["mse"])
    assert sum(better) >= 9, better
