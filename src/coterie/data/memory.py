"""Federations of clients that are already in memory: tensors, arrays or torch datasets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from coterie.core.errors import CoterieError, unknown_name
from coterie.data.federation import Federation, Kind, Ragged, split

Pair = tuple[Tensor, Tensor]
MAX_CLASSES = 2**20  # a higher label is a mistake
BLOCK = 2**15  # values per check; larger blocks are split among threads, which is slower


def match_dtypes(train: Ragged, test: Ragged) -> tuple[Ragged, Ragged]:
    """Convert training and test rows to one dtype; raise if their shapes differ."""
    dtype = torch.promote_types(train.x.dtype, test.x.dtype)
    both_float = train.x.is_floating_point() == test.x.is_floating_point()
    if train.x.shape[1:] != test.x.shape[1:] or not both_float:
        shapes = [f"{tuple(part.x.shape[1:])} of {part.x.dtype}" for part in (train, test)]
        raise CoterieError(
            f"training rows are {shapes[0]}, test rows {shapes[1]}",
            "give both the same shape and kind of numbers",
        )
    return train._replace(x=train.x.to(dtype)), test._replace(x=test.x.to(dtype))


def check_values(data: Ragged, names: Sequence[str], kind: Kind) -> Ragged:
    """Raise for values that cannot be trained on, and convert y to the dtype of its kind."""

    def client(row: int) -> str:
        return repr(names[int(torch.searchsorted(data.starts + data.sizes, row, right=True))])

    for part, values in (("x", data.x), ("y", data.y)):
        at = first_not_finite(values)
        if at:
            where = f"{part}, column {at[1]}" if values.ndim == 2 else part
            raise CoterieError(
                f"client {client(at[0])} has a NaN or infinite value in {where}",
                "drop or fix the row",
            )
    if kind == "regression":
        if data.y.is_floating_point():
            return data
        return data._replace(y=data.y.double())  # whole numbers up to 2^53 stay exact
    wrong = ((data.y < 0) | (data.y != data.y.round())).nonzero().flatten()
    if len(wrong):
        value = data.y[wrong[0]].item()
        raise CoterieError(
            f"client {client(int(wrong[0]))} has the label {value}",
            "classes are numbered 0, 1, 2, …",
        )
    return data._replace(y=data.y.long())


def first_not_finite(values: Tensor) -> list[int]:
    """Return the index of the first NaN or infinite value; [] if there is none.

    Rows are checked in blocks, because torch copies them.
    """
    if not values.is_floating_point():
        return []
    block = max(1, BLOCK // max(1, values[:1].numel()))
    for start in range(0, len(values), block):
        bad = ~values[start : start + block].isfinite()
        if bad.any():
            row, *column = bad.nonzero()[0].tolist()
            return [start + row, *column]
    return []


def count_classes(y: Tensor, labels: Sequence[str] | None) -> int:
    """Count the classes: one per name, or the highest label plus one."""
    return classes_up_to(int(y.max()), labels)


def classes_up_to(highest: int, labels: Sequence[str] | None) -> int:
    """Return the number of classes, given the highest label and the names of classes, if known."""
    if labels is None:
        if highest >= MAX_CLASSES:
            raise CoterieError(
                f"there is a label {highest}, and a model has an output for each of 0, 1, 2, … up "
                "to the highest",
                f"number the classes without gaps, up to {MAX_CLASSES - 1}",
            )
        return highest + 1
    if highest >= len(labels):
        raise CoterieError(
            f"there is a label {highest}, but names for only {len(labels)} classes",
            "give a name for every class",
        )
    return len(labels)


def warn_of_thin_clients(train: Ragged, names: Sequence[str], kind: Kind) -> None:
    """Warn about clients with a single training row or a single class."""
    thin = train.sizes.numpy() == 1
    if kind == "classification":
        y, starts = train.y.numpy(), train.starts.numpy()
        thin = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
    if not thin.any():
        return
    listed = ", ".join(names[i] for i in np.flatnonzero(thin)[:5])
    if thin.sum() > 5:
        listed += ", …"
    warnings.warn(
        f"{thin.sum()} of {len(names)} clients have a single training row or a single class: "
        f"{listed}",
        stacklevel=3,
    )


Client = tuple[Any, Any] | Dataset[Any]
Clients = Mapping[str, Client] | Sequence[Client]


def from_memory(
    clients: Clients,
    names: Sequence[str] | None = None,
    test: Clients | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    truth: Any = None,
    unseen: int = 0,
    kind: Kind | None = None,
    labels: Sequence[str] | None = None,
) -> Federation:
    """Make a federation of tensors, arrays or map-style torch datasets.

    Floats keep their precision; a run converts them to its own `dtype`. Integer x are tokens and
    stay int64; bytes and booleans become floats, unscaled.

    Args:
        clients: One pair (x, y) or dataset per client, by name or in order. x is [n, ...], y is
            [n]: whole numbers are classes, floats are regression targets.
        names: The names of the clients; default: the keys, or client-000, client-001, …
        test: The test rows, matched to the clients by name (mappings) or by position. Without
            them, a random `test_share` of each client's rows is held out.
        test_share: Share of each client's rows to hold out.
        seed: Seed of the random split.
        truth: True clusters, int [clients], or mixture weights, float [clients, K], if known.
        unseen: The last clients, which never train.
        kind: "classification" or "regression", if y is not what it looks like.
        labels: Names of the classes.

    Returns:
        The federation, in the order of the clients.

    Raises:
        CoterieError: If rows have different shapes, or contain NaN or infinity.

    Example:
        >>> import torch
        >>> x, y = torch.randn(20, 3), torch.tensor([0, 1] * 10)
        >>> from_memory({"north": (x, y), "south": (x, 1 - y)})
        Federation(2 clients + 0 unseen, 30 train and 10 test rows of 3, classification, \
source='memory')
    """
    if kind not in (None, *get_args(Kind)):
        raise unknown_name("kind", str(kind), get_args(Kind))
    names, clients = with_names(clients, names)
    pairs = [client_rows(name, client) for name, client in zip(names, clients)]
    for name, (x, _) in zip(names, pairs):
        if not len(x):
            raise CoterieError(f"client {name!r} is empty", "remove it, or give it data")
    train = pack(names, pairs)
    if test is None:
        train, held = split(train, names, test_share, seed, "test")
    else:
        train, held = match_dtypes(train, pack(names, match_test_rows(names, pairs, test)))
    if kind is None:
        kind = "regression" if train.y.is_floating_point() else "classification"
    train = check_values(train, names, kind)
    held = check_values(held, names, kind)
    classes = None
    if kind == "classification":
        classes = count_classes(torch.cat([train.y, held.y]), labels)
    warn_of_thin_clients(train, names, kind)
    return Federation(
        names,
        train,
        held,
        kind,
        classes,
        truth=None if truth is None else torch.as_tensor(truth),
        unseen=unseen,
        labels=None if labels is None else tuple(labels),
        source="memory",
    )


def with_names(
    clients: Clients, names: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Client]]:
    """Return the names of the clients, and the clients as a list."""
    if isinstance(clients, Mapping):
        if names is None:
            names = tuple(map(str, clients))
        clients = list(clients.values())
    if names is None:
        names = default_names(len(clients))
    if len(names) != len(clients):
        raise CoterieError(
            f"{len(names)} names for {len(clients)} clients", "give one name per client"
        )
    if not clients:
        raise CoterieError("a federation needs at least one client, and none was given.")
    return tuple(names), list(clients)


def default_names(count: int) -> tuple[str, ...]:
    """Return the names client-000, client-001, …"""
    width = max(3, len(str(count - 1)))
    return tuple(f"client-{i:0{width}}" for i in range(count))


# ------------------------------------------------------------------------------ rows as tensors
def client_rows(name: str, client: Client, keep_bytes: bool = False) -> Pair:
    """Convert one client to tensors x [n, ...] and y [n].

    Args:
        name: The client's name, for errors.
        client: A pair (x, y) or a dataset.
        keep_bytes: Leave bytes in x as they are instead of converting them to floats.
    """
    try:
        raw_x, raw_y = as_pair(name, client)
        x, y = to_tensor(raw_x, torch.uint8, torch.bool), to_tensor(raw_y)
        if keep_bytes and str(getattr(raw_x, "dtype", "")).endswith("uint8"):
            x = torch.as_tensor(raw_x).detach().cpu()
    except CoterieError:
        raise
    except (TypeError, ValueError, RuntimeError, IndexError) as why:
        reason = str(why).split("\n")[0]
        raise CoterieError(
            f"client {name!r} is not a pair of numeric arrays (x, y): {reason}."
        ) from None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if x.ndim == 0 or y.ndim != 1 or len(x) != len(y):
        raise CoterieError(
            f"client {name!r} has x of shape {tuple(x.shape)} and y of {tuple(y.shape)}",
            "give one value of y per row of x",
        )
    if x.ndim == 1:
        x = x[:, None]
    return x, y


def as_pair(name: str, client: Client) -> Any:
    """Return a client's (x, y) without checks; the items of a dataset are stacked."""
    if isinstance(client, IterableDataset):
        raise CoterieError(
            f"client {name!r} is an iterable dataset", "give a map-style one, with a length"
        )
    if isinstance(client, TensorDataset) and len(client.tensors) == 2:
        return client.tensors
    if not isinstance(client, Dataset):
        return client
    items = [client[i] for i in range(len(client))]  # type: ignore[arg-type]
    if not items:
        return np.empty(0), np.empty(0)
    return [np.stack([np.asarray(item[part]) for item in items]) for part in (0, 1)]


