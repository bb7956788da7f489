"""Random numbers of record-level differential privacy: batches, noise and choices.

They come from a generator that the operating system seeds anew for every local training. With a
seed, which a simulation may have for tests, they depend on the seed and the client's key alone, so
that engines agree; such a run is not private.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.params import Params
from coterie.core.randomness import scramble, uniform
from coterie.core.task import RowPrivacy

WORD = (1 << 64) - 1


class RowRandomness:
    """Batches and noise of one local training, for all clients at once."""

    def __init__(self, privacy: RowPrivacy, keys: Tensor) -> None:
        self.keys = keys
        self.is_seeded = privacy.seed is not None
        if privacy.seed is not None:
            self.generators = [_keyed(privacy.seed, int(key)) for key in keys]
        else:
            # 128 bits of the operating system's entropy; torch's CPU generator takes 32
            self.generators = [np.random.Generator(np.random.SFC64())]

    def uniform(self, rows: int, step: int) -> Tensor:
        """A number in [0, 1) for each row, float64 [c, rows]."""
        if self.is_seeded:
            numbers = torch.arange(rows, device=self.keys.device)
            return uniform(scramble(self.keys + step)[:, None] + numbers)
        drawn = self.generators[0].random((len(self.keys), rows))
        return torch.from_numpy(drawn).to(self.keys.device)

    def normals(self, like: Params) -> Iterator[Tensor]:
        """Standard normal numbers like each leaf [c, ...]."""
        for v in like.values():
            dtype: Any = np.float64 if v.dtype == torch.float64 else np.float32
            if self.is_seeded:
                drawn = np.stack([g.standard_normal(v.shape[1:], dtype) for g in self.generators])
            else:
                drawn = self.generators[0].standard_normal(tuple(v.shape), dtype)
            yield torch.from_numpy(drawn).to(v)

    def gumbels(self, count: int) -> Tensor:
        """Standard Gumbel numbers, float64 [c, count]."""
        if self.is_seeded:
            drawn = np.stack([g.gumbel(size=count) for g in self.generators])
        else:
            drawn = self.generators[0].gumbel(size=(len(self.keys), count))
        return torch.from_numpy(drawn).to(self.keys.device)


def _keyed(seed: int, key: int) -> np.random.Generator:
    """A generator for one client of a seeded run."""
    return np.random.Generator(np.random.Philox(key=[seed & WORD, key & WORD]))
