"""Reference models with all rows in one place, which no federation has.

They show what keeping rows at their sites costs, and whether a simple model would do: ridge or
logistic regression, gradient boosting, and for a label of numbers a linear mixed model with an
intercept for each site (statsmodels, extra `references`). A comparison of tables fits them to the
same training rows as its methods and scores them on the same test rows.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from coterie.core.errors import CoterieError
from coterie.core.task import Batch
from coterie.data.federation import Federation, Ragged
from coterie.metrics import Row
from coterie.metrics.scores import evaluation_row
from coterie.metrics.sums import sum_over_samples
from coterie.runs.config import encode_readable
from coterie.runs.files import write_text
from coterie.runs.options import Options
from coterie.runs.start import create_task

log = logging.getLogger("coterie")

REFERENCES = "references.json"  # in the folder of a comparison
MOST_NUMBERS = 20_000_000  # rows times columns; larger tables would take minutes
MIN_PROBABILITY = 1e-6
RIDGES = np.logspace(-2, 4, 13)  # strengths, of which leave-one-out errors choose one
Predict = Callable[[np.ndarray, np.ndarray], np.ndarray]  # rows and their sites to outputs


class ReferenceList(msgspec.Struct):
    """The content of references.json: scores by reference and seed."""

    rows: list[dict[str, Any]]


def fit_references(fed: Federation, seed: int) -> list[Row]:
    """Fit reference models to the training rows of all clients and score them.

    Args:
        fed: The data; its samples must be tables.
        seed: The seed of the data, which is noted in each row.

    Returns:
        A row per reference, as of a run: "method", "seed", "seconds" and scores on the test rows.
        Empty if the data are no tables, have no test rows or are very large.

    Example:
        >>> import coterie as ct
        >>> from coterie.runs.references import fit_references
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=1)
        >>> [row["method"] for row in fit_references(fed, seed=0)][:2]
        ['ridge regression', 'gradient boosting']
    """
    if fed.kind not in ("classification", "regression") or fed.fields:
        return []
    x, y, site = gather_rows(fed.train, len(fed))
    if x.ndim != 2 or x.size > MOST_NUMBERS or not len(fed.test.y):
        return []
    references: dict[str, Callable[[], Predict | None]]
    if fed.kind == "regression":
        references = {
            "ridge regression": lambda: fit_ridge(x, y),
            "gradient boosting": lambda: fit_boosted_regression(x, y),
            "linear mixed model": lambda: fit_mixed_model(x, y, site),
        }
    elif len(np.unique(y)) < 2:
        return []
    else:
        references = {
            "logistic regression": lambda: fit_logistic(x, y, fed.classes or 2),
            "gradient boosting": lambda: fit_boosted_classes(x, y, fed.classes or 2),
        }
    rows = []
    for name, fit in references.items():
        began = time.perf_counter()
        with warnings.catch_warnings(action="ignore"):  # of solvers: their scores speak
            predict = fit()
        if predict is not None:
            seconds = time.perf_counter() - began
            rows.append({"method": name, "seed": seed, "seconds": seconds, **score(fed, predict)})
    return rows


def gather_rows(part: Ragged, clients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of all clients in one place: x [n, ...], y [n] and their clients [n]."""
    pairs = [part.client(i) for i in range(clients)]
    x, y = (np.concatenate([pair[j].double().numpy() for pair in pairs]) for j in (0, 1))
    return x, y, np.repeat(np.arange(clients), [len(pair[1]) for pair in pairs])


def score(fed: Federation, predict: Predict) -> Row:
    """Score outputs on the test rows of all clients, as an evaluation of a run."""
    x, y, site = gather_rows(fed.test, len(fed))
    task, _ = create_task(fed.roster, None, Options())
    outputs = torch.from_numpy(predict(x, site))
    targets = torch.from_numpy(y)
    if fed.kind == "classification":
        targets = targets.long()
    counts = np.bincount(site, minlength=len(fed)).tolist()
    sums = []
    for own, label in zip(outputs.split(counts), targets.split(counts)):
        sums.append(sum_over_samples(task, own, Batch.of(own, label, torch.float64)))
    stacked = {name: torch.stack([of_client[name] for of_client in sums]) for name in sums[0]}
    return evaluation_row(fed.kind, stacked)


