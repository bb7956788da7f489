"""Clients that attack, for a user who tries how much a run withstands before trusting it.

Attackers train as honest clients do, know each other's uploads, and send something else: see
aggregation/attacks.py. Only values and sketches of updates are attacked. Weights and other
reports that are not what they may be are refused anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie.aggregation.aggregator import Part
from coterie.aggregation.attacks import attacked, flipped_labels
from coterie.aggregation.clipping import Screening, weights
from coterie.core import randomness
from coterie.core.contract import Declaration, Direction, Upload
from coterie.core.params import Params, axpy
from coterie.data.federation import Federation
from coterie.data.roster import Roster


@dataclass(frozen=True)
class Attack:
    """Who attacks, and how."""

    kind: str
    strength: float | None
    attackers: Tensor  # int64, ids of clients

    def change(
        self,
        answers: Part,
        attackers: Tensor,
        screening: Screening,
        declaration: Declaration,
        generator: torch.Generator,
        clients: int,
    ) -> Part:
        """Stacked answers, with those in these rows changed. The rest: see `upload`."""
        assert answers.rows is not None
        honest: Upload = tree_map(lambda v: v[attackers.to(v.device)], answers.rows)
        sent = self.upload(honest, screening, declaration, generator, clients)
        rows: Upload = tree_map(
            lambda v, new: v.index_copy(0, attackers.to(v.device), new), answers.rows, sent
        )
        return answers._replace(rows=rows, moved=screening.distances(rows))

    def upload(
        self,
        up: Upload,
        screening: Screening,
        declaration: Declaration,
        generator: torch.Generator,
        clients: int,
    ) -> Upload:
        """What the attackers send instead of the honest uploads `up`, leaves [attackers, ...].

        clients: how many take part in the exchange, honest or not.
        """
        values = {}
        for name, value in up.values.items():
            start = screening.starts(name, value, weights(up)[name])
            limit = screening.limits.get(name)
            moves = self._attacked(
                axpy(-1, start, value), None if limit is None else limit.most, generator, clients
            )
            values[name] = axpy(1, start, moves)
        report = dict(up.report)
        for name, sketches in up.report.items():
            if isinstance(declaration.report_of(name), Direction):
                moves = self._attacked({name: sketches}, 1.0, generator, clients)
                report[name] = torch.nn.functional.normalize(moves[name], dim=-1)
        return up._replace(values=values, report=report)

    def _attacked(self, moves: Params, limit: float | None, *rest: Any) -> Params:
        if not moves or not len(next(iter(moves.values()))):
            return moves
        return attacked(self.kind, moves, self.strength, limit, *rest)


def choose_attackers(roster: Roster, count: int, seed: int) -> Tensor:
    """Ids of clients that attack: as many in each planted group where groups are known."""
    n = len(roster)
    keys = randomness.client_keys(roster.names[:n], seed)
    chance = randomness.uniform(randomness.keys(keys, 0, "attackers"))
    group = torch.zeros(n, dtype=torch.long)
    if roster.truth is not None and roster.truth.dim() == 1:
        group = roster.truth[:n].long()
    turn = torch.zeros(n)  # how many of its own group come before a client
    for g in group.unique():
        members = (group == g).nonzero()[:, 0]
        turn[members[chance[members].argsort()]] = torch.arange(len(members)).float()
    return (turn + chance).argsort()[:count].sort().values


def with_flipped_labels(fed: Federation, attack: Attack | None) -> Federation:
    """The federation, whose attackers learn from flipped labels if that is the attack."""
    if attack is None or attack.kind != "labels":
        return fed
    y = fed.train.y.clone()
    for i in attack.attackers.tolist():
        start = int(fed.train.starts[i])
        rows = slice(start, start + int(fed.train.sizes[i]))
        y[rows] = flipped_labels(y[rows], fed.classes)
    return replace(fed, train=fed.train._replace(y=y))
