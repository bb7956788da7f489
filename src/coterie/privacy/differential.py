"""The promise of differential privacy that a run makes.

Two of ε, δ and the noise multiplier z determine the third, given the sampling rate and the number
of steps: rounds for clients, local steps for the rows of one client.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from coterie.core.errors import CoterieError, Option
from coterie.privacy.accounting import Gaussian, delta_for, noise_multiplier_for

Unit = Literal["clients", "rows"]


@dataclass(frozen=True, kw_only=True)
class DifferentialPrivacy:
    """A promise: (ε, δ) for adding or removing one client, or one row of a client.

    Args:
        unit: What is added or removed.
        epsilon: The budget ε; None: none, only the loss is computed.
        delta: δ.
        noise_multiplier: z, the noise of a step relative to its sensitivity.
        sampling_rate: q, the probability that a client (or row) takes part in a step.
        clip: C, the largest norm of an update (or gradient); None: adapted in training.
        seed: Of noise and sampling, for tests; then nothing is private. None: drawn by the
            operating system.
    """

    unit: Unit
    epsilon: float | None
    delta: float
    noise_multiplier: float
    sampling_rate: float
    clip: float | None = None
    seed: int | None = None


def make_promise(
    unit: Unit,
    *,
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    sampling_rate: float,
    steps: int,
    clip: float | None = None,
    seed: int | None = None,
) -> DifferentialPrivacy:
    """Compute the third of ε, δ and z from two of them.

    With ε, the promise is a budget: a run stops before it is exceeded. If all three are given, they
    are kept.

    Raises:
        CoterieError: If fewer than two are given, or no δ below 1 or no noise fits the others.
    """
    if [epsilon, delta, noise_multiplier].count(None) > 1:
        raise CoterieError(
            "differential privacy needs two of epsilon, delta and noise_multiplier",
            "give, for example, {} and {}",
            options=[Option("epsilon", "4"), Option("delta", "1e-4")],
        )
    if delta is None:
        assert epsilon is not None and noise_multiplier is not None
        delta = _delta(epsilon, noise_multiplier, sampling_rate, steps)
        if not 0 < delta < 1:
            raise CoterieError(
                f"with epsilon {epsilon:g} and noise_multiplier {noise_multiplier:g}, {steps} "
                f"steps have delta = {delta:g}",
                "give epsilon and delta",
            )
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = _noise_multiplier(epsilon, delta, sampling_rate, steps)
    return DifferentialPrivacy(
        unit=unit,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        clip=clip,
        seed=seed,
    )


# searches take seconds, and a run is checked more than once
@lru_cache
def _noise_multiplier(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    return noise_multiplier_for(epsilon, delta, [Gaussian(1.0, sampling_rate, steps)])


@lru_cache
def _delta(epsilon: float, noise_multiplier: float, sampling_rate: float, steps: int) -> float:
    return delta_for(epsilon, [Gaussian(noise_multiplier, sampling_rate, steps)])
