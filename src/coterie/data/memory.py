"""Clients that are already in memory: tensors, arrays or torch datasets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from coterie.data.federation import Federation, Kind, Ragged, split
from coterie.errors import CoterieError, unknown

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
    """A federation of clients in memory: `(x, y)` pairs of tensors or arrays, or map-style torch datasets.

    x is [n, ...], y is [n]: whole numbers are classes, floats are regression targets (`kind` overrules). Integer x
    are tokens and stay int64; bytes and booleans become floats, unscaled. Floats take torch's default dtype.
    Without `test` a random `test_share` of each client's rows is held out; with it, clients are matched by name
    (mappings) or position. The last `unseen` clients never train. `labels` names the classes.
    """
    if kind not in (None, *get_args(Kind)):
        raise unknown("kind", str(kind), get_args(Kind))
    if isinstance(clients, Mapping):
        names = tuple(map(str, clients)) if names is None else names
        clients = list(clients.values())
    names = default_names(len(clients)) if names is None else tuple(names)
    if len(names) != len(clients):
        raise CoterieError(
            f"{len(names)} names for {len(clients)} clients: give one name per client."
        )
    if not clients:
        raise CoterieError("a federation needs at least one client, and none was given.")
    pairs = [rows_of(name, client) for name, client in zip(names, clients)]
    for name, (x, _) in zip(names, pairs):
        if not len(x):
            raise CoterieError(f"client {name!r} is empty: leave it out, or give it data.")
    data = pack(names, pairs)
    if test is None:
        train, held = split(data, names, test_share, seed, "test")
    else:
        train, held = data, pack(names, test_pairs(names, pairs, test))
        if (train.x.shape[1:], train.x.dtype) != (held.x.shape[1:], held.x.dtype):
            shapes = [f"{tuple(part.x.shape[1:])} of {part.x.dtype}" for part in (train, held)]
            raise CoterieError(
                f"training rows are {shapes[0]}, test rows {shapes[1]}: they must be alike."
            )
    kind = kind or ("regression" if train.y.is_floating_point() else "classification")
    train, held = finish(train, names, kind), finish(held, names, kind)
    classes = None
    if kind == "classification":
        highest = int(torch.cat([train.y, held.y]).max())
        classes = len(labels) if labels is not None else highest + 1
        if highest >= classes:
            raise CoterieError(
                f"there is a label {highest}, but names for only {classes} classes: name them all."
            )
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


def default_names(count: int) -> tuple[str, ...]:
    """client-000, client-001, …"""
    width = max(3, len(str(count - 1)))
    return tuple(f"client-{i:0{width}}" for i in range(count))


def rows_of(name: str, client: Client) -> tuple[Tensor, Tensor]:
    """One client's x [n, ...] and y [n] as tensors."""
    try:
        if isinstance(client, TensorDataset) and len(client.tensors) == 2:
            pair: Any = client.tensors
        elif isinstance(client, IterableDataset):
            raise CoterieError(
                f"client {name!r} is an iterable dataset: give a map-style one, with a length."
            )
        elif isinstance(client, Dataset):
            items = [client[i] for i in range(len(client))]  # type: ignore[arg-type]
            pair = [
                np.stack([np.asarray(item[part]) for item in items]) if items else np.empty(0)
                for part in (0, 1)
            ]
        else:
            pair = client
        raw_x, raw_y = pair
        x, y = numeric(raw_x, torch.uint8, torch.bool), numeric(raw_y)
    except (TypeError, ValueError, RuntimeError, IndexError) as why:
        if isinstance(why, CoterieError):
            raise
        reason = str(why).split("\n")[0]
        raise CoterieError(
            f"client {name!r} is not a pair of numeric arrays (x, y): {reason}."
        ) from None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if x.ndim == 0 or y.ndim != 1 or len(x) != len(y):
        raise CoterieError(
            f"client {name!r} has x of shape {tuple(x.shape)} and y of {tuple(y.shape)}: y needs a value per row of x."
        )
    return (x[:, None] if x.ndim == 1 else x), y


