"""The privacy loss (ε, δ) of Gaussian mechanisms, computed by the library dp-accounting.

    symbol    here                shape or range
    z         noise_multiplier    standard deviation of the noise / sensitivity, above 0
    q         sampling_rate       probability that a client (or row) takes part, (0, 1]
    T         steps               how often the mechanism is used
    ρ         zcdp                a loss of α·ρ at each Rényi order α

Two runs are neighbours if one has a client (or a row) more than the other. Participants are drawn
by Poisson sampling: each independently with probability q.

The accountant "pld" composes privacy loss distributions (Koskela et al. 2020, Doroshenko et al.
2022) and is nearly exact. The accountant "rdp" uses Rényi divergences (Mironov 2017, Mironov et al.
2019) and gives a larger ε; it can add losses that are only known by their Rényi divergence, such as
the exponential mechanism's ρ = ε²/8 per choice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

from coterie.core.errors import CoterieError, Option

Accountant = Literal["pld", "rdp"]
PLD_STEP = (
    1e-3  # grid of privacy losses, rounded up; 1e-4 gives the same four digits in 10 times the time
)
TOLERANCE = 1e-4  # of a noise multiplier that is searched for
FAST_ORDERS = [*range(2, 64), 128, 256, 512]  # whole Rényi orders have a closed form


class Gaussian(NamedTuple):
    """A Gaussian mechanism that is used `steps` times on Poisson samples."""

    noise_multiplier: float
    sampling_rate: float = 1.0
    steps: int = 1


def epsilon(
    mechanisms: Sequence[Gaussian],
    delta: float,
    *,
    accountant: Accountant = "pld",
    zcdp: float = 0.0,
) -> float:
    """ε of all mechanisms together.

    Args:
        mechanisms: What was released.
        delta: The probability with which ε may fail.
        accountant: "pld" or "rdp".
        zcdp: ρ, the sum of further losses; only "rdp" can add them.

    Returns:
        ε; infinite if a mechanism has no noise.

    Raises:
        CoterieError: If dp-accounting is not installed.

    Example:
        >>> round(epsilon([Gaussian(1.0, sampling_rate=0.1, steps=100)], delta=1e-4), 2)
        5.97
    """
    return float(_accountant(tuple(mechanisms), accountant, zcdp).get_epsilon(delta))


def delta_for(
    epsilon: float,
    mechanisms: Sequence[Gaussian],
    *,
    accountant: Accountant = "pld",
    zcdp: float = 0.0,
) -> float:
    """δ at which all mechanisms together have this ε."""
    return float(_accountant(tuple(mechanisms), accountant, zcdp).get_delta(epsilon))


def noise_multiplier_for(
    epsilon: float,
    delta: float,
    mechanisms: Sequence[Gaussian],
    *,
    accountant: Accountant = "pld",
    zcdp: float = 0.0,
) -> float:
    """The least noise with which all mechanisms together have at most this ε.

    Args:
        epsilon: The greatest ε.
        delta: δ.
        mechanisms: What will be released. The result multiplies each of their noise multipliers,
            so a single kind of release is `Gaussian(1.0, sampling_rate, steps)`.
        accountant: "pld" or "rdp".
        zcdp: ρ, the sum of further losses, which do not depend on the noise; only for "rdp".

    Returns:
        The factor z.

    Raises:
        CoterieError: If no noise is enough, because of `zcdp`.
    """
    dp = _dp_accounting()

    def release(z: float) -> Any:
        scaled = [m._replace(noise_multiplier=z * m.noise_multiplier) for m in mechanisms]
        return dp.ComposedDpEvent(_events(scaled, zcdp))

    if zcdp > 0 and _accountant((), accountant, zcdp).get_epsilon(delta) >= epsilon:
        raise CoterieError(
            f"choices alone have a privacy loss above ε = {epsilon:g}",
            "raise {}",
            options=[Option("epsilon")],
        )

    def search(fresh: Callable[[], Any], bracket: Any) -> float:
        return dp.calibrate_dp_mechanism(
            fresh,
            release,
            target_epsilon=epsilon,
            target_delta=delta,
            bracket_interval=bracket,
            tol=TOLERANCE,
        )

    from_one = dp.LowerEndpointAndGuess(0.0, 1.0)
    if accountant == "rdp":
        return search(lambda: _fresh("rdp"), from_one)
    # RDP's noise is an upper bound, close above; distributions of little noise take seconds each
    upper = search(lambda: _fresh("rdp", FAST_ORDERS), from_one)
    lower = upper / 2
    while _fresh("pld").compose(release(lower)).get_epsilon(delta) <= epsilon:
        lower /= 2
    return search(lambda: _fresh("pld"), dp.ExplicitBracketInterval(lower, upper))


# a run asks for few mechanisms again and again
@lru_cache(maxsize=65536)
def rdp_of_step(
    noise_multiplier: float, sampling_rate: float, orders: tuple[float, ...]
) -> tuple[float, ...]:
    """The Rényi divergence of one step of a Gaussian mechanism at each order.

    Example:
        Without sampling it is α/(2z²):

        >>> rdp_of_step(2.0, 1.0, (2, 8))
        (0.25, 1.0)
    """
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=list(orders))
    for event in _events([Gaussian(noise_multiplier, sampling_rate)], 0.0):
        accountant.compose(event)
    return tuple(float(v) for v in accountant._rdp)


def epsilon_of_rdp(orders: Sequence[float], rdp: Any, delta: float) -> float:
    """ε of a mechanism with these Rényi divergences."""
    from dp_accounting.rdp import rdp_privacy_accountant

    return float(rdp_privacy_accountant.compute_epsilon(orders, rdp, delta)[0])


def accountant_version() -> str:
    """The installed version of dp-accounting, "0.6.0"."""
    _dp_accounting()
    return version("dp-accounting")


# the last few compositions: a ledger asks for one after every round
@lru_cache(maxsize=8)
def _accountant(mechanisms: tuple[Gaussian, ...], name: Accountant, zcdp: float) -> Any:
    accountant = _fresh(name)
    for event in _events(mechanisms, zcdp):
        accountant.compose(event)
    return accountant


def _fresh(name: Accountant, orders: Sequence[int] | None = None) -> Any:
    """An accountant of dp-accounting that has seen nothing; orders: of RDP, None: its own."""
    dp = _dp_accounting()
    if name == "rdp":
        from dp_accounting.rdp import RdpAccountant

        return RdpAccountant(orders)
    from dp_accounting.pld import PLDAccountant

    add_or_remove_one = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    return PLDAccountant(add_or_remove_one, PLD_STEP)


def _events(mechanisms: Sequence[Gaussian], zcdp: float) -> list[Any]:
    """The mechanisms in dp-accounting's words."""
    dp = _dp_accounting()
    events = []
    for z, q, steps in mechanisms:
        one = dp.GaussianDpEvent(z)
        if q < 1:
            one = dp.PoissonSampledDpEvent(q, one)
        events.append(dp.SelfComposedDpEvent(one, steps))
    if zcdp > 0:
        events.append(dp.ZCDpEvent(zcdp))
    return events


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ModuleNotFoundError as e:
        raise CoterieError(
            "differential privacy needs dp-accounting", "pip install 'coterie[privacy]'"
        ) from e
    # it warns of every order that it leaves out, which only makes ε larger
    logging.getLogger("absl").setLevel(logging.ERROR)
    return dp_accounting
