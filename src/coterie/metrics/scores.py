"""Test scores: what a client sums over its samples, and the metrics computed from these sums.

A client sends no scores of its samples but their sums (`sum_over_samples`). A sum over a single
sample is that sample's score: set the option `min_rows_to_report` above 1 to prevent it. The server
computes every metric from the sums: per client from the client's own sums, and pooled from the sums
over all clients.

To add a metric, append a `Metric` to the list at the end of this file. It then appears in the rows
of metrics.jsonl, in clients.csv, in the output of `--json` and, with `in_table=True`, in the tables
of `coterie compare` and of the report. If it needs a new sum, add that to `EVALUATION_SUMS` and
`sum_over_samples`, and run `python docs/pages.py`: docs/security.md lists what clients send.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.contract import Finite, Fraction, Losses, Report, RowCount
from coterie.core.losses import CROSS_ENTROPY
from coterie.core.task import Batch, Kind, Task
from coterie.metrics.histogram import (
    average_precision,
    calibration_error,
    count_log_odds,
    log_odds_of_prediction,
    roc_area,
)

Row = dict[str, Any]  # a row of metrics.jsonl
Arrays = dict[str, np.ndarray]
MAX_CONFUSION_CLASSES = 12  # above it, only the marginals of the confusion matrix are counted


# ------------------------------------------------------------------------------ sums on a client
EVALUATION_SUMS: dict[str, Report] = {
    "n": RowCount("the number of samples", exact=True, secure="summed"),
    "loss": Losses("the sum of their losses", secure="summed"),
    "log_loss": Losses("the sum of their log losses, if the loss is another", secure="summed"),
    "absolute": Losses("the sum of their absolute errors", secure="summed"),
    "squared": Losses("the sum of their squared errors, if the loss is another", secure="summed"),
    "y": Finite("the sum of their targets", secure="summed"),
    "y2": Finite("the sum of their squared targets", minimum=0, secure="summed"),
    "brier": Losses(
        "the sum of squared differences between probabilities and true classes", secure="summed"
    ),
    "scored": RowCount(
        "a histogram of predicted log odds with 256 bins, by class or by right and wrong",
        exact=True,
        secure="summed",
    ),
    "confusion": RowCount(
        "the confusion matrix, for up to 12 classes", exact=True, secure="summed"
    ),
    "hit": RowCount("by class: the number of correct predictions", secure="summed"),
    "true": RowCount("by class: the number of samples", exact=True, secure="summed"),
    "guessed": RowCount("by class: the number of predictions", exact=True, secure="summed"),
}
SPREAD_SUMS: dict[str, Report] = {
    "score": Finite("1, its score and the square of its score, by metric", secure="summed"),
    "score_bins": Fraction("which of 20 bins its score is in, by metric", secure="summed"),
}


def sum_over_samples(task: Task, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Compute one client's evaluation sums.

    Args:
        task: The model, which defines the loss.
        outputs: The model's outputs, [n, classes] or, for regression, [n].
        batch: The evaluated samples; those with mask 0 are padding.

    Returns:
        The sums that `EVALUATION_SUMS` declares for this kind of task.
    """
    losses = task.row_loss.values(outputs, batch.y)
    sums = {"n": batch.mask.sum(), "loss": _masked_sum(losses, batch)}
    if task.kind == "regression":
        y = batch.y.double() * batch.mask
        errors = (outputs if outputs.dim() == 1 else outputs[:, 0]) - batch.y
        absolute = _masked_sum(errors.abs(), batch)
        sums |= {"absolute": absolute, "y": y.sum(), "y2": (y * y).sum()}
        if task.spec.loss is None:
            return sums
        return {**sums, "squared": _masked_sum(errors.square(), batch)}
    if task.row_loss is not CROSS_ENTROPY:
        log_losses = CROSS_ENTROPY.values(outputs, batch.y)
        sums["log_loss"] = _masked_sum(log_losses, batch)
    return {**sums, **_sum_over_classes(outputs, batch)}


SCORE_BINS = 20


