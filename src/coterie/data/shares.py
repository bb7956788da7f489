"""Clients that mix several sources: their shares, and the rows that meet these shares."""

from __future__ import annotations

import re

import numpy as np

from coterie.core.errors import CoterieError


def mix(
    mixture: str, clients: int, sources: int, what: str, random: np.random.Generator
) -> np.ndarray:
    """The share of each source in each client's rows: [clients, sources], rows sum to 1.

    `what` names the sources in errors.
    """
    if mixture == "random":
        points = np.sort(random.random((clients, sources - 1)), axis=1)
        return np.diff(points, axis=1, prepend=0, append=1)
    if mixture == "linear":
        first = (np.arange(clients) + 0.5) / clients
    else:
        first = alternating(mixture, clients)
    if sources != 2:
        raise CoterieError(
            f"mixture={mixture!r} is for 2 {what}, not {sources}", "use mixture='random'"
        )
    return np.stack([first, 1 - first], axis=1)


def alternating(ratio: str, clients: int) -> np.ndarray:
    """The first share for a ratio "a:b": a / (a + b), b / (a + b), a / (a + b), …"""
    match = re.fullmatch(r"(\d+):(\d+)", ratio)
    a, b = map(int, match.groups()) if match else (0, 0)
    if not a + b:
        raise CoterieError(
            f"mixture={ratio!r} is none", "write shares such as '10:90', or 'linear', or 'random'"
        )
    return np.where(np.arange(clients) % 2, b, a) / (a + b)


def rows_per_source(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How many of a client's rows each source gives: its shares to within one row.

    int64 [clients, sources]
    """
    ends = np.cumsum(shares, axis=1) * sizes[:, None]
    ends = np.ceil(ends - 0.5 - 1e-9)  # nearest whole number, the lower one of two
    ends[:, -1] = sizes
    return np.diff(ends, axis=1, prepend=0).astype(np.int64)


def in_random_order(counts: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The source of each row, int64 [rows], one client after another."""
    clients, sources = counts.shape
    client = np.repeat(np.arange(clients), counts.sum(axis=1))
    source = np.repeat(np.tile(np.arange(sources), clients), counts.ravel())
    return source[np.lexsort((random.random(len(client)), client))]


def places(group: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Each row's place, 0, 1, …, in a random order of the rows of its group.

    Groups are whole numbers; int64 [rows].
    """
    counts = np.bincount(group)
    order = np.lexsort((random.random(len(group)), group))
    place = np.empty(len(group), dtype=np.int64)
    place[order] = np.arange(len(group)) - np.repeat(counts.cumsum() - counts, counts)
    return place
