"""One exchange, whatever the engine: who is asked, with what randomness, whose answer counts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.aggregation.aggregator import Part
from coterie.aggregation.rules import robust_means
from coterie.clustering import group_mean
from coterie.core import randomness
from coterie.core.call import Call, Version, path_of
from coterie.core.contract import Stack, Sums
from coterie.core.errors import CoterieError, Diverged
from coterie.core.params import Params, as_column, count, one_hot
from coterie.core.task import Task
from coterie.data.roster import Roster
from coterie.engines.dry_run import DryRun
from coterie.engines.evaluate import Evaluation
from coterie.engines.guard import Guard
from coterie.engines.protocol import Engine

log = logging.getLogger("coterie")
MOST_NAMED = 5  # refused clients that a round's log names


@dataclass
class Exchanges:
    """The `ask` of one round."""

    root: Evaluation  # with the method as it is in this round
    engine: Engine
    dry_run: DryRun
    roster: Roster
    client_keys: Tensor
    seed: int
    round: int
    all_clients: Tensor
    participants: Tensor
    phase: Literal["train", "evaluate"] = "train"
    dropout: float = 0.0
    guard: Guard = field(default_factory=Guard)
    initial_payload_bytes: int = 0  # of the initial payload that one client is sent
    rejected: list[int] = field(default_factory=list)
    screened: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_of_initial_payloads: int = 0  # sent to clients that were asked for the first time
    exchange: int = 0
    tags: Counter[str] = field(default_factory=Counter)

    @property
    def is_robust(self) -> bool:
        """Whether means withstand hostile clients."""
        return self.guard.robust.rule != "mean"

    @property
    def hostile_share(self) -> float:
        """The share of the clients that may be hostile; 0 where means are plain."""
        if self.is_robust:
            return self.guard.robust.share
        return 0.0

    @property
    def task(self) -> Task:
        """The model as a function."""
        return self.dry_run.task

    def rng(self, tag: str) -> torch.Generator:
        """A generator for the server's draws; every call gives another, the same in every run."""
        self.tags[tag] += 1
        return randomness.generator(self.seed, self.round, tag, self.tags[tag])

    def group_mean(self, values: Params, labels: Tensor, weight: Tensor, empty: Params) -> Params:
        """Weighted mean of stacked uploads per label, by the run's rule; see `Ask`."""
        if not self.is_robust:
            return group_mean(values, labels, weight, empty)
        shares = one_hot(labels, count(empty), weight.dtype) * weight[:, None]
        means = robust_means(self.guard.robust.rule, values, shares, self.guard.robust.share)
        some = shares.sum(0) > 0
        return {
            k: torch.where(as_column(some.to(v.device), v), v, empty[k]) for k, v in means.items()
        }

    def note(self, name: str, value: Any) -> None:
        """Record a value of this round for metrics and report."""
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
        split: str | None = None,
        enrolled: bool = True,
    ) -> Any:
        """Run `fn` on clients and fold their uploads; see `Ask`.

        split, enrolled: as in `Call`, for evaluations.
        """
        ids = self.participants if clients is None else clients
        self.exchange += 1
        client_keys = self.client_keys[ids]
        stream_or_number = self.exchange if stream is None else stream
        call = Call(
            fn=fn,
            path=self._path(fn),
            ids=ids,
            shared=shared,
            per_client=per_client,
            static=static or {},
            keys=randomness.keys(client_keys, self.round, stream_or_number),
            client_keys=client_keys,
            version=Version(self.round, self.phase, self.exchange),
            split=split,
            keeps_private=self.phase == "train",
            enrolled=enrolled,
        )
        part = self._folded(call, reduce, started_from)
        assert part.rows is not None
        accepted = ids[part.accepted]
        if reduce == "stack":
            return Stack(part.rows.values, part.rows.weight, part.rows.report, accepted)
        return Sums(part.totals, part.mass, part.rows.report, accepted)

    def _path(self, fn: Callable[..., Any]) -> str:
        path = None
        if hasattr(fn, "declaration"):
            path = path_of(self.root, fn.__self__)  # type: ignore[attr-defined]
        if path is None:
            raise CoterieError(
                f"{fn.__qualname__} cannot be asked for: mark it @client, on the method or a field "
                "of it."
            )
        return path

    # -- answers
    def _folded(
        self,
        call: Call,
        reduce: Literal["sum", "stack"],
        started_from: dict[str, Params] | None,
    ) -> Part:
        """What the answers come to, by their positions in the call, with all that they cost."""
        present = self._present(call)
        part = self.guard.gather(
            self.engine,
            self.roster,
            call.only(present),
            like=self.dry_run(call),
            reduce=reduce,
            started_from=started_from,
            rng=self.rng,
        )
        self._account(call, part, present)
        return part._replace(accepted=present[part.accepted])

    def _present(self, call: Call) -> Tensor:
        """Positions of those who will answer: simulated dropouts are drawn per exchange."""
        if not self.dropout:
            return torch.arange(len(call.ids))
        keys = randomness.keys(call.client_keys, self.round, f"dropout {self.exchange}")
        return (randomness.uniform(keys) >= self.dropout).nonzero()[:, 0]

    def _account(self, call: Call, part: Part, present: Tensor) -> None:
        """Count bytes, remember lengths, log who was refused; stop if most were."""
        self.bytes_down += call.bytes_down * len(call.ids)
        self.bytes_of_initial_payloads += self.initial_payload_bytes * part.welcomed
        self.bytes_up += part.bytes_up
        self.guard.remember_usual(call, part)
        self._log_screened(call, call.ids[present[part.screened]].tolist())
        dropped = torch.ones(len(call.ids), dtype=torch.bool)
        dropped[present] = False
        dropped[present[part.absent]] = True
        self.absent += call.ids[dropped].tolist()
        self._log_refused(call, part, present)
        answers = len(present) - len(part.absent)
        is_most_of_the_round = 2 * len(present) >= len(self.participants)
        is_more_than_one = len(part.refused) >= min(2, len(self.all_clients))
        if is_most_of_the_round and is_more_than_one and 2 * len(part.refused) > answers:
            lr = getattr(call.fn.__self__, "lr", "not set")  # type: ignore[attr-defined]
            raise Diverged(
                f"round {self.round}: {len(part.refused)} of {answers} uploads of {call.name}() "
                f"were refused ({part.refused[0][1]}): training diverged; use a smaller lr "
                f"(now {lr})."
            )

    def _log_screened(self, call: Call, ids: list[int]) -> None:
        self.screened += ids
        new = [i for i in ids if i not in self.guard.told_screened]
        self.guard.told_screened.update(new)
        for i in new[:MOST_NAMED]:
            log.info(
                "round %d: the update of %s was shortened, as over %g times as far as is usual.",
                self.round, self.roster.names[i], self.guard.screen,
            )  # fmt: skip

    def _log_refused(self, call: Call, part: Part, present: Tensor) -> None:
        """Name those that are refused; of one whom this log has named, only that it was again."""
        names = self.roster.names
        new = []
        for at, reason in part.refused:
            i = int(call.ids[present[at]])
            self.rejected.append(i)
            if i not in self.guard.told_refused:
                new.append((i, reason))
        self.guard.told_refused.update(i for i, _ in new)
        for i, reason in new[:MOST_NAMED]:
            log.warning(
                "round %d: refused %s in %s(): %s.", self.round, names[i], call.name, reason
            )
        if len(new) > MOST_NAMED:
            more = len(new) - MOST_NAMED
            log.warning("round %d: refused %d more in %s().", self.round, more, call.name)
