"""Randomness that no engine, padding, chunk, worker or resume can change.

A client's key is a hash of (seed, its name, round, exchange or named stream). Orders of rows come from hashing the
row number with the key, in int64 tensor operations: they work inside `vmap` and cost no Python per client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def scramble(x: Tensor) -> Tensor:
    """splitmix64 on int64 tensors; products wrap."""

    def shifted(v: Tensor, by: int) -> Tensor:  # a logical right shift
        return (v >> by) & ((1 << (64 - by)) - 1)

    x = x + -7046029254386353131
    x = (x ^ shifted(x, 30)) * -4658895280553007687
    x = (x ^ shifted(x, 27)) * -7723592293110705685
    return x ^ shifted(x, 31)


def digest(text: str) -> int:
    """A word as a signed 64-bit number, the same on every machine."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True
    )


def client_keys(names: Sequence[str], seed: int) -> Tensor:
    """[N] each client's own key for the whole run."""
    return scramble(
        scramble(torch.tensor([digest(n) for n in names], dtype=torch.int64))
        + digest(f"seed {seed}")
    )


def keys(client_key: Tensor, round: int, stream: str | int) -> Tensor:
    """[N] each client's key in one exchange."""
    return scramble(scramble(client_key + round) + digest(f"stream {stream}"))


def uniform(key: Tensor) -> Tensor:
    """A float64 in [0, 1) from each key."""
    return ((scramble(key) >> 11) & ((1 << 53) - 1)).double() / float(1 << 53)


def generator(*words: object) -> torch.Generator:
    """A server's generator, a function of the words alone."""
    return torch.Generator().manual_seed(digest("/".join(map(str, words))) & (2**63 - 1))
