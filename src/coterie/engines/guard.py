"""How a run guards against uploads that would hurt, and how some attack to try it.

Answers are gathered here: checked, screened, and averaged by the run's rule (see fold.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from coterie.aggregation.aggregator import PLAIN, Fold, Part, Robust
from coterie.aggregation.attack import Attack
from coterie.aggregation.checks import Checks
from coterie.aggregation.clipping import Limit, Screening
from coterie.core import randomness
from coterie.core.call import Call
from coterie.core.contract import Upload
from coterie.core.params import Params
from coterie.data.roster import Roster
from coterie.engines.protocol import Engine

FIRST = 32  # clients whose answers are held until it is known what is usual
LEAST = 3  # answers from which it can be known: of two, one may be hostile


@dataclass
class Guard:
    """What is done about uploads; without any argument only what is impossible is refused."""

    screen: float | None = None  # how many times as far as is usual an upload may move
    robust: Robust = PLAIN
    attack: Attack | None = None
    usual: dict[str, float] = field(default_factory=dict)  # how far uploads move, by their kind
    # clients that the log has named
    told_refused: set[int] = field(default_factory=set)
    told_screened: set[int] = field(default_factory=set)

    def gather(
        self,
        engine: Engine,
        roster: Roster,
        call: Call,
        *,
        like: Upload,
        reduce: Literal["sum", "stack"],
        started_from: dict[str, Params] | None,
        rng: Callable[[str], torch.Generator],
    ) -> Part:
        """The answers of all clients of the call.

        Some are held at first: where it is not known yet how far such uploads move, until it is;
        and those of attackers, who know each other's.
        """
        first = self._first_to_ask(call, like)
        held = first | self._is_attacker(call)

        def fold_for(some: Call, kind: Literal["sum", "stack"], robust: Robust = PLAIN) -> Fold:
            screening = Screening(started_from, self._limits(call, like))
            checks = Checks(some, roster)
            return Fold(kind, like, len(some.ids), checks, screening, robust)

        if not bool(held.any()):
            return ask(engine, call, fold_for(call, reduce, self.robust))
        positions = held.nonzero()[:, 0]
        some = call.only(positions)
        hold = fold_for(some, "stack")
        answers = ask(engine, some, hold)
        if self.attack is not None:
            attackers = self._is_attacker(some)[answers.accepted].nonzero()[:, 0]
            declaration = call.fn.declaration  # type: ignore[attr-defined]
            answers = self.attack.change(
                answers, attackers, hold.screening, declaration, rng("attack"), len(call.ids)
            )
        if bool(first.any()):
            self.remember_usual(call, answers, first[positions[answers.accepted]])
        fold = fold_for(call, reduce, self.robust)  # with the limits that are known now
        parts = [fold.digest_held(answers, positions)]
        if not bool(held.all()):
            positions = (~held).nonzero()[:, 0]
            others = call.only(positions)
            kind = "stack" if fold.holds_values else reduce
            part = ask(engine, others, fold_for(others, kind))
            parts.append(fold.absorb(part.at(positions)))
        return fold.complete(fold.merge(parts))

    def _first_to_ask(self, call: Call, like: Upload) -> Tensor:
        """bool [n]: whose answers show how far such uploads move; nobody's if that is known.

        They are drawn, so that no few can be the first by their names.
        """
        n = len(call.ids)
        known = all(label(call, name) in self.usual for name in like.values)
        if known or not self.screen:
            return torch.zeros(n, dtype=torch.bool)
        if n <= FIRST:
            return torch.ones(n, dtype=torch.bool)
        keys = randomness.keys(call.client_keys, call.version.round, "first to ask")
        drawn = randomness.uniform(keys).argsort()[:FIRST]
        return torch.zeros(n, dtype=torch.bool).index_fill(0, drawn, True)

    # -- what is usual
    def _limits(self, call: Call, like: Upload) -> dict[str, Limit]:
        """By value name, how far it may move."""
        limits = {}
        for name in like.values if self.screen else ():
            usual = self.usual.get(label(call, name), 0.0)
            if usual > 0:
                limits[name] = Limit(usual, self.screen)  # type: ignore[arg-type]
        return limits

    def remember_usual(self, call: Call, part: Part, whose: Tensor | None = None) -> None:
        """Moves of the usual length are as long as the largest third quartile so far.

        whose: bool, one for each accepted client; None: all.
        """
        for name, moved in (part.moved or {}).items():
            lengths = moved if whose is None else moved[whose]
            if len(lengths) < LEAST:
                continue
            key = label(call, name)
            now = third_quartile(lengths)
            before = self.usual.get(key, 0.0)
            if before and self.screen:  # what is usual grows by steps, whatever is sent
                now = min(now, self.screen * before)
            self.usual[key] = max(before, now)

    # -- attackers
    def _is_attacker(self, call: Call) -> Tensor:
        if self.attack is None:
            return torch.zeros(len(call.ids), dtype=torch.bool)
        return torch.isin(call.ids, self.attack.attackers)


def third_quartile(lengths: Tensor) -> float:
    """The length that three quarters of them do not exceed, rounded down to one of the lengths.

    So up to a quarter of the clients cannot change what is usual by long moves. The median would
    withstand more of them, but where half of the honest clients need not move, having the model
    that they look for from the start, it is next to nothing.
    """
    place = 3 * (len(lengths) - 1) // 4
    return float(lengths.kthvalue(place + 1).values)


def ask(engine: Engine, call: Call, fold: Fold) -> Part:
    """The engine's answer; nobody need be asked."""
    if len(call.ids):
        return engine.map(call, fold)
    return fold.complete(fold.missing([]))


def label(call: Call, value: str) -> str:
    """The kind of an upload: moves of one kind are comparable."""
    static = sorted(call.static.items()) or ""
    return f"{call.path}.{call.name}.{value}{static}"
