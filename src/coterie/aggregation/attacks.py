"""Attacks: what hostile clients send instead of their honest moves.

    kind    what each attacker sends                       strength      default
    flip    −c · its own move                              c             9
    scale   c · its own move                               c             1000
    noise   Gaussian noise as long as screening allows     see below     10
    shift   mean − z · deviation of the attackers' moves   z             from the numbers of clients
    ipm     −ε · mean of the attackers' moves              ε             2
    labels  its own move, learnt from flipped labels

* flip: Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-robust stochastic aggregation methods for
  distributed learning from heterogeneous datasets. AAAI 2019 (sign flipping).
* scale: Bagdasaryan, Veit, Hua, Estrin, Shmatikov: How to backdoor federated learning. AISTATS 2020
  (model replacement: a move is scaled until it outweighs all others).
* noise: Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries. NIPS 2017 (the
  Gaussian attack).
* shift: Baruch, Baruch, Goldberg: A little is enough: circumventing defenses for distributed
  learning. NeurIPS 2019.
* ipm: Xie, Koyejo, Gupta: Fall of empires: breaking Byzantine-tolerant SGD by inner product
  manipulation. UAI 2019.
* labels: Tolpegin, Truex, Gursoy, Liu: Data poisoning attacks against federated learning systems.
  ESORICS 2020; with all labels flipped, as in Fang, Cao, Jia, Gong: Local model poisoning attacks
  to Byzantine-robust federated learning. USENIX Security 2020.

The attackers know each other's honest moves and nothing of the others'. So where a paper computes
a mean or a deviation over all honest clients, they are over the attackers' own moves.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from coterie.aggregation.blocks import as_table
from coterie.core.errors import unknown_name
from coterie.core.params import Params, as_column, scale

ATTACKS = ("flip", "scale", "noise", "shift", "ipm", "labels")

STRENGTHS = {"flip": 9.0, "scale": 1000.0, "noise": 10.0, "shift": 1.5, "ipm": 2.0, "labels": 1.0}
UNDER_THE_LIMIT = 0.999  # of it, so that rounding does not carry noise over it


def attacked(
    kind: str,
    moves: Params,
    strength: float | None,
    limit: float | None,
    generator: torch.Generator,
    clients: int | None = None,
) -> Params:
    """What the attackers send instead of `moves`, in the same shapes.

    moves: leaves [a, ...], what the attackers' honest updates would have been (value − start).
    strength: how strong the attack is, see above; None for the default.
    limit: the longest move that screening lets pass; noise is as long, whatever its strength.
        Without one it is `strength` times as long as the median of the attackers' moves.
    generator: draws the noise.
    clients: the number of all clients, honest or not, whose moves are averaged with these; from
        it the default strength of `shift` is computed.
    """
    if kind not in ATTACKS:
        raise unknown_name("attack", kind, ATTACKS)
    if strength is None:
        strength = default_strength(kind, attackers=attackers_in(moves), clients=clients)
    if kind == "flip":
        return scale(-strength, moves)
    if kind == "scale":
        return scale(strength, moves)
    if kind == "noise":
        length = noise_length(moves, strength, limit)
        return noise_like(moves, length, generator)
    if kind == "shift":
        return {n: for_each(v, v.mean(0) - strength * deviation(v)) for n, v in moves.items()}
    if kind == "ipm":
        return {n: for_each(v, -strength * v.mean(0)) for n, v in moves.items()}
    return moves  # learnt from flipped labels already


def default_strength(kind: str, attackers: int, clients: int | None) -> float:
    """The strength of an attack that the user gives none for."""
    if kind == "shift" and clients is not None:
        return largest_shift(clients, attackers)
    return STRENGTHS[kind]


def largest_shift(clients: int, attackers: int) -> float:
    """z_max: the deviations by which a shift still looks like an honest client's move.

    As many honest clients as the attackers lack for a majority should lie further out than they do:
    s = ⌊n/2 + 1⌋ − f, and the normal distribution below z_max has the mass (n − f − s) / (n − f).
    """
    honest = clients - attackers
    supporters = clients // 2 + 1 - attackers
    if not 0 < supporters < honest:  # a majority already, or one that cannot be had
        return STRENGTHS["shift"]
    return statistics.NormalDist().inv_cdf((honest - supporters) / honest)


# ------------------------------------------------------------------------------ parts of the above
def attackers_in(moves: Params) -> int:
    """a, the number of attackers."""
    return len(next(iter(moves.values())))


def for_each(moves: Tensor, same: Tensor) -> Tensor:
    """[a, ...] the same move for each attacker."""
    return same.expand_as(moves).clone()


def deviation(moves: Tensor) -> Tensor:
    """The standard deviation of each coordinate among the attackers; 0 for a single one."""
    if len(moves) < 2:
        return torch.zeros_like(moves[0])
    return moves.std(0)


def lengths(moves: Params) -> Tensor:
    """[a] the length of each attacker's move, over all leaves together."""
    squares = [as_table(v).double().square().sum(1) for v in moves.values()]
    return torch.stack(squares).sum(0).sqrt()


def noise_length(moves: Params, strength: float, limit: float | None) -> float:
    """How long noise is."""
    if limit is not None:
        return UNDER_THE_LIMIT * limit
    return strength * float(lengths(moves).quantile(0.5))


def noise_like(moves: Params, length: float, generator: torch.Generator) -> Params:
    """Gaussian noise of one length for each attacker, in the shapes of `moves`."""
    noise = {}
    for n, v in moves.items():
        drawn = torch.randn(v.shape, generator=generator, dtype=v.dtype, device=generator.device)
        noise[n] = drawn.to(v.device)
    to_length = length / lengths(noise)
    return {n: v * as_column(to_length, v).to(v.dtype) for n, v in noise.items()}


# ------------------------------------------------------------------------------ data
def flipped_labels(y: Tensor, classes: int | None) -> Tensor:
    """The labels of an attacker's rows [rows, ...] as it learns from them.

    Class c becomes classes − 1 − c. Without classes (regression) labels are mirrored at their mean:
    mean and spread stay, so nothing looks odd, and every relation with a feature is reversed.
    """
    if classes is not None:
        return classes - 1 - y
    return 2 * y.mean(0) - y
