"""Simulated attacks: what hostile clients send instead of their honest updates.

    kind       what each attacker sends                         strength      default
    flip       −c · its own update                              c             9
    scale      c · its own update                               c             1000
    noise      Gaussian noise with the largest unclipped norm   see below     10
    shift      mean − z · deviation of the attackers' updates   z             from client numbers
    ipm        −ε · mean of the attackers' updates              ε             2
    labels     its own update, trained on flipped labels
    free-ride  the first model that it was sent, unchanged
    claim      −c · its own update, for the cluster of the      c             3
               first attacker, whichever fits its own data
    collude    as claim, but all send −c · the first's update   c             3

* flip: Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-robust stochastic aggregation methods for
  distributed learning from heterogeneous datasets. AAAI 2019 (sign flipping).
* scale: Bagdasaryan, Veit, Hua, Estrin, Shmatikov: How to backdoor federated learning. AISTATS 2020
  (model replacement: an update is scaled until it outweighs all others).
* noise: Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries. NIPS 2017 (the
  Gaussian attack).
* shift: Baruch, Baruch, Goldberg: A little is enough: circumventing defenses for distributed
  learning. NeurIPS 2019.
* ipm: Xie, Koyejo, Gupta: Fall of empires: breaking Byzantine-tolerant SGD by inner product
  manipulation. UAI 2019.
* labels: Tolpegin, Truex, Gursoy, Liu: Data poisoning attacks against federated learning systems.
  ESORICS 2020; with all labels flipped, as in Fang, Cao, Jia, Gong: Local model poisoning attacks
  to Byzantine-robust federated learning. USENIX Security 2020.
* free-ride: Lin, Du, Liu: Free-riders in federated learning: attacks and defenses.
  arXiv 1911.12560, 2019.

Attackers train like honest clients and know each other's updates, but no others. So where a paper
uses a mean or deviation over all honest clients, here it is over the attackers' own updates. Only
values and sketches of updates are attacked, and in `claim` and `collude` the reports that decide
about clusters: invalid weights and other reports are rejected anyway.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.aggregation.aggregator import PartialAggregate
from coterie.aggregation.clipping import Clipping, weights_by_value
from coterie.aggregation.exchange import Exchange
from coterie.aggregation.robust import as_table
from coterie.core import randomness
from coterie.core.contract import Declaration, Direction, Index, Losses, OneHot, Upload
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.params import Params, as_column, axpy, scale
from coterie.core.trees import tree_map
from coterie.data.federation import Federation
from coterie.data.roster import Roster

STRENGTHS = {
    "flip": 9.0,
    "scale": 1000.0,
    "noise": 10.0,
    "shift": 1.5,
    "ipm": 2.0,
    "labels": 1.0,
    "free-ride": 1.0,
    "claim": 3.0,
    "collude": 3.0,
}
ATTACKS = tuple(STRENGTHS)
BELOW_LIMIT = 0.999  # noise relative to the norm limit, so that rounding does not exceed it


@dataclass(frozen=True)
class Attack:
    """An attack and its attackers."""

    kind: str  # one of ATTACKS
    strength: float | None  # None: the default
    attackers: Tensor  # int64, client ids

    def needs(self, exchange: Exchange) -> Tensor:
        """Select the attackers, who know each other's updates."""
        return torch.isin(exchange.call.ids, self.attackers)

    def together(
        self, exchange: Exchange, needed: Tensor, stacked: PartialAggregate
    ) -> PartialAggregate:
        """Replace the attackers' updates, and their norms."""
        assert stacked.updates is not None
        rows = needed[stacked.accepted].nonzero()[:, 0]
        honest: Upload = tree_map(lambda v: v[rows.to(v.device)], stacked.updates)
        clipping = Clipping(exchange.started_from, exchange.limits)  # they know the norm limits
        sent = self.poison(
            honest, clipping, exchange.declaration, exchange.rng("attack"), exchange.num_clients
        )
        updates: Upload = tree_map(
            lambda v, new: v.index_copy(0, rows.to(v.device), new), stacked.updates, sent
        )
        return stacked._replace(updates=updates, norms=clipping.update_norms(updates))

    def after(self, exchange: Exchange, result: PartialAggregate) -> None:
        """Attackers learn nothing from the aggregate."""

    def poison(
        self,
        honest: Upload,
        clipping: Clipping,
        declaration: Declaration,
        generator: torch.Generator,
        clients: int,
    ) -> Upload:
        """What the attackers send instead of their honest uploads, leaves [attackers, ...]."""

        def attack(updates: Params, limit: float | None) -> Params:
            if not updates or not len(next(iter(updates.values()))):
                return updates
            return apply_attack(self.kind, updates, self.strength, limit, generator, clients)

        sent = honest
        claims_cluster = self.kind in ("claim", "collude")
        if claims_cluster:
            sent = imitate_first(honest, declaration)
        own, starts = weights_by_value(honest), weights_by_value(sent)
        if self.kind == "free-ride" and isinstance(declaration.weight, OneHot):
            starts = {name: first_centre(weight) for name, weight in own.items()}
        values = {}
        for name, value in honest.values.items():
            update = axpy(-1, clipping.starting_points(name, value, own[name]), value)
            limit = clipping.limits.get(name)
            norm_limit = None if limit is None else limit.clip_above
            start = clipping.starting_points(name, value, starts[name])
            start = {k: v.expand_as(value[k]) for k, v in start.items()}
            values[name] = axpy(1, start, attack(update, norm_limit))
        report = dict(sent.report)
        for name, sketches in sent.report.items():
            is_sketch = isinstance(declaration.report_of(name), Direction)
            if is_sketch and not claims_cluster:
                poisoned = attack({name: sketches}, 1.0)[name]
                report[name] = torch.nn.functional.normalize(poisoned, dim=-1)
        return sent._replace(values=values, report=report)


