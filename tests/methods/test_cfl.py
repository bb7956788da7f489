"""CFL: a split by hand, rounds in NumPy with bi-partitions by brute force, latecomers, recovery."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

import coterie as ct
from cases import Problem, lines, points
from coterie.methods.cfl import bipartition
from coterie.runs.run import Run
from oracles import (
    Model,
    assert_same_models,
    descend,
    flat,
    mean,
    one,
    same_groups,
    unstacked,
    vector,
)

VARIANTS = {
    "cfl": [
        ct.CFL(wait=1, eps1=10.0, eps2=0.0, batch=4),
        ct.CFL(wait=2, eps1=10.0, eps2=0.0, gamma=0.6, linkage="complete"),
    ]
}

# ------------------------------------------------------------------------------ by hand
# Start 0, lr ¼, one step: Δ = −½(w − y).  a (y −4): −2.  b, two rows (y −1): −½.  c, d (y 3): 1.5.
# Mean by rows (−2 − 2·½ + 1.5 + 1.5)/5 = 0, by clients ⅛; the longest is 2: ε1 = 0.05 allows 0.1.
# Halves {a, b} and {c, d}, cosine across −1. Centres: (−2 − 2·½)/3 = −1, and 1.5.
# Round 2: a −1 − ½·3 = −2.5, b −1, by rows −1.5;  c, d 1.5 + ½·1.5 = 2.25.
#          Mean updates −½ and ¾: no split.
FOUR = {"d": [(1, 3)], "b": [(1, -1), (1, -1)], "c": [(1, 3)], "a": [(1, -4)]}


def four(rounds: int, rows: dict = FOUR, **how: object) -> Run:
    method = ct.CFL(lr=0.25, local_steps=1, **{"wait": 1, "eps1": 0.05, "eps2": 0.9, **how})
    return points(rows, 0.0).run(method, rounds=rounds)


def ends(run: Run) -> tuple[list[float], list[int]]:
    return flat(run.state.at.centres), run.state.at.group.tolist()


def test_a_split_by_hand() -> None:
    run = four(1)
    assert ends(run) == ([-1.0, 1.5], [1, 0, 1, 0])
    assert run.history[1]["notes"] == {"split of 0": [2, 2]}
    assert run.state.longest == 2
    assert ends(four(2)) == ([-1.5, 2.25], [1, 0, 1, 0])


@pytest.mark.parametrize("how", [{"wait": 2}, {"eps2": 1.0}, {"gamma": 0.999999}])
def test_what_prevents_a_split(how: dict) -> None:
    """The longest is not longer than itself; γ must be below 1, which is √((1 + 1)/2)."""
    together = ([0.0], [0] * 4)
    split = ([-1.0, 1.5], [1, 0, 1, 0])
    assert ends(four(1, **how)) == (split if "gamma" in how else together)


def test_epsilons_are_of_the_first_round() -> None:
    """Round 2 without a split in round 1, whose mean of −0.05 is too long: only ε1 decides."""
    moved = {**FOUR, "a": [(1, -4.5)]}  # Δ_a = −2.25, mean −0.05, longest 2.25
    assert ends(four(1, moved, eps1=0.02))[1] == [0] * 4  # 0.045 < 0.05
    assert ends(four(1, moved, eps1=0.025))[1] == [1, 0, 1, 0]  # 0.05625
    late = four(2, moved, eps1=0.02)  # from −0.05: mean −0.025
    assert ends(late)[1] == [1, 0, 1, 0] and late.state.longest == 2.25


def test_epsilons_can_be_lengths() -> None:
    """The longest update is 2, the mean one 0; of `moved` 2.25 and 0.05."""
    split, together = [1, 0, 1, 0], [0] * 4
    lengths = {"relative": False, "eps1": 0.1}
    assert ends(four(1, **lengths, eps2=1.99))[1] == split
    assert ends(four(1, **lengths, eps2=2.01))[1] == together
    moved = {**FOUR, "a": [(1, -4.5)]}
    assert ends(four(1, moved, relative=False, eps1=0.051))[1] == split
    assert ends(four(1, moved, relative=False, eps1=0.049))[1] == together


# ------------------------------------------------------------------------------ bi-partitions
def brute(points: list[np.ndarray]) -> tuple[list[bool], float]:
    """Of all bi-partitions the one of least largest cosine across."""
    unit = [p / np.linalg.norm(p) for p in points]
    best, least = [], np.inf
    for rest in product([False, True], repeat=len(unit) - 1):
        side = [False, *rest]
        if any(side):
            cross = max(
                u @ v for u, s in zip(unit, side) for v, t in zip(unit, side) if s and not t
            )
            if cross < least:
                best, least = side, cross
    return best, float(least)


@pytest.mark.parametrize("n", [2, 3, 6, 8])
def test_single_linkage_is_the_best_bipartition(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(5):
        points = rng.normal(size=(n, 3)) * rng.uniform(0.1, 10, size=(n, 1))
        side, cross = bipartition(torch.tensor(points), "single")
        want, least = brute(list(points))
        assert side.tolist() == want
        assert cross == pytest.approx(least, rel=1e-12)


def test_complete_linkage_may_differ() -> None:
    """Directions at 0°, 40°, 80°, 130°: single splits at the widest gap, complete in the middle."""
    at = torch.deg2rad(torch.tensor([0.0, 40.0, 80.0, 130.0], dtype=torch.float64))
    points = torch.stack([at.cos(), at.sin()], 1)
    assert bipartition(points, "single")[0].tolist() == [False, False, False, True]
    assert bipartition(points, "complete")[0].tolist() == [False, False, True, True]


# ------------------------------------------------------------------------------ in NumPy
def cfl(p: Problem, run: Run, rounds: int) -> list[tuple[list[Model], list[int]]]:
    m: ct.CFL = run.method
    centres = [one(run.state.at.centres)]
    group = [0] * len(p.clients)
    longest = None
    states = []
    for r in range(1, rounds + 1):
        who = run.participants(r).tolist()
        for i in who:
            if group[i] < 0:
                group[i] = p.best(centres, i)
        models = {
            i: descend(p.f, centres[group[i]], [p.clients[i]] * m.local_steps, m.lr) for i in who
        }
        delta = {i: vector(models[i]) - vector(centres[group[i]]) for i in who}
        n = {i: p.sizes[i] for i in who}
        longest = longest or max(np.linalg.norm(d) for d in delta.values())
        k = len(centres)
        for c in range(len(centres)):
            here = [i for i in who if group[i] == c]
            if r < m.wait or len(here) < 2:
                continue
            middle = sum(n[i] * delta[i] for i in here) / sum(n[i] for i in here)
            if not np.linalg.norm(middle) < m.eps1 * longest:
                continue
            if not max(np.linalg.norm(delta[i]) for i in here) > m.eps2 * longest:
                continue
            side, cross = brute([delta[i] for i in here])
            if np.sqrt((1 - cross) / 2) > m.gamma:
                group = [-1 if g == c and i not in here else g for i, g in enumerate(group)]
                for i, s in zip(here, side):
                    group[i] = k if s else c
                k += 1
        new = []
        for c in range(k):
            here = [i for i in who if group[i] == c]
            if here:
                new.append(mean([models[i] for i in here], [n[i] for i in here]))
            else:
                new.append(centres[c])
        centres = new
        states.append((centres, list(group)))
    return states


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_rounds_in_numpy(share: float) -> None:
    """Splits of splits: later ones concern clients whose places in the answer are not their ids."""
    p = lines(10, 3)
    method = ct.CFL(lr=0.05, local_steps=3, wait=2, eps1=0.7, eps2=0.05, gamma=0.3)
    run = p.ready(method, rounds=6, participation=share, seed=3)
    want = cfl(p, run, 6)
    next(run.rounds())
    for centres, group in want:
        next(run.rounds())
        assert run.state.at.group.tolist() == group
        assert_same_models(unstacked(run.state.at.centres), centres)
    assert len(want[-1][0]) >= 3
    if share < 1:  # absent members of a split group wait to be asked
        assert any(-1 in group for _, group in want)


# ------------------------------------------------------------------------------ identity, recovery
def test_without_splits_it_is_fedavg() -> None:
    p, how = lines(), {"lr": 0.05, "local_steps": 3, "batch": 2}
    mine = p.run(ct.CFL(wait=99, **how), rounds=2, participation=0.6)
    fedavg = p.run(ct.FedAvg(**how), rounds=2, participation=0.6)
    assert_same_models(one(mine.state.at.centres), one(fedavg.state))


def planted(groups: int, seed: int, **options: object) -> Run:
    """Nine clients of 25 to 33 rows."""
    p = lines(9, groups, 5, seed, least=25, noise=0.3)
    return p.run(ct.CFL(lr=0.1, local_steps=3), seed=seed, engine="vectorised", **options)


def finds_three_groups(seed: int) -> bool:
    group = planted(3, seed, rounds=12).state.at.group.tolist()
    return same_groups(group, [i % 3 for i in range(9)])


def test_three_groups_are_found_in_12_rounds() -> None:
    assert finds_three_groups(seed=0)


@pytest.mark.slow
def test_three_groups_are_found_for_nine_of_ten_seeds() -> None:
    assert sum(map(finds_three_groups, range(10))) >= 9


def test_clients_of_one_kind_are_never_split() -> None:
    for seed in range(3):
        assert planted(1, seed, rounds=8).state.at.group.tolist() == [0] * 9


def test_absent_members_find_their_half() -> None:
    """Two thirds a round: without being asked they would keep the parent's label."""
    run = planted(2, 1, rounds=14, participation=0.7)
    assert same_groups(run.state.at.group.tolist(), [i % 2 for i in range(9)])
    assert any(-1 in row.get("groups", []) for row in run.history)


@pytest.mark.parametrize(
    "how, why", [({"gamma": 1.0}, "gamma of cfl"), ({"linkage": "ward"}, "one of single, complete")]
)
def test_what_makes_no_sense_is_refused(how: dict, why: str) -> None:
    with pytest.raises(ct.CoterieError, match=why):
        lines().ready(ct.CFL(**how))
