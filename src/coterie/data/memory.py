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
from coterie.core.inputs import InputField, fields_of, pack_inputs
from coterie.core.targets import IGNORE_INDEX, KINDS
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
    if train.y.shape[1:] != test.y.shape[1:]:
        raise CoterieError(
            f"training targets have the shape {tuple(train.y.shape[1:])} per row, test targets "
            f"{tuple(test.y.shape[1:])}",
            "give both the same shape",
        )
    return train._replace(x=train.x.to(dtype)), test._replace(x=test.x.to(dtype))


def check_values(
    data: Ragged, names: Sequence[str], kind: Kind, ignore_index: int = IGNORE_INDEX
) -> Ragged:
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
    if not KINDS[kind].has_classes:
        if kind == "multilabel" and bool(((data.y != 0) & (data.y != 1)).any()):
            row = int(((data.y != 0) & (data.y != 1)).flatten(1).any(1).nonzero()[0])
            raise CoterieError(
                f"client {client(row)} has a label that is neither 0 nor 1",
                "give 1 where a label applies, or kind='multioutput' for numbers",
            )
        if data.y.is_floating_point():
            return data
        return data._replace(y=data.y.double())  # whole numbers up to 2^53 stay exact
    is_wrong = (data.y < 0) | (data.y != data.y.round())
    remedy = "classes are numbered 0, 1, 2, …"
    if KINDS[kind].has_positions:
        is_wrong &= data.y != ignore_index
        remedy += f"; tokens and pixels that do not count have {ignore_index} (ignore_index)"
    wrong = is_wrong.nonzero()
    if len(wrong):
        value = data.y[tuple(wrong[0])].item()
        raise CoterieError(f"client {client(int(wrong[0][0]))} has the label {value}", remedy)
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


def classes_of(
    kind: Kind, y: Tensor, labels: Sequence[str] | None, ignore_index: int
) -> int | None:
    """Count the classes, or the labels of a multi-label task; None for kinds without any."""
    if kind == "multilabel":
        if labels is not None and len(labels) != y.shape[1]:
            raise CoterieError(
                f"y has {y.shape[1]} labels per row, and there are names for {len(labels)}",
                "give a name for every label",
            )
        return y.shape[1]
    if not KINDS[kind].has_classes:
        return None
    if KINDS[kind].has_positions:
        y = y[y != ignore_index]
        if not len(y):
            raise CoterieError(
                f"every label is {ignore_index}, which is ignore_index", "give another ignore_index"
            )
    return count_classes(y, labels)


def infer_kind(y: Tensor) -> Kind:
    """The kind of task that targets [n, ...] look like."""
    if y.ndim > 1 and not y[:1].numel():
        return "self-supervised"
    if y.ndim == 1:
        return "regression" if y.is_floating_point() else "classification"
    if y.is_floating_point():
        is_binary = y.ndim == 2 and bool(((y == 0) | (y == 1)).all())
        return "multilabel" if is_binary else "multioutput"
    return "tokens" if y.ndim == 2 else "segmentation"


