"""Local training alone ("standalone" in some papers): clients exchange nothing.

    here            shape
    private         every leaf [...], the client's own model

All clients start from one common model; participants continue training. A new client takes the
steps of `join_rounds` rounds from the common model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.core.contract import (
    Algorithm,
    Ask,
    Data,
    Finite,
    Local,
    Scope,
    Upload,
    client,
    setting,
)
from coterie.core.params import Params, minus, norm
from coterie.core.task import Task
from coterie.optim import descend


@dataclass(frozen=True, kw_only=True)
class LocalOnly(Local, Algorithm):
    """Each client trains on its own rows; nothing is exchanged.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.LocalOnly(lr=0.05), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "baseline"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "a model for each site from its own rows alone"

    join_rounds: int = setting(50, "rounds in whose steps a new client trains its model", ge=1)

    def start(self, task: Task, clients: int, seed: int) -> tuple[Params, Params]:
        model = task.init(seed)
        return model, model

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Params:
        return initial_payload

    @client(
        report={"update_norm": Finite("the norm of its update", minimum=0, secure="withheld")},
        rounds="later",
        trainings=1,
    )
    def train(
        self, task: Task, shared: Any, per_client: Any, model: Params, data: Data
    ) -> tuple[Upload, Params]:
        new = descend(task, model, data.batches(self), self)
        return Upload({}, {}, {"update_norm": norm(minus(new, model))}), new

    def round(self, start: Params, ask: Ask) -> Params:
        ask(self.train, stream="train")
        return start

    def model(
        self, task: Task, shared: Any, per_client: Any, private: Params, data: Data
    ) -> Params:
        return private

    def join(self, task: Task, start: Params, data: Data) -> tuple[Any, Params]:
        return (), descend(task, start, data.batches(self.for_rounds(self.join_rounds)), self)
