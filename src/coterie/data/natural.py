"""Natural partitions: one client per writer, subject or site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.inputs import is_dict
from coterie.core.targets import IGNORE_INDEX
from coterie.data.base_sets import base as load_base
from coterie.data.federation import Federation, Kind, Ragged, rank_in_group, rng
from coterie.data.memory import from_memory
from coterie.data.spec import maker


@maker
def by_key(
    base: str,
    clients: int | None = None,
    samples: int | None = None,
    least: int = 20,
    seed: int = 0,
    unseen: int = 0,
) -> Federation:
    """A base set with one client per writer (unipen) or subject (har).

    The true groups are unknown: there is no `truth`.

    Args:
        base: unipen or har.
        clients: Number of clients, drawn at random; default: all.
        samples: Maximum of training rows per client, drawn at random; default: no maximum. Clients
            keep all their test rows.
        least: Clients with fewer training rows are dropped.
        seed: Seed of the random draws.
        unseen: Number of random clients that never train.

    Example:
        >>> by_key("har", clients=3).names  # doctest: +SKIP
        ('subject-02', 'subject-06', 'subject-10')
    """
    rows = load_base(base)
    if rows.key_train is None or rows.key_test is None:
        raise CoterieError(
            f"{base} has no writers or subjects",
            "use by_key with unipen or har, "
            f"or partition {base} with another data set, such as dirichlet:{base}",
        )
    key, test_key = rows.key_train.numpy(), rows.key_test.numpy()
    train_rows = draw_clients(key, clients, samples, least, seed)
    chosen = np.unique(key[train_rows])
    test_rows = np.flatnonzero(np.isin(test_key, chosen))
    fed = Federation(
        tuple(rows.keys[k] for k in chosen),
        rows_of_clients(rows.x_train, rows.y_train, key, train_rows, chosen),
        rows_of_clients(rows.x_test, rows.y_test, test_key, test_rows, chosen),
        "classification",
        rows.classes,
        labels=rows.labels,
    )
    return fed.with_unseen(unseen, seed)


def rows_of_clients(
    x: Tensor, y: Tensor, key: np.ndarray, rows: np.ndarray, clients: np.ndarray
) -> Ragged:
    """Return these rows, all of which belong to `clients`, sorted by client."""
    rows = rows[key[rows].argsort(kind="stable")]
    sizes = np.bincount(key[rows], minlength=clients.max() + 1)[clients]
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
    ignore_index: int = IGNORE_INDEX,
) -> Federation:
    """Make a federation from arrays with the rows of all clients and a key per row.

    Args:
        x: Rows, [n, ...], or a dict of such arrays.
        y: Labels, [n], or targets of other shapes, or None; see `from_memory`.
        key: The client of each row, [n]: strings or integers.
        test: (x, y, key) of test rows. Without them, a random `test_share` of each client's rows
            is held out.
        test_share: Share of each client's rows to hold out.
        seed: Seed of the split and of the choice of unseen clients.
        unseen: Number of clients, drawn at random, that never train.
        kind: See `from_memory`.
        labels: See `from_memory`.
        ignore_index: See `from_memory`.

    Example:
        >>> import numpy as np
        >>> x, y, site = np.random.randn(40, 2), np.arange(40) % 2, np.repeat(["a", "b"], 20)
        >>> from_keys(x, y, site).names
        ('a', 'b')
    """
    held = None
    if test is not None:
        held = group_by_key(*test)
    clients = group_by_key(x, y, key)
    fed = from_memory(
        clients,
        test=held,
        test_share=test_share,
        seed=seed,
        kind=kind,
        labels=labels,
        ignore_index=ignore_index,
    )
    return fed.with_unseen(unseen, seed)


def group_by_key(x: Any, y: Any, key: Any) -> dict[str, tuple[Any, Any]]:
    """Group rows by client name."""
    parts = {str(name): as_array(v) for name, v in x.items()} if is_dict(x) else {"x": as_array(x)}
    y = None if y is None else as_array(y)
    if isinstance(key, list | tuple):
        key = np.array(key, dtype=object)  # NaN must not become text
    key = np.asarray(key)
    arrays = {**parts, **({} if y is None else {"y": y}), "key": key}
    counts = {name: len(values) if values.ndim else 0 for name, values in arrays.items()}
    if len({*counts.values()}) > 1:
        (first, rows), *others, (last, rows_of_last) = counts.items()
        between = "".join(f", {name} {count}" for name, count in others)
        raise CoterieError(
            f"{first} has {rows} rows{between} and {last} {rows_of_last}",
            "give one of each per row",
        )

    def select(rows: np.ndarray) -> tuple[Any, Any]:
        own = {name: values[rows] for name, values in parts.items()}
        return own if is_dict(x) else own["x"], None if y is None else y[rows]

    return {name: select(rows) for name, rows in rows_by_key(key).items()}


def as_array(values: Any) -> Any:
    """Return tensors unchanged, anything else as an array."""
    if isinstance(values, Tensor):
        return values
    return np.asarray(values)


def rows_by_key(key: np.ndarray) -> dict[str, np.ndarray]:
    """Return the row numbers of each client, sorted by key."""
    wrong = CoterieError(
        "the key must name the client of each row", "give one integer or one string per row"
    )
    try:
        keys, client = np.unique(key, return_inverse=True)
    except TypeError:  # keys of different types
        raise wrong from None
    names = keys.tolist()
    if key.ndim != 1 or not all(isinstance(name, int | str | np.integer) for name in names):
        raise wrong
    parts = np.split(client.argsort(kind="stable"), np.bincount(client).cumsum()[:-1])
    return {str(name): rows for name, rows in zip(names, parts)}


def draw_clients(
    key: np.ndarray, clients: int | None, samples: int | None, least: int, seed: int
) -> np.ndarray:
    """Draw clients that have enough rows, and at most `samples` rows of each.

    Args:
        key: The client of each row, [rows].
        clients: Number of clients; None: all that have enough rows.
        samples: Maximum of rows per client; None: no maximum.
        least: Minimum of rows of a client.
        seed: Seed of the draws.

    Returns:
        The indices of the drawn rows, ascending.
    """
    _, client, counts = np.unique(key, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(counts >= least)
    wanted = len(enough) if clients is None else clients
    if not 1 <= wanted <= len(enough):
        raise CoterieError(
            f"{wanted} clients are out of range: {len(enough)} of {len(counts)} have at least "
            f"{least} training rows",
            "use 1 to that many clients, or another least",
        )
    if samples is not None and samples < 1:
        raise CoterieError(f"samples={samples} is too few", "use at least 1")
    chosen = rng(seed, "by_key", "clients").permutation(enough)[:wanted]
    taken = rank_in_group(client, rng(seed, "by_key", "rows")) < (samples or len(key))
    return np.flatnonzero(np.isin(client, chosen) & taken)
