"""Test scores: the metrics that the server computes from clients' sums over their samples.

The server computes every metric from the sums of `sums.py`: per client from the client's own sums,
and pooled from the sums over all clients.

To add a metric, append a `Metric` to the list at the end of this file. It then appears in the rows
of metrics.jsonl, in clients.csv, in the output of `--json` and, with `in_table=True`, in the tables
of `coterie compare` and of the report. If it needs a new sum, see `sums.py`. For a metric of one
project there is `ct.ModelSpec(metrics=…)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from coterie.core.model_spec import RowMetric
from coterie.core.targets import KINDS, Kind
from coterie.metrics.histogram import average_precision, calibration_error, roc_area
from coterie.metrics.sums import SCORE_BINS, spread_metrics

Row = dict[str, Any]  # a row of metrics.jsonl
Arrays = dict[str, np.ndarray]
OwnMetrics = Mapping[str, RowMetric]  # of `ModelSpec`; clients sum them in this order
NO_METRICS: OwnMetrics = {}


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


def scores_per_client(kind: Kind, sums: dict[str, Tensor], own: OwnMetrics = NO_METRICS) -> Arrays:
    """Compute each metric per client.

    Args:
        kind: The kind of task.
        sums: Evaluation sums with a leading client dimension, [N, ...].
        own: Metrics of the model's spec.

    Returns:
        By name an array [N], NaN where a metric is undefined; "rows" is the number of samples. For
        classification, "commonest" is the share of the most frequent class, and "constant_log_loss"
        the log loss of predicting the shares of the classes for every sample.
    """
    as_arrays = {name: v.cpu().double().numpy() for name, v in sums.items()}
    return _compute_metrics(kind, as_arrays, own)


def pool_counts(sums: dict[str, Tensor]) -> Arrays:
    """Sum the confusion matrix and the histogram of predicted odds over clients, for a report."""
    return _sum_over_clients({k: v for k, v in sums.items() if k in ("confusion", "scored")})


def evaluation_row(
    kind: Kind, sums: dict[str, Tensor], prefix: str = "", own: OwnMetrics = NO_METRICS
) -> Row:
    """Compute the columns that an evaluation adds to a row of metrics.jsonl.

    Args:
        kind: The kind of task.
        sums: Evaluation sums with a leading client dimension, [N, ...].
        prefix: Put before each column name: "", "valid_" or "unseen_".
        own: Metrics of the model's spec.

    Returns:
        For each metric its pooled value and, for those with `per_client`, its summary over clients
        under the suffixes `_mean`, `_std` and `_worst`. `commonest` is the accuracy of predicting
        the most frequent class of all samples, `commonest_own` that of predicting each client's
        own; `constant_log_loss` and `constant_log_loss_own` are the same for the shares of the
        classes.
    """
    pooled_sums = {k: v[None] for k, v in _sum_over_clients(sums).items()}
    pooled = _compute_metrics(kind, pooled_sums, own)
    clients = scores_per_client(kind, sums, own)
    samples = clients["rows"]
    row: Row = {}
    for name in ("commonest", "constant_log_loss"):
        if name in pooled:
            row[f"{prefix}{name}"] = float(pooled[name][0])
            row[f"{prefix}{name}_own"] = score_clients(clients[name], samples, True).weighted
    shown = {name: metric.higher_is_better for name, metric in METRICS.items()}
    shown |= {name: metric.higher_is_better for name, metric in own.items()}
    pooled_only = {m.name for m in METRICS.values() if not m.per_client} - {main_metric(kind)}
    for name, higher_is_better in shown.items():
        if name not in clients:
            continue
        column = f"{prefix}{name}"
        row[column] = float(pooled[name][0])
        if name not in pooled_only:
            over_clients = score_clients(clients[name], samples, higher_is_better)
            row[f"{column}_mean"] = over_clients.mean
            row[f"{column}_std"] = over_clients.std
            row[f"{column}_worst"] = over_clients.worst_decile
    return row


def secure_evaluation_row(
    kind: Kind,
    sums: dict[str, Tensor],
    prefix: str = "",
    loss_unit: float = 1.0,
    own: OwnMetrics = NO_METRICS,
) -> Row:
    """Compute the columns of an evaluation from sums over clients alone.

    Args:
        kind: The kind of task.
        sums: Evaluation and spread sums over all clients, leaves [1, ...].
        prefix: Put before each column name.
        loss_unit: `Task.loss_unit`.
        own: Metrics of the model's spec.

    Returns:
        "measured", the number of clients; the pooled value of each metric; for `spread_metrics` the
        mean and standard deviation over clients and, from a histogram, that of the worst decile.
    """
    totals = _sum_over_clients(sums)
    moments, bins = totals.pop("score"), totals.pop("score_bins")
    pooled = _compute_metrics(kind, {k: v[None] for k, v in totals.items()}, own)
    row: Row = {f"{prefix}measured": round(moments[0, 0])}
    for name in ("commonest", *METRICS, *own):
        if name in pooled:
            row[f"{prefix}{name}"] = float(pooled[name][0])
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


def _compute_metrics(kind: Kind, sums: Arrays, own: OwnMetrics) -> Arrays:
    """Compute every metric that this kind of task has, [N], from sums [N, ...]."""
    scores = {"rows": sums["n"]}
    sums = _add_class_counts(sums)
    num_classes = 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if KINDS[kind].has_classes:
            num_classes = sums["true"].shape[1]
            scores["commonest"] = sums["true"].max(1) / sums["true"].sum(1)
            scores["constant_log_loss"] = _entropy(sums["true"])
        for metric in METRICS.values():
            is_known = metric.needs is None or metric.needs in sums
            if metric.compute is not None and metric.applies_to(kind, num_classes) and is_known:
                scores[metric.name] = metric.compute(sums)
        for place, name in enumerate(own):
            scores[name] = sums["own"][:, place] / sums["n"]
    return scores


def _add_class_counts(sums: Arrays) -> Arrays:
    """Add "hit", "true" and "guessed" per class or label, [N, C], of samples or their tokens."""
    if "confusion" in sums:
        confusion = sums["confusion"]  # [N, true class, predicted class]
        hit = np.diagonal(confusion, axis1=1, axis2=2)
        return {**sums, "hit": hit, "true": confusion.sum(2), "guessed": confusion.sum(1)}
    counts = {
        name: sums[f"{of}_{name}"]
        for of in ("token", "label")
        for name in ("hit", "true", "guessed")
        if f"{of}_{name}" in sums
    }
    return {**sums, **counts}


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
    tasks: tuple[Kind, ...] = ()  # the kinds of task that have it; (): all
    compute: Callable[[Arrays], np.ndarray] | None = None  # [N] from sums; None: see `clusters.py`
    higher_is_better: bool
    format: str = ".3f"
    unit: Literal["", "share", "target", "target²"] = ""
    binary_only: bool = False
    needs: str | None = None  # a sum that clients do not always send
    per_client: bool = True  # False: only the pooled value goes into metrics.jsonl
    in_table: bool = False  # a column of its own in the table of `compare` and of the report
    # the score per client of the best constant prediction, from the client's scores; NaN where it
    # is perfect
    score_of_constant: Callable[[Arrays], np.ndarray] | None = None
    constant: str = ""  # which prediction that is

    def applies_to(self, kind: Kind, num_classes: int) -> bool:
        """Return whether the metric is defined for a task."""
        has_kind = not self.tasks or kind in self.tasks
        return has_kind and (num_classes == 2 or not self.binary_only)

    def format_value(self, value: float) -> str:
        """Return a value as text, without its label."""
        return f"{value:{self.format}}"


def main_metric(kind: Kind) -> str:
    """Return the name of the metric that is easiest to read: for curves, targets and searches.

    Methods are compared by `find_comparison_metric`.

    Args:
        kind: The kind of task.

    Example:
        >>> import coterie as ct
        >>> ct.metrics.main_metric("regression")
        'mse'
    """
    return KINDS[kind].main_metric


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
    return next((name for name in ("mse", "log_loss", "accuracy", "loss") if name in known), None)


def find_main_metric(history: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the main metric that a run's rows contain; None before the first evaluation."""
    columns = {name for row in history for name in row}
    # the mean over clients is known of every main metric, but of the loss only if it is one
    candidates = dict.fromkeys(kind.main_metric for kind in KINDS.values())
    return next(
        (n for n in candidates if n in columns and (n != "loss" or "loss_mean" in columns)), None
    )


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
    if "r2" not in scores:  # of several outputs
        return np.full_like(scores["mse"], np.nan)
    unexplained = 1 - scores["r2"]
    has_variation = unexplained > 0
    return np.where(has_variation, scores["mse"], np.nan) / np.where(has_variation, unexplained, 1)


