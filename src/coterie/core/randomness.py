"""Random numbers that do not depend on the engine, padding, chunks, workers or resume.

A client's key is a hash of (seed, its name, round, exchange or named stream). Orders of rows come
from hashing the row number with the key in int64 tensor operations, which work inside `vmap` and
need no Python loop over clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def scramble(x: Tensor) -> Tensor:
    """Hash int64 tensors by splitmix64; sums and products wrap around."""

    def shifted(v: Tensor, by: int) -> Tensor:
        """Logical right shift: zeros come in from the left."""
        return (v >> by) & ((1 << (64 - by)) - 1)

    x = x + -7046029254386353131
    x = (x ^ shifted(x, 30)) * -4658895280553007687
    x = (x ^ shifted(x, 27)) * -7723592293110705685
    return x ^ shifted(x, 31)


def digest(text: str) -> int:
    """Hash a text to a signed 64-bit number, the same on every machine."""
    hashed = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "little", signed=True)


def client_keys(names: Sequence[str], seed: int) -> Tensor:
    """Each client's key for all rounds of a run, int64 [N]."""
    of_names = torch.tensor([digest(n) for n in names], dtype=torch.int64)
    return scramble(scramble(of_names) + digest(f"seed {seed}"))


def keys(client_key: Tensor, round: int, stream: str | int) -> Tensor:
    """Each client's key in one exchange, int64 [N]."""
    return scramble(scramble(client_key + round) + digest(f"stream {stream}"))


def uniform(key: Tensor) -> Tensor:
    """A float64 in [0, 1) from each key."""
    return ((scramble(key) >> 11) & ((1 << 53) - 1)).double() / float(1 << 53)


def smallest(values: Tensor, count: int) -> Tensor:
    """Indices of the `count` smallest values, ascending, without sorting all values."""
    limit = values.kthvalue(count).values
    places = (values <= limit).nonzero()[:, 0]
    if len(places) > count:  # several are equal to the limit
        places = values.argsort()[:count].sort().values
    return places


def generator(*names: object) -> torch.Generator:
    """A generator for the server, seeded by these names and numbers."""
    return torch.Generator().manual_seed(digest("/".join(map(str, names))) & (2**63 - 1))
