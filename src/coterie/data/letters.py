"""Clients that mix lower-case and upper-case letters, as in FedSoft."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.base_sets import Base
from coterie.data.dealing import (
    Part,
    check_clients,
    image_federation,
    mixture_shares,
    rows_per_source,
    select_part,
)
from coterie.data.federation import Federation, Ragged, rng
from coterie.data.rotation import load_square, rotate, rotations
from coterie.data.spec import maker

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
CASES = {"lower": ALPHABET, "upper": ALPHABET.upper()}
SIZES = (100, 200)  # minimum and maximum of training rows per client in the paper


class LetterSource(NamedTuple):
    """Letters of one case, rotated by one angle."""

    case: str
    angle: float

    @property
    def name(self) -> str:
        """Name of the source, such as "lower" or "upper, 90°"."""
        return f"{self.case}, {self.angle:g}°" if self.angle else self.case


@maker
def letters(
    base: str = "unipen",
    clients: int = 100,
    samples: int | None = None,
    angles: tuple[float, ...] = (0,),
    mixture: str = "10:90",
    test_samples: int = 50,
    seed: int = 0,
    unseen: int = 0,
) -> Federation:
    """Lower-case and upper-case letters, 26 classes, in client-specific shares (FedSoft).

    A source is one case, rotated by one of the angles: lower case at every angle, then upper case.
    Each image belongs to at most one client. `truth`, float [clients, sources], holds the actual
    shares of the training rows. To evaluate models on each source separately, use
    `letter_holdouts`.

    Args:
        base: Name of a base set with the classes a to z and A to Z.
        clients: Number of clients, including unseen ones.
        samples: Training rows per client; default: drawn from 100 to 200, as in the paper.
        angles: Angles in degrees, counter-clockwise.
        mixture: Shares of the sources, see `mixture`.
        test_samples: Test rows per client, in the same shares.
        seed: Seed of the random draws.
        unseen: Number of random clients that are moved to the end and never train.

    Example:
        >>> letters(clients=4, mixture="30:70").truth.shape  # doctest: +SKIP
        torch.Size([4, 2])
    """
    every = sources(angles)
    check_clients(clients)
    if (samples is not None and samples < 1) or test_samples < 0:
        raise CoterieError(
            f"samples={samples}, test_samples={test_samples} is out of range",
            "use at least 1 and 0",
        )
    images = load_letters(base)
    shares = mixture_shares(mixture, clients, len(every), "sources", rng(seed, "letters", "mix"))
    sizes = np.full(clients, samples)
    if samples is None:
        sizes = rng(seed, "letters", "sizes").integers(*SIZES, clients, endpoint=True)
    counts = rows_per_source(shares, sizes)
    test_counts = rows_per_source(shares, np.full(clients, test_samples))
    train = deal_sources(images, "train", every, counts, rng(seed, "letters", "train"))
    test = deal_sources(images, "test", every, test_counts, rng(seed, "letters", "test"))
    truth = torch.from_numpy(counts / counts.sum(1, keepdims=True)).float()
    one_case = images._replace(classes=len(ALPHABET), labels=tuple(ALPHABET))
    return image_federation(one_case, train, test, truth=truth).with_unseen(unseen, seed)


def letter_holdouts(
    base: str = "unipen", angles: tuple[float, ...] = (0,)
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the letters of the base's test split by source, to evaluate models per source.

    Args:
        base: Name of a base set with the classes a to z and A to Z.
        angles: Angles in degrees, counter-clockwise.

    Returns:
        (x, y) by name of the source, in the order of the columns of `truth` in `letters`.

    Example:
        >>> list(letter_holdouts(angles=(0, 90)))  # doctest: +SKIP
        ['lower', 'lower, 90°', 'upper', 'upper, 90°']
    """
    images = load_letters(base)
    found = {}
    for source in sources(angles):
        x, y, places = find_letters(images, "test", source.case)
        found[source.name] = (rotate(x[places], source.angle), y[places])
    return found


def sources(angles: tuple[float, ...]) -> list[LetterSource]:
    """Return all sources: lower case at every angle, then upper case."""
    rotations(angles, least=1)  # raises if two angles are equal
    return [LetterSource(case, angle) for case in CASES for angle in angles]


def load_letters(base: str) -> Base:
    """Load a base set of square images with all letters in both cases among its classes."""
    images = load_square(base)
    missing = [c for alphabet in CASES.values() for c in alphabet if c not in images.labels]
    if missing:
        raise CoterieError(
            f"{base} has no class {missing[0]!r}, but letters needs a to z and A to Z", "use unipen"
        )
    return images


def find_letters(images: Base, part: Part, case: str) -> tuple[Tensor, Tensor, Tensor]:
    """Find the letters of one case in a split.

    Returns:
        x of all rows; the letter of each row, 0 to 25, or −1 for other classes; the indices of the
        rows that are letters of this case.
    """
    x, labels = select_part(images, part)
    letter = torch.tensor([CASES[case].find(label) for label in images.labels])
    y = letter[labels]
    return x, y, (y >= 0).nonzero().flatten()


def deal_sources(
    images: Base,
    part: Part,
    every: list[LetterSource],
    counts: np.ndarray,
    random: np.random.Generator,
) -> Ragged:
    """Give client i counts[i, s] rows of source s, without replacement, in random order."""
    xs, ys, owners = [], [], []
    for case in CASES:
        x, y, places = find_letters(images, part, case)
        deck = places[torch.from_numpy(random.permutation(len(places)))]
        columns = [s for s, source in enumerate(every) if source.case == case]
        wanted = counts[:, columns].sum()
        if wanted > len(deck):
            raise CoterieError(
                f"the clients need {wanted} {case}-case letters, but the {part} split has "
                f"{len(deck)}",
                "use fewer clients, samples or test_samples",
            )
        for s in columns:
            rows, deck = deck[: counts[:, s].sum()], deck[counts[:, s].sum() :]
            xs.append(rotate(x[rows], every[s].angle))
            ys.append(y[rows])
            owners.append(np.repeat(np.arange(len(counts)), counts[:, s]))
    owner = np.concatenate(owners)
    order = torch.from_numpy(np.lexsort((random.random(len(owner)), owner)))
    sizes = torch.from_numpy(counts.sum(1))
    return Ragged(torch.cat(xs)[order], torch.cat(ys)[order], sizes)