# ------------------------------------------------------------------------------ the models
def fit_ridge(x: np.ndarray, y: np.ndarray) -> Predict:
    """Ridge regression; leave-one-out errors choose its strength."""
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(RIDGES).fit(x, y)
    return lambda rows, site: model.predict(rows)


def fit_boosted_regression(x: np.ndarray, y: np.ndarray) -> Predict:
    """Gradient boosting of trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(random_state=0).fit(x, y)
    return lambda rows, site: model.predict(rows)


def fit_mixed_model(x: np.ndarray, y: np.ndarray, site: np.ndarray) -> Predict | None:
    """A linear mixed model with random intercepts; None without statsmodels."""
    try:
        from statsmodels.regression.mixed_linear_model import MixedLM
    except ImportError:
        log.info("without statsmodels no linear mixed model: pip install 'coterie[references]'")
        return None
    columns = np.column_stack([np.ones(len(x)), x])
    _, r = np.linalg.qr(columns)
    diagonal = np.abs(np.diag(r))
    free = np.flatnonzero(diagonal > 1e-8 * diagonal.max())  # the others are collinear
    try:
        fit = MixedLM(y, columns[:, free], groups=site).fit()
    except (np.linalg.LinAlgError, ValueError) as why:
        log.info("statsmodels cannot fit a linear mixed model: %s", why)
        return None
    levels = np.zeros(site.max() + 1)
    for number, effect in fit.random_effects.items():
        levels[number] = np.asarray(effect)[0]

    def predict(rows: np.ndarray, of_site: np.ndarray) -> np.ndarray:
        outputs = np.column_stack([np.ones(len(rows)), rows])[:, free] @ fit.fe_params
        known = of_site < len(levels)
        return outputs + np.where(known, levels[np.where(known, of_site, 0)], 0.0)

    return predict


def fit_logistic(x: np.ndarray, y: np.ndarray, classes: int) -> Predict:
    """Logistic regression with an ℓ2 penalty of 1."""
    from sklearn.linear_model import LogisticRegression

    return log_probabilities(LogisticRegression(max_iter=2000).fit(x, y), classes)


def fit_boosted_classes(x: np.ndarray, y: np.ndarray, classes: int) -> Predict:
    """Gradient boosting of trees."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return log_probabilities(HistGradientBoostingClassifier(random_state=0).fit(x, y), classes)


def log_probabilities(model: Any, classes: int) -> Predict:
    """Return the log probability of each class [n, classes], also of classes without a row."""

    def predict(rows: np.ndarray, site: np.ndarray) -> np.ndarray:
        probabilities = np.zeros((len(rows), classes))
        probabilities[:, model.classes_.astype(int)] = model.predict_proba(rows)
        probabilities = np.maximum(probabilities, MIN_PROBABILITY)
        return np.log(probabilities / probabilities.sum(1, keepdims=True))

    return predict


# ------------------------------------------------------------------------------ files
def write_references(base: Path, rows: Sequence[Row]) -> None:
    """Write references.json into the folder of a comparison; nothing without rows."""
    if rows:
        write_text(base / REFERENCES, encode_readable(ReferenceList([*rows])))


def read_references(base: Path) -> list[Row]:
    """Read the references of a comparison; empty if it has none.

    Raises:
        CoterieError: If the file is damaged.
    """
    file = base / REFERENCES
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        rows = msgspec.json.decode(raw, type=ReferenceList).rows
    except (msgspec.DecodeError, UnicodeDecodeError):
        rows = None
    if rows is None or not all({"method", "seed"} <= row.keys() for row in rows):
        raise CoterieError(f"{file} is damaged", "delete it: reports then have no references")
    return rows
