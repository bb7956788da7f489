"""FL+HC: a clustering by hand, rounds in NumPy with a tree built by hand, latecomers, recovery."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from cases import Problem, lines, points, same_rounds
from coterie.runs.run import Run
from oracles import Model, assert_same_models, descend, flat, mean, one, same_groups, vector

VARIANTS = {
    "flhc": [
        ct.FLHC(warm=0, distance=0.9, batch=4),
        ct.FLHC(warm=1, distance=0.5, metric="euclidean", linkage="ward"),
    ]
}

# ------------------------------------------------------------------------------ by hand
# Start 0, lr ¼, one step: a (1, 1) → ½.  b, two rows (1, 4) → 2.  c (1, −2) → −1.  d (2, −2) → −2.
# Average linkage: {c, d} at 1, {a, b} at 1.5, all at (1.5 + 2.5 + 3 + 4)/4 = 2.75.
# Cut at 2: {a, b}, by rows (½ + 2·2)/3 = 1.5, and {c, d}, −1.5.
# Cut at 3: all, (½ + 4 − 1 − 2)/5 = 0.3.
# Clusters are numbered in the order of names: a's is 0.
FOUR = {"d": [(2, -2)], "b": [(1, 4), (1, 4)], "c": [(1, -2)], "a": [(1, 1)]}


@pytest.mark.parametrize(
    "how, centres, group",
    [
        ({"distance": 2.0}, [1.5, -1.5], [1, 0, 1, 0]),
        ({"distance": 3.0}, [0.3], [0, 0, 0, 0]),
        ({"distance": 1.2}, [0.5, 2.0, -1.5], [2, 1, 2, 0]),
        ({"distance": 0.5}, [0.5, 2.0, -1.0, -2.0], [3, 1, 2, 0]),
        ({"distance": 1.6, "linkage": "single"}, [0.3], [0, 0, 0, 0]),  # a to c: 1.5
        ({"distance": 3.9, "linkage": "complete"}, [1.5, -1.5], [1, 0, 1, 0]),  # b to d: 4
        ({"distance": 1.0, "metric": "cosine"}, [1.5, -1.5], [1, 0, 1, 0]),
    ],
)
def test_the_clustering_by_hand(how: dict, centres: list[float], group: list[int]) -> None:
    method = ct.FLHC(lr=0.25, local_steps=1, warm=0, **{"metric": "euclidean", **how})
    run = points(FOUR, 0.0).run(method, rounds=1)
    assert flat(run.state.centres) == pytest.approx(centres, rel=1e-15)
    assert run.state.group.tolist() == group
    assert run.history[1]["notes"]["sizes"] == [group.count(j) for j in range(len(centres))]


def test_groups_can_start_at_the_model_before_them() -> None:
    """So the clustering round moves nothing, and the next one ends where `mean` had begun."""
    method = ct.FLHC(
        lr=0.25, local_steps=1, warm=0, metric="euclidean", distance=2.0, group_start="before"
    )
    run = points(FOUR, 0.0).ready(method, rounds=2)
    centres = [flat(run.state.centres) for _ in run.rounds()]
    assert centres == [[0.0], [0.0, 0.0], [1.5, -1.5]]
    assert run.state.group.tolist() == [1, 0, 1, 0]


# ------------------------------------------------------------------------------ in NumPy
FAR = {
    "cosine": lambda u, v: 1 - u @ v / np.linalg.norm(u) / np.linalg.norm(v),
    "manhattan": lambda u, v: np.abs(u - v).sum(),
    "euclidean": lambda u, v: np.linalg.norm(u - v),
}


def tree(points: list[np.ndarray], metric: str, linkage: str, distance: float) -> list[int]:
    """Labels in the order of first appearance: the nearest groups are joined while near enough."""
    far = FAR[metric]

    groups = [[i] for i in range(len(points))]
    fold = {"average": np.mean, "complete": np.max, "single": np.min}[linkage]
    while len(groups) > 1:
        between = {
            (a, b): fold([far(points[i], points[j]) for i in groups[a] for j in groups[b]])
            for a in range(len(groups))
            for b in range(a)
        }
        (a, b), least = min(between.items(), key=lambda item: item[1])
        if least >= distance:
            break
        groups[b] += groups.pop(a)
    groups.sort(key=min)
    return [next(j for j, g in enumerate(groups) if i in g) for i in range(len(points))]


def flhc(p: Problem, run: Run, rounds: int) -> list[tuple[list[Model], list[int]]]:
    """(centres, groups) after every round."""
    m: ct.FLHC = run.method
    centres = [one(run.state.centres)]
    group = [0] * len(p.clients)
    states = []
    for r in range(1, rounds + 1):
        who = (run.all_clients if r == m.warm + 1 else run.participants(r)).tolist()
        models = {
            i: descend(p.f, centres[group[i]], [p.clients[i]] * m.local_steps, m.lr) for i in who
        }
        if r == m.warm + 1:
            updates = [vector(models[i]) - vector(centres[0]) for i in who]
            labels = tree(updates, m.metric, m.linkage, m.distance)
            group = [labels[who.index(i)] for i in range(len(group))]
            centres = centres * (max(group) + 1)
        new = []
        for j, c in enumerate(centres):
            here = [i for i in who if group[i] == j]
            new.append(mean([models[i] for i in here], [p.sizes[i] for i in here]) if here else c)
        centres = new
        states.append((centres, list(group)))
    return states


CASES = [
    ("cosine", "average", 0.6),
    ("euclidean", "complete", 0.7),
    ("manhattan", "single", 0.6),
    ("cosine", "complete", 0.9),
]


@pytest.mark.parametrize("metric, linkage, distance", CASES)
def test_rounds_in_numpy(metric: str, linkage: str, distance: float) -> None:
    """Two rounds of FedAvg with some, all in round 3, then FedAvg per cluster with some."""
    p = lines(8, 3)
    tree = {"metric": metric, "linkage": linkage, "distance": distance}
    run = p.ready(ct.FLHC(lr=0.05, local_steps=3, warm=2, **tree), rounds=5, participation=0.6)
    want = flhc(p, run, 5)
    same_rounds(run, want)
    assert 1 < len(want[-1][0]) < 8


# ------------------------------------------------------------------------------ identity, recovery
@pytest.mark.parametrize("warm", [1, 9])
def test_one_group_is_fedavg(warm: int) -> None:
    """Before the clustering with some clients; and with all if no distance is as far as the cut."""
    p, how = lines(), {"lr": 0.05, "local_steps": 2, "batch": 2}
    options = {"rounds": 3, "participation": 0.6 if warm == 9 else 1.0}
    mine = p.run(ct.FLHC(warm=warm, distance=99.0, **how), **options)
    assert_same_models(one(mine.state.centres), one(p.run(ct.FedAvg(**how), **options).state))


def finds_three_groups(seed: int) -> bool:
    p = lines(9, 3, 5, seed, least=25, noise=0.3)
    method = ct.FLHC(lr=0.1, local_steps=3, warm=4)
    run = p.run(method, rounds=5, seed=seed, engine="vectorised")
    return same_groups(run.state.group.tolist(), [i % 3 for i in range(9)])


def test_three_groups_are_found_after_4_rounds_of_fedavg() -> None:
    assert finds_three_groups(seed=0)


@pytest.mark.slow
def test_three_groups_are_found_for_nine_of_ten_seeds() -> None:
    assert sum(map(finds_three_groups, range(10))) >= 9


def test_who_missed_the_clustering_joins_the_cluster_of_least_loss() -> None:
    p = lines(9, 2, 5, least=25, noise=0.3)
    run = p.ready(ct.FLHC(lr=0.1, local_steps=3, warm=2), rounds=8, dropout=0.3, seed=1)
    groups = [run.state.group.tolist() for _ in run.rounds()]
    assert -1 in groups[3]
    assert same_groups(groups[-1], [i % 2 for i in range(9)])


def test_ward_needs_euclidean_distances() -> None:
    p = lines()
    with pytest.raises(ct.CoterieError, match="ward.*euclidean.*cosine"):
        p.ready(ct.FLHC(linkage="ward"))
    p.ready(ct.FLHC(linkage="ward", metric="euclidean"))