def numeric(values: Any, *float_too: torch.dtype) -> Tensor:
    """Floats (and `float_too`) in torch's default dtype, whole numbers in int64; TypeError for anything else."""
    tensor = (
        values.detach().cpu() if isinstance(values, Tensor) else torch.tensor(np.asarray(values))
    )
    if tensor.is_complex():
        raise TypeError("complex numbers are not supported")
    as_float = tensor.is_floating_point() or tensor.dtype in float_too
    return tensor.to(torch.get_default_dtype() if as_float else torch.int64)


def test_pairs(
    names: Sequence[str], train: list[tuple[Tensor, Tensor]], test: Clients
) -> list[tuple[Tensor, Tensor]]:
    """The test rows in the order of `names`; a client without any gets none."""
    if not isinstance(test, Mapping):
        if len(test) != len(names):
            raise CoterieError(
                f"{len(test)} test parts for {len(names)} clients: give one per client."
            )
        test = dict(zip(names, test))
    test = {str(name): client for name, client in test.items()}
    for name in test:
        if name not in names:
            raise unknown("client in the test part", name, names)
    pairs = [
        rows_of(name, test[name]) if name in test else (x[:0], y[:0])
        for name, (x, y) in zip(names, train)
    ]
    return [pair if len(pair[1]) else (x[:0], y[:0]) for pair, (x, y) in zip(pairs, train)]


def pack(names: Sequence[str], pairs: list[tuple[Tensor, Tensor]]) -> Ragged:
    """All clients in one flat store."""
    shape = pairs[0][0].shape[1:]
    for name, (x, _) in zip(names, pairs):
        if x.shape[1:] != shape:
            raise CoterieError(
                f"rows of client {names[0]!r} have the shape {tuple(shape)}, those of {name!r} {tuple(x.shape[1:])}: "
                "all clients need the same features."
            )
    xs, ys = zip(*pairs)
    return Ragged(torch.cat(xs), torch.cat(ys), torch.tensor([len(y) for y in ys]))


def finish(data: Ragged, names: Sequence[str], kind: Kind) -> Ragged:
    """Refuse values that cannot be trained on, naming the client; give y the dtype of its kind."""

    def client(row: int) -> str:
        return repr(names[int(torch.searchsorted(data.starts + data.sizes, row, right=True))])

    for part, values in (("x", data.x), ("y", data.y)):
        bad = ~values.isfinite()
        if bad.any():
            at = bad.nonzero()[0].tolist()
            where = f"{part}, column {at[1]}" if values.ndim == 2 else part
            raise CoterieError(
                f"client {client(at[0])} has a NaN or infinite value in {where}: drop or mend the row."
            )
    if kind == "regression":
        return data._replace(y=data.y.to(torch.get_default_dtype()))
    wrong = ((data.y < 0) | (data.y != data.y.round())).nonzero().flatten()
    if len(wrong):
        value = data.y[wrong[0]].item()
        raise CoterieError(
            f"client {client(int(wrong[0]))} has the label {value}: classes are numbered 0, 1, 2, …."
        )
    return data._replace(y=data.y.long())


def warn_of_thin_clients(train: Ragged, names: Sequence[str], kind: Kind) -> None:
    """One line about clients that can hardly be learnt from."""
    thin = train.sizes.numpy() == 1
    if kind == "classification":
        y, starts = train.y.numpy(), train.starts.numpy()
        thin = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
    if thin.any():
        some = [names[i] for i in np.flatnonzero(thin)[:5]]
        listed = ", ".join(some) + (", …" if thin.sum() > len(some) else "")
        text = f"{thin.sum()} of {len(names)} clients have a single training row or a single class: {listed}"
        warnings.warn(text, stacklevel=3)
