"""Clients that differ in how much they have of each class."""

from __future__ import annotations

import numpy as np

from coterie.core.errors import CoterieError
from coterie.data.base import base as load_base
from coterie.data.base_set import Base
from coterie.data.federation import Federation, rng
from coterie.data.images import (
    OPTIONS,
    Part,
    check_clients,
    class_counts,
    deal_classes,
    image_federation,
)
from coterie.data.shares import rows_per_source
from coterie.data.spec import maker


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
    supply = class_counts(images, part)
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
