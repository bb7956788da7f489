"""Clients that differ in their labels: permuted, a few classes each, or Dirichlet shares."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.base_sets import Base
from coterie.data.base_sets import base as load_base
from coterie.data.dealing import (
    OPTIONS,
    Part,
    check_clients,
    count_per_class,
    deal_classes,
    image_federation,
    make_grouped_federation,
    rows_per_source,
)
from coterie.data.federation import Federation, rng
from coterie.data.spec import maker

Sizes = Literal["uniform", "even"]


@maker
def label_permuted(
    base: str = "digits",
    clients: int = 40,
    samples: int | None = None,
    clusters: int = 4,
    seed: int = 0,
    unseen: int = 0,
    test_samples: int | None = None,
    noise: float = 0,
) -> Federation:
    """Images of a base set, whose labels mean another class in each group of clients.

    In group g class c has the label c + g, modulo the number of classes: group 0 has the base's own
    labels, and no class has the same label in two groups. Images are dealt out as by `rotated`:
    each of the `clusters` groups shuffles all of them and divides them into disjoint slices; client
    i, the last `unseen` included, is in group i mod clusters. `noise` makes the groups fuzzy: that
    share of each client's training rows has the labels of the other groups, of each as often; test
    rows have not.

    Example:
        >>> label_permuted(clients=4, samples=20, clusters=2).truth.tolist()
        [0, 1, 0, 1]
    """
    images = load_base(base)
    if not 1 <= clusters <= images.classes:
        raise CoterieError(
            f"clusters={clusters}",
            f"{base} has {images.classes} classes, so ask for 1 to that many",
        )
    views = [
        functools.partial(relabelled, shift=g, classes=images.classes) for g in range(clusters)
    ]
    return make_grouped_federation(
        "label_permuted",
        images,
        views,
        clients=clients,
        samples=samples,
        test_samples=test_samples,
        seed=seed,
        noise=noise,
        unseen=unseen,
        labels=None,
    )


def relabelled(x: Tensor, y: Tensor, shift: int, classes: int) -> tuple[Tensor, Tensor]:
    """Images with their labels shifted."""
    return x, (y + shift) % classes


# ------------------------------------------------------------------------------ a few classes each
@maker
def pathological(
    base: str = "digits",
    clients: int = 40,
    samples: int | None = None,
    classes: int = 2,
    kinds: int | None = None,
    sizes: Sizes = "uniform",
    seed: int = 0,
    unseen: int = 0,
    test_samples: int | None = None,
) -> Federation:
    """Images of a base set, a few classes per client, in uneven amounts.

    A client has equally many rows of each of its `classes` classes. Which ones is random, every
    class being with about as many clients; or there are `kinds` of client, i mod kinds for client
    i, which is then the truth, and the kinds share no class as long as kinds · classes is at most
    the number of classes.

    Sizes are drawn from 400 to 5,000 rows ("even": all 5,000), as in CGPFL, and then all scaled
    down alike to the images there are, or to `samples` training rows per client on average (less
    than `classes` rows are lost in rounding); everybody keeps a row of each of its classes.
    Training rows come from the base's training part. Test rows are of the same classes and from its
    test part, a third as many as training rows (CGPFL's 75 : 25) or as many as fit, or
    `test_samples` on average; where the paper takes them from the training part, this keeps to the
    base's own split. No image is with two clients. The last `unseen` clients never train.

    Example:
        >>> fed = pathological(clients=4, samples=20, classes=2)
        >>> [len(fed.train.client(i)[1].unique()) for i in range(4)]
        [2, 2, 2, 2]
    """
    images = load_base(base)
    check_clients(clients, kinds or 1)
    if not 1 <= classes <= images.classes:
        raise CoterieError(
            f"classes={classes}", f"{base} has {images.classes} classes, so ask for 1 to that many"
        )
    random = rng(seed, "pathological", "classes")
    truth = None
    if kinds is None:
        has = random_classes(clients, classes, images.classes, random)
    else:
        has_kind = classes_of_kinds(kinds, classes, images.classes, random)
        truth = torch.arange(clients) % kinds
        has = has_kind[truth.numpy()]
    drawn = np.full(clients, 5000)
    if sizes == "uniform":
        drawn = rng(seed, "pathological", "sizes").integers(400, 5000, clients, endpoint=True)
    counts, scale = scale_sizes(has, drawn, images, "train", samples, most=1)
    test_counts, _ = scale_sizes(has, drawn, images, "test", test_samples, most=scale / 3)
    train = deal_classes(images, "train", counts, rng(seed, "pathological", "train"))
    test = deal_classes(images, "test", test_counts, rng(seed, "pathological", "test"))
    return image_federation(images, train, test, truth=truth, unseen=unseen)


def random_classes(
    clients: int, classes: int, total: int, random: np.random.Generator
) -> np.ndarray:
    """Who has which class, bool [clients, total].

    Each client takes the classes that the fewest have taken before it.
    """
    has = np.zeros((clients, total), dtype=bool)
    taken = np.zeros(total)
    for mine in has:
        mine[np.lexsort((random.random(total), taken))[:classes]] = True
        taken += mine
    return has


def classes_of_kinds(
    kinds: int, classes: int, total: int, random: np.random.Generator
) -> np.ndarray:
    """Which kind has which class, bool [kinds, total].

    All classes stand in a circle; the kinds have stretches of it that start evenly apart.
    """
    most = total if classes < total else 1
    if not 1 <= kinds <= most:
        raise CoterieError(
            f"kinds={kinds}: {classes} of {total} classes make 1 to {most} kinds",
            "ask for a number among these",
        )
    circle = random.permutation(total)
    has = np.zeros((kinds, total), dtype=bool)
    for kind in range(kinds):
        has[kind, circle[(kind * total // kinds + np.arange(classes)) % total]] = True
    return has


def scale_sizes(
    has: np.ndarray, drawn: np.ndarray, images: Base, part: Part, wanted: int | None, most: float
) -> tuple[np.ndarray, float]:
    """(rows of each class for each client, int64 [clients, classes]; how much sizes were scaled).

    Everyone gets one row of each of its classes first; what it would have beyond that is scaled, by
    `most` at most.
    """
    if part == "test" and wanted == 0:
        return np.zeros(has.shape, dtype=np.int64), 0.0
    supply = count_per_class(images, part)
    clients = has.sum(axis=0)
    scarce = int(np.argmin(supply - clients))
    if supply[scarce] < clients[scarce]:
        raise CoterieError(
            f"clients={len(has)} is too many: {clients[scarce]} of them would share the "
            f"{supply[scarce]} {part} images of one class",
            "ask for fewer clients",
        )
    classes = int(has[0].sum())
    beyond = has * (drawn / classes - 1)[:, None]
    needed = beyond.sum(axis=0)
    fits = float(((supply - clients)[needed > 0] / needed[needed > 0]).min())
    mean = float(drawn.mean()) / classes - 1
    scale = min(fits, most)
    if wanted is not None:
        scale = (wanted / classes - 1) / mean
    if not 0 <= scale <= fits:
        option = OPTIONS[part]
        raise CoterieError(
            f"{option}={wanted} is out of reach: it must be at least {classes}, a row of each of a "
            f"client's classes, and the images allow {int(classes * (1 + fits * mean))}",
            f"ask for other {option} or fewer clients",
        )
    return has * (1 + np.floor(scale * beyond + 1e-9)).astype(np.int64), scale


@maker
def dirichlet(
    base: str = "digits",
    clients: int = 40,
    samples: int | None = None,
    alpha: float = 0.5,
    seed: int = 0,
    unseen: int = 0,
    test_samples: int | None = None,
) -> Federation:
    """Images of a base set, with each client's shares of the labels drawn from Dir(alpha).

    A small `alpha` gives clients of nearly one class, a large one clients that are alike. All have
    the same number of rows: `samples` from the base's training part and `test_samples` from its
    test part, both in the client's shares to within one row of each class (default: as many as the
    class most in demand allows). No image is with two clients. The last `unseen` clients never
    train.

    Example:
        >>> dirichlet(clients=4, samples=20, alpha=0.5).train.sizes.tolist()
        [20, 20, 20, 20]
    """
    images = load_base(base)
    check_clients(clients)
    if not 0 < alpha <= 1e6:
        raise CoterieError(
            f"alpha={alpha} is out of range", "it must be above 0 and at most 1,000,000"
        )
    shares = rng(seed, "dirichlet", "shares").dirichlet(np.full(images.classes, alpha), clients)
    counts = count_in_shares(shares, images, "train", samples)
    test_counts = count_in_shares(shares, images, "test", test_samples)
    train = deal_classes(images, "train", counts, rng(seed, "dirichlet", "train"))
    test = deal_classes(images, "test", test_counts, rng(seed, "dirichlet", "test"))
    return image_federation(images, train, test, unseen=unseen)


def count_in_shares(shares: np.ndarray, images: Base, part: Part, wanted: int | None) -> np.ndarray:
    """Rows of each class for each client, int64 [clients, classes].

    All clients have the same number of rows, as many as wanted or as fit.
    """
    supply = count_per_class(images, part)
    demand = shares.sum(axis=0)
    size = int((supply[demand > 0] / demand[demand > 0]).min()) + 1
    least = 1
    if wanted is not None:
        size = min(wanted, size)
        if part == "test":
            least = 0
    counts = rows_per_source(shares, np.full(len(shares), size))
    while size > 0 and (counts.sum(axis=0) > supply).any():
        size -= 1
        counts = rows_per_source(shares, np.full(len(shares), size))
    if size < least or wanted not in (None, size):
        option = OPTIONS[part]
        asked = least if wanted is None else wanted
        raise CoterieError(
            f"{option}={asked} is out of reach: at these label shares the {part} images allow "
            f"{max(size, 0)}, and it must be at least {least}",
            f"ask for other {option} or fewer clients",
        )
    return counts
