"""Small images, as tests of stores write them."""

from __future__ import annotations

import torch

from coterie.data import Federation, Ragged


def images(clients: int = 6, rows: int = 9) -> Federation:
    """Small images of 0 to 1, which were bytes; clients are of different sizes."""
    g = torch.Generator().manual_seed(0)
    sizes = torch.tensor([rows - i % 3 for i in range(clients)])
    x = torch.randint(256, (int(sizes.sum()), 1, 4, 4), generator=g).float().div_(255)
    y = torch.randint(3, (len(x),), generator=g)
    part = Ragged(x, y, sizes)
    names = tuple(f"site {i}" for i in range(clients))
    return Federation(names, part, part, "classification", 3, unseen=1, labels=("a", "b", "c"))
