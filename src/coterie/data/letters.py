"""Clients that mix lower-case and upper-case letters, as FedSoft's do."""

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
SIZES = (100, 200)  # the paper's: least and most training rows of a client


class Source(NamedTuple):
    """Letters of one case, turned by one angle."""

    case: str
    angle: float

    @property
    def name(self) -> str:
        """Such as "lower" or "upper, 90°"."""
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
    """Lower-case and upper-case letters, 26 classes, in shares of each client's own (FedSoft).

    A source is one case, turned by one of the `angles`: lower case at every angle, then upper case.
    With two sources, "10:90" (or any a:b) alternates between clients of the shares a, b and b, a,
    and "linear" lets the first share run from 0 to 1 over the clients; "random" divides [0, 1] at
    uniform points and takes any number of sources. `truth`, float [clients, sources], holds the
    shares of the training rows as they came out.

    A client has `samples` training rows (default: 100 to 200, drawn) from the base's training part
    and `test_samples` from its test part, in the same shares. No letter is with two clients.
    `unseen` of the clients are drawn at random and moved to the end. To measure models on each
    source alone, take `letter_holdouts`.
    """
    every = sources(angles)
    check_clients(clients)
    if (samples is not None and samples < 1) or test_samples < 0:
        raise CoterieError(
            f"samples={samples}, test_samples={test_samples} is out of range",
            "ask for at least 1 and 0",
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
    return image_federation(as_26_classes(images), train, test, truth=truth).with_unseen(
        unseen, seed
    )


def letter_holdouts(
    base: str = "unipen", angles: tuple[float, ...] = (0,)
) -> dict[str, tuple[Tensor, Tensor]]:
    """All letters of the base's test part, (x, y), by source, in the order of truth's columns."""
    images = load_letters(base)
    found = {}
    for source in sources(angles):
        x, y, places = find_letters(images, "test", source.case)
        found[source.name] = (rotate(x[places], source.angle), y[places])
    return found


def sources(angles: tuple[float, ...]) -> list[Source]:
    """Lower case at every angle, then upper case."""
    rotations(angles, least=1)  # refuses angles that are alike
    return [Source(case, angle) for case in CASES for angle in angles]


def load_letters(base: str) -> Base:
    """A base set of square images whose classes hold all letters in both cases."""
    images = load_square(base)
    missing = [c for alphabet in CASES.values() for c in alphabet if c not in images.labels]
    if missing:
        raise CoterieError(
            f"{base} has no class {missing[0]!r}, and letters needs a to z and A to Z", "use unipen"
        )
    return images


def as_26_classes(images: Base) -> Base:
    """The base set, as one whose classes are the letters."""
    return images._replace(classes=len(ALPHABET), labels=tuple(ALPHABET))


def find_letters(images: Base, part: Part, case: str) -> tuple[Tensor, Tensor, Tensor]:
    """(all x of a part, each row's letter 0 to 25 of this case or −1, the rows that have one)."""
    x, labels = select_part(images, part)
    letter = torch.tensor([CASES[case].find(label) for label in images.labels])
    y = letter[labels]
    return x, y, (y >= 0).nonzero().flatten()


def deal_sources(
    images: Base,
    part: Part,
    every: list[Source],
    counts: np.ndarray,
    random: np.random.Generator,
) -> Ragged:
    """counts[i, s] rows of source s for client i, none of them twice, in random order."""
    xs, ys, owners = [], [], []
    for case in CASES:
        x, y, places = find_letters(images, part, case)
        deck = places[torch.from_numpy(random.permutation(len(places)))]
        columns = [s for s, source in enumerate(every) if source.case == case]
        wanted = counts[:, columns].sum()
        if wanted > len(deck):
            raise CoterieError(
                f"the clients ask for {wanted} {case}-case letters of the {part} part, which has "
                f"{len(deck)}",
                "ask for fewer clients, samples or test_samples",
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
