"""One exchange with the clients, on any engine.

`RoundContext` is the `ask` that a method's `round` receives. Calling it makes a `Call`, selects the
clients that answer (simulated dropout), and lets the `Guard` collect their updates: the guard
builds the aggregator with norm limits and the run's robust rule, and simulates attackers if the run
has some. The result is accounted: traffic, update norms, rejected and absent clients.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.aggregation.aggregator import PLAIN_MEAN, Aggregator, PartialAggregate, RobustRule
from coterie.aggregation.attacks import Attack
from coterie.aggregation.clipping import MIN_NORMS, Clipping, NormLimit, third_quartile
from coterie.aggregation.free_riders import SENT_BACK, FreeRiderWatch
from coterie.aggregation.robust import robust_means
from coterie.aggregation.validation import DeclarationChecks
from coterie.clustering import group_mean
from coterie.core import randomness
from coterie.core.call import Call, Version, path_of
from coterie.core.contract import Declaration, Stack, Sums, Upload
from coterie.core.errors import CoterieError, Diverged
from coterie.core.params import Params, as_column, count, one_hot
from coterie.core.task import Task
from coterie.data.roster import Roster
from coterie.engines.evaluate import Evaluation
from coterie.engines.protocol import Engine
from coterie.engines.templates import UploadTemplates

log = logging.getLogger("coterie")
MAX_LOGGED = 5  # clients named per round in the log
CALIBRATION_CLIENTS = 32  # updates buffered until a typical norm can be estimated


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
    guard: Guard
    phase: Literal["train", "evaluate"] = "train"
    dropout: float = 0.0
    initial_payload_bytes: int = 0  # of the initial payload of one client
    rejected: list[int] = field(default_factory=list)
    clipped: list[int] = field(default_factory=list)
    free_riders: list[int] = field(default_factory=list)  # a part of those rejected
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
        return self.guard.robust.rule != "mean"

    @property
    def hostile_share(self) -> float:
        """The share of clients that may be hostile; 0 with plain means."""
        return self.guard.robust.share if self.is_robust else 0.0

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
        shares = one_hot(labels, count(empty), weight.dtype) * weight[:, None]
        means = robust_means(self.guard.robust.rule, values, shares, self.guard.robust.share)
        has_members = shares.sum(0) > 0
        return {
            k: torch.where(as_column(has_members.to(v.device), v), v, empty[k])
            for k, v in means.items()
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
        """Run `fn` on clients and aggregate their uploads; see `Ask`.

        Args:
            split: The split to evaluate on, as in `Call`.
            enrolled: Whether the clients have a private state, as in `Call`.

        Raises:
            Diverged: If most updates of an exchange are rejected that has at least half as many
                clients as the round has participants.
        """
        ids = self.participants if clients is None else clients
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
        result = self.guard.collect(
            self.engine,
            self.roster,
            call.only(present),
            template=self.templates(call),
            reduce=reduce,
            started_from=started_from,
            rng=self.rng,
        )
        self._account(call, result, present)
        if self.guard.clip_factor and started_from:
            self.guard.free_riders.record(ids[present], result, started_from)
        assert result.updates is not None
        accepted = ids[present[result.accepted]]
        if reduce == "stack":
            values, weight, report = result.updates
            return Stack(values, weight, report, accepted)
        return Sums(result.totals, result.mass, result.updates.report, accepted)

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
        """Count bytes, record norms, log rejected clients; raise if most were rejected."""
        self.bytes_down += call.bytes_down * len(call.ids)
        self.bytes_of_initial_payloads += self.initial_payload_bytes * result.first_contacts
        self.bytes_up += result.bytes_up
        self.guard.record_norms(call, result)
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
        new = [i for i in ids if i not in self.guard.logged_clipped]
        self.guard.logged_clipped.update(new)
        for i in new[:MAX_LOGGED]:
            log.info(
                "round %d: the update of %s was clipped: norm over %g times the typical norm.",
                self.round, self.roster.names[i], self.guard.clip_factor,
            )  # fmt: skip

    def _log_rejected(self, call: Call, result: PartialAggregate, present: Tensor) -> None:
        """Log rejected clients, each only the first time in a run."""
        new = []
        for position, reason in result.rejected:
            i = int(call.ids[present[position]])
            self.rejected.append(i)
            if reason == SENT_BACK:
                self.free_riders.append(i)
            if i not in self.guard.logged_rejected:
                new.append((self.roster.names[i], reason))
                self.guard.logged_rejected.add(i)
        for name, reason in new[:MAX_LOGGED]:
            log.warning("round %d: rejected %s in %s(): %s.", self.round, name, call.name, reason)
        if len(new) > MAX_LOGGED:
            more = len(new) - MAX_LOGGED
            log.warning("round %d: rejected %d more in %s().", self.round, more, call.name)


@dataclass
class Guard:
    """Protects a run against harmful updates, and simulates attackers to test the protection.

    Without arguments only invalid updates are rejected.
    """

    clip_factor: float | None = None  # clip updates above this multiple of the typical norm
    robust: RobustRule = PLAIN_MEAN
    attack: Attack | None = None
    typical_norms: dict[str, float] = field(default_factory=dict)  # by `value_key`
    free_riders: FreeRiderWatch = field(default_factory=FreeRiderWatch)
    # clients that the log has named
    logged_rejected: set[int] = field(default_factory=set)
    logged_clipped: set[int] = field(default_factory=set)

    def collect(
        self,
        engine: Engine,
        roster: Roster,
        call: Call,
        *,
        template: Upload,
        reduce: Literal["sum", "stack"],
        started_from: dict[str, Params] | None,
        rng: Callable[[str], torch.Generator],
    ) -> PartialAggregate:
        """Run the call and aggregate the updates of all its clients.

        Some updates are buffered first: those of a random sample of clients until a typical norm is
        known, those of clients that seem to be free riders, and those of simulated attackers, who
        know each other's.

        Returns:
            The finished aggregate.
        """
        calibration = self._select_calibration(call, template)
        is_suspect = self.free_riders.is_suspect(call.ids)
        is_buffered = calibration | is_suspect | self._is_attacker(call)

        def make_aggregator(
            part: Call, reduction: Literal["sum", "stack"], robust: RobustRule = PLAIN_MEAN
        ) -> Aggregator:
            """For some clients of the call; norm limits are those of the whole call."""
            clipping = Clipping(started_from, self._norm_limits(call, template))
            checks = DeclarationChecks(part, roster)
            return Aggregator(reduction, template, len(part.ids), checks, clipping, robust)

        if not bool(is_buffered.any()):
            return run_call(engine, call, make_aggregator(call, reduce, self.robust))
        first = is_buffered.nonzero()[:, 0]  # positions in the call
        first_call = call.only(first)
        first_aggregator = make_aggregator(first_call, "stack")
        stacked = run_call(engine, first_call, first_aggregator)
        if self.attack is not None:
            attackers = self._is_attacker(first_call)[stacked.accepted].nonzero()[:, 0]
            stacked = self.attack.apply(
                stacked,
                attackers,
                clipping=first_aggregator.clipping,
                declaration=call.fn.declaration,  # type: ignore[attr-defined]
                generator=rng("attack"),
                clients=len(call.ids),
            )
        if started_from and bool(is_suspect.any()):
            typical = [self.typical_norms.get(value_key(call, name), 0.0) for name in started_from]
            stacked = self.free_riders.reject(
                first_call.ids, stacked, started_from, math.hypot(*typical)
            )
        if bool(calibration.any()):
            self.record_norms(call, stacked, calibration[first[stacked.accepted]])
        aggregator = make_aggregator(call, reduce, self.robust)  # with the limits known now
        partials = [aggregator.add_buffered(stacked, first)]
        if not bool(is_buffered.all()):
            later = (~is_buffered).nonzero()[:, 0]
            later_call = call.only(later)
            later_reduce = "stack" if aggregator.keeps_values else reduce
            finished = run_call(engine, later_call, make_aggregator(later_call, later_reduce))
            partials.append(aggregator.absorb(finished.relabel(later)))
        return aggregator.finish(aggregator.merge(partials))

    def record_norms(
        self, call: Call, result: PartialAggregate, selected: Tensor | None = None
    ) -> None:
        """Update the typical norms: the largest third quartile of any exchange so far.

        One exchange raises a typical norm at most to `clip_factor` times its former value.

        Args:
            call: The exchange.
            result: Its finished aggregate.
            selected: bool, one per accepted client, whose norms to use; all by default.
        """
        for name, norms in (result.norms or {}).items():
            used = norms if selected is None else norms[selected]
            if len(used) < MIN_NORMS:
                continue
            key = value_key(call, name)
            now = third_quartile(used)
            before = self.typical_norms.get(key, 0.0)
            if before and self.clip_factor:  # bound the growth per exchange
                now = min(now, self.clip_factor * before)
            self.typical_norms[key] = max(before, now)

    def _norm_limits(self, call: Call, template: Upload) -> dict[str, NormLimit]:
        """The limits of all values with a typical norm."""
        if not self.clip_factor or sends_sums(call):
            return {}
        typical = {name: self.typical_norms.get(value_key(call, name)) for name in template.values}
        return {name: NormLimit(norm, self.clip_factor) for name, norm in typical.items() if norm}

    def _select_calibration(self, call: Call, template: Upload) -> Tensor:
        """bool [n]: clients whose updates calibrate the typical norm; none if it is known.

        They are drawn at random, so that hostile clients cannot be first by their names.
        """
        n = len(call.ids)
        is_known = all(value_key(call, name) in self.typical_norms for name in template.values)
        if is_known or not self.clip_factor or sends_sums(call):
            return torch.zeros(n, dtype=torch.bool)
        if n <= CALIBRATION_CLIENTS:
            return torch.ones(n, dtype=torch.bool)
        # the name of the stream determines the random numbers: do not change it
        keys = randomness.keys(call.client_keys, call.version.round, "first to ask")
        drawn = randomness.uniform(keys).argsort()[:CALIBRATION_CLIENTS]
        return torch.zeros(n, dtype=torch.bool).index_fill(0, drawn, True)

    def _is_attacker(self, call: Call) -> Tensor:
        if self.attack is None:
            return torch.zeros(len(call.ids), dtype=torch.bool)
        return torch.isin(call.ids, self.attack.attackers)


def sends_sums(call: Call) -> bool:
    """Whether the values are sums over rows, whose norms are not comparable."""
    declaration: Declaration = call.fn.declaration  # type: ignore[attr-defined]
    return declaration.sums


def value_key(call: Call, value: str) -> str:
    """Identifies values whose update norms are comparable."""
    static = sorted(call.static.items()) or ""
    return f"{call.path}.{call.name}.{value}{static}"


def run_call(engine: Engine, call: Call, aggregator: Aggregator) -> PartialAggregate:
    """Run the call; skip the engine if no clients are selected."""
    if len(call.ids):
        return engine.map(call, aggregator)
    return aggregator.finish(aggregator.empty())