def imitate_first(honest: Upload, declaration: Declaration) -> Upload:
    """Return the attackers' uploads with the cluster, losses and sketch of the first of them."""

    def copy_first(v: Tensor) -> Tensor:
        return v[:1].expand_as(v).clone()

    report = dict(honest.report)
    for name, v in honest.report.items():
        if isinstance(declaration.report_of(name), Direction | Index | Losses):
            report[name] = copy_first(v)
    weight = honest.weight
    if isinstance(declaration.weight, OneHot):  # a client's total weight stays its own
        weight = tree_map(lambda w: w.sum(1, keepdim=True) * copy_first((w > 0).to(w)), weight)
    return honest._replace(weight=weight, report=report)


def first_centre(weight: Tensor) -> Tensor:
    """One-hot weights of the first centre, like weight [n, K]."""
    return torch.zeros_like(weight).index_fill(1, torch.tensor(0), 1.0)


def choose_attackers(roster: Roster, count: int, seed: int) -> Tensor:
    """Draw the ids of the attackers, equally many per planted cluster if these are known."""
    n = len(roster)
    keys = randomness.client_keys(roster.names[:n], seed)
    chance = randomness.uniform(randomness.keys(keys, 0, "attackers"))
    cluster = torch.zeros(n, dtype=torch.long)
    if roster.truth is not None and roster.truth.dim() == 1:
        cluster = roster.truth[:n].long()
    turn = torch.zeros(n)  # a client's place in the random order of its cluster
    for c in cluster.unique():
        members = (cluster == c).nonzero()[:, 0]
        turn[members[chance[members].argsort()]] = torch.arange(len(members)).float()
    return (turn + chance).argsort()[:count].sort().values


def poison_labels(fed: Federation, attack: Attack | None) -> Federation:
    """Flip the attackers' training labels if the attack is "labels"."""
    if attack is None or attack.kind != "labels":
        return fed
    if fed.kind not in ("classification", "regression"):
        raise CoterieError(
            f"the attack labels flips one label per row, and the targets are of the kind "
            f"{fed.kind}: use another attack."
        )
    y = fed.train.y.clone()
    for i in attack.attackers.tolist():
        start = int(fed.train.starts[i])
        rows = slice(start, start + int(fed.train.sizes[i]))
        y[rows] = flip_labels(y[rows], fed.classes)
    return replace(fed, train=fed.train._replace(y=y))


