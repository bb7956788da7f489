"""How sure a choice among centres is, by drawing rows again and again."""

from __future__ import annotations

import pytest
import torch

from coterie.clustering.losses import BLOCKS, bootstrap_shares, copies_of_blocks


def shares(losses: list[list[float]] | torch.Tensor, padding: int = 0) -> list[float]:
    rows = torch.as_tensor(losses, dtype=torch.float32)
    mask = torch.ones(len(rows))
    rows = torch.cat([rows, torch.full((padding, rows.shape[1]), torch.nan)])
    return bootstrap_shares(rows, torch.cat([mask, torch.zeros(padding)])).tolist()


def test_a_centre_that_fits_every_row_better_is_sure() -> None:
    assert shares([[1.0, 2.0, 3.0]] * 20) == [1.0, 0.0, 0.0]


def test_a_toss_up_is_not_sure() -> None:
    rows = [[1.0, 2.0], [2.0, 1.0]] * 50
    assert shares(rows)[0] == pytest.approx(0.5, abs=0.12)


def test_one_row_never_makes_sure() -> None:
    """With the chance 1/e the row is not drawn at all, and nothing decides."""
    drawn = 1 - torch.exp(torch.tensor(-1.0)).item()
    assert shares([[1.0, 2.0]])[0] == pytest.approx(drawn + (1 - drawn) / 2, abs=0.06)


def test_padding_changes_nothing() -> None:
    rows = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    assert shares(rows) == shares(rows, padding=7) == shares(rows, padding=BLOCKS + 300)


def test_a_centre_that_diverged_is_never_chosen() -> None:
    inf, nan = float("inf"), float("nan")
    of_three = shares([[inf, 1.0, nan]] * 20)
    assert of_three == [0.0, 1.0, 0.0]


def test_as_sure_as_the_bootstrap_of_a_large_client() -> None:
    """Blocks of rows stand for rows: the mean difference is normal, with the known deviation."""
    generator = torch.Generator().manual_seed(1)
    difference = torch.randn(5000, generator=generator)
    difference += 1.0 / 5000**0.5 - difference.mean()  # one standard error above zero
    rows = torch.stack([torch.zeros(5000), difference], 1) + 10
    expected = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(1.0)).item()
    assert shares(rows)[0] == pytest.approx(expected, abs=0.08)


def test_copies_are_poisson_numbers_of_mean_one() -> None:
    copies = copies_of_blocks()
    assert copies.mean().item() == pytest.approx(1, abs=0.02)
    assert copies.var().item() == pytest.approx(1, abs=0.03)
    assert (copies == 0).double().mean().item() == pytest.approx(0.3679, abs=0.01)
