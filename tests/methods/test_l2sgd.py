"""L2SGD: a round by hand, several in NumPy coin by coin, p = 0, that it mixes, what is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie as ct
from cases import PROBLEMS, Problem, finished, lines, measured, mini_batches, participants, points
from coterie.core import randomness
from coterie.methods.l2sgd import group_iterations
from coterie.runs.run import Run
from oracles import (
    Model,
    Rows,
    apart,
    assert_same_models,
    descend,
    flat,
    mean,
    one,
    personal,
    private_states,
)

VARIANTS = {
    "l2sgd": [
        ct.L2SGD(p=0.0, batch=4),
        ct.L2SGD(p=0.5, lam=2.0, batch=5, l2=0.1),
        ct.L2SGD(p=0.7, clip=1.0),
    ]
}


def coins(seed: int, r: int, steps: int, p: float) -> list[bool]:
    """What the server draws in round r."""
    return (torch.rand(steps, generator=randomness.generator(seed, r, "coins", 1)) < p).tolist()


def seed_of(wanted: str, p: float) -> int:
    """The first seed whose round 1 is such a word of L (local step) and M (mixing)."""
    return next(
        s for s in range(10_000) if coins(s, 1, len(wanted), p) == [c == "M" for c in wanted]
    )


# ------------------------------------------------------------------------------ by hand
# x = 2, N = 2, η = ¼, p = ½, λ = 2: a local step has size ¼/(2·½) = ¼, mixing goes
# ¼·2/(2·½) = ½ of the way to x̄.
# a: one row, f = (x − 1)².  b: two rows, f = (x − 4)².
#   L: a 1.5, b 3, x̄ 2.25.   M: a 1.875, b 2.625.   M: a 2.0625, b 2.4375, x̄ 2.25 as before.
#   L: a 2.0625 − ½·1.0625 = 1.53125, b 2.4375 + ½·1.5625 = 3.21875, x̄ 2.375.
TWO = {"b": [(1, 4), (1, 4)], "a": [(1, 1)]}
BY_HAND = {
    "L": ([3.0, 1.5], 2.25),
    "LM": ([2.625, 1.875], 2.25),
    "LMM": ([2.4375, 2.0625], 2.25),
    "LMML": ([3.21875, 1.53125], 2.375),
    "MLMM": ([2.4375, 2.0625], 2.25),  # at first all are equal, and mixing moves none
}


def two(word: str, lam: float = 2.0) -> Run:
    method = ct.L2SGD(lr=0.25, p=0.5, lam=lam, local_steps=len(word))
    return points(TWO, 2.0).run(method, rounds=1, seed=seed_of(word, 0.5))


@pytest.mark.parametrize("word", BY_HAND)
def test_one_round_by_hand(word: str) -> None:
    run = two(word)
    assert (flat(private_states(run)), run.state.mean["weight"].item()) == BY_HAND[word]
    assert run.history[1]["notes"]["mixings"] == word.count("M")


@pytest.mark.parametrize(
    "word, want",
    [
        ("LLL", [(0, 3)]),
        ("MM", [(2, 0)]),
        ("MLL", [(1, 2)]),
        ("LMMLLM", [(0, 1), (2, 2), (1, 0)]),
        ("MLMLM", [(1, 1), (1, 1), (1, 0)]),
    ],
)
def test_runs_of_coins(word: str, want: list[tuple[int, int]]) -> None:
    assert group_iterations([c == "M" for c in word]) == want


def test_a_run_is_one_exchange() -> None:
    """Down go 8 bytes of x̄ and 8 of the steps done; up come what moved and its weight.

    With their first message, the two clients are also sent the start of 8 bytes.
    """
    for word, exchanges in (("LLL", 1), ("LMML", 2), ("LMLM", 3)):
        row = two(word).history[1]
        assert row["bytes_up"] == 2 * 16 * exchanges
        assert row["bytes_down"] == 2 * 16 * exchanges + 2 * 8


# ------------------------------------------------------------------------------ in NumPy
def l2sgd(p: Problem, run: Run, batch_of: Callable[[int, int, int], Rows]) -> list[Model]:
    """All x_i after the last round, one coin after the other.

    batch_of: (round, client, number of the local step) → its rows.
    """
    m: ct.L2SGD = run.method
    x = personal(run)
    for r, present in enumerate(participants(run), 1):
        eta = m.lr * m.decay ** (r - 1)
        steps, mixed, centre = 0, False, x[0]
        for mixes in coins(run.options.seed, r, m.local_steps, m.p):
            if mixes:
                if not mixed:  # successive mixings move towards one x̄
                    centre = mean(x)
                share = eta * m.lam / (len(x) * m.p)
                for i in present:
                    x[i] = {k: x[i][k] - share * (x[i][k] - centre[k]) for k in x[i]}
            else:
                for i in present:
                    size = eta / (len(x) * (1 - m.p))
                    x[i] = descend(p.f, x[i], [batch_of(r, i, steps)], size, m.l2)
                steps += 1
            mixed = mixes
    return x


@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_in_numpy_absent_clients_wait(problem: str, share: float) -> None:
    p = PROBLEMS[problem]()
    method = ct.L2SGD(lr=0.4, p=0.4, lam=3.0, local_steps=8, decay=0.9, l2=0.1)
    run = p.ready(method, rounds=4, participation=share, seed=2)
    want = l2sgd(p, run, lambda r, i, k: p.clients[i])
    drawn = [coins(2, r, 8, 0.4) for r in (1, 2, 3, 4)]
    assert any("11" in "".join(str(int(c)) for c in row) for row in drawn)  # runs of mixings
    finished(run)
    assert_same_models(personal(run), want)
    assert_same_models(one(run.state.mean), mean(want))


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_mini_batches_in_numpy(share: float) -> None:
    """Every local step of a round sees another batch, in whichever exchange it is."""
    p = lines()
    run = p.ready(
        ct.L2SGD(lr=0.4, p=0.4, lam=3.0, local_steps=6, batch=2), rounds=3, participation=share
    )
    want = l2sgd(p, run, lambda r, i, k: mini_batches(run, r, i)[k])
    assert_same_models(personal(finished(run)), want)


# ------------------------------------------------------------------------------ identities
@pytest.mark.parametrize(
    "how",
    [
        {"local_steps": 3},
        {"local_steps": 3, "batch": 2},
        {"local_steps": 2, "l2": 0.2, "clip": 0.5},
    ],
)
@pytest.mark.parametrize("lam", [0.0, 1e9])
def test_p_0_is_local_training_with_steps_of_lr_over_n(how: dict, lam: float) -> None:
    p = lines()
    end = lambda m: p.run(m, rounds=2, participation=0.6, engine="vectorised")
    mine = end(ct.L2SGD(lr=0.35, p=0.0, lam=lam, **how))
    alone = end(ct.LocalOnly(lr=0.05, **how))
    assert_same_models(personal(mine), personal(alone))


def test_permuting_clients_permutes_their_models() -> None:
    plain, moved, order = lines().permuted(
        ct.L2SGD(lr=0.4, p=0.4, local_steps=5, batch=2), rounds=2, participation=0.5
    )
    assert_same_models(personal(moved), [personal(plain)[i] for i in order])


# ------------------------------------------------------------------------------ it mixes
def spread(run: Run) -> float:
    x = private_states(run)["weight"]
    return float((x - x.mean(0)).norm())


def test_it_mixes_and_more_with_a_larger_lambda() -> None:
    """Mixing goes ηλ/(Np) of the way: none of it, a twentieth, all of it."""
    p, far = lines(), []
    for lam in (0.0, 0.35, 7.0):
        method = ct.L2SGD(lr=0.4, p=0.4, lam=lam, local_steps=8)
        run = p.run(method, rounds=3, seed=1, engine="vectorised")
        assert sum(row["notes"]["mixings"] for row in run.history[1:]) > 5
        far.append(spread(run))
    assert far[2] < 0.7 * far[1] < 0.7 * far[0]


def test_all_the_way_to_the_mean_makes_models_equal() -> None:
    """η λ/(N p) = ¼·4/(2·½) = 1."""
    assert flat(private_states(two("LM", lam=4.0))) == [2.25, 2.25]


def test_coins_differ_from_round_to_round_and_fall_as_often_as_p_says() -> None:
    drawn = [tuple(coins(0, r, 20, 0.3)) for r in range(1, 51)]
    assert len(set(drawn)) == 50
    assert sum(map(sum, drawn)) == pytest.approx(300, abs=4 * np.sqrt(1000 * 0.3 * 0.7))
    run = lines(clients=4).run(ct.L2SGD(p=0.3, local_steps=20), rounds=2)
    assert [row["notes"]["mixings"] for row in run.history[1:]] == [sum(row) for row in drawn[:2]]


def test_the_mean_counts_every_client_also_those_who_drop_out() -> None:
    method = ct.L2SGD(lr=0.4, p=0.4, lam=2.0, local_steps=6)
    run = lines().run(method, rounds=5, participation=0.7, dropout=0.3)
    assert_same_models(one(run.state.mean), mean(personal(run)))
    before = one(run.state.mean)
    run.options = replace(run.options, dropout=1 - 1e-15, rounds=6)
    run.step()
    assert not apart(one(run.state.mean), before, 0.0)


# ------------------------------------------------------------------------------ evaluation
METHOD = ct.L2SGD(lr=0.2, p=0.4, lam=2.0, local_steps=3)


def test_each_client_is_measured_with_its_own_model() -> None:
    p = measured()
    run = p.run(METHOD, rounds=3)
    np.testing.assert_allclose(run.client_scores["mse"], p.test_losses(personal(run)), rtol=1e-12)
    assert all(apart(x, one(run.state.mean)) for x in personal(run))


@pytest.mark.parametrize("p, pull", [(0.4, 2.0), (0.0, 0.0)])
def test_a_newcomer_takes_the_expected_steps_from_the_mean(p: float, pull: float) -> None:
    """Three clients train: steps of 0.2/3."""
    four = measured(unseen=1)
    run = four.run(replace(METHOD, p=p), rounds=2)
    x = one(run.state.mean)
    x = descend(four.f, x, [four.clients[3]] * 3, 0.2 / 3, pull=pull, towards=x)
    assert run.history[-1]["unseen_mse"] == pytest.approx(four.test_loss(x, 3), rel=1e-12)


@pytest.mark.parametrize(
    "how, why",
    [
        ({"lr": 1.0, "lam": 3.0, "p": 0.4}, r"is 1.07 for 7 clients.*lr ≤ 0.933"),
        ({"p": 1.0}, "p of l2sgd is 1.0"),
        ({"local_epochs": 1}, "leave out local_epochs"),
        ({"solver": "adam"}, "leave out local_epochs and solver"),
    ],
)
def test_what_makes_no_sense_is_refused(how: dict, why: str) -> None:
    with pytest.raises(ct.CoterieError, match=why):
        lines().ready(ct.L2SGD(**how))
    lines().ready(ct.L2SGD(lr=1.0, lam=2.8, p=0.4))  # exactly 1