def apply_attack(
    kind: str,
    updates: Params,
    strength: float | None,
    limit: float | None,
    generator: torch.Generator,
    clients: int | None = None,
) -> Params:
    """Return what the attackers send instead of their honest updates.

    Args:
        kind: One of `ATTACKS`.
        updates: Leaves of shape [a, ...], the honest updates (value − start) of a attackers.
        strength: See the table above; None for the default.
        limit: The largest norm that is not clipped. Noise has this norm whatever its strength;
            without a limit it has `strength` times the median norm of the attackers' updates.
        generator: Draws the noise.
        clients: Number of clients, honest or not, in the same mean; it determines the default
            strength of `shift`.

    Returns:
        Leaves of the same shapes.

    Raises:
        CoterieError: If the attack does not exist.
    """
    if kind not in ATTACKS:
        raise unknown_name("attack", kind, ATTACKS)
    attackers = len(next(iter(updates.values())))
    if strength is None:
        strength = STRENGTHS[kind]
        if kind == "shift" and clients is not None:
            strength = largest_shift(clients, attackers)
    if kind in ("flip", "claim"):
        return scale(-strength, updates)
    if kind == "collude":
        return {k: -strength * v[:1].expand_as(v) for k, v in updates.items()}
    if kind == "free-ride":
        return scale(0.0, updates)
    if kind == "scale":
        return scale(strength, updates)
    if kind == "noise":
        norm = strength * float(norms(updates).quantile(0.5))
        if limit is not None:
            norm = BELOW_LIMIT * limit
        return gaussian_noise(updates, norm, generator)
    if kind == "shift":
        return {
            k: (v.mean(0) - strength * deviation(v)).expand_as(v).clone()
            for k, v in updates.items()
        }
    if kind == "ipm":
        return {k: (-strength * v.mean(0)).expand_as(v).clone() for k, v in updates.items()}
    return updates  # "labels": the attackers have trained on flipped labels


def largest_shift(clients: int, attackers: int) -> float:
    """z_max: by how many deviations a shifted update still looks like an honest one.

    As many honest clients as the attackers lack for a majority should lie further out:
    s = ⌊n/2 + 1⌋ − f, and the normal distribution below z_max has the mass (n − f − s) / (n − f).
    """
    honest = clients - attackers
    supporters = clients // 2 + 1 - attackers
    if not 0 < supporters < honest:  # the attackers have a majority, or cannot get one
        return STRENGTHS["shift"]
    return statistics.NormalDist().inv_cdf((honest - supporters) / honest)


def deviation(updates: Tensor) -> Tensor:
    """Standard deviation of each coordinate over the attackers; 0 for a single one."""
    if len(updates) < 2:
        return torch.zeros_like(updates[0])
    return updates.std(0)


def norms(updates: Params) -> Tensor:
    """Norm of each attacker's update over all leaves, [a]."""
    squares = [as_table(v).double().square().sum(1) for v in updates.values()]
    return torch.stack(squares).sum(0).sqrt()


def gaussian_noise(like: Params, norm: float, generator: torch.Generator) -> Params:
    """Gaussian noise with the given norm for each attacker, in the shapes of `like`."""
    noise = {}
    for k, v in like.items():
        drawn = torch.randn(v.shape, generator=generator, dtype=v.dtype, device=generator.device)
        noise[k] = drawn.to(v.device)
    factor = norm / norms(noise)
    return {k: v * as_column(factor, v).to(v.dtype) for k, v in noise.items()}


def flip_labels(y: Tensor, classes: int | None) -> Tensor:
    """Flip the labels [n, ...] of an attacker.

    Class c becomes classes − 1 − c. Regression targets (classes is None) are mirrored at their
    mean: mean and spread stay the same and every correlation with a feature changes its sign.
    """
    if classes is not None:
        return classes - 1 - y
    return 2 * y.mean(0) - y
