"""One exchange, whatever the engine: who is asked, with what randomness, whose answer counts, what it cost."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie import randomness
from coterie.contract import Algorithm, Stack, Sums, Upload
from coterie.engine.call import Call, DryRun, path_of
from coterie.engine.evaluate import Evaluation
from coterie.engine.fold import Fold, Part
from coterie.errors import CoterieError, Diverged
from coterie.params import Params, nbytes
from coterie.task import Batch, Task

log = logging.getLogger("coterie")


class Engine(Protocol):
    """Where clients run. A new engine is one `map`."""

    name: str

    @property
    def example(self) -> Batch: ...
    def enroll(self, method: Algorithm, welcome: Any, ids: Tensor, client_keys: Tensor) -> None: ...
    def map(self, call: Call, fold: Fold) -> Part: ...
    def snapshot(self) -> Any: ...
    def restore(self, private: Any) -> None: ...


@dataclass
class Exchanges:
    """The `ask` of one round."""

    root: Evaluation  # with the method as it is in this round
    engine: Engine
    dry: DryRun
    names: tuple[str, ...]
    client_keys: Tensor
    seed: int
    round: int
    everyone: Tensor
    participants: Tensor
    dropout: float = 0.0
    screen: float | None = 10.0
    medians: dict[str, float] = field(
        default_factory=dict
    )  # of the last accepted moves; lives as long as the run
    refused: list[int] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    exchange: int = 0
    tags: Counter[str] = field(default_factory=Counter)

    @property
    def task(self) -> Task:
        return self.dry.task

    def rng(self, tag: str) -> torch.Generator:
        """A generator for the server's draws, a function of seed, round and tag; each call gives another."""
        self.tags[tag] += 1
        return randomness.generator(self.seed, self.round, tag, self.tags[tag])

    def note(self, name: str, value: Any) -> None:
        self.notes[name] = value.tolist() if isinstance(value, Tensor) else value

    def __call__(
        self,
        fn: Callable[..., Any],
        clients: Tensor | None = None,
        shared: Any = (),
        per_client: Any = (),
        static: dict[str, Any] | None = None,
        reduce: Literal["sum", "stack"] = "sum",
        stream: str | None = None,
        started_from: dict[str, Params] | None = None,
        exam: str | None = None,
        enrolled: bool = True,
    ) -> Any:
        ids = self.participants if clients is None else clients
        self.exchange += 1
        client_key = self.client_keys[ids]
        keys = randomness.keys(client_key, self.round, self.exchange if stream is None else stream)
        call = Call(
            fn, self._path(fn), ids, shared, per_client, static or {}, keys, client_key, (self.round, self.exchange), exam,
            keeps=exam is None, enrolled=enrolled,
        )  # fmt: skip
        like = self.dry(call)
        positions = self._present(client_key)
        fold = Fold(reduce, like, len(positions), started_from, self._limits(call, like))
        part = self.engine.map(call.only(positions), fold) if len(positions) else fold.nothing()
        mine = part.accepted.sort().values
        self._account(call, fold, part, positions)
        whole: Upload = (
            fold.rows if len(mine) == len(positions) else tree_map(lambda v: v[mine], fold.rows)
        )
        who = ids[positions[mine]]
        if reduce == "stack":
            return Stack(whole.values, whole.weight, whole.report, who)
        return Sums(part.totals, part.mass, whole.report, who)

    def _path(self, fn: Callable[..., Any]) -> str:
        path = path_of(self.root, fn.__self__) if getattr(fn, "runs_on_client", False) else None  # type: ignore[attr-defined]
        if path is None:
            raise CoterieError(
                f"{fn.__qualname__} cannot be asked for: mark it @client, on the method or a field of it."
            )
        return path

    def _present(self, client_key: Tensor) -> Tensor:
        """Positions of those who will answer: simulated dropouts, drawn per exchange."""
        if not self.dropout:
            return torch.arange(len(client_key))
        chance = randomness.uniform(
            randomness.keys(client_key, self.round, f"dropout {self.exchange}")
        )
        return (chance >= self.dropout).nonzero()[:, 0]

    # ---- screening
    def _limits(self, call: Call, like: Any) -> dict[str, float]:
        if self.screen is None:
            return {}
        known = {n: self.medians.get(_label(call, n), 0.0) for n in like.values}
        return {n: self.screen * m for n, m in known.items() if m > 0}

    def _account(self, call: Call, fold: Fold, part: Part, positions: Tensor) -> None:
        self.bytes_down += call.bytes_down * len(call.ids)
        self.bytes_up += nbytes(fold.like) * len(positions)
        for n, moved in fold.moved.items():
            if len(part.accepted):
                self.medians[_label(call, n)] = float(moved[part.accepted].median())
        for told, (at, why) in enumerate(part.refused):
            i = int(call.ids[positions[at]])
            self.refused.append(i)
            if told < 5:
                log.warning(
                    "round %d: refused %s in %s(): %s.", self.round, self.names[i], call.name, why
                )
        if len(part.refused) > 5:
            log.warning(
                "round %d: refused %d more in %s().", self.round, len(part.refused) - 5, call.name
            )
        most = 2 * len(positions) >= len(self.participants)
        if most and 2 * len(part.refused) > len(positions):
            raise Diverged(
                f"round {self.round}: {len(part.refused)} of {len(positions)} uploads of {call.name}() were refused "
                f"({part.refused[0][1]}): training diverged; use a smaller lr "
                f"(now {getattr(call.fn.__self__, 'lr', 'not set')})."  # type: ignore[attr-defined]
            )


def _label(call: Call, value: str) -> str:
    return f"{call.path}.{call.name}.{value}{sorted(call.static.items()) or ''}"
