"""From sums over clients' test rows to scores: of each client, and of all rows together.

Every score is computed from sums (`engines/evaluate.py`, `measured_sums`). The same formulas give a
client's score from its own sums, and the pooled score from the sums over all clients.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.task import Kind
from coterie.metrics.histogram import average_precision, roc_area

Row = dict[str, Any]
Arrays = dict[str, np.ndarray]


class Scores(NamedTuple):
    """One metric over the clients."""

    weighted: float  # by their number of test rows
    mean: float
    std: float
    worst_decile: float  # mean over the tenth of the clients that do worst, at least one


HIGHER_IS_BETTER = {
    "accuracy": True,
    "balanced_accuracy": True,
    "f1": True,
    "auc": True,
    "average_precision": True,
    "r2": True,
    "mse": False,
    "rmse": False,
    "mae": False,
    "loss": False,
    "brier": False,
}
POOLED_ONLY = ("loss", "brier", "average_precision")  # without mean and spread over clients
MOST_CONFUSION = 12  # classes up to which the whole confusion matrix is counted


# ------------------------------------------------------------------------------ formulas
def per_client(kind: Kind, report: dict[str, Tensor]) -> Arrays:
    """Each metric per client [N]; NaN where a client has no rows to measure on."""
    sums = {name: v.cpu().double().numpy() for name, v in report.items()}
    return scores_of_sums(kind, sums)


def pool(report: dict[str, Tensor]) -> Arrays:
    """The sums over all clients, each [...] without the clients' dimension."""
    return {name: v.cpu().double().sum(0).numpy() for name, v in report.items()}


def scores_of_sums(kind: Kind, sums: Arrays) -> Arrays:
    """Each metric [N] from sums [N, ...]; NaN where it is not defined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "regression":
            return regression_scores(sums)
        return classification_scores(sums)


def regression_scores(sums: Arrays) -> Arrays:
    """Errors in the target's own unit, and the share of its variance that is explained."""
    mse = sums["loss"] / sums["n"]
    spread = sums["y2"] - sums["y"] ** 2 / sums["n"]  # squared distances from the mean
    return {
        "rows": sums["n"],
        "loss": mse,
        "mse": mse,
        "rmse": np.sqrt(mse),
        "mae": sums["absolute"] / sums["n"],
        "r2": np.where(spread > 0, 1 - sums["loss"] / spread, np.nan),
    }


def classification_scores(sums: Arrays) -> Arrays:
    """Scores of classes and of their probabilities.

    Balanced accuracy and F1 are means over the classes. They need rows of two classes or more:
    where all rows are of one class, always guessing it would be perfect.
    """
    hit, true, guessed = class_counts(sums)
    has_several = (true > 0).sum(1) > 1
    recall = np.where(true > 0, hit / true, np.nan)
    f1 = np.where(true + guessed > 0, 2 * hit / (true + guessed), np.nan)
    result = {
        "rows": sums["n"],
        "loss": sums["loss"] / sums["n"],
        "brier": sums["brier"] / sums["n"],
        "accuracy": hit.sum(1) / sums["n"],
        "commonest": true.max(1) / sums["n"],  # always guessing the commonest class
        "balanced_accuracy": np.where(has_several, mean_of_known(recall), np.nan),
        "f1": np.where(has_several, mean_of_known(f1), np.nan),
    }
    if true.shape[1] == 2:
        result["auc"] = roc_area(sums["scored"])
        result["average_precision"] = average_precision(sums["scored"])
    return result


def class_counts(sums: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows that were right, rows there are, rows that were guessed) by class, each [N, C]."""
    if "confusion" not in sums:
        return sums["hit"], sums["true"], sums["guessed"]
    confusion = sums["confusion"]  # [N, true class, guessed class]
    return np.diagonal(confusion, axis1=1, axis2=2), confusion.sum(2), confusion.sum(1)


def mean_of_known(values: np.ndarray) -> np.ndarray:
    """Mean over the columns that are not NaN; NaN where all are."""
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(1) / known.sum(1)


# ------------------------------------------------------------------------------ over clients
def scores(values: np.ndarray, rows: np.ndarray, higher_is_better: bool) -> Scores:
    """Mean and spread of one metric over the clients that have it."""
    known = ~np.isnan(values)
    v, w = values[known], rows[known]
    if not len(v):
        return Scores(math.nan, math.nan, math.nan, math.nan)
    ordered = np.sort(v) if higher_is_better else np.sort(v)[::-1]
    tenth = ordered[: max(1, len(v) // 10)]
    with np.errstate(invalid="ignore"):  # an infinite loss has no spread
        std = float(v.std())
    return Scores(float((v * w).sum() / w.sum()), float(v.mean()), std, float(tenth.mean()))


def summary(kind: Kind, report: dict[str, Tensor], prefix: str = "") -> Row:
    """Flat columns: accuracy over all rows; accuracy_mean, _std and _worst over clients; …"""
    pooled = {name: v[None] for name, v in pool(report).items()}
    overall = scores_of_sums(kind, pooled)
    clients = per_client(kind, report)
    row: Row = {}
    if kind == "classification":
        # how often somebody is right who always guesses the commonest class: of all clients
        # together, and of each client
        row[f"{prefix}commonest"] = float(overall["commonest"][0])
        own = scores(clients["commonest"], clients["rows"], higher_is_better=True)
        row[f"{prefix}commonest_own"] = own.weighted
    for name, higher_is_better in HIGHER_IS_BETTER.items():
        if name not in clients:
            continue
        row[f"{prefix}{name}"] = float(overall[name][0])
        if name not in POOLED_ONLY:
            s = scores(clients[name], clients["rows"], higher_is_better)
            row[f"{prefix}{name}_mean"] = s.mean
            row[f"{prefix}{name}_std"] = s.std
            row[f"{prefix}{name}_worst"] = s.worst_decile
    return row


def pooled_counts(report: dict[str, Tensor]) -> Arrays:
    """What a report draws: the confusion matrix and the histogram of scores, of all clients."""
    drawn = {name: v for name, v in report.items() if name in ("confusion", "scored")}
    return pool(drawn)


# ------------------------------------------------------------------------------ on a client
def count_confusion(truth: Tensor, guess: Tensor, mask: Tensor, classes: int) -> Tensor:
    """How often each class was taken for each other, int32 [true class, guessed class]."""
    counts = torch.zeros(classes * classes, dtype=mask.dtype, device=mask.device)
    counts = counts.scatter_add(0, truth * classes + guess, mask)
    return counts.view(classes, classes).to(torch.int32)
