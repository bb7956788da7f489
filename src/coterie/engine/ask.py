"""One exchange, whatever the engine: who is asked, with what randomness, whose answer counts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie import randomness
from coterie.clustering import group_mean
from coterie.contract import Stack, Sums, Upload
from coterie.data.roster import Roster
from coterie.engine.attack import Attack
from coterie.engine.call import Call, Version, path_of
from coterie.engine.checks import Checks
from coterie.engine.dry_run import DryRun
from coterie.engine.evaluate import Evaluation
from coterie.engine.fold import PLAIN, Fold, Part, Robust
from coterie.engine.protocol import Engine
from coterie.engine.screening import Limit, Screening
from coterie.errors import CoterieError, Diverged
from coterie.params import Params, as_column, count, one_hot
from coterie.robust.rules import robust_means
from coterie.task import Task

log = logging.getLogger("coterie")
MOST_NAMED = 5  # refused clients that a round's log names
FIRST = 32  # clients whose answers are held until it is known what is usual


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
    everyone: Tensor
    participants: Tensor
    phase: Literal["train", "evaluate"] = "train"
    dropout: float = 0.0
    screen: float | None = 10.0
    welcome_bytes: int = 0  # of the welcome that one client is sent
    robust: Robust = PLAIN
    attack: Attack | None = None
    usual: dict[str, float] = field(default_factory=dict)  # lengths of moves; lives with the run
    refused: list[int] = field(default_factory=list)
    screened: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_of_welcomes: int = 0  # sent to clients that were asked for the first time
    exchange: int = 0
    tags: Counter[str] = field(default_factory=Counter)

    @property
    def is_robust(self) -> bool:
        """Whether means withstand hostile clients."""
        return self.robust.rule != "mean"

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
        means = robust_means(self.robust.rule, values, shares, self.robust.share)
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
        exam: str | None = None,
        enrolled: bool = True,
    ) -> Any:
        """Run `fn` on clients and fold their uploads; see `Ask`.

        exam, enrolled: as in `Call`, for evaluations.
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
            exam=exam,
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
        part = self._gather(call.only(present), self.dry_run(call), reduce, started_from)
        self._account(call, part, present)
        return part._replace(accepted=present[part.accepted])

    def _gather(
        self,
        call: Call,
        like: Upload,
        reduce: Literal["sum", "stack"],
        started_from: dict[str, Params] | None,
    ) -> Part:
        """The answers of all clients of the call.

        Some are held at first: where it is not known yet how far such uploads move, until it is;
        and those of attackers, who know each other's.
        """
        first = self._first_to_ask(call, like)
        held = first | self._is_attacker(call)

        def fold_for(some: Call, kind: Literal["sum", "stack"], robust: Robust = PLAIN) -> Fold:
            screening = Screening(started_from, self._limits(call, like))
            checks = Checks(some, self.roster)
            return Fold(kind, like, len(some.ids), checks, screening, robust)

        if not bool(held.any()):
            return self._map(call, fold_for(call, reduce, self.robust))
        positions = held.nonzero()[:, 0]
        some = call.only(positions)
        hold = fold_for(some, "stack")
        answers = self._attacked(some, self._map(some, hold), hold.screening)
        if bool(first.any()):
            self._remember_usual(call, answers, first[positions[answers.accepted]])
        fold = fold_for(call, reduce, self.robust)  # with the limits that are known now
        parts = [fold.digest_held(answers, positions)]
        if not bool(held.all()):
            positions = (~held).nonzero()[:, 0]
            others = call.only(positions)
            part = self._map(others, fold_for(others, "stack" if fold.holds_values else reduce))
            parts.append(fold.absorb(part.at(positions)))
        return fold.complete(fold.merge(parts))

    def _map(self, call: Call, fold: Fold) -> Part:
        """The engine's answer; nobody need be asked."""
        if len(call.ids):
            return self.engine.map(call, fold)
        return fold.complete(fold.missing([]))

    def _first_to_ask(self, call: Call, like: Upload) -> Tensor:
        """bool [n]: whose answers show how far such uploads move; nobody's if that is known.

        They are drawn, so that no few can be the first by their names.
        """
        n = len(call.ids)
        known = all(_label(call, name) in self.usual for name in like.values)
        if known or not self.screen:
            return torch.zeros(n, dtype=torch.bool)
        if n <= FIRST:
            return torch.ones(n, dtype=torch.bool)
        keys = randomness.keys(call.client_keys, self.round, "first to ask")
        drawn = randomness.uniform(keys).argsort()[:FIRST]
        return torch.zeros(n, dtype=torch.bool).index_fill(0, drawn, True)

    # -- attackers
    def _is_attacker(self, call: Call) -> Tensor:
        if self.attack is None:
            return torch.zeros(len(call.ids), dtype=torch.bool)
        return torch.isin(call.ids, self.attack.attackers)

    def _attacked(self, call: Call, answers: Part, screening: Screening) -> Part:
        """The answers with those of attackers changed."""
        if self.attack is None:
            return answers
        assert answers.rows is not None
        attackers = self._is_attacker(call)[answers.accepted].nonzero()[:, 0]
        honest: Upload = tree_map(lambda v: v[attackers.to(v.device)], answers.rows)
        changed = self.attack.upload(
            honest,
            screening,
            call.fn.declaration,  # type: ignore[attr-defined]
            self.rng("attack"),
            len(self.participants),
        )
        rows: Upload = tree_map(
            lambda v, new: v.index_copy(0, attackers.to(v.device), new), answers.rows, changed
        )
        return answers._replace(rows=rows, moved=screening.distances(rows))

    def _present(self, call: Call) -> Tensor:
        """Positions of those who will answer: simulated dropouts are drawn per exchange."""
        if not self.dropout:
            return torch.arange(len(call.ids))
        keys = randomness.keys(call.client_keys, self.round, f"dropout {self.exchange}")
        return (randomness.uniform(keys) >= self.dropout).nonzero()[:, 0]

    def _limits(self, call: Call, like: Upload) -> dict[str, Limit]:
        """By value name, how far it may move."""
        limits = {}
        for name in like.values if self.screen else ():
            usual = self.usual.get(_label(call, name), 0.0)
            if usual > 0:
                limits[name] = Limit(usual, self.screen)  # type: ignore[arg-type]
        return limits

    def _remember_usual(self, call: Call, part: Part, whose: Tensor | None = None) -> None:
        """Moves of the usual length are as long as the largest median so far.

        whose: bool, one for each accepted client; None: all.
        """
        for name, moved in (part.moved or {}).items():
            lengths = moved if whose is None else moved[whose]
            if len(lengths):
                label = _label(call, name)
                self.usual[label] = max(self.usual.get(label, 0.0), float(lengths.median()))

    def _account(self, call: Call, part: Part, present: Tensor) -> None:
        """Count bytes, remember lengths, log who was refused; stop if most were."""
        self.bytes_down += call.bytes_down * len(call.ids)
        self.bytes_of_welcomes += self.welcome_bytes * part.welcomed
        self.bytes_up += part.bytes_up
        self._remember_usual(call, part)
        self.screened += call.ids[present[part.screened]].tolist()
        dropped = torch.ones(len(call.ids), dtype=torch.bool)
        dropped[present] = False
        dropped[present[part.absent]] = True
        self.absent += call.ids[dropped].tolist()
        self._log_refused(call, part, present)
        answers = len(present) - len(part.absent)
        is_most_of_the_round = 2 * len(present) >= len(self.participants)
        if is_most_of_the_round and 2 * len(part.refused) > answers:
            lr = getattr(call.fn.__self__, "lr", "not set")  # type: ignore[attr-defined]
            raise Diverged(
                f"round {self.round}: {len(part.refused)} of {answers} uploads of {call.name}() "
                f"were refused ({part.refused[0][1]}): training diverged; use a smaller lr "
                f"(now {lr})."
            )

    def _log_refused(self, call: Call, part: Part, present: Tensor) -> None:
        names = self.roster.names
        for number, (at, reason) in enumerate(part.refused):
            i = int(call.ids[present[at]])
            self.refused.append(i)
            if number < MOST_NAMED:
                log.warning(
                    "round %d: refused %s in %s(): %s.", self.round, names[i], call.name, reason
                )
        if len(part.refused) > MOST_NAMED:
            more = len(part.refused) - MOST_NAMED
            log.warning("round %d: refused %d more in %s().", self.round, more, call.name)


def _label(call: Call, value: str) -> str:
    static = sorted(call.static.items()) or ""
    return f"{call.path}.{call.name}.{value}{static}"
