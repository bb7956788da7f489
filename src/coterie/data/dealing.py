"""Distribute the rows of a base set among clients."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.base_sets import Base
from coterie.data.federation import Federation, Ragged, rng
from coterie.data.memory import default_names


def mixture_shares(
    mixture: str, clients: int, sources: int, what: str, random: np.random.Generator
) -> np.ndarray:
    """Return the share of each source in each client's rows, [clients, sources]; rows sum to 1.

    Args:
        mixture: "a:b" alternates between shares a, b and b, a; "linear" increases the first share
            from 0 to 1; "random" divides [0, 1] at uniform points.
        clients: Number of clients.
        sources: Number of sources; 2 unless the mixture is "random".
        what: The name of the sources in errors.
        random: Generator for "random".
    """
    if mixture == "random":
        points = np.sort(random.random((clients, sources - 1)), axis=1)
        return np.diff(points, axis=1, prepend=0, append=1)
    if mixture == "linear":
        first = (np.arange(clients) + 0.5) / clients
    else:
        match = re.fullmatch(r"(\d+):(\d+)", mixture)
        a, b = map(int, match.groups()) if match else (0, 0)
        if not a + b:
            raise CoterieError(
                f"mixture={mixture!r} is unknown",
                "write shares such as '10:90', or 'linear', or 'random'",
            )
        first = np.where(np.arange(clients) % 2, b, a) / (a + b)
    if sources != 2:
        raise CoterieError(
            f"mixture={mixture!r} requires 2 {what}, not {sources}", "use mixture='random'"
        )
    return np.stack([first, 1 - first], axis=1)


def rows_per_source(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Round shares to numbers of rows that sum to each client's size.

    Args:
        shares: [clients, sources], rows sum to 1.
        sizes: Rows of each client, int64 [clients].

    Returns:
        Rows per client and source, int64 [clients, sources], within one row of the shares.
    """
    ends = np.cumsum(shares, axis=1) * sizes[:, None]
    ends = np.ceil(ends - 0.5 - 1e-9)  # nearest whole number, the lower one of two
    ends[:, -1] = sizes
    return np.diff(ends, axis=1, prepend=0).astype(np.int64)


