"""ε is dp-accounting's own, by either accountant, and the searches invert it."""

from __future__ import annotations

import math
import sys

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

import coterie as ct
from coterie.privacy.accounting import Gaussian, delta_for, epsilon, noise_multiplier_for

CONFIGURATIONS = [  # noise multiplier, sampling rate, steps, delta
    (4.0, 0.5, 30, 1e-2),
    (1.0, 0.1, 100, 1e-4),
    (1.0, 0.05, 300, 1e-5),
    (0.8, 0.01, 50, 1e-5),
    (2.0, 0.25, 10, 1e-3),
    (0.6, 0.02, 20, 1e-4),
    (10.0, 1.0, 100, 1e-5),
    (1.5, 1.0, 1, 1e-6),
    (3.0, 0.9, 40, 1e-3),
    (0.5, 0.001, 200, 1e-6),
]


@pytest.mark.parametrize("z, q, steps, delta", CONFIGURATIONS)
def test_epsilon_is_that_of_dp_accounting_and_rdp_gives_more(z, q, steps, delta):
    event = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z))
    exact = PLDAccountant().compose(event, steps).get_epsilon(delta)
    renyi = RdpAccountant().compose(event, steps).get_epsilon(delta)
    mechanisms = [Gaussian(z, q, steps)]
    assert epsilon(mechanisms, delta) == pytest.approx(exact, rel=5e-4)
    assert epsilon(mechanisms, delta, accountant="rdp") == pytest.approx(renyi, rel=5e-4)
    assert renyi > exact


def test_one_gaussian_mechanism_by_its_formula():
    z, eps = 1.5, 1.0  # Balle and Wang 2018, equation 6
    delta = norm.cdf(0.5 / z - eps * z) - math.exp(eps) * norm.cdf(-0.5 / z - eps * z)
    assert delta_for(eps, [Gaussian(z)]) == pytest.approx(delta, rel=1e-3)
    assert epsilon([Gaussian(z)], delta) == pytest.approx(eps, rel=1e-3)


def test_mechanisms_compose_in_any_split():
    whole = epsilon([Gaussian(2.0, 0.2, 10)], 1e-4)
    assert epsilon([Gaussian(2.0, 0.2, 4), Gaussian(2.0, 0.2, 6)], 1e-4) == pytest.approx(whole)
    assert epsilon([Gaussian(2.0, 0.2, 10), Gaussian(5.0)], 1e-4) > whole


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_noise_multiplier_is_the_least_that_suffices(accountant):
    mechanisms = [Gaussian(1.0, 0.2, 20), Gaussian(3.0, 1.0, 1)]
    z = noise_multiplier_for(4.0, 1e-4, mechanisms, accountant=accountant)

    def at(factor):
        scaled = [m._replace(noise_multiplier=m.noise_multiplier * factor) for m in mechanisms]
        return epsilon(scaled, 1e-4, accountant=accountant)

    assert 4.0 - 0.01 < at(z) <= 4.0
    assert at(z - 0.001) > 4.0


def test_choices_add_their_loss_at_every_order():
    orders = np.array([1 + x / 10 for x in range(1, 100)] + [*range(11, 64)])
    rho, delta = 0.02, 1e-4
    rdp = orders / 2 / 3.0**2 + rho * orders  # one Gaussian with z = 3, and ρ
    # Canonne, Kamath, Steinke 2020, proposition 12
    by_hand = rdp + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    found = epsilon([Gaussian(3.0)], delta, accountant="rdp", zcdp=rho)
    assert found == pytest.approx(by_hand.min(), rel=1e-6)
    with pytest.raises(ct.CoterieError, match="choices alone have a privacy loss above ε = 0.1"):
        noise_multiplier_for(0.1, delta, [Gaussian(1.0)], accountant="rdp", zcdp=rho)


def test_without_noise_there_is_no_promise():
    assert epsilon([Gaussian(0.0)], 1e-5) == math.inf


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ct.CoterieError, match=r"pip install 'coterie\[privacy\]'"):
        noise_multiplier_for(1.0, 1e-4, [Gaussian(1.0)])