def spread_metrics(kind: Kind) -> tuple[str, ...]:
    """Return the metrics whose spread over clients is known under secure sums."""
    return ("mse",) if kind == "regression" else ("accuracy", "log_loss")


def spread_sums(task: Task, sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """Encode one client's scores so that their spread over clients follows from sums.

    Args:
        task: The model. Accuracy has bins of 0.05; losses have half octaves from 2⁻⁷ to 2³, for
            regression in units of the target's variance.
        sums: What `sum_over_samples` returned.

    Returns:
        The sums that `SPREAD_SUMS` declares, a row for each of `spread_metrics`.
    """
    summed = sums.get("squared", sums.get("log_loss", sums["loss"]))
    loss = (summed / sums["n"] / task.loss_unit).double()
    scores, places = [loss], [2 * (loss.clamp(min=1e-30).log2() + 7)]
    if task.kind == "classification":
        hits = sums["confusion"].diagonal() if "confusion" in sums else sums["hit"]
        accuracy = (hits.sum() / sums["n"]).double()
        scores, places = [accuracy, loss], [accuracy * SCORE_BINS, *places]
    score, place = torch.stack(scores), torch.stack(places)
    chosen = place.nan_to_num(0.0).floor().clamp(0, SCORE_BINS - 1)
    bins = torch.arange(SCORE_BINS, device=score.device)
    return {
        "score": torch.stack([torch.ones_like(score), score, score * score], 1),
        "score_bins": (bins == chosen[:, None]).long(),
    }


def _masked_sum(losses: Tensor, batch: Batch) -> Tensor:
    """Sum over the real samples; infinite if the model diverged."""
    real = torch.where(batch.mask > 0, losses, 0.0)
    return real.sum().nan_to_num(torch.inf, torch.inf)


def _sum_over_classes(outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Count samples by class and by predicted odds, and sum squared errors of probabilities."""
    num_classes = outputs.shape[-1]
    classes = torch.arange(num_classes, device=outputs.device)
    truth = batch.y[:, None] == classes
    predicted = outputs.argmax(-1)
    errors = ((outputs.softmax(-1) - truth.to(outputs.dtype)) ** 2).sum(-1)
    if num_classes == 2:  # both classes have the same error, which counts once
        errors = errors / 2
        scored = count_log_odds(outputs[:, 1] - outputs[:, 0], batch.y, batch.mask)
    else:
        is_correct = (predicted == batch.y).long()
        scored = count_log_odds(log_odds_of_prediction(outputs), is_correct, batch.mask)
    sums = {"brier": _masked_sum(errors, batch), "scored": scored}
    if num_classes <= MAX_CONFUSION_CLASSES:
        counts = torch.zeros(num_classes**2, dtype=batch.mask.dtype, device=outputs.device)
        counts = counts.scatter_add(0, batch.y * num_classes + predicted, batch.mask)
        return {**sums, "confusion": counts.view(num_classes, num_classes).to(torch.int32)}
    real = batch.mask[:, None] > 0
    truth = truth & real
    guessed = (predicted[:, None] == classes) & real
    marginals = {"hit": truth & guessed, "true": truth, "guessed": guessed}
    return {**sums, **{name: marginal.sum(0) for name, marginal in marginals.items()}}


# ------------------------------------------------------------------------------ from sums to scores
class Scores(NamedTuple):
    """One metric, summarised over clients.

    Args:
        weighted: The mean, weighted by the clients' numbers of test samples.
        mean: The unweighted mean.
        std: The standard deviation over clients.
        worst_decile: The mean over the worst tenth of the clients, at least one.

    Example:
        >>> import coterie as ct, numpy as np
        >>> accuracy = np.array([0.5, 1.0])
        >>> ct.metrics.score_clients(accuracy, samples=np.array([10, 30]), higher_is_better=True)
        Scores(weighted=0.875, mean=0.75, std=0.25, worst_decile=0.5)
    """

    weighted: float
    mean: float
    std: float
    worst_decile: float


def score_clients(values: np.ndarray, samples: np.ndarray, higher_is_better: bool) -> Scores:
    """Summarise one metric over the clients for which it is defined.

    Args:
        values: The metric per client, [N]; NaN where it is undefined.
        samples: The number of test samples per client, [N].
        higher_is_better: The direction, which decides which clients are the worst.

    Returns:
        Weighted mean, mean, standard deviation and mean of the worst decile; all NaN if no client
        has a value.

    Example:
        >>> import coterie as ct, numpy as np
        >>> mse = np.array([1.0, 3.0, np.nan])
        >>> ct.metrics.score_clients(mse, np.array([5, 5, 0]), higher_is_better=False).mean
        2.0
    """
    known = ~np.isnan(values)
    v, w = values[known], samples[known]
    if not len(v):
        return Scores(math.nan, math.nan, math.nan, math.nan)
    worst_first = np.sort(v) if higher_is_better else np.sort(v)[::-1]
    tenth = worst_first[: max(1, len(v) // 10)]
    with np.errstate(invalid="ignore"):  # an infinite loss has no deviation
        std = float(v.std())
    return Scores(float((v * w).sum() / w.sum()), float(v.mean()), std, float(tenth.mean()))


def scores_per_client(kind: Kind, sums: dict[str, Tensor]) -> Arrays:
    """Compute each metric per client.

    Args:
        kind: The kind of task.
        sums: Evaluation sums with a leading client dimension, [N, ...].

    Returns:
        By name an array [N], NaN where a metric is undefined; "rows" is the number of samples. For
        classification, "commonest" is the share of the most frequent class, and "constant_log_loss"
        the log loss of predicting the shares of the classes for every sample.
    """
    return _compute_metrics(kind, {name: v.cpu().double().numpy() for name, v in sums.items()})


def pool_counts(sums: dict[str, Tensor]) -> Arrays:
    """Sum the confusion matrix and the histogram of predicted odds over clients, for a report."""
    return _sum_over_clients({k: v for k, v in sums.items() if k in ("confusion", "scored")})


def evaluation_row(kind: Kind, sums: dict[str, Tensor], prefix: str = "") -> Row:
    """Compute the columns that an evaluation adds to a row of metrics.jsonl.

    Args:
        kind: The kind of task.
        sums: Evaluation sums with a leading client dimension, [N, ...].
        prefix: Put before each column name: "", "valid_" or "unseen_".

    Returns:
        For each metric its pooled value and, for those with `per_client`, its summary over clients
        under the suffixes `_mean`, `_std` and `_worst`. `commonest` is the accuracy of predicting
        the most frequent class of all samples, `commonest_own` that of predicting each client's
        own; `constant_log_loss` and `constant_log_loss_own` are the same for the shares of the
        classes.
    """
    pooled = _compute_metrics(kind, {k: v[None] for k, v in _sum_over_clients(sums).items()})
    clients = scores_per_client(kind, sums)
    samples = clients["rows"]
    row: Row = {}
    if kind == "classification":
        for name in ("commonest", "constant_log_loss"):
            row[f"{prefix}{name}"] = float(pooled[name][0])
            row[f"{prefix}{name}_own"] = score_clients(clients[name], samples, True).weighted
    for metric in METRICS.values():
        if metric.name not in clients:
            continue
        column = f"{prefix}{metric.name}"
        row[column] = float(pooled[metric.name][0])
        if metric.per_client:
            over_clients = score_clients(clients[metric.name], samples, metric.higher_is_better)
            row[f"{column}_mean"] = over_clients.mean
            row[f"{column}_std"] = over_clients.std
            row[f"{column}_worst"] = over_clients.worst_decile
    return row


def secure_evaluation_row(
    kind: Kind, sums: dict[str, Tensor], prefix: str = "", loss_unit: float = 1.0
) -> Row:
    """Compute the columns of an evaluation from sums over clients alone.

    Args:
        kind: The kind of task.
        sums: Evaluation and spread sums over all clients, leaves [1, ...].
        prefix: Put before each column name.
        loss_unit: `Task.loss_unit`.

    Returns:
        "measured", the number of clients; the pooled value of each metric; for `spread_metrics` the
        mean and standard deviation over clients and, from a histogram, that of the worst decile.
    """
    totals = _sum_over_clients(sums)
    moments, bins = totals.pop("score"), totals.pop("score_bins")
    pooled = _compute_metrics(kind, {k: v[None] for k, v in totals.items()})
    row: Row = {f"{prefix}measured": round(moments[0, 0])}
    if kind == "classification":
        row[f"{prefix}commonest"] = float(pooled["commonest"][0])
    for metric in METRICS.values():
        if metric.name in pooled:
            row[f"{prefix}{metric.name}"] = float(pooled[metric.name][0])
    unit = loss_unit if kind == "regression" else 1.0
    for name, (count, total, squares), of_bins in zip(spread_metrics(kind), moments, bins):
        mean = total / count
        column = f"{prefix}{name}"
        row[f"{column}_mean"] = float(unit * mean)
        row[f"{column}_std"] = float(unit * math.sqrt(max(0.0, squares / count - mean**2)))
        higher_is_better = METRICS[name].higher_is_better
        row[f"{column}_worst"] = unit * worst_decile_of_bins(of_bins, higher_is_better)
    return row


def worst_decile_of_bins(bins: np.ndarray, higher_is_better: bool) -> float:
    """Compute the mean of the worst tenth of the clients, each at the middle of its bin.

    Args:
        bins: The number of clients in each bin, [20]; see `spread_sums`.
        higher_is_better: Whether the bins are those of the accuracy; else those of a loss.

    Example:
        >>> import numpy as np
        >>> from coterie.metrics.scores import worst_decile_of_bins
        >>> bins = np.zeros(20)
        >>> bins[10], bins[19] = 1, 9
        >>> worst_decile_of_bins(bins, higher_is_better=True)
        0.525
    """
    places = np.arange(SCORE_BINS) + 0.5
    values, counts = places / SCORE_BINS, bins
    if not higher_is_better:
        values, counts = (2.0 ** (places / 2 - 7))[::-1], bins[::-1]
    tenth = max(1, int(bins.sum()) // 10)
    before = np.cumsum(counts) - counts
    taken = np.clip(tenth - before, 0, counts)
    return float((taken * values).sum() / tenth)


def _sum_over_clients(sums: dict[str, Tensor]) -> Arrays:
    return {name: v.cpu().double().sum(0).numpy() for name, v in sums.items()}


def _compute_metrics(kind: Kind, sums: Arrays) -> Arrays:
    """Compute every metric that this kind of task has, [N], from sums [N, ...]."""
    scores = {"rows": sums["n"]}
    num_classes = 0
    if kind == "classification":
        sums = _add_class_counts(sums)
        num_classes = sums["true"].shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "classification":
            scores["commonest"] = sums["true"].max(1) / sums["n"]
            scores["constant_log_loss"] = _entropy(sums["true"])
        for metric in METRICS.values():
            if metric.compute is not None and metric.applies_to(kind, num_classes):
                scores[metric.name] = metric.compute(sums)
    return scores


def _add_class_counts(sums: Arrays) -> Arrays:
    """Add "hit", "true" and "guessed" per class, [N, C], where the confusion matrix was counted."""
    if "confusion" not in sums:
        return sums
    confusion = sums["confusion"]  # [N, true class, predicted class]
    hit = np.diagonal(confusion, axis1=1, axis2=2)
    return {**sums, "hit": hit, "true": confusion.sum(2), "guessed": confusion.sum(1)}


# ------------------------------------------------------------------------------ metrics
@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: how it is computed, and how it is shown.

    Example:
        >>> import coterie as ct
        >>> mse = ct.metrics.METRICS["mse"]
        >>> mse.label, mse.higher_is_better, mse.format_value(0.123456)
        ('MSE', False, '0.1235')
    """

    name: str  # the column in metrics.jsonl, and in the JSON and CSV output
    label: str  # in tables and sentences
    description: str  # completes "LABEL is …"
    task: Kind | Literal["any"]
    compute: Callable[[Arrays], np.ndarray] | None = None  # [N] from sums; None: see `clusters.py`
    higher_is_better: bool
    format: str = ".3f"
    unit: Literal["", "share", "target", "target²"] = ""
    binary_only: bool = False
    per_client: bool = True  # False: only the pooled value goes into metrics.jsonl
    in_table: bool = False  # a column of its own in the table of `compare` and of the report
    # the score per client of the best constant prediction, from the client's scores; NaN where it
    # is perfect
    score_of_constant: Callable[[Arrays], np.ndarray] | None = None
    constant: str = ""  # which prediction that is

    def applies_to(self, kind: Kind, num_classes: int) -> bool:
        """Return whether the metric is defined for a task."""
        return self.task in (kind, "any") and (num_classes == 2 or not self.binary_only)

    def format_value(self, value: float) -> str:
        """Return a value as text, without its label."""
        return f"{value:{self.format}}"


def main_metric(kind: Kind) -> str:
    """Return the name of the metric that is easiest to read: for curves, targets and searches.

    Methods are compared by `find_comparison_metric`.

    Args:
        kind: "classification" or "regression".

    Example:
        >>> import coterie as ct
        >>> ct.metrics.main_metric("regression")
        'mse'
    """
    return "mse" if kind == "regression" else "accuracy"


def find_comparison_metric(columns: Iterable[str]) -> str | None:
    """Return the metric that decides which method is better; None without any score.

    It is the log loss in classification: where one class is common, the accuracy of a useful model
    and of a constant guess are often the same.

    Args:
        columns: The scores that are known.

    Example:
        >>> from coterie.metrics import find_comparison_metric
        >>> find_comparison_metric(["accuracy", "log_loss"])
        'log_loss'
    """
    known = set(columns)
    return next((name for name in ("mse", "log_loss", "accuracy") if name in known), None)


def find_main_metric(history: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the main metric that a run's rows contain; None before the first evaluation."""
    columns = {name for row in history for name in row}
    candidates = [main_metric("regression"), main_metric("classification")]
    return next((name for name in candidates if name in columns), None)


def _squared_errors(sums: Arrays) -> np.ndarray:
    return sums.get("squared", sums["loss"])


def _r2(sums: Arrays) -> np.ndarray:
    variation = sums["y2"] - sums["y"] ** 2 / sums["n"]  # Σ (y − mean)²
    return np.where(variation > 0, 1 - _squared_errors(sums) / variation, np.nan)


def _mean_over_classes(per_class: np.ndarray, sums: Arrays) -> np.ndarray:
    """Average over the classes that have a value; NaN for clients whose samples have one class.

    With one class, predicting it always would be perfect.
    """
    known = ~np.isnan(per_class)
    means = np.where(known, per_class, 0).sum(1) / known.sum(1)
    has_several = (sums["true"] > 0).sum(1) > 1
    return np.where(has_several, means, np.nan)


def _balanced_accuracy(sums: Arrays) -> np.ndarray:
    recall = np.where(sums["true"] > 0, sums["hit"] / sums["true"], np.nan)
    return _mean_over_classes(recall, sums)


def _f1(sums: Arrays) -> np.ndarray:
    total = sums["true"] + sums["guessed"]
    return _mean_over_classes(np.where(total > 0, 2 * sums["hit"] / total, np.nan), sums)


def _accuracy_of_commonest_class(scores: Arrays) -> np.ndarray:
    return np.where(scores["commonest"] < 1, scores["commonest"], np.nan)


def _entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy [N] of class counts [N, C] in nats; NaN without samples."""
    share = counts / counts.sum(1, keepdims=True)
    return -(share * np.log(np.where(share > 0, share, 1))).sum(1)


def _log_loss_of_class_shares(scores: Arrays) -> np.ndarray:
    entropy = scores["constant_log_loss"]
    return np.where(entropy > 0, entropy, np.nan)


def _mse_of_mean(scores: Arrays) -> np.ndarray:
    unexplained = 1 - scores["r2"]
    has_variation = unexplained > 0
    return np.where(has_variation, scores["mse"], np.nan) / np.where(has_variation, unexplained, 1)


_ALL = [
    Metric(
        name="accuracy",
        label="accuracy",
        description="the share of predictions that are right",
        task="classification",
        compute=lambda sums: sums["hit"].sum(1) / sums["n"],
        higher_is_better=True,
        unit="share",
        score_of_constant=_accuracy_of_commonest_class,
        constant="the site's own most frequent class",
    ),
    Metric(
        name="log_loss",
        label="log loss",
        description="the mean of −log(probability that the model gave to the true class)",
        task="classification",
        compute=lambda sums: sums.get("log_loss", sums["loss"]) / sums["n"],
        higher_is_better=False,
        score_of_constant=_log_loss_of_class_shares,
        constant="the shares of the site's own classes",
    ),
    Metric(
        name="balanced_accuracy",
        label="balanced",
        description="the mean over classes of the share of their samples that is predicted right",
        task="classification",
        compute=_balanced_accuracy,
        higher_is_better=True,
        unit="share",
    ),
    Metric(
        name="f1",
        label="F1",
        description="the mean over classes of the F1 score",
        task="classification",
        compute=_f1,
        higher_is_better=True,
    ),
    Metric(
        name="auc",
        label="AUC",
        description="the area under the ROC curve",
        task="classification",
        compute=lambda sums: roc_area(sums["scored"]),
        higher_is_better=True,
        binary_only=True,
        in_table=True,
    ),
    Metric(
        name="calibration_error",
        label="calibration",
        description="the mean distance between predicted probabilities and observed shares",
        task="classification",
        compute=lambda sums: calibration_error(sums["scored"]),
        higher_is_better=False,
        per_client=False,
        in_table=True,
    ),
    Metric(
        name="average_precision",
        label="average precision",
        description="the mean precision over the samples of class 1",
        task="classification",
        compute=lambda sums: average_precision(sums["scored"]),
        higher_is_better=True,
        binary_only=True,
        per_client=False,
    ),
    Metric(
        name="mse",
        label="MSE",
        description="the mean squared error of predictions",
        task="regression",
        compute=lambda sums: _squared_errors(sums) / sums["n"],
        higher_is_better=False,
        format=".4g",
        unit="target²",
        score_of_constant=_mse_of_mean,
        constant="the site's own mean",
    ),
    Metric(
        name="rmse",
        label="RMSE",
        description="the square root of the mean squared error",
        task="regression",
        compute=lambda sums: np.sqrt(_squared_errors(sums) / sums["n"]),
        higher_is_better=False,
        format=".4g",
        unit="target",
        in_table=True,
    ),
    Metric(
        name="mae",
        label="MAE",
        description="the mean absolute error of predictions",
        task="regression",
        compute=lambda sums: sums["absolute"] / sums["n"],
        higher_is_better=False,
        format=".4g",
        unit="target",
    ),
    Metric(
        name="r2",
        label="R²",
        description="the share of the target's variance that is explained",
        task="regression",
        compute=_r2,
        higher_is_better=True,
        in_table=True,
    ),
    Metric(
        name="loss",
        label="loss",
        description="the mean loss",
        task="any",
        compute=lambda sums: sums["loss"] / sums["n"],
        higher_is_better=False,
        format=".4g",
        per_client=False,
    ),
    Metric(
        name="brier",
        label="Brier score",
        description="the mean squared difference between probabilities and true classes",
        task="classification",
        compute=lambda sums: sums["brier"] / sums["n"],
        higher_is_better=False,
        format=".4g",
        per_client=False,
    ),
    Metric(
        name="ari",
        label="ARI",
        description="the adjusted Rand index of the clusters and the planted groups",
        task="any",
        higher_is_better=True,
        format=".2f",
    ),
]
METRICS = {metric.name: metric for metric in _ALL}
