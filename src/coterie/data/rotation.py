"""Rotated images: groups of clients with one angle each, or clients that mix several angles."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.base_sets import Base
from coterie.data.base_sets import base as load_base
from coterie.data.dealing import (
    View,
    check_clients,
    deal_views,
    image_federation,
    make_grouped_federation,
    mixture_shares,
    rows_per_source,
)
from coterie.data.federation import Federation, rng
from coterie.data.spec import maker


@maker
def rotated(
    base: str = "digits",
    clients: int = 40,
    samples: int | None = None,
    angles: tuple[float, ...] = (0, 90, 180, 270),
    seed: int = 0,
    unseen: int = 0,
    test_samples: int | None = None,
    noise: float = 0,
) -> Federation:
    """Images of a base set, rotated by a different angle in each group of clients.

    As in IFCA's released code, each group shuffles all images and divides them into disjoint
    slices, one per client. Client i is in group i mod len(angles), which is its `truth`.

    Args:
        base: Name of a base set of square images, see `bases`.
        clients: Number of clients, including unseen ones.
        samples: Training rows per client, from the base's training split; default: as many as fit.
        angles: One angle per group, in degrees, counter-clockwise. Multiples of 90 permute pixels;
            other angles interpolate.
        seed: Seed of the random draws.
        unseen: Number of clients that never train: the last ones.
        test_samples: Test rows per client, from the base's test split; default: as many as fit.
        noise: Share of each client's training rows that are rotated by the other groups' angles, in
            equal parts. Test rows are not affected.

    Example:
        >>> fed = rotated(clients=8, samples=50, angles=(0, 180))
        >>> fed.truth.tolist()
        [0, 1, 0, 1, 0, 1, 0, 1]
    """
    views = rotations(angles, least=1)
    return make_grouped_federation(
        "rotated",
        load_square(base),
        views,
        clients=clients,
        samples=samples,
        test_samples=test_samples,
        seed=seed,
        noise=noise,
        unseen=unseen,
    )


@maker
def mixture(
    base: str = "digits",
    clients: int = 40,
    samples: int | None = None,
    angles: tuple[float, ...] = (0, 90),
    mixture: str = "10:90",
    seed: int = 0,
    unseen: int = 0,
    test_samples: int | None = None,
) -> Federation:
    """Images of a base set, rotated by several angles in each client, in client-specific shares.

    A source is the base set rotated by one angle. All images are shuffled once and divided into
    disjoint slices, so that each image belongs to one client and one source. `truth`, float
    [clients, sources], holds the actual shares of the training rows, within one row of the
    requested ones. To evaluate models on each source separately, use `holdouts`.

    Args:
        base: Name of a base set of square images, see `bases`.
        clients: Number of clients, including unseen ones.
        samples: Training rows per client, from the base's training split; default: as many as fit.
        angles: One angle per source, in degrees, counter-clockwise.
        mixture: Shares of the sources. With two sources, "a:b" such as "10:90" alternates between
            clients with shares a, b and b, a, and "linear" increases the first share from 0 to 1
            over the clients. "random" divides [0, 1] at uniform points, for any number of sources.
        seed: Seed of the random draws.
        unseen: Number of random clients that are moved to the end and never train.
        test_samples: Test rows per client, in the same shares; default: as many as fit.

    Example:
        >>> mixture(clients=2, samples=10, mixture="30:70").truth.tolist()
        [[0.30000001192092896, 0.699999988079071], [0.699999988079071, 0.30000001192092896]]
    """
    views = rotations(angles, least=2)
    check_clients(clients)
    shares = mixture_shares(mixture, clients, len(angles), "angles", rng(seed, "mixture", "mix"))
    images = load_square(base)
    deal = functools.partial(
        deal_views, images, maker="mixture", views=views, shares=shares, decks=1, seed=seed
    )
    train = deal("train", samples)
    test = deal("test", test_samples)
    sizes = train.sizes.numpy()
    truth = torch.from_numpy(rows_per_source(shares, sizes) / sizes[:, None]).float()
    return image_federation(images, train, test, truth=truth).with_unseen(unseen, seed)


def holdouts(
    base: str = "digits", angles: tuple[float, ...] = (0, 90)
) -> dict[float, tuple[Tensor, Tensor]]:
    """Return the base's test split, rotated by each angle, to evaluate models per source.

    Args:
        base: Name of a base set of square images.
        angles: Angles in degrees, counter-clockwise.

    Returns:
        (x, y) by angle, in the order of the columns of `truth` in `mixture`.

    Example:
        >>> list(holdouts(angles=(0, 180)))
        [0, 180]
    """
    images = load_square(base)
    views = rotations(angles, least=1)
    return {angle: view(images.x_test, images.y_test) for angle, view in zip(angles, views)}


def load_square(base: str) -> Base:
    """Load a base set of square images."""
    images = load_base(base)
    shape = images.x_train.shape[1:]
    if shape[-1] != shape[-2]:
        raise CoterieError(
            f"{base} has rows of shape {'×'.join(map(str, shape))}, which cannot be rotated",
            f"use a set of square images, such as digits, or {base} with by_key or dirichlet",
        )
    return images


def rotations(angles: tuple[float, ...], least: int) -> list[View]:
    """Return a view per angle; raise if there are fewer than `least` or two are equal."""
    if len({angle % 360 for angle in angles}) < max(len(angles), least):
        raise CoterieError(
            f"angles={angles} is not valid", f"give at least {least}, all different modulo 360"
        )
    return [functools.partial(rotate_images, angle=angle) for angle in angles]


def rotate_images(x: Tensor, y: Tensor, angle: float) -> tuple[Tensor, Tensor]:
    """Rotate images and keep their labels: a `View`."""
    return rotate(x, angle), y


def rotate(x: Tensor, angle: float) -> Tensor:
    """Rotate square images [rows, ..., H, W] counter-clockwise by an angle in degrees."""
    quarters, rest = divmod(angle, 90)
    if not rest:
        return torch.rot90(x, int(quarters), (-2, -1))
    radians = math.radians(angle)
    cos, sin = math.cos(radians), math.sin(radians)
    turn = torch.tensor([[[cos, -sin, 0], [sin, cos, 0]]], dtype=x.dtype)
    planes = x.reshape(1, -1, *x.shape[-2:])  # images as channels share one grid
    grid = F.affine_grid(turn, [1, 1, *x.shape[-2:]], align_corners=False)
    return F.grid_sample(planes, grid, mode="bilinear", align_corners=False).view(x.shape)
