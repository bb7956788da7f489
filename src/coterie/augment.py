"""Augmentation of training batches, for `ct.ModelSpec(augment=…)`.

An augmentation is a function of rows [n, ...] and a `ct.Draws`, whose random numbers depend only
on the client, the round and the step. It is applied in training, never in evaluation or in the
choice of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.forward import Draws

Augmentation = Callable[[Tensor, Draws], Tensor]


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirror images [..., height, width] left to right.

    Args:
        p: Probability that an image is mirrored.

    Example:
        >>> import torch, coterie as ct
        >>> draws = ct.Draws(torch.tensor(0), like=torch.zeros(()))
        >>> ct.augment.RandomHorizontalFlip(1.0)(torch.tensor([[[1.0, 2.0]]]), draws)
        tensor([[[2., 1.]]])
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise CoterieError(f"p is {self.p}: the probability of a flip lies between 0 and 1.")

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        is_flipped = draws.rand(len(x)) < self.p
        return torch.where(is_flipped.view(-1, *[1] * (x.dim() - 1)), x.flip(-1), x)


@dataclass(frozen=True)
class RandomCrop:
    """Pad images [..., height, width] with zeros and crop them to their size at a random place.

    Args:
        padding: Zeros on each side.

    Example:
        >>> import torch, coterie as ct
        >>> draws = ct.Draws(torch.tensor(0), like=torch.zeros(()))
        >>> ct.augment.RandomCrop(2)(torch.ones(5, 8, 8), draws).shape
        torch.Size([5, 8, 8])
    """

    padding: int

    def __post_init__(self) -> None:
        if not isinstance(self.padding, int) or self.padding < 1:
            raise CoterieError(f"padding is {self.padding!r}: it must be a whole number from 1 on.")

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        for axis in (-2, -1):
            x = _shift(x, draws.randint(2 * self.padding + 1, len(x)) - self.padding, axis)
        return x


@dataclass(frozen=True)
class GaussianNoise:
    """Add normal noise to every number.

    Args:
        std: Its standard deviation.

    Example:
        >>> import torch, coterie as ct
        >>> draws = ct.Draws(torch.tensor(0), like=torch.zeros(()))
        >>> ct.augment.GaussianNoise(0.1)(torch.zeros(2, 3), draws).shape
        torch.Size([2, 3])
    """

    std: float

    def __post_init__(self) -> None:
        if not self.std > 0:
            raise CoterieError(f"std is {self.std}: noise needs a positive standard deviation.")

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        return x + self.std * draws.randn(*x.shape)


@dataclass(frozen=True)
class Compose:
    """Apply several augmentations one after another.

    Args:
        parts: The augmentations.

    Example:
        >>> import torch, coterie as ct
        >>> both = ct.augment.Compose(
        ...     [ct.augment.RandomHorizontalFlip(), ct.augment.RandomCrop(1)]
        ... )
        >>> both(torch.zeros(2, 8, 8), ct.Draws(torch.tensor(0), like=torch.zeros(()))).shape
        torch.Size([2, 8, 8])
    """

    parts: list[Augmentation]

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        for part in self.parts:
            x = part(x, draws)
        return x


def _shift(x: Tensor, by: Tensor, axis: int) -> Tensor:
    """Move row i of x by by[i] places along an axis; zeros come in."""
    length = x.shape[axis]
    places = torch.arange(length, device=x.device) - by[:, None]  # [n, length]
    is_inside = (places >= 0) & (places < length)
    shape = [len(x), *[1] * (x.dim() - 1)]
    shape[axis] = length
    index = places.clamp(0, length - 1).view(shape).expand_as(x)
    return torch.where(is_inside.view(shape), x.gather(axis, index), 0.0)
