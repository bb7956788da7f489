"""Canary clients: an audit of client-level differential privacy in one run (Andrew et al. 2023,
arXiv 2302.03098).

    symbol    here          shape
    c_j       directions    [m, d], random unit vectors
    Δ         moved         [K, d], the movement of the released models
    g_j       cosines       [m], of c_j and Δ

A canary is a simulated client that sends the longest update that clipping lets through, C · c_j,
in every round that samples it; it belongs to cluster j mod K. Had it not taken part, its cosine
with the movement would be N(0, 1/d), since the directions are random. If canaries can be told from
that, the run reveals who took part. A threshold τ that a canary exceeds with probability p, and a
client that never took part with probability f, proves ε ≥ log((p − δ)/f). p is bounded from below
by Clopper and Pearson's interval, which takes the canaries as independent: they share the noise,
but random directions are nearly orthogonal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
FALSE_POSITIVES = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 1e-6)  # f of each threshold


class Canaries:
    """Clients with random updates, and what is known of the movement of the models.

    Args:
        count: m.
        seed: Of their directions; these need not be secret.
    """

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self.rng = np.random.default_rng(seed)
        self.directions = np.zeros((count, 0), dtype=np.float32)
        self.moved = np.zeros((0, 0))

    def contribute(self, clusters: int, numbers: int, taken: np.ndarray) -> np.ndarray:
        """The sum of the sampled canaries' updates, in units of C.

        Args:
            clusters: K.
            numbers: d, the length of an update.
            taken: bool [m], which canaries are in the sample.

        Returns:
            [K, d].
        """
        if not self.moved.size:
            drawn = self.rng.standard_normal((self.count, numbers), dtype=np.float32)
            self.directions = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
            self.moved = np.zeros((clusters, numbers))
        sums = np.zeros((clusters, numbers))
        for k in range(clusters):
            sums[k] = self.directions[k::clusters][taken[k::clusters]].sum(0)
        return sums

    def members(self, clusters: int, taken: np.ndarray) -> np.ndarray:
        """The number of sampled canaries in each cluster, [K]."""
        return np.array([taken[k::clusters].sum() for k in range(clusters)])

    def follow(self, step: np.ndarray) -> None:
        """Add a released step of the models, [K, d]."""
        self.moved += step

    def cosines(self) -> np.ndarray:
        """The cosine of each canary with the movement of its cluster, [m]."""
        clusters = len(self.moved)
        norms = np.linalg.norm(self.moved, axis=1).clip(min=1e-300)
        cluster = np.arange(self.count) % clusters
        products = np.einsum("md,md->m", self.directions, self.moved[cluster])
        return products / norms[cluster]


def epsilon_lower_bound(
    cosines: Sequence[float] | np.ndarray, dimension: int, delta: float
) -> float:
    """A lower bound of ε with 95 % confidence; 0 if nothing is proven.

    Args:
        cosines: Of the canaries, [m].
        dimension: d.
        delta: δ of the promise.

    Example:
        >>> epsilon_lower_bound([0.0] * 50, dimension=1000, delta=1e-5)
        0.0
        >>> round(epsilon_lower_bound([0.5] * 50, dimension=1000, delta=1e-5), 1)
        13.7
    """
    from scipy import stats  # loads slowly

    scaled = np.asarray(cosines) * math.sqrt(dimension)  # standard normal without canaries
    m = len(scaled)
    error = (1 - CONFIDENCE) / len(FALSE_POSITIVES)  # of each threshold, so that all hold together
    best = 0.0
    for f in FALSE_POSITIVES:
        hits = int((scaled > stats.norm.isf(f)).sum())
        if not hits:
            continue
        p = float(stats.beta.ppf(error, hits, m - hits + 1))
        if p > delta:
            best = max(best, math.log((p - delta) / f))
    return best
