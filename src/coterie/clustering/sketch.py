"""A short vector in place of a long one, where only distances matter."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.params import Params
from coterie.core.randomness import scramble


def sketch(update: Params, bins: int, seed: int) -> Tensor:
    """[bins] random signs, then sums by position mod `bins`: O(d), no matrix.

    Inner products of sketches are those of the models in the mean. The seed is the server's, so
    that all clients use the same signs. A model of fewer numbers than `bins` keeps its length: the
    other bins would hold zeros.
    """
    v = torch.cat([x.flatten() for x in update.values()])
    bins = min(bins, len(v))
    positions = torch.arange(len(v), device=v.device)
    sign = ((scramble(positions + seed) & 1) * 2 - 1).to(v.dtype)
    signed = v * sign
    full = len(v) // bins * bins  # what fills rows of `bins` numbers; the rest is padded
    rest = torch.nn.functional.pad(signed[full:], (0, bins - len(v) + full))
    return signed[:full].view(-1, bins).sum(0) + rest
