"""One exchange with the clients, on any engine.

`RoundContext` is the `ask` that a method's `round` receives. Calling it makes a `Call`, selects the
clients that answer (simulated dropout), and lets the run's `Pipeline` collect their updates
(`aggregation/pipeline.py`). The result is accounted: traffic, rejected and absent clients.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.aggregation.exchange import Exchange
from coterie.aggregation.free_riders import SENT_BACK
from coterie.aggregation.pipeline import Pipeline
from coterie.aggregation.robust import robust_means
from coterie.clustering import group_mean
from coterie.core import randomness
from coterie.core.call import Call, Version, path_of
from coterie.core.contract import Declaration, Stack, Sums
from coterie.core.errors import CoterieError, Diverged
from coterie.core.params import Params, as_column, count, one_hot
from coterie.core.task import Task
from coterie.data.roster import Roster
from coterie.engines.evaluate import Evaluation
from coterie.engines.protocol import Engine
from coterie.engines.templates import UploadTemplates

log = logging.getLogger("coterie")
MAX_LOGGED = 5  # clients named per round in the log


class RowCharges(Protocol):
    """Counts what exchanges cost the rows of clients: see `runs/row_privacy.py`."""

    def charge(self, round: int, fn: Any, ids: Tensor) -> None:
        """Write down an exchange, before it begins."""
        ...


@dataclass
class RoundContext:
    """The `ask` of one round: runs client functions and accounts for their cost."""

    root: Evaluation  # all client functions of the run, with the settings of this round
    engine: Engine
    templates: UploadTemplates
    roster: Roster
    client_keys: Tensor
    seed: int
    round: int
    all_clients: Tensor
    participants: Tensor
    pipeline: Pipeline
    phase: Literal["train", "evaluate"] = "train"
    dropout: float = 0.0
    row_ledger: RowCharges | None = None  # under record-level differential privacy
    initial_payload_bytes: int = 0  # of the initial payload of one client
    rejected: list[int] = field(default_factory=list)
    clipped: list[int] = field(default_factory=list)
    free_riders: list[int] = field(default_factory=list)  # also in `rejected`
    absent: list[int] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_of_initial_payloads: int = 0  # sent to clients at their first contact
    exchange: int = 0  # number of exchanges so far
    tags: Counter[str] = field(default_factory=Counter)  # calls of `rng`, by tag

    @property
    def is_robust(self) -> bool:
        """Whether means tolerate hostile clients."""
        return self.pipeline.robust.rule != "mean"

    @property
    def hostile_share(self) -> float:
        """The share of clients that may be hostile; 0 with plain means."""
        return self.pipeline.robust.share if self.is_robust else 0.0

    @property
    def is_secure(self) -> bool:
        """Whether only sums over clients are known."""
        return self.pipeline.min_clients is not None

    @property
    def is_private(self) -> bool:
        """Whether sums are noised, under client-level differential privacy."""
        return self.pipeline.private is not None

    @property
    def task(self) -> Task:
        """The model as a function."""
        return self.templates.task

    def rng(self, tag: str) -> torch.Generator:
        """A generator for the server's draws: another one per call, the same in every run."""
        self.tags[tag] += 1
        return randomness.generator(self.seed, self.round, tag, self.tags[tag])

    def group_mean(self, values: Params, labels: Tensor, weight: Tensor, empty: Params) -> Params:
        """The weighted mean of stacked updates per label, with the run's rule; see `Ask`."""
        if not self.is_robust:
            return group_mean(values, labels, weight, empty)
        device = next(iter(values.values())).device
        shares = one_hot(labels.to(device), count(empty), weight.dtype) * weight.to(device)[:, None]
        means = robust_means(self.pipeline.robust.rule, values, shares, self.pipeline.robust.share)
        has_members = shares.sum(0) > 0
        return {k: torch.where(as_column(has_members, v), v, empty[k]) for k, v in means.items()}

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
        """Run `fn` on clients and aggregate their uploads; see `Ask`.

        Args:
            split: The split to evaluate on, as in `Call`.
            enrolled: Whether the clients have a private state, as in `Call`.

        Raises:
            Diverged: If most updates of an exchange are rejected that has at least half as many
                clients as the round has participants.
        """
        ids = self.participants if clients is None else clients
        self._check_secure(fn, reduce)
        if self.is_private and not bool(torch.isin(ids, self.participants).all()):
            raise CoterieError(
                f"{fn.__name__}() asks clients outside the sample of the round, which differential "
                "privacy does not allow: use another method."
            )
        self.exchange += 1
        client_keys = self.client_keys[ids]
        stream_or_number = self.exchange if stream is None else stream
        call = Call(
            fn=fn,
            path=self._find_path(fn),
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
        present = self._present(call)
        if self.row_ledger is not None:
            self.row_ledger.charge(self.round, fn, ids[present])
        exchange = Exchange(
            call=call.only(present),
            roster=self.roster,
            template=self.templates(call),
            reduce=reduce,
            started_from=started_from or {},
            rng=self.rng,
            num_clients=len(present),
        )
        result = self.pipeline.collect(exchange, partial(run_call, self.engine))
        self._account(call, result, present)
        assert result.updates is not None
        accepted = ids[present[result.accepted]]
        if reduce == "stack":
            values, weight, report = result.updates
            return Stack(values, weight, report, accepted)
        return Sums(result.totals, result.mass, result.updates.report, accepted)

    def _check_secure(self, fn: Callable[..., Any], reduce: str) -> None:
        """Refuse a request for more than sums, whatever the method declares."""
        declaration: Declaration | None = getattr(fn, "declaration", None)
        if not self.is_secure or declaration is None:
            return
        obstacle = "the uploads" if reduce == "stack" else declaration.obstacle
        if obstacle is not None or declaration.secure == "replaced":
            raise CoterieError(
                f"{fn.__name__}() cannot run where only sums are known: the server would learn "
                f"{obstacle or 'the uploads'} of each client."
            )

    def _find_path(self, fn: Callable[..., Any]) -> str:
        """Where the object of a client function stands, from the root."""
        path = None
        if hasattr(fn, "declaration"):
            path = path_of(self.root, fn.__self__)  # type: ignore[attr-defined]
        if path is None:
            raise CoterieError(
                f"{fn.__qualname__} is not a client function of this run: decorate it with @client "
                "on the method or on one of its fields."
            )
        return path

    def _present(self, call: Call) -> Tensor:
        """Positions of the clients that answer: simulated dropout is drawn per exchange."""
        if not self.dropout:
            return torch.arange(len(call.ids))
        keys = randomness.keys(call.client_keys, self.round, f"dropout {self.exchange}")
        return (randomness.uniform(keys) >= self.dropout).nonzero()[:, 0]

    def _account(self, call: Call, result: PartialAggregate, present: Tensor) -> None:
        """Count bytes, log rejected clients; raise if most were rejected."""
        self.bytes_down += call.bytes_down * len(call.ids)
        self.bytes_of_initial_payloads += self.initial_payload_bytes * result.first_contacts
        self.bytes_up += result.bytes_up
        self._log_clipped(call.ids[present[result.clipped]].tolist())
        dropped = torch.ones(len(call.ids), dtype=torch.bool)
        dropped[present] = False
        dropped[present[result.absent]] = True
        self.absent += call.ids[dropped].tolist()
        self._log_rejected(call, result, present)
        answers = len(present) - len(result.absent)
        broken = [reason for _, reason in result.rejected if reason != SENT_BACK]
        is_most_of_the_round = 2 * len(present) >= len(self.participants)
        # one rejected client is not enough, unless the run has only one
        are_several = len(broken) >= min(2, len(self.all_clients))
        if is_most_of_the_round and are_several and 2 * len(broken) > answers:
            lr = getattr(call.fn.__self__, "lr", "not set")  # type: ignore[attr-defined]
            raise Diverged(
                f"round {self.round}: {len(broken)} of {answers} updates of {call.name}() "
                f"were rejected ({broken[0]}): training diverged; use a smaller lr "
                f"(now {lr})."
            )

    def _log_clipped(self, ids: list[int]) -> None:
        self.clipped += ids
        new = [i for i in ids if i not in self.pipeline.logged_clipped]
        self.pipeline.logged_clipped.update(new)
        for i in new[:MAX_LOGGED]:
            log.info(
                "round %d: the update of %s was clipped: norm over %g times the typical norm.",
                self.round, self.roster.names[i], self.pipeline.screening.clip_factor,
            )  # fmt: skip

    def _log_rejected(self, call: Call, result: PartialAggregate, present: Tensor) -> None:
        """Log rejected clients, each only the first time in a run."""
        new = []
        for position, reason in result.rejected:
            i = int(call.ids[present[position]])
            self.rejected.append(i)
            if reason == SENT_BACK:
                self.free_riders.append(i)
            if i not in self.pipeline.logged_rejected:
                new.append((self.roster.names[i], reason))
                self.pipeline.logged_rejected.add(i)
        for name, reason in new[:MAX_LOGGED]:
            log.warning("round %d: rejected %s in %s(): %s.", self.round, name, call.name, reason)
        if len(new) > MAX_LOGGED:
            more = len(new) - MAX_LOGGED
            log.warning("round %d: rejected %d more in %s().", self.round, more, call.name)


def run_call(engine: Engine, call: Call, aggregator: Aggregator) -> PartialAggregate:
    """Run the call; skip the engine if no clients are selected."""
    if len(call.ids):
        return engine.map(call, aggregator)
    return aggregator.finish(aggregator.empty())