def to_tensor(values: Any, *as_float: torch.dtype) -> Tensor:
    """Convert to a tensor: whole numbers to int64, `as_float` to torch's default dtype."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        tensor = torch.tensor(np.asarray(values))
    if tensor.is_complex():
        raise TypeError("complex numbers are not supported")
    if tensor.is_floating_point():
        return tensor
    if tensor.dtype in as_float:
        return tensor.to(torch.get_default_dtype())
    return tensor.to(torch.int64)


def match_test_rows(names: Sequence[str], train: list[Pair], test: Clients) -> list[Pair]:
    """Return the test rows in the order of `names`; a client may have none."""
    if not isinstance(test, Mapping):
        if len(test) != len(names):
            raise CoterieError(
                f"{len(test)} test splits for {len(names)} clients", "give one per client"
            )
        test = dict(zip(names, test))
    test = {str(name): client for name, client in test.items()}
    for name in test:
        if name not in names:
            raise unknown_name("client in the test split", name, names)
    pairs = []
    for name, (x, y) in zip(names, train):
        pair = x[:0], y[:0]
        if name in test:
            rows = client_rows(name, test[name])
            if len(rows[1]):  # empty arrays may have any shape
                pair = rows
        pairs.append(pair)
    return pairs


def pack(names: Sequence[str], pairs: list[Pair]) -> Ragged:
    """Concatenate the rows of all clients."""
    shape = pairs[0][0].shape[1:]
    for name, (x, _) in zip(names, pairs):
        if x.shape[1:] != shape:
            raise CoterieError(
                f"rows of client {names[0]!r} have the shape {tuple(shape)}, "
                f"those of {name!r} {tuple(x.shape[1:])}",
                "all clients need the same features",
            )
    xs, ys = zip(*pairs)
    return Ragged(torch.cat(xs), torch.cat(ys), torch.tensor([len(y) for y in ys]))
