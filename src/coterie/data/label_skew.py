"""Label skew: permuted labels, a few classes per client, or Dirichlet shares of classes."""

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
    """Images of a base set, with differently permuted labels in each group of clients.

    In group g, class c has the label c + g modulo the number of classes, so no class has the same
    label in two groups. Client i is in group i mod clusters, which is its `truth`. Each group
    shuffles all images and divides them into disjoint slices, as in `rotated`.

    Args:
        base: Name of a base set, see `bases`.
        clients: Number of clients, including unseen ones.
        samples: Training rows per client, from the base's training split; default: as many as fit.
        clusters: Number of groups.
        seed: Seed of the random draws.
        unseen: Number of clients that never train: the last ones.
        test_samples: Test rows per client, from the base's test split; default: as many as fit.
        noise: Share of each client's training rows with the labels of the other groups, in equal
            parts. Test rows are not affected.

    Example:
        >>> label_permuted(clients=4, samples=20, clusters=2).truth.tolist()
        [0, 1, 0, 1]
    """
    images = load_base(base)
    if not 1 <= clusters <= images.classes:
        raise CoterieError(
            f"clusters={clusters} is out of range",
            f"{base} has {images.classes} classes, so use 1 to {images.classes}",
        )
    views = [
        functools.partial(shift_labels, shift=g, classes=images.classes) for g in range(clusters)
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


def shift_labels(x: Tensor, y: Tensor, shift: int, classes: int) -> tuple[Tensor, Tensor]:
    """Add a shift to the labels, modulo the number of classes: a `View`."""
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
    """Images of a base set, with a few classes and a different number of rows per client.

    A client has the same number of rows of each of its classes. Each image belongs to at most one
    client. As in CGPFL, client sizes are drawn from 400 to 5,000 rows; then all are scaled by the
    same factor to the available images, or to `samples` rows on average. Every client keeps at
    least one row of each of its classes. Test rows have the same classes. CGPFL takes them from the
    base's training split; here they come from its test split.

    Args:
        base: Name of a base set, see `bases`.
        clients: Number of clients, including unseen ones.
        samples: Average of training rows per client, before rounding; default: as many as fit.
        classes: Number of classes per client.
        kinds: Number of different sets of classes. Client i has set i mod kinds, which is its
            `truth`; sets are disjoint if kinds · classes is at most the number of classes. Default:
            random classes for each client, each class with about the same number of clients.
        sizes: "uniform" draws sizes as described; "even" gives all clients the same size.
        seed: Seed of the random draws.
        unseen: Number of clients that never train: the last ones.
        test_samples: Average of test rows per client; default: a third of the training rows
            (CGPFL's 75 : 25), or as many as fit.

    Example:
        >>> fed = pathological(clients=4, samples=20, classes=2)
        >>> [len(fed.train.client(i)[1].unique()) for i in range(4)]
        [2, 2, 2, 2]
    """
    images = load_base(base)
    check_clients(clients, kinds or 1)
    if not 1 <= classes <= images.classes:
        raise CoterieError(
            f"classes={classes} is out of range",
            f"{base} has {images.classes} classes, so use 1 to {images.classes}",
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
    """Draw the classes of each client, bool [clients, total].

    Each client gets the classes that the fewest clients before it have; ties are random.
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
    """Draw the classes of each kind, bool [kinds, total].

    The kinds get segments of a random circular order of all classes, with evenly spaced starts.
    """
    most = total if classes < total else 1
    if not 1 <= kinds <= most:
        raise CoterieError(
            f"kinds={kinds} is out of range",
            f"{classes} of {total} classes allow 1 to {most} kinds",
        )
    circle = random.permutation(total)
    has = np.zeros((kinds, total), dtype=bool)
    for kind in range(kinds):
        has[kind, circle[(kind * total // kinds + np.arange(classes)) % total]] = True
    return has


def scale_sizes(
    has: np.ndarray, drawn: np.ndarray, images: Base, part: Part, wanted: int | None, most: float
) -> tuple[np.ndarray, float]:
    """Scale client sizes to the available images, or to the wanted average.

    Every client gets one row of each of its classes; only the rows beyond that are scaled.

    Args:
        has: Whether a client has a class, bool [clients, classes].
        drawn: Unscaled size of each client, [clients].
        images: The base set.
        part: The split of the base set.
        wanted: Average of rows per client; None: as many as fit.
        most: Maximum of the factor, if `wanted` is None.

    Returns:
        Rows per client and class, int64 [clients, classes], and the factor.
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
            "use fewer clients",
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
            f"{option}={wanted} is out of range: it must be at least {classes}, one row per class, "
            f"and the images allow {int(classes * (1 + fits * mean))}",
            f"change {option}, or use fewer clients",
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
    """Images of a base set, with each client's shares of the classes drawn from Dir(alpha).

    All clients have the same number of rows, with their shares to within one row of each class.
    Each image belongs to at most one client.

    Args:
        base: Name of a base set, see `bases`.
        clients: Number of clients, including unseen ones.
        samples: Training rows per client, from the base's training split; default: as many as fit.
        alpha: Concentration. Small values give clients with nearly one class, large values
            give similar clients.
        seed: Seed of the random draws.
        unseen: Number of clients that never train: the last ones.
        test_samples: Test rows per client, from the base's test split; default: as many as fit.

    Example:
        >>> dirichlet(clients=4, samples=20, alpha=0.5).train.sizes.tolist()
        [20, 20, 20, 20]
    """
    images = load_base(base)
    check_clients(clients)
    if not 0 < alpha <= 1e6:
        raise CoterieError(
            f"alpha={alpha} is out of range", "it must be positive and at most 1,000,000"
        )
    shares = rng(seed, "dirichlet", "shares").dirichlet(np.full(images.classes, alpha), clients)
    counts = count_in_shares(shares, images, "train", samples)
    test_counts = count_in_shares(shares, images, "test", test_samples)
    train = deal_classes(images, "train", counts, rng(seed, "dirichlet", "train"))
    test = deal_classes(images, "test", test_counts, rng(seed, "dirichlet", "test"))
    return image_federation(images, train, test, unseen=unseen)


def count_in_shares(shares: np.ndarray, images: Base, part: Part, wanted: int | None) -> np.ndarray:
    """Return the rows per client and class, int64 [clients, classes], the same sum for all clients.

    Args:
        shares: Share of each client's rows per class, [clients, classes].
        images: The base set.
        part: The split of the base set.
        wanted: Rows per client; None: as many as fit.
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
            f"{option}={asked} is out of range: at these label shares the {part} images allow "
            f"{max(size, 0)}, and it must be at least {least}",
            f"change {option}, or use fewer clients",
        )
    return counts