def _log_loss(sums: Arrays) -> np.ndarray:
    if "token_loss" in sums:
        return sums["token_loss"] / sums["token_true"].sum(1)
    return sums.get("log_loss", sums["loss"]) / sums["n"]


def _token_accuracy(sums: Arrays) -> np.ndarray:
    return sums["hit"].sum(1) / sums["true"].sum(1)


def _mean_iou(sums: Arrays) -> np.ndarray:
    union = sums["true"] + sums["guessed"] - sums["hit"]
    return np.nanmean(np.where(union > 0, sums["hit"] / union, np.nan), 1)


def _f1_of_labels(sums: Arrays) -> np.ndarray:
    total = sums["true"] + sums["guessed"]
    known = total > 0
    return np.where(known, 2 * sums["hit"] / total, 0).sum(1) / known.sum(1)


def _micro_f1(sums: Arrays) -> np.ndarray:
    return 2 * sums["hit"].sum(1) / (sums["true"] + sums["guessed"]).sum(1)


def _auc_of_labels(sums: Arrays) -> np.ndarray:
    by_label = np.stack([roc_area(counts) for counts in sums["label_scored"].swapaxes(0, 1)])
    known = ~np.isnan(by_label)
    return np.where(known, by_label, 0).sum(0) / known.sum(0)


