"""Central reference models: scikit-learn fitted to the same rows.

They have what no federation has: all rows in one place, or a choice on the test rows (number of
groups, strength of the ridge). They are meant to be hard to beat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.data import Federation
from coterie.data.federation import Ragged

GROUPS = (2, 3, 5)  # of grouped least squares
ALPHAS = (1.0, 3.0, 10.0)  # ridges of each site; the best is taken
Rows = list[tuple[np.ndarray, np.ndarray]]


class Reference:
    """Linear models and gradient boosting by scikit-learn, and their test errors.

    Args:
        fed: The data.
    """

    def __init__(self, fed: Federation) -> None:
        self.is_regression = fed.kind == "regression"
        self.train = [rows(fed.train, i) for i in range(len(fed))]
        self.test = [rows(fed.test, i) for i in range(len(fed))]

    def linear(self, x: np.ndarray, y: np.ndarray, alpha: float = 1.0) -> Any:
        """Fit a ridge or logistic regression.

        Args:
            x: float64 [n, d].
            y: float64 [n].
            alpha: Strength of the ℓ2 penalty.
        """
        from sklearn.linear_model import LogisticRegression, Ridge

        if self.is_regression:
            return Ridge(alpha).fit(x, y)
        if len(set(y)) < 2:
            return ConstantClassifier(y)
        return LogisticRegression(C=1 / alpha, max_iter=2000).fit(x, y)

    def losses(self, model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the squared error or log loss of each row, [n]."""
        if not len(x):
            return np.zeros(0)
        if self.is_regression:
            return np.asarray((model.predict(x) - y) ** 2)
        p = np.clip(model.predict_proba(x)[:, 1], 1e-6, 1 - 1e-6)
        return -np.where(y == 1, np.log(p), np.log(1 - p))

    def error(self, model_of: Callable[[int], Any]) -> float:
        """Return the mean loss over all test rows, each site under its own model."""
        pairs = enumerate(self.test)
        return float(np.concatenate([self.losses(model_of(i), *xy) for i, xy in pairs]).mean())

    def pooled(self) -> float:
        """Return the error of one model of all rows."""
        model = self.linear(*concatenate(self.train))
        return self.error(lambda i: model)

    def per_site(self, alpha: float) -> float:
        """Return the error of one model per site."""
        models = [self.linear(*xy, alpha) for xy in self.train]
        return self.error(models.__getitem__)

    def site_intercepts(self) -> float:
        """Return the error of one model with an indicator column per site."""
        n = len(self.train)

        def marked(parts: Rows) -> Rows:
            return [
                (np.hstack([x, np.tile(np.eye(n)[i], (len(x), 1))]), y)
                for i, (x, y) in enumerate(parts)
            ]

        model = self.linear(*concatenate(marked(self.train)))
        losses = [self.losses(model, *xy) for xy in marked(self.test)]
        return float(np.concatenate(losses).mean())

    def grouped(self, k: int, starts: int = 5, turns: int = 15) -> float:
        """Return the error of k models, fitted in turns with assigning sites to the best one.

        Args:
            k: Number of groups.
            starts: Number of random starts; the one with the lowest training loss counts.
            turns: Largest number of iterations.
        """
        best, least = 0.0, np.inf
        for start in range(starts):
            labels = np.random.default_rng(start).integers(k, size=len(self.train))
            for _ in range(turns):
                models = [self.of_group(labels, j) for j in range(k)]
                fit = [[self.losses(m, *xy).sum() for m in models] for xy in self.train]
                moved = np.argmin(fit, axis=1)
                if (moved == labels).all():
                    break
                labels = moved
            cost = np.min(fit, axis=1).sum()
            if cost < least:
                least = cost
                best = self.error([models[j] for j in labels].__getitem__)
        return best

    def of_group(self, labels: np.ndarray, j: int) -> Any:
        """Fit the model of a group; an empty group gets the model of all rows."""
        members = [xy for xy, label in zip(self.train, labels) if label == j]
        return self.linear(*concatenate(members or self.train))

    def boosted(self) -> float:
        """Return the error of gradient boosting on all rows."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        kind = HistGradientBoostingClassifier
        if self.is_regression:
            kind = HistGradientBoostingRegressor
        model = kind(random_state=0).fit(*concatenate(self.train))
        return self.error(lambda i: model)

    def all(self) -> dict[str, float]:
        """Return the error of every reference, by name."""
        return {
            "pooled": self.pooled(),
            "per site, α=1": self.per_site(1.0),
            "per site, best α": min(map(self.per_site, ALPHAS)),
            "site intercepts": self.site_intercepts(),
            "grouped, best K": min(map(self.grouped, GROUPS)),
            "boosted": self.boosted(),
        }


class ConstantClassifier:
    """Predicts the smoothed frequency of the second class, for sites with one class only."""

    def __init__(self, y: np.ndarray) -> None:
        self.share = (float(y.sum()) + 1) / (len(y) + 2)

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """Return the same probabilities for every row, [n, 2]."""
        return np.tile([1 - self.share, self.share], (len(x), 1))


def rows(part: Ragged, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of one client, x [n, d] and y [n]."""
    x, y = part.client(i)
    return x.double().numpy(), y.double().numpy()


def concatenate(parts: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the rows of several clients."""
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
