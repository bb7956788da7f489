"""The privacy loss of the rows of each site, under record-level differential privacy.

    symbol    here                shape or range
    σ         noise_multiplier    noise of a step relative to the clipping norm
    q         rate                probability of a row in a step
    T         steps               local steps of one training
    ε_s       choice_epsilon      of one choice of a cluster

A training of T steps is T Gaussian mechanisms on Poisson samples; a choice is an exponential
mechanism, with the Rényi divergence α·ε_s²/8. Rényi divergences add up (Mironov 2017), so the loss
of a step is computed once by dp-accounting, at whole orders α only, where it has a closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coterie.core.errors import CoterieError, Option
from coterie.core.settings import Local
from coterie.privacy.accounting import epsilon_of_rdp, rdp_of_step

ORDERS = (*range(2, 65), 96, 128, 256, 512)
PRECISION = 1e-3  # of a noise multiplier that is searched for
MOST_NOISE = 1e5


@dataclass(frozen=True, kw_only=True)
class RowBudget:
    """The promise to each row of one site, and what a training costs.

    Args:
        delta: δ.
        noise_multiplier: σ.
        rate: q.
        steps: T.
        choice_epsilon: ε_s.
        epsilon: The budget; None: none, the loss is only computed.
    """

    delta: float
    noise_multiplier: float
    rate: float
    steps: int
    choice_epsilon: float
    epsilon: float | None = None

    def loss(self, trainings: int, choices: int = 0) -> float:
        """ε after so many trainings and choices."""
        if trainings and not self.noise_multiplier:
            return math.inf
        rdp = choices * self.choice_epsilon**2 / 8 * np.array(ORDERS)
        if trainings:
            step = np.array(rdp_of_step(self.noise_multiplier, self.rate, ORDERS))
            rdp = rdp + trainings * self.steps * step
        if not rdp.any():
            return 0.0
        return epsilon_of_rdp(ORDERS, rdp, self.delta)

    def affords(self, trainings: int, choices: int = 0) -> bool:
        """Whether so many trainings and choices stay within the budget."""
        return self.epsilon is None or self.loss(trainings, choices) <= self.epsilon


@dataclass(frozen=True, kw_only=True)
class RowPlan:
    """What a run promises to the rows of every site, and how often it uses them.

    Args:
        epsilon: The budget ε of each site; None: none.
        delta: δ.
        noise_multiplier: σ of all sites; None: each site's own, so that the planned trainings and
            choices spend its budget.
        choice_epsilon: ε_s.
        trainings: Planned trainings of the whole run.
        choices: Planned choices of the whole run.
    """

    epsilon: float | None
    delta: float | None
    noise_multiplier: float | None
    choice_epsilon: float
    trainings: int
    choices: int

    def budget(self, rows: int, how: Local) -> RowBudget:
        """The budget of a site with so many rows.

        Raises:
            CoterieError: If δ, or both ε and the noise, are not given, or no noise is enough.
        """
        if self.delta is None or (self.epsilon is None and self.noise_multiplier is None):
            raise CoterieError(
                "dp=rows needs delta, and epsilon or noise_multiplier",
                "give, for example, {} and {}",
                options=[Option("epsilon", "4"), Option("delta", "1e-4")],
            )
        rate, steps = poisson_steps(rows, how)
        noise = self.noise_multiplier
        if noise is None:
            assert self.epsilon is not None
            noise = noise_for(
                self.epsilon,
                self.delta,
                rate,
                steps * self.trainings,
                self.choices * self.choice_epsilon**2 / 8,
            )
        return RowBudget(
            delta=self.delta,
            noise_multiplier=noise,
            rate=rate,
            steps=steps,
            choice_epsilon=self.choice_epsilon,
            epsilon=self.epsilon,
        )


def poisson_steps(rows: int, how: Local) -> tuple[float, int]:
    """(q, T) of a local training; `Data.batches` draws these batches."""
    turns = how.local_epochs or how.local_steps
    if how.batch is None or rows == 0:
        return 1.0, turns
    if how.local_epochs is not None:
        turns *= -(-rows // how.batch)
    return min(how.batch, rows) / rows, turns


# sites of equal size have equal noise, and a run is checked more than once
@lru_cache(maxsize=4096)
def noise_for(epsilon: float, delta: float, rate: float, steps: int, zcdp: float) -> float:
    """The least noise σ with which so many steps, and further losses, have at most this ε.

    Raises:
        CoterieError: If no noise is enough, because of the choices.
    """

    def spends(noise: float) -> float:
        step = np.array(rdp_of_step(noise, rate, ORDERS))
        return epsilon_of_rdp(ORDERS, steps * step + zcdp * np.array(ORDERS), delta)

    high = 1.0
    while spends(high) > epsilon:
        high *= 2
        if high > MOST_NOISE:
            raise CoterieError(
                f"no noise keeps the run within ε = {epsilon:g}: its choices of clusters alone "
                "exceed it",
                "raise {} or lower {}",
                options=[Option("epsilon"), Option("dp_choice_epsilon")],
            )
    low = high / 2
    while spends(low) <= epsilon:
        high, low = low, low / 2
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        if spends(middle) <= epsilon:
            high = middle
        else:
            low = middle
    return high