NUMBERS: tuple[Kind, ...] = ("regression", "multioutput")
CLASSES: tuple[Kind, ...] = ("classification", "tokens", "segmentation")
_ALL = [
    Metric(
        name="accuracy",
        label="accuracy",
        description="the share of predictions that are right",
        tasks=("classification",),
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
        tasks=("classification", "tokens", "segmentation", "multilabel"),
        compute=_log_loss,
        higher_is_better=False,
        score_of_constant=_log_loss_of_class_shares,
        constant="the shares of the site's own classes",
    ),
    Metric(
        name="balanced_accuracy",
        label="balanced",
        description="the mean over classes of the share of their samples that is predicted right",
        tasks=CLASSES,
        compute=_balanced_accuracy,
        higher_is_better=True,
        unit="share",
    ),
    Metric(
        name="f1",
        label="F1",
        description="the mean over classes of the F1 score",
        tasks=CLASSES,
        compute=_f1,
        higher_is_better=True,
    ),
    Metric(
        name="auc",
        label="AUC",
        description="the area under the ROC curve",
        tasks=("classification",),
        compute=lambda sums: roc_area(sums["scored"]),
        higher_is_better=True,
        binary_only=True,
        in_table=True,
    ),
    Metric(
        name="calibration_error",
        label="calibration",
        description="the mean distance between predicted probabilities and observed shares",
        tasks=("classification",),
        compute=lambda sums: calibration_error(sums["scored"]),
        higher_is_better=False,
        per_client=False,
        in_table=True,
    ),
    Metric(
        name="average_precision",
        label="average precision",
        description="the mean precision over the samples of class 1",
        tasks=("classification",),
        compute=lambda sums: average_precision(sums["scored"]),
        higher_is_better=True,
        binary_only=True,
        per_client=False,
    ),
    Metric(
        name="mse",
        label="MSE",
        description="the mean squared error of predictions",
        tasks=NUMBERS,
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
        tasks=NUMBERS,
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
        tasks=NUMBERS,
        compute=lambda sums: sums["absolute"] / sums["n"],
        higher_is_better=False,
        format=".4g",
        unit="target",
    ),
    Metric(
        name="r2",
        label="R²",
        description="the share of the target's variance that is explained",
        tasks=("regression",),
        compute=_r2,
        higher_is_better=True,
        in_table=True,
    ),
    Metric(
        name="token_accuracy",
        label="token accuracy",
        description="the share of tokens that are predicted right",
        tasks=("tokens",),
        compute=_token_accuracy,
        higher_is_better=True,
        unit="share",
        score_of_constant=_accuracy_of_commonest_class,
        constant="the site's own commonest token",
    ),
    Metric(
        name="perplexity",
        label="perplexity",
        description="e to the mean of −log(probability that the model gave to the true token)",
        tasks=("tokens",),
        compute=lambda sums: np.exp(_log_loss(sums)),
        higher_is_better=False,
        in_table=True,
    ),
    Metric(
        name="pixel_accuracy",
        label="pixel accuracy",
        description="the share of pixels whose class is predicted right",
        tasks=("segmentation",),
        compute=_token_accuracy,
        higher_is_better=True,
        unit="share",
    ),
    Metric(
        name="mean_iou",
        label="mean IoU",
        description="the mean over classes of the intersection of the predicted and true pixels "
        "over their union",
        tasks=("segmentation",),
        compute=_mean_iou,
        higher_is_better=True,
        unit="share",
        in_table=True,
    ),
    Metric(
        name="micro_f1",
        label="micro F1",
        description="the F1 score over all labels of all samples",
        tasks=("multilabel",),
        compute=_micro_f1,
        higher_is_better=True,
    ),
    Metric(
        name="macro_f1",
        label="macro F1",
        description="the mean over labels of the F1 score",
        tasks=("multilabel",),
        compute=_f1_of_labels,
        higher_is_better=True,
        in_table=True,
    ),
    Metric(
        name="macro_auc",
        label="macro AUC",
        description="the mean over labels of the area under the ROC curve",
        tasks=("multilabel",),
        compute=_auc_of_labels,
        higher_is_better=True,
        needs="label_scored",
        in_table=True,
    ),
    Metric(
        name="micro_auc",
        label="micro AUC",
        description="the area under the ROC curve over all labels of all samples",
        tasks=("multilabel",),
        compute=lambda sums: roc_area(sums["label_scored"].sum(1)),
        higher_is_better=True,
        needs="label_scored",
        per_client=False,
    ),
    Metric(
        name="loss",
        label="loss",
        description="the mean loss",
        compute=lambda sums: sums["loss"] / sums["n"],
        higher_is_better=False,
        format=".4g",
        per_client=False,
    ),
    Metric(
        name="brier",
        label="Brier score",
        description="the mean squared difference between probabilities and true classes",
        tasks=("classification",),
        compute=lambda sums: sums["brier"] / sums["n"],
        higher_is_better=False,
        format=".4g",
        per_client=False,
    ),
    Metric(
        name="ari",
        label="ARI",
        description="the adjusted Rand index of the clusters and the planted groups",
        higher_is_better=True,
        format=".2f",
    ),
]
METRICS = {metric.name: metric for metric in _ALL}
