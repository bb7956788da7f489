"""Images turned by an angle: groups of clients with one angle each, or clients that mix several."""

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
    """Images of a base set, turned by another angle in each group of clients.

    As in IFCA's released code, each group shuffles all images and divides them into disjoint
    slices, one per client: `samples` training rows from the base's training part, `test_samples`
    from its test part (default: as many as fit). Client i of all `clients`, the last `unseen`
    included, is in group i mod len(angles). Angles are in degrees, counter-clockwise; multiples of
    90 move pixels exactly, others interpolate. `noise` makes the groups fuzzy: that share of each
    client's training rows is turned by the other groups' angles, by each as often; test rows are
    not.

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
    """Images of a base set, turned by several angles in each client, in shares of its own.

    A source is the base set turned by one of the `angles`. With two, "10:90" (or any a:b)
    alternates between clients of the shares a, b and b, a, and "linear" lets the first share run
    from 0 to 1 over the clients; "random" divides [0, 1] at uniform points and takes any number of
    angles. `truth`, float [clients, sources], holds the shares of the training rows as they came
    out, to within one row of those asked for.

    All images are shuffled once and divided into disjoint slices, one per client, so that an image
    is with one client and under one angle: `samples` training rows from the base's training part,
    `test_samples` from its test part, in the same shares (default: as many as fit). `unseen` of the
    clients are drawn at random and moved to the end. To measure models on each source alone, take
    `holdouts`.

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
    """All of the base's test part, (x, y), turned by each angle.

    By angle, in the order of truth's columns in `mixture`.

    Example:
        >>> list(holdouts(angles=(0, 180)))
        [0, 180]
    """
    images = load_square(base)
    views = rotations(angles, least=1)
    return {angle: view(images.x_test, images.y_test) for angle, view in zip(angles, views)}


def load_square(base: str) -> Base:
    """A base set of square images, which can be turned."""
    images = load_base(base)
    shape = images.x_train.shape[1:]
    if shape[-1] != shape[-2]:
        raise CoterieError(
            f"{base} has rows of {'×'.join(map(str, shape))}, which cannot be turned",
            f"use a set of square images, such as digits, or {base} with by_key or dirichlet",
        )
    return images


def rotations(angles: tuple[float, ...], least: int) -> list[View]:
    """Turning by each angle."""
    if len({angle % 360 for angle in angles}) < max(len(angles), least):
        raise CoterieError(f"angles={angles}", f"give at least {least}, no two alike")
    return [functools.partial(turned, angle=angle) for angle in angles]


def turned(x: Tensor, y: Tensor, angle: float) -> tuple[Tensor, Tensor]:
    """Images turned by an angle, with their labels."""
    return rotate(x, angle), y


def rotate(x: Tensor, angle: float) -> Tensor:
    """Square images [rows, ..., H, W] turned counter-clockwise by an angle in degrees."""
    quarters, rest = divmod(angle, 90)
    if not rest:
        return torch.rot90(x, int(quarters), (-2, -1))
    radians = math.radians(angle)
    cos, sin = math.cos(radians), math.sin(radians)
    turn = torch.tensor([[[cos, -sin, 0], [sin, cos, 0]]], dtype=x.dtype)
    planes = x.reshape(1, -1, *x.shape[-2:])  # one grid for all images, which are its channels
    grid = F.affine_grid(turn, [1, 1, *x.shape[-2:]], align_corners=False)
    return F.grid_sample(planes, grid, mode="bilinear", align_corners=False).view(x.shape)
