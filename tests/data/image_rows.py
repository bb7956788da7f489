"""Rows of federations of base images, compared with the images that they show."""

import numpy as np
import torch


def rows(x: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(row) for row in x.flatten(1).tolist()]


def sources(fed, known, part: str, i: int, turns: int = 4) -> np.ndarray:
    """How many quarter turns bring each of client i's rows back to a known image."""
    x, y = getattr(fed, part).client(i)
    back = [rows(torch.rot90(x, -k, (-2, -1))) for k in range(turns)]
    matches = [
        [known[part].get(back[k][n]) == label for k in range(turns)]
        for n, label in enumerate(y.tolist())
    ]
    assert np.sum(matches, axis=1).tolist() == [1] * len(y), (
        "no digit looks like another one that is turned"
    )
    return np.argmax(matches, axis=1)


def upright(x: torch.Tensor, turns: np.ndarray) -> list[tuple[float, ...]]:
    return rows(torch.stack([image.rot90(-int(k), (-2, -1)) for image, k in zip(x, turns)]))
