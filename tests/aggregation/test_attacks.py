"""Attacks: each sends what its paper says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.aggregation.attacks import (
    ATTACKS,
    Attack,
    apply_attack,
    flip_labels,
    largest_shift,
    norms,
)
from coterie.aggregation.clipping import Clipping
from coterie.core.contract import Upload
from coterie.core.errors import CoterieError
from coterie.core.params import Params
from coterie.methods.ifca import IFCA


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moves_of(attackers: int, dtype: torch.dtype = torch.float32) -> Params:
    return {
        "w": torch.randn(attackers, 4, 3, generator=rng(1), dtype=dtype),
        "b": torch.randn(attackers, generator=rng(2), dtype=dtype),
    }


@pytest.mark.parametrize(
    ("kind", "strength", "expected"),
    [
        ("flip", None, [[-9.0, -18], [-27, 9]]),
        ("flip", 2.0, [[-2.0, -4], [-6, 2]]),
        ("scale", None, [[1000.0, 2000], [3000, -1000]]),
        ("scale", 5.0, [[5.0, 10], [15, -5]]),
        ("ipm", None, [[-4.0, -1], [-4, -1]]),
        ("ipm", 0.5, [[-1.0, -0.25], [-1, -0.25]]),
        # means 2 and ½; deviations √2 and 3/√2
        ("shift", 2**0.5, [[0.0, -2.5], [0, -2.5]]),
        ("labels", None, [[1.0, 2], [3, -1]]),
        ("free-ride", None, [[0.0, 0], [0, 0]]),
        ("claim", None, [[-3.0, -6], [-9, 3]]),
        ("collude", None, [[-3.0, -6], [-3, -6]]),
    ],
)
def test_an_attack_by_hand(kind: str, strength: float | None, expected: list) -> None:
    moves = {"w": torch.tensor([[1.0, 2], [3, -1]])}
    sent = apply_attack(kind, moves, strength, None, rng())
    torch.testing.assert_close(sent["w"], torch.tensor(expected))
    assert moves["w"].tolist() == [[1, 2], [3, -1]]


BYZFL_ROWS = [
    [20.13, -5.13, 8.64],
    [0.1, -0.54, 0.36],
    [1.3, 0.95, -0.7],
    [-1.27, -0.62, 0.04],
    [-2.33, -0.22, -1.25],
    [9.0, 9.0, -9.0],
    [0.41, 1.04, -0.13],
    [1.37, -0.67, 0.35],
]


# ByzFL 0.0.11, in NumPy float64. It gives one vector, which all attackers send.
@pytest.mark.parametrize(
    ("kind", "strength", "attackers", "expected"),
    [
        ("flip", 1.0, 1, [-20.13, 5.13, -8.64]),  # SignFlipping()(rows[:1])
        # ALittleIsEnough(tau=-1.5)(rows)
        ("shift", 1.5, 8, [-7.66440223694486, -5.433602812706686, -7.328987369969276]),
        ("ipm", 2.0, 8, [-7.1775, -0.9525, 0.4225]),  # InnerProductManipulation(tau=2.0)(rows)
    ],
)
def test_byzfl_agrees(kind: str, strength: float, attackers: int, expected: list) -> None:
    rows = torch.tensor(BYZFL_ROWS, dtype=torch.float64)[:attackers]
    sent = apply_attack(kind, {"w": rows}, strength, None, rng())["w"]
    np.testing.assert_allclose(sent, np.tile(expected, (attackers, 1)), 1e-12)


@pytest.mark.parametrize("attackers", [1, 5])
@pytest.mark.parametrize("kind", ATTACKS)
def test_what_is_sent_has_the_shapes_of_the_moves(kind: str, attackers: int) -> None:
    for dtype in (torch.float32, torch.float64):
        moves = moves_of(attackers, dtype)
        sent = apply_attack(kind, moves, None, None, rng(), clients=40)
        for n, v in moves.items():
            assert sent[n].shape == v.shape and sent[n].dtype == dtype
            assert sent[n].isfinite().all()


def test_noise_is_as_long_as_screening_allows() -> None:
    sent = apply_attack("noise", moves_of(5), 3.0, 2.5, rng())
    assert (norms(sent) > 2.49).all() and (norms(sent) <= 2.5).all()
    again = apply_attack("noise", moves_of(5), 3.0, 2.5, rng())
    assert torch.equal(sent["w"], again["w"])
    other = apply_attack("noise", moves_of(5), 3.0, 2.5, rng(1))
    assert not torch.allclose(sent["w"], other["w"])


def test_without_a_limit_noise_is_some_times_as_long_as_the_attackers_own_moves() -> None:
    moves = moves_of(5)
    sent = apply_attack("noise", moves, 3.0, None, rng())
    expected = 3 * np.median(norms(moves))
    np.testing.assert_allclose(norms(sent), np.full(5, expected), 1e-6)


def test_noise_points_in_no_direction_that_attackers_share() -> None:
    sent = apply_attack("noise", {"w": torch.ones(30, 2000)}, None, 1.0, rng())["w"]
    cosines = sent @ sent.T
    assert cosines.fill_diagonal_(0).abs().max() < 0.15


def test_how_far_a_shift_may_go_is_computed_as_in_the_paper() -> None:
    """24 of 50 need s = 2 of the 26 others for a majority, 8 of 40 need 13 of 32."""
    assert largest_shift(50, 24) == pytest.approx(1.426, abs=1e-3)  # Φ⁻¹(24/26)
    assert largest_shift(40, 8) == pytest.approx(0.2372, abs=1e-3)  # Φ⁻¹(19/32)
    assert largest_shift(10, 9) == 1.5  # a majority needs no cover
    moves = moves_of(8)
    by_default = apply_attack("shift", moves, None, None, rng(), clients=40)
    given = apply_attack("shift", moves, largest_shift(40, 8), None, rng())
    assert torch.equal(by_default["w"], given["w"])


def test_an_unknown_attack_is_refused() -> None:
    with pytest.raises(CoterieError, match="did you mean 'flip'"):
        apply_attack("flipp", moves_of(2), None, None, rng())


TWO_CENTRES = {"apart": {"w": torch.tensor([[10.0], [20.0]])}}


def poisoned(kind: str, function) -> Upload:
    """What attackers send that rose from 10 to 11 and from 20 to 22; the second has 5 rows."""
    honest = Upload(
        {"apart": {"w": torch.tensor([[11.0], [22.0]])}},
        {"apart": torch.tensor([[1.0, 0.0], [0.0, 5.0]])},
        {"cluster": torch.tensor([0, 1]), "losses": torch.tensor([[0.1, 0.9], [0.8, 0.2]])},
    )
    attack = Attack(kind, None, torch.tensor([0, 1]))
    return attack.poison(honest, Clipping(TWO_CENTRES), function.declaration, rng(), clients=4)


def test_a_free_rider_sends_the_first_centre_for_the_cluster_that_fits_it() -> None:
    sent = poisoned("free-ride", IFCA.train)
    assert sent.values["apart"]["w"].tolist() == [[10], [10]]
    assert sent.weight["apart"].tolist() == [[1, 0], [0, 5]]
    assert sent.report["cluster"].tolist() == [0, 1]


def test_a_free_rider_that_gets_one_centre_sends_that() -> None:
    sent = poisoned("free-ride", IFCA.train_sent)
    assert sent.values["apart"]["w"].tolist() == [[10], [20]]


@pytest.mark.parametrize(("kind", "expected"), [("claim", [7, 4]), ("collude", [7, 7])])
def test_attackers_claim_the_cluster_of_the_first(kind: str, expected: list[float]) -> None:
    """From centre 10: −3 times the updates 1 and 2, or twice that of the first."""
    sent = poisoned(kind, IFCA.train)
    assert sent.values["apart"]["w"][:, 0].tolist() == expected
    assert sent.weight["apart"].tolist() == [[1, 0], [5, 0]]  # with their own numbers of rows
    assert sent.report["cluster"].tolist() == [0, 0]
    assert sent.report["losses"].tolist() == [[pytest.approx(0.1), pytest.approx(0.9)]] * 2


def test_the_weight_that_a_client_was_sent_cannot_be_claimed() -> None:
    assert poisoned("claim", IFCA.train_sent).weight["apart"].tolist() == [[1, 0], [0, 5]]


def test_labels_are_flipped() -> None:
    y = torch.tensor([0, 1, 9])
    assert flip_labels(y, 10).tolist() == [9, 8, 0] and y.tolist() == [0, 1, 9]
    assert flip_labels(y, 10).dtype == y.dtype
    targets = torch.tensor([1.0, 2, 6])
    assert flip_labels(targets, None).tolist() == [5, 4, 0]  # the mean is 3 before and after