def shuffle_sources(counts: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the source of each row in random order within each client, int64 [rows]."""
    clients, sources = counts.shape
    client = np.repeat(np.arange(clients), counts.sum(axis=1))
    source = np.repeat(np.tile(np.arange(sources), clients), counts.ravel())
    return source[np.lexsort((random.random(len(client)), client))]


Part = Literal["train", "test"]
View = Callable[
    [Tensor, Tensor], tuple[Tensor, Tensor]
]  # transforms (x, y) for one group or source
OPTIONS = {"train": "samples", "test": "test_samples"}  # the option for the rows per client


def select_part(images: Base, part: Part) -> tuple[Tensor, Tensor]:
    """Return (x, y) of the training or test split of a base set."""
    if part == "train":
        return images.x_train, images.y_train
    return images.x_test, images.y_test


def image_federation(images: Base, train: Ragged, test: Ragged, **known: Any) -> Federation:
    """Make a federation of rows of a base set; `known` are further fields of `Federation`."""
    known = {"labels": images.labels} | known
    names = default_names(len(train.sizes))
    return Federation(names, train, test, "classification", images.classes, **known)


def check_clients(clients: int, groups: int = 1) -> None:
    """Raise if there are fewer clients than groups."""
    if clients < groups:
        remedy = f"use at least {groups}"
        if groups > 1:
            remedy += f", one for each of {groups} groups"
        raise CoterieError(f"clients={clients} is too few", remedy)


def make_grouped_federation(
    maker: str,
    images: Base,
    views: Sequence[View],
    *,
    clients: int,
    samples: int | None,
    test_samples: int | None,
    seed: int,
    noise: float,
    **known: Any,
) -> Federation:
    """Make a federation in which each group sees the base set through its own view.

    Args:
        maker: Name of the data set, for random draws.
        images: The base set.
        views: One view per group; client i is in group i mod len(views).
        clients: Number of clients.
        samples: Training rows per client; None: as many as fit.
        test_samples: Test rows per client; None: as many as fit.
        seed: Seed of the random draws.
        noise: Share of each client's training rows that have the views of the other groups, in
            equal parts.
        **known: Further fields of `Federation`.
    """
    groups = len(views)
    check_clients(clients, groups)
    if not 0 <= noise < 1 or (noise and groups == 1):
        raise CoterieError(
            f"noise={noise} is not valid",
            "give a share in [0, 1), and at least two groups unless it is 0",
        )
    own = np.eye(groups)[np.arange(clients) % groups]
    mixed = own * (1 - noise) + (1 - own) * noise / max(groups - 1, 1)
    deal = functools.partial(deal_views, images, maker=maker, views=views, decks=groups, seed=seed)
    train = deal("train", samples, shares=mixed)
    test = deal("test", test_samples, shares=own)
    return image_federation(images, train, test, truth=torch.arange(clients) % groups, **known)


def deal_views(
    images: Base,
    part: Part,
    wanted: int | None,
    *,
    maker: str,
    views: Sequence[View],
    shares: np.ndarray,
    decks: int,
    seed: int,
) -> Ragged:
    """Give each client a slice of the shuffled base rows, and apply the views to its rows.

    Args:
        images: The base set.
        part: The split of the base set.
        wanted: Rows per client; None: as many as fit.
        maker: Name of the data set, for random draws.
        views: The views.
        shares: Share of each client's rows per view, [clients, views].
        decks: Number of shuffled copies of the base rows; client i takes the next slice of copy
            i mod decks. Slices of one copy are disjoint.
        seed: Seed of the random draws.
    """
    x, y = select_part(images, part)
    clients = len(shares)
    size = choose_size(part, wanted, len(y), math.ceil(clients / decks))
    slices = np.empty((clients, size), dtype=np.int64)
    for deck in range(decks):
        mine = slices[deck::decks]
        shuffled = rng(seed, maker, part, deck).permutation(len(y))
        mine[:] = shuffled[: mine.size].reshape(mine.shape)
    rows = torch.from_numpy(slices.ravel())
    sizes = np.full(clients, size)
    counts = rows_per_source(shares, sizes)
    source = torch.from_numpy(shuffle_sources(counts, rng(seed, maker, part, "sources")))
    all_x = x.new_empty(len(rows), *x.shape[1:])
    all_y = y.new_empty(len(rows))
    for k, view in enumerate(views):
        at = (source == k).nonzero().flatten()
        all_x[at], all_y[at] = view(x[rows[at]], y[rows[at]])
    return Ragged(all_x, all_y, torch.from_numpy(sizes))


def choose_size(part: Part, wanted: int | None, rows: int, clients: int) -> int:
    """Return the rows per client if clients divide `rows`: the wanted number, or the maximum."""
    least = 1 if part == "train" else 0
    most = rows // clients
    if wanted is None:
        wanted = max(most, 1)
    if not least <= wanted <= most:
        option = OPTIONS[part]
        raise CoterieError(
            f"{option}={wanted} is out of range: every {clients} clients share {rows} images, "
            f"so it can be at most {most} and must be at least {least}",
            f"change {option}, or use fewer clients",
        )
    return wanted


def count_per_class(images: Base, part: Part) -> np.ndarray:
    """Count the images of each class, int64 [classes]."""
    return np.bincount(select_part(images, part)[1].numpy(), minlength=images.classes)


def deal_classes(
    images: Base, part: Part, counts: np.ndarray, random: np.random.Generator
) -> Ragged:
    """Give client i counts[i, c] rows of class c, drawn without replacement, in random order."""
    x, y = select_part(images, part)
    clients = len(counts)
    shuffled = random.permutation(len(y))
    label = y.numpy()[shuffled]
    owner = np.full(len(y), clients)  # not assigned
    for c, column in enumerate(counts.T):
        owner[np.flatnonzero(label == c)[: column.sum()]] = np.repeat(np.arange(clients), column)
    rows = torch.from_numpy(shuffled[owner.argsort(kind="stable")][: counts.sum()])
    return Ragged(x[rows], y[rows], torch.from_numpy(counts.sum(axis=1)))
