"""Planted groups of images: each group sees a base set turned by its own angle."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.data.base import base as base_of
from coterie.data.federation import Federation, Ragged, rng
from coterie.data.memory import default_names
from coterie.data.spec import maker
from coterie.errors import CoterieError


@maker
def rotated(
    base: str = "digits",
    clients: int = 40,
    samples: int | None = None,
    angles: tuple[float, ...] = (0, 90, 180, 270),
    seed: int = 0,
    unseen: int = 0,
    test_samples: int | None = None,
) -> Federation:
    """Images of a base set, turned by another angle in each group of clients.

    As in IFCA's released code, each group shuffles all images and cuts them into disjoint slices, one per client:
    `samples` training rows from the base's training part, `test_samples` from its test part (default: as many as
    fit). Client i of all `clients`, the last `unseen` included, is in group i mod len(angles). Angles are in degrees,
    counter-clockwise; multiples of 90 move pixels exactly, others interpolate.
    """
    groups = len(angles)
    if not groups or len({angle % 360 for angle in angles}) < groups:
        raise CoterieError(f"angles={angles}: give one angle per group, no two alike.")
    if clients < groups:
        raise CoterieError(f"clients={clients} cannot fill {groups} groups: ask for at least {groups}.")
    images = base_of(base)
    share = math.ceil(clients / groups)
    train_size = rows_each("samples", samples, len(images.y_train), share, least=1)
    test_size = rows_each("test_samples", test_samples, len(images.y_test), share, least=0)
    return Federation(
        default_names(clients),
        cut(images.x_train, images.y_train, clients, train_size, angles, seed, "train"),
        cut(images.x_test, images.y_test, clients, test_size, angles, seed, "test"),
        "classification",
        images.classes,
        truth=torch.arange(clients) % groups,
        unseen=unseen,
        labels=images.labels,
    )


def rows_each(option: str, wanted: int | None, rows: int, clients: int, least: int) -> int:
    """How many of a group's rows each of its clients gets: as wanted, or as many as fit."""
    most = rows // clients
    wanted = max(most, 1) if wanted is None else wanted
    if not least <= wanted <= most:
        raise CoterieError(
            f"{option}={wanted} is out of reach: {clients} clients per group share {rows} images, so it can be at most "
            f"{most} and must be at least {least}: ask for other {option} or fewer clients."
        )
    return wanted


def cut(x: Tensor, y: Tensor, clients: int, size: int, angles: tuple[float, ...], seed: int, part: str) -> Ragged:
    """`size` rows for each client: per group a fresh shuffle of all rows, turned, in disjoint slices."""
    groups = len(angles)
    all_x, all_y = x.new_empty(clients, size, *x.shape[1:]), y.new_empty(clients, size)
    for group, angle in enumerate(angles):
        members = len(range(group, clients, groups))
        rows = torch.from_numpy(rng(seed, "rotated", part, group).permutation(len(y))[: members * size])
        all_x[group::groups] = rotate(x[rows], angle).reshape(members, size, *x.shape[1:])
        all_y[group::groups] = y[rows].view(members, size)
    return Ragged(all_x.flatten(0, 1), all_y.flatten(), torch.full((clients,), size))


def rotate(x: Tensor, angle: float) -> Tensor:
    """Square images [rows, ..., H, W] turned counter-clockwise by an angle in degrees."""
    quarters, rest = divmod(angle, 90)
    if not rest:
        return torch.rot90(x, int(quarters), (-2, -1))
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    turn = torch.tensor([[[cos, -sin, 0], [sin, cos, 0]]], dtype=x.dtype)
    planes = x.reshape(1, -1, *x.shape[-2:])  # one grid for all images, which are its channels
    grid = F.affine_grid(turn, [1, 1, *x.shape[-2:]], align_corners=False)
    return F.grid_sample(planes, grid, mode="bilinear", align_corners=False).view(x.shape)
