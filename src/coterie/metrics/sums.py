"""What a client sums over its samples in an evaluation; every metric is computed from these sums.

A client sends no scores of its samples but their sums (`sum_over_samples`). A sum over a single
sample is that sample's score: set the option `min_rows_to_report` above 1 to prevent it.

To add a sum, declare it in `EVALUATION_SUMS`, compute it in the function of `SUMS_OF_KIND` for its
kind of task, and run `python docs/pages.py`: docs/security.md lists what clients send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.core.contract import Finite, Fraction, Losses, Report, RowCount, TargetCount
from coterie.core.losses import CROSS_ENTROPY, binary_cross_entropy, cross_entropies_of_positions
from coterie.core.targets import Kind, prediction_of
from coterie.core.task import Batch, Task
from coterie.metrics.histogram import BINS, count_log_odds, log_odds_of_prediction

MAX_CONFUSION_CLASSES = 12  # above it, only the marginals of the confusion matrix are counted
MAX_SCORED_LABELS = 32  # above it, a multi-label task has no histograms of odds, and no AUC
SCORE_BINS = 20
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
    "token_loss": Losses("the sum of the log losses of tokens or pixels", secure="summed"),
    "token_hit": TargetCount(
        "by class: the number of tokens or pixels that are predicted right", secure="summed"
    ),
    "token_true": TargetCount("by class: the number of tokens or pixels", secure="summed"),
    "token_guessed": TargetCount(
        "by class: the number of predictions of tokens or pixels", secure="summed"
    ),
    "label_hit": TargetCount(
        "by label: the number of samples where it is predicted right", secure="summed"
    ),
    "label_true": TargetCount("by label: the number of samples that have it", secure="summed"),
    "label_guessed": TargetCount(
        "by label: the number of samples where it is predicted", secure="summed"
    ),
    "label_scored": TargetCount(
        "by label, for up to 32: a histogram of predicted log odds with 256 bins", secure="summed"
    ),
    "own": Finite("the sum of each metric of the model's own", secure="summed"),
}
SPREAD_SUMS: dict[str, Report] = {
    "score": Finite("1, its score and the square of its score, by metric", secure="summed"),
    "score_bins": Fraction("which of 20 bins its score is in, by metric", secure="summed"),
}


def sum_over_samples(task: Task, outputs: Any, batch: Batch) -> dict[str, Tensor]:
    """Compute one client's evaluation sums.

    Args:
        task: The model, which defines the loss.
        outputs: The model's outputs, such as [n, classes] or, for regression, [n].
        batch: The evaluated samples; those with mask 0 are padding.

    Returns:
        The sums that `EVALUATION_SUMS` declares for this kind of task.
    """
    sums = {"n": batch.mask.sum(), "loss": _masked_sum(task.row_losses(outputs, batch), batch)}
    sums |= SUMS_OF_KIND[task.kind](task, prediction_of(outputs), batch)
    metrics = task.spec.row_metrics().values()
    if metrics:
        values = [metric.function(outputs, task.targets(batch)) for metric in metrics]
        sums["own"] = torch.stack([torch.where(batch.mask > 0, v, 0.0).sum() for v in values])
    return sums


def _masked_sum(losses: Tensor, batch: Batch) -> Tensor:
    """Sum over the real samples; infinite if the model diverged."""
    real = torch.where(batch.mask > 0, losses, 0.0)
    return real.sum().nan_to_num(torch.inf, torch.inf)


# ------------------------------------------------------------------------------ kinds of task
def _sum_over_numbers(task: Task, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Sum the errors of a number, and the number itself for R²."""
    y = batch.y.double() * batch.mask
    errors = (outputs if outputs.dim() == 1 else outputs[:, 0]) - batch.y
    absolute = _masked_sum(errors.abs(), batch)
    sums = {"absolute": absolute, "y": y.sum(), "y2": (y * y).sum()}
    if task.spec.loss is None:
        return sums
    return {**sums, "squared": _masked_sum(errors.square(), batch)}


