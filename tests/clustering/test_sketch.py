"""Sketches: linear, the same signs for all, inner products right in the mean."""

from __future__ import annotations

import pytest
import torch

from coterie.clustering import sketch
from coterie.core.params import axpy


def model(seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(7, 11, generator=g).double(),
        "b": torch.randn(7, generator=g).double(),
    }


def vector(m: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([v.flatten() for v in m.values()])


def test_it_is_linear_and_a_function_of_the_seed() -> None:
    a, b = model(0), model(1)
    both = sketch(axpy(-2.5, a, b), 16, seed=3)
    torch.testing.assert_close(both, sketch(b, 16, 3) - 2.5 * sketch(a, 16, 3))
    assert both.shape == (16,) and both.dtype == torch.float64
    assert torch.equal(sketch(a, 16, 3), sketch(a, 16, 3))
    assert not torch.equal(sketch(a, 16, 3), sketch(a, 16, 4))


@pytest.mark.parametrize("bins", [1, 16, 84, 256])
def test_every_number_goes_with_its_sign_to_its_place(bins: int) -> None:
    """Of one number alone at position p, ±it stands at p mod bins."""
    for p in (0, 5, 76, 83):
        unit = torch.zeros(84)
        unit[p] = 3.0
        short = sketch({"w": unit[:77].view(7, 11), "b": unit[77:]}, bins, seed=1)
        assert short.abs().nonzero().flatten().tolist() == [p % bins]
        assert short.abs().max() == 3.0


def test_inner_products_are_right_in_the_mean() -> None:
    """Over 1,000 seeds the mean of ⟨Sa, Sb⟩ is ⟨a, b⟩ within five standard errors, and its spread
    that of theory.
    """
    a, b = model(0), model(1)
    products = torch.stack([sketch(a, 16, 1000 * s) @ sketch(b, 16, 1000 * s) for s in range(1000)])
    want = vector(a) @ vector(b)
    assert (products.mean() - want).abs() < 5 * products.std() / 1000**0.5
    spread = (
        vector(a).norm() * vector(b).norm()
    ) / 16**0.5  # √((‖a‖²‖b‖² + ⟨a, b⟩²)/bins), but for the diagonal
    assert 0.7 * spread < products.std() < 1.2 * spread


def test_signs_are_fair() -> None:
    signs = sketch({"w": torch.ones(10_000)}, 10_000, seed=7)
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert signs.sum().abs() < 400  # four standard deviations