def check_kind(kind: Kind, y: Tensor, ignore_index: int) -> None:
    """Raise if targets [n, ...] have another number of axes than their kind."""
    axes = {"classification": "1", "regression": "1", "tokens": "2", "multilabel": "2"}
    wanted = axes.get(kind, "at least 2")
    has_none = infer_kind(y) == "self-supervised"
    if has_none and kind != "self-supervised":
        raise CoterieError(f"the kind of task is {kind}, and there is no y", "give y")
    if kind == "self-supervised" and not has_none:
        raise CoterieError(f"the kind of task is {kind}, and there is a y", "give None as y")
    if kind in ("self-supervised", "custom"):
        return
    if (wanted == "at least 2" and y.ndim < 2) or (wanted.isdecimal() and y.ndim != int(wanted)):
        raise CoterieError(
            f"the kind of task is {kind}, and y has the shape {tuple(y.shape)}",
            f"give y with {wanted} axes, or another kind",
        )
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise CoterieError(f"ignore_index is {ignore_index!r}: it must be a whole number.")
    if ignore_index != IGNORE_INDEX and not KINDS[kind].has_positions:
        raise CoterieError(
            f"ignore_index is for labels of tokens and pixels, and the kind of task is {kind}: "
            "leave it out."
        )


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
    if kind not in ("classification", "regression"):
        return
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
    ignore_index: int = IGNORE_INDEX,
) -> Federation:
    """Make a federation of tensors, arrays or map-style torch datasets.

    Floats keep their precision; a run converts them to its own `dtype`. Integer x are tokens and
    stay int64; bytes and booleans become floats, unscaled.

    Args:
        clients: One pair (x, y) or dataset per client, by name or in order. x is [n, ...], or a
            dict of such arrays. y is [n]: whole numbers are classes, floats are regression targets.
            Of other shapes, whole numbers [n, T] are classes of tokens and [n, H, W] of pixels;
            floats [n, D] are several targets, or labels if all are 0 or 1; None: no targets.
        names: The names of the clients; default: the keys, or client-000, client-001, …
        test: The test rows, matched to the clients by name (mappings) or by position. Without
            them, a random `test_share` of each client's rows is held out.
        test_share: Share of each client's rows to hold out.
        seed: Seed of the random split.
        truth: True clusters, int [clients], or mixture weights, float [clients, K], if known.
        unseen: The last clients, which never train.
        kind: "classification", "regression", "tokens", "segmentation", "multilabel", "multioutput",
            "self-supervised" or, for a loss of your own and any y, "custom", if y is not what it
            looks like.
        labels: Names of the classes.
        ignore_index: The label of tokens and pixels that do not count.

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
    clients, fields = pack_clients(names, clients)
    pairs = [client_rows(name, client) for name, client in zip(names, clients)]
    for name, (x, _) in zip(names, pairs):
        if not len(x):
            raise CoterieError(f"client {name!r} is empty", "remove it, or give it data")
    train = pack(names, pairs)
    if test is None:
        train, held = split(train, names, test_share, seed, "test")
    else:
        test_pairs = match_test_rows(names, pairs, test, fields)
        train, held = match_dtypes(train, pack(names, test_pairs))
    every_y = torch.cat([train.y, held.y])
    if kind is None:
        kind = infer_kind(every_y)
    check_kind(kind, every_y, ignore_index)
    train = check_values(train, names, kind, ignore_index)
    held = check_values(held, names, kind, ignore_index)
    classes = classes_of(kind, torch.cat([train.y, held.y]), labels, ignore_index)
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
        ignore_index=ignore_index,
        fields=fields,
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
def pack_clients(
    names: Sequence[str], clients: Sequence[Client], fields: tuple[InputField, ...] = ()
) -> tuple[list[Client], tuple[InputField, ...]]:
    """Pack x of clients whose x is a dict to one tensor; return the clients and the fields.

    Args:
        names: The names of the clients, for errors.
        clients: The clients.
        fields: What each dict must have; default: what the first client has.
    """
    packed: list[Client] = []
    for name, client in zip(names, clients):
        is_pair = isinstance(client, tuple | list) and len(client) == 2
        x = client[0] if is_pair else None
        if fields and not isinstance(x, Mapping):
            raise CoterieError(
                f"x of client {name!r} is no dict, and that of others is",
                f"give a dict of {', '.join(field.name for field in fields)}",
            )
        if isinstance(x, Mapping):
            if packed and not fields:
                raise CoterieError(
                    f"x of client {name!r} is a dict, and that of others is not",
                    "give all clients the same inputs",
                )
            parts = {str(key): to_input(f"client {name!r}", key, v) for key, v in x.items()}
            if not parts:
                raise CoterieError(f"x of client {name!r} is an empty dict", "give its arrays")
            fields = fields or fields_of(parts)
            client = (pack_inputs(parts, fields, f"client {name!r}"), client[1])
        packed.append(client)
    return packed, fields


def to_input(whose: str, name: str, values: Any) -> Tensor:
    """Convert one part of the inputs to a tensor [n, ...]."""
    try:
        found = to_tensor(values, torch.uint8, torch.bool)
    except (TypeError, ValueError, RuntimeError) as why:
        reason = str(why).split("\n")[0]
        raise CoterieError(
            f"the input {name!r} of {whose} is no numeric array: {reason}."
        ) from None
    if found.ndim == 0:
        raise CoterieError(f"the input {name!r} of {whose} is one number: give one per row.")
    return found


def client_rows(name: str, client: Client, keep_bytes: bool = False) -> Pair:
    """Convert one client to tensors x [n, ...] and y [n, ...]; y is [n, 0] without targets.

    Args:
        name: The client's name, for errors.
        client: A pair (x, y) or a dataset.
        keep_bytes: Leave bytes in x as they are instead of converting them to floats.
    """
    try:
        raw_x, raw_y = as_pair(name, client)
        x = to_tensor(raw_x, torch.uint8, torch.bool)
        y = torch.zeros(len(x) if x.ndim else 0, 0) if raw_y is None else to_tensor(raw_y)
        if y.ndim > 1 and str(getattr(raw_y, "dtype", "")).endswith("bool"):
            y = y.to(torch.get_default_dtype())  # labels that apply or not
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
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
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


def match_test_rows(
    names: Sequence[str], train: list[Pair], test: Clients, fields: tuple[InputField, ...]
) -> list[Pair]:
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
            [client], _ = pack_clients([name], [test[name]], fields)
            rows = client_rows(name, client)
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
    target = next((y for _, y in pairs if len(y)), pairs[0][1])
    for name, (_, y) in zip(names, pairs):
        if y.shape[1:] != target.shape[1:]:
            raise CoterieError(
                f"a row of y of client {names[0]!r} has the shape {tuple(target.shape[1:])}, "
                f"one of {name!r} {tuple(y.shape[1:])}",
                "give all clients targets of the same shape",
            )
    xs, ys = zip(*pairs)
    return Ragged(torch.cat(xs), torch.cat(ys), torch.tensor([len(y) for y in ys]))
