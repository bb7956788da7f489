"""Clients that the data name themselves: writers, subjects, sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.data.base import base as base_of
from coterie.data.federation import Federation, Kind, Ragged, rng
from coterie.data.memory import from_memory
from coterie.data.shares import places
from coterie.data.spec import maker
from coterie.errors import CoterieError


@maker
def by_key(
    base: str,
    clients: int | None = None,
    samples: int | None = None,
    least: int = 20,
    seed: int = 0,
    unseen: int = 0,
) -> Federation:
    """A base set whose rows say whom they come from: one client per writer (unipen) or subject (har), by name.

    Clients with fewer than `least` training rows are left out; `clients` of the others are drawn (default: all). A
    client has all its rows of the base's training and test parts, but at most `samples` of the former, drawn at
    random. `unseen` of the clients, drawn at random, never train. Nobody knows the groups: there is no truth.
    """
    known = base_of(base)
    if known.key_train is None or known.key_test is None:
        raise CoterieError(
            f"{base} does not say whom its rows come from: use by_key with unipen or har, or cut {base} with another "
            f"data set, such as dirichlet:{base}."
        )
    key, key_test = known.key_train.numpy(), known.key_test.numpy()
    rows = drawn(key, clients, samples, least, seed)
    who = np.unique(key[rows])
    return Federation(
        tuple(known.keys[k] for k in who),
        cut(known.x_train, known.y_train, key, rows, who),
        cut(known.x_test, known.y_test, key_test, np.flatnonzero(np.isin(key_test, who)), who),
        "classification",
        known.classes,
        labels=known.labels,
    ).with_unseen(unseen, seed)


def cut(x: Tensor, y: Tensor, key: np.ndarray, rows: np.ndarray, who: np.ndarray) -> Ragged:
    """These rows, which belong to `who`, one client after another."""
    rows = rows[key[rows].argsort(kind="stable")]
    sizes = np.bincount(key[rows], minlength=who.max() + 1)[who]
    return Ragged(x[rows], y[rows], torch.from_numpy(sizes))


def from_keys(
    x: Any,
    y: Any,
    key: Any,
    test: tuple[Any, Any, Any] | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
    labels: Sequence[str] | None = None,
) -> Federation:
    """A federation of all clients' rows in memory, with a `key` for each row: the number or name of its client.

    Without `test`, (x, y, key) of rows for tests, a random `test_share` of each client's rows is held out. `unseen`
    clients, drawn at random, never train. Everything else is as in `from_memory`.
    """
    held = None if test is None else grouped(*test)
    fed = from_memory(
        grouped(x, y, key), test=held, test_share=test_share, seed=seed, kind=kind, labels=labels
    )
    return fed.with_unseen(unseen, seed)


def grouped(x: Any, y: Any, key: Any) -> dict[str, tuple[Any, Any]]:
    """Each client's rows, by name."""
    x, y = (values if isinstance(values, Tensor) else np.asarray(values) for values in (x, y))
    key = (
        np.array(key, dtype=object) if isinstance(key, list | tuple) else np.asarray(key)
    )  # NaN must not become text
    counts = [len(values) if values.ndim else 0 for values in (x, y, key)]
    if len({*counts}) > 1:
        raise CoterieError(
            f"x has {counts[0]} rows, y {counts[1]} and key {counts[2]}: give one of each per row."
        )
    return {name: (x[rows], y[rows]) for name, rows in rows_of(key).items()}


def rows_of(key: np.ndarray) -> dict[str, np.ndarray]:
    """The row numbers of each client, clients in order of their keys."""
    wrong = CoterieError(
        "a key must name the client of each row: give one whole number or one text per row."
    )
    try:
        found, client = np.unique(key, return_inverse=True)
    except TypeError:  # there is no order among them
        raise wrong from None
    names = found.tolist()
    if key.ndim != 1 or not all(isinstance(name, int | str | np.integer) for name in names):
        raise wrong
    parts = np.split(client.argsort(kind="stable"), np.bincount(client).cumsum()[:-1])
    return {str(name): rows for name, rows in zip(names, parts)}


def drawn(
    key: np.ndarray, clients: int | None, samples: int | None, least: int, seed: int
) -> np.ndarray:
    """Row numbers, ascending: at most `samples` rows of each of `clients` clients that have `least` rows or more."""
    _, client, counts = np.unique(key, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(counts >= least)
    wanted = len(enough) if clients is None else clients
    if not 1 <= wanted <= len(enough):
        raise CoterieError(
            f"{wanted} clients are out of reach: {len(enough)} of {len(counts)} have at least {least} training rows, "
            "so ask for 1 to that many, or for another least."
        )
    if samples is not None and samples < 1:
        raise CoterieError(f"samples={samples} is too few: ask for at least 1.")
    chosen = rng(seed, "by_key", "clients").permutation(enough)[:wanted]
    few = places(client, rng(seed, "by_key", "rows")) < (samples or len(key))
    return np.flatnonzero(np.isin(client, chosen) & few)
