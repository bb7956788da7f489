"""Server optimizers: adaptive federated optimization (Reddi, Charles, Zaheer, Garrett, Rush,
Konečný, Kumar, McMahan, ICLR 2021), Algorithm 2; server momentum (Hsu, Qi, Brown, 2019).

    paper       here                    shape
    x_t         old                     every leaf [K, ...]
    Δ_t         mean − old              every leaf [K, ...]
    m_t, v_t    ServerSlots             every leaf [K, ...]
    η           server_lr
    β_1         server_momentum
    τ           server_adaptivity
    β_2         SECOND_DECAY

Differences from the paper: v starts at τ², the smallest value that it allows. Each cluster has its
own m and v, which change only in rounds in which somebody trained the cluster. Running statistics
of batch norms are averaged as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.params import Params, as_column, zeros
from coterie.core.settings import setting
from coterie.core.task import Task

SECOND_DECAY = 0.99  # β_2, as in the paper's experiments
ADAPTIVE_LR = 0.01  # the default step size of optimizers whose steps do not shrink with the update
AVERAGE = "average"
SERVER_OPTIMIZERS = (AVERAGE, "momentum", "adam", "yogi", "adagrad")
R = TypeVar("R", bound=Callable[..., Any])


class ServerSlots(NamedTuple):
    """The state of a server optimizer."""

    first: Params  # m
    second: Params  # v; {} for momentum


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """Settings of the step that the server takes along the mean update, for methods that average.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.rotated("digits", clients=4, samples=20)
        >>> yogi = ct.FedAvg(server_optimizer="yogi", server_lr=0.01)
        >>> len(ct.run(yogi, fed, rounds=1).history)
        2
    """

    server_optimizer: str = setting(
        AVERAGE, "how the server follows the mean update", choices=SERVER_OPTIMIZERS
    )
    server_lr: float | None = setting(
        None, "step size η of the server; none: 1, or 0.01 for adam, yogi and adagrad", gt=0
    )
    server_momentum: float = setting(0.9, "momentum β_1 of the server", ge=0, lt=1)
    server_adaptivity: float = setting(
        1e-3, "τ: the server's adam, yogi and adagrad divide by √v + τ", gt=0
    )

    def server_slots(self, centres: Params) -> ServerSlots | tuple[()]:
        """The optimizer's state for these models before its first step; () without one."""
        if self.server_optimizer == AVERAGE:
            return ()
        second = {}
        if self.server_optimizer != "momentum":
            second = {k: torch.full_like(v, self.server_adaptivity**2) for k, v in centres.items()}
        return ServerSlots(zeros(centres), second)

    def server_step(
        self,
        task: Task,
        old: Params,
        mean: Params,
        slots: ServerSlots | tuple[()],
        mass: dict[str, Tensor],
    ) -> tuple[Params, ServerSlots | tuple[()]]:
        """The models after a step along mean − old, and the optimizer's new state.

        Args:
            task: The task, for the names of running statistics.
            old: Models before the round, every leaf [K, ...].
            mean: The means of what clients trained.
            slots: The optimizer's state.
            mass: By name of the leaf, the sum of the clients' weights, [K]; where it is 0, nobody
                trained the model.
        """
        if isinstance(slots, tuple) and not slots:
            return mean, slots
        assert isinstance(slots, ServerSlots)
        models: Params = dict(mean)
        first, second = dict(slots.first), dict(slots.second)
        for name in old:
            if name in task.averaged:
                continue
            is_trained = as_column(mass[name] > 0, old[name])
            delta = mean[name] - old[name]  # Δ_t
            m, v = self._moments(delta, first[name], second.get(name))
            step = self._lr * (m if v is None else m / (v.sqrt() + self.server_adaptivity))
            models[name] = torch.where(is_trained, old[name] + step, old[name])  # x + η m/(√v + τ)
            first[name] = torch.where(is_trained, m, first[name])
            if v is not None:
                second[name] = torch.where(is_trained, v, second[name])
        return models, ServerSlots(first, second)

    def _moments(self, delta: Tensor, m: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None]:
        beta = self.server_momentum
        if v is None:
            return beta * m + delta, None  # Hsu et al.: m ← β m + Δ
        square = delta.square()
        m = beta * m + (1 - beta) * delta  # m ← β_1 m + (1 − β_1) Δ
        if self.server_optimizer == "adagrad":
            return m, v + square
        if self.server_optimizer == "yogi":
            return m, v - (1 - SECOND_DECAY) * square * (v - square).sign()
        return m, SECOND_DECAY * v + (1 - SECOND_DECAY) * square  # adam

    @property
    def _lr(self) -> float:
        if self.server_lr is not None:
            return self.server_lr
        return 1.0 if self.server_optimizer == "momentum" else ADAPTIVE_LR

    def check_server_optimizer(self) -> None:
        """Raise a `CoterieError` if the method's round does not take the server's step."""
        takes_step = getattr(type(self).round, "takes_server_step", False)  # type: ignore[attr-defined]
        if self.server_optimizer != AVERAGE and not takes_step:
            raise CoterieError(
                f"{getattr(self, 'name', 'this method')} has no server optimizers: leave out "
                "server_optimizer; fedavg, fedprox, ditto, ifca, given and one-shot have them."
            )
        if self.server_optimizer == AVERAGE and self.server_lr is not None:
            raise CoterieError(
                "server_lr is the step size of a server optimizer: give server_optimizer, too."
            )


def takes_server_step(round: R) -> R:
    """Mark the `round` of a method that calls `ServerOptimizer.server_step`."""
    round.takes_server_step = True  # type: ignore[attr-defined]
    return round