def _sum_over_outputs(task: Task, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Sum the mean errors over several numbers per sample."""
    errors = (outputs - batch.y).flatten(1)
    sums = {"absolute": _masked_sum(errors.abs().mean(1), batch)}
    if task.spec.loss is None:
        return sums
    return {**sums, "squared": _masked_sum(errors.square().mean(1), batch)}


def _sum_over_classes(task: Task, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
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
    if task.row_loss is not CROSS_ENTROPY:
        sums["log_loss"] = _masked_sum(CROSS_ENTROPY.values(outputs, batch.y), batch)
    if num_classes <= MAX_CONFUSION_CLASSES:
        counts = torch.zeros(num_classes**2, dtype=batch.mask.dtype, device=outputs.device)
        counts = counts.scatter_add(0, batch.y * num_classes + predicted, batch.mask)
        return {**sums, "confusion": counts.view(num_classes, num_classes).to(torch.int32)}
    real = batch.mask[:, None] > 0
    truth = truth & real
    guessed = (predicted[:, None] == classes) & real
    marginals = {"hit": truth & guessed, "true": truth, "guessed": guessed}
    return {**sums, **{name: marginal.sum(0) for name, marginal in marginals.items()}}


def _sum_over_tokens(task: Task, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Sum the log losses of tokens or pixels that are not ignored, and count them by class."""
    axis = task.target.row.class_axis
    assert axis is not None
    losses = cross_entropies_of_positions(outputs, batch.y, axis, task.target.ignore_index)
    counted = task.target.labelled(batch.y) & (batch.mask > 0).view(-1, *[1] * (batch.y.dim() - 1))
    predicted = outputs.argmax(axis)
    none = torch.zeros(outputs.shape[axis], dtype=torch.long, device=outputs.device)

    def count(classes: Tensor, of: Tensor) -> Tensor:
        chosen = torch.where(of, classes, 0).flatten()
        return none.scatter_add(0, chosen, of.flatten().long())

    return {
        "token_loss": _masked_sum(losses.flatten(1).sum(1), batch),
        "token_hit": count(batch.y, counted & (predicted == batch.y)),
        "token_true": count(batch.y, counted),
        "token_guessed": count(predicted, counted),
    }


def _sum_over_labels(task: Task, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Count by label the samples that have it and where it is predicted."""
    real = batch.mask[:, None] > 0
    truth, guessed = (batch.y > 0) & real, (outputs > 0) & real
    counts = {"label_hit": truth & guessed, "label_true": truth, "label_guessed": guessed}
    sums = {name: of_rows.sum(0) for name, of_rows in counts.items()}
    labels = outputs.shape[1]
    if labels <= MAX_SCORED_LABELS:
        scored = [
            count_log_odds(outputs[:, j], (batch.y[:, j] > 0).long(), batch.mask)
            for j in range(labels)
        ]
        sums["label_scored"] = torch.stack(scored).view(labels, 2, BINS)
    if task.spec.loss is not None or task.spec.class_weights is not None:
        log_losses = binary_cross_entropy().values(outputs, batch.y)
        sums["log_loss"] = _masked_sum(log_losses, batch)
    return sums


def _no_sums(task: Task, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
    return {}


SUMS_OF_KIND: dict[Kind, Callable[[Task, Tensor, Batch], dict[str, Tensor]]] = {
    "classification": _sum_over_classes,
    "regression": _sum_over_numbers,
    "tokens": _sum_over_tokens,
    "segmentation": _sum_over_tokens,
    "multilabel": _sum_over_labels,
    "multioutput": _sum_over_outputs,
    "custom": _no_sums,
    "self-supervised": _no_sums,
}


# ------------------------------------------------------------------------------ secure sums
def spread_metrics(kind: Kind) -> tuple[str, ...]:
    """Return the metrics whose spread over clients is known under secure sums."""
    if kind == "classification":
        return ("accuracy", "log_loss")
    return ("mse",) if kind == "regression" else ("loss",)


def spread_sums(task: Task, sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """Encode one client's scores so that their spread over clients follows from sums.

    Args:
        task: The model. Accuracy has bins of 0.05; losses have half octaves from 2⁻⁷ to 2³, for
            regression in units of the target's variance.
        sums: What `sum_over_samples` returned.

    Returns:
        The sums that `SPREAD_SUMS` declares, a row for each of `spread_metrics`.
    """
    summed = sums["loss"]
    if task.kind in ("classification", "regression"):
        summed = sums.get("squared", sums.get("log_loss", summed))
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
