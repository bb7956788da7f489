"""Whether contenders computed the same thing: loss after the round, steps and rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from contenders.problems import Arrays, Problem, first_models, rows_of
from contenders.torch_models import build, load, tensors

REFERENCE = "plain_loop"
GIVEN_START = ("FedAvg", "IFCA")  # methods whose contenders all start from the same models
MOST_FULL_BATCH = 1e-3  # difference of losses, as a share of what the round gained
MOST_MINI_BATCH = 0.1  # where each draws batches of its own


class Judge:
    """Computes losses of models on all rows of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.module = build(problem.shape)
        x, y = rows_of(problem)
        self.x = torch.from_numpy(x)
        self.y = torch.from_numpy(y)

    def loss(self, models: list[Arrays]) -> float:
        """Return the mean over clients of the loss under the client's best model."""
        losses = torch.stack([self.client_losses(model) for model in models])
        return float(losses.amin(0).mean())

    def first_loss(self) -> float | None:
        """Return the loss before the round; None for methods with their own initialisation."""
        if self.problem.method not in GIVEN_START:
            return None
        return self.loss(first_models(self.problem))

    @torch.no_grad()
    def client_losses(self, model: Arrays) -> torch.Tensor:
        """Return the mean loss of each client, [clients]."""
        load(self.module, tensors(model))
        losses = []
        for x, y in zip(self.x, self.y):
            if self.problem.is_regression:
                losses.append(F.mse_loss(self.module(x)[:, 0], y))
            else:
                losses.append(F.cross_entropy(self.module(x), y))
        return torch.stack(losses)

    def compare(self, contenders: dict[str, Any]) -> None:
        """Record for each contender the difference of its loss, and what else differs."""
        if not contenders:
            return
        against = REFERENCE
        if against not in contenders:  # it failed, or was not asked for
            against = next(iter(contenders))
        reference = contenders[against]["loss"]
        first = self.first_loss()
        gained = abs(reference)
        if first is not None:
            gained = abs(first - reference)
        for contender in contenders.values():
            contender["off"] = abs(contender["loss"] - reference) / gained
            contender["differs"] = self.differences(contender)

    def differences(self, contender: dict[str, Any]) -> str:
        """Describe what a contender did differently; empty if nothing."""
        problem = self.problem
        most = MOST_MINI_BATCH
        if problem.batch is None or problem.method not in GIVEN_START:
            most = MOST_FULL_BATCH
        if not contender["off"] <= most:
            return f"its loss is off by {100 * contender['off']:.2g} % of what the round gained"
        if problem.method not in GIVEN_START:
            return ""
        steps = problem.clients * problem.local_steps
        rows = problem.clients * problem.visited_rows
        if (contender["steps"], contender["rows"]) != (steps, rows):
            return (
                f"it took {contender['steps']} steps of {contender['rows']} rows instead of "
                f"{steps} of {rows}"
            )
        return ""
