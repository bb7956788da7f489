"""Kinds of task: what targets y look like, the outputs that fit them, and the default loss.

This is the one place that distinguishes them; `KINDS` is the table. With C classes and n rows:

    kind               y                        outputs        loss of a row
    classification     class numbers [n]        [n, C]         cross-entropy
    regression         numbers [n]              [n] or [n, 1]  squared error
    tokens             class numbers [n, T]     [n, T, C]      mean cross-entropy of its tokens
    segmentation       class numbers [n, H, W]  [n, C, H, W]   mean cross-entropy of its pixels
    multilabel         0 or 1, [n, C]           [n, C]         mean binary cross-entropy
    multioutput        numbers [n, ...]         [n, ...]       mean squared error
    custom             numbers [n, ...]         any            a loss of one's own
    self-supervised    none                     any            a loss of outputs and inputs

Tokens and pixels that have the label `ignore_index` count nowhere: neither in the loss, whose mean
is over the others of the row, nor in a metric. A row without any others has the loss 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.losses import (
    CROSS_ENTROPY,
    MEAN_SQUARED_ERROR,
    SQUARED_ERROR,
    RowLoss,
    binary_cross_entropy,
    check_class_weights,
    position_cross_entropy,
    weighted_cross_entropy,
)
from coterie.core.trees import tree_leaves

Kind = Literal[
    "classification",
    "regression",
    "tokens",
    "segmentation",
    "multilabel",
    "multioutput",
    "custom",
    "self-supervised",
]
IGNORE_INDEX = -100  # torch's default, too


@dataclass(frozen=True)
class Target:
    """The targets of a task.

    Args:
        kind: One of `KINDS`.
        classes: Number of classes, or of labels with "multilabel"; None without classes.
        shape: Of one row's target: () for a number or class, (T,) for tokens, (0,) for none.
        ignore_index: The label of tokens and pixels that do not count.

    Example:
        >>> import coterie as ct
        >>> ct.Target("tokens", classes=80, shape=(20,)).output_shape
        (20, 80)
    """

    kind: Kind
    classes: int | None = None
    shape: tuple[int, ...] = ()
    ignore_index: int = IGNORE_INDEX

    @property
    def row(self) -> TaskKind:
        """The row of `KINDS`."""
        return KINDS[self.kind]

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """The shape of one row's output; None: any."""
        return self.row.output_shape(self)

    def example(self, rows: int, dtype: torch.dtype) -> Tensor:
        """Targets of some rows, all 0."""
        return torch.zeros(rows, *self.shape, dtype=torch.int64 if self.row.has_classes else dtype)

    def default_loss(self, weights: Sequence[float] | None, dtype: torch.dtype) -> RowLoss | None:
        """The loss of rows, with a weight per class; None if a loss of one's own is required.

        Raises:
            CoterieError: If weights do not fit.
        """
        of_class = None
        if weights is not None:
            of_class = check_class_weights(weights, self.classes, dtype)
        return self.row.loss(self, of_class)

    def check_outputs(self, outputs: Tensor, own_loss: bool) -> None:
        """Raise a `CoterieError` if the outputs of some rows do not fit the targets.

        Args:
            outputs: [n, ...].
            own_loss: Whether the loss is one's own. It may have several outputs for one number,
                of which the first is the prediction.
        """
        found, wanted = tuple(outputs.shape[1:]), self.output_shape
        if wanted is None or (self.kind == "regression" and (found == (1,) or own_loss)):
            return
        axis = self.row.class_axis
        if axis is not None and len(found) == len(wanted):  # further classes do no harm
            place = axis % (len(wanted) + 1) - 1
            if found[place] >= wanted[place]:
                found = (*found[:place], wanted[place], *found[place + 1 :])
        if found == wanted:
            return
        shape = tuple(outputs.shape[1:])
        if self.kind == "classification":
            raise CoterieError(
                f"the model gives outputs of shape {shape} per row, but the data have "
                f"{self.classes} classes: its last layer must have {self.classes} outputs."
            )
        if self.kind == "regression":
            raise CoterieError(
                f"the model gives outputs of shape {shape} per row, but the target is one "
                "number: its last layer must have 1 output."
            )
        raise CoterieError(
            f"the model gives outputs of shape {shape} per row, but the targets ({self.kind}) have "
            f"the shape {self.shape}: the outputs must have the shape {wanted}."
        )

    def predictions(self, outputs: Tensor, probabilities: bool) -> Tensor:
        """Class numbers, whether a label applies, or numbers; or the probabilities of classes."""
        return self.row.predictions(outputs, probabilities)

    def mix(self, outputs: Sequence[Tensor], shares: Tensor) -> Tensor:
        """The outputs of a mixture of models with these shares [K].

        Raises:
            CoterieError: If outputs of this kind have no mixture.
        """
        if self.row.mixture is None:
            raise CoterieError(
                f"outputs of targets of the kind {self.kind} have no mixture: use a method where "
                "a client has one model, such as ifca."
            )
        return self.row.mixture(torch.stack(list(outputs), -1), shares)

    def labelled(self, y: Tensor) -> Tensor:
        """bool like y, whether each entry counts."""
        if not self.row.has_positions:
            return torch.ones_like(y, dtype=torch.bool)
        return y != self.ignore_index


def prediction_of(outputs: Any) -> Tensor:
    """The tensor that is the prediction: the outputs themselves, or the first of several."""
    if isinstance(outputs, Tensor):
        return outputs
    first: Tensor = tree_leaves(outputs)[0]
    return first


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """What distinguishes a kind of task from others."""

    loss: Callable[[Target, Tensor | None], RowLoss | None]  # given the weights of classes
    output_shape: Callable[[Target], tuple[int, ...] | None]  # of one row; None: any
    main_metric: str  # the metric that is easiest to read
    has_classes: bool = False  # y are class numbers
    has_positions: bool = False  # each token or pixel of a row has a label
    class_axis: int | None = None  # of outputs
    predictions: Callable[[Tensor, bool], Tensor] = lambda outputs, probabilities: outputs
    mixture: Callable[[Tensor, Tensor], Tensor] | None = None  # of outputs [..., K]


def _own(target: Target, weights: Tensor | None) -> None:
    return None


def _without_weights(loss: RowLoss) -> Callable[[Target, Tensor | None], RowLoss]:
    """A loss without classes."""

    def choose(target: Target, weights: Tensor | None) -> RowLoss:
        assert weights is None  # `check_class_weights` refuses them
        return loss

    return choose


def _of_class(target: Target, weights: Tensor | None) -> RowLoss:
    return CROSS_ENTROPY if weights is None else weighted_cross_entropy(weights)


def _of_positions(target: Target, weights: Tensor | None) -> RowLoss:
    axis = KINDS[target.kind].class_axis
    assert axis is not None
    return position_cross_entropy(axis, target.ignore_index, weights)


def _most_likely(axis: int) -> Callable[[Tensor, bool], Tensor]:
    def predictions(outputs: Tensor, probabilities: bool) -> Tensor:
        return outputs.softmax(axis) if probabilities else outputs.argmax(axis)

    return predictions


def _mean(outputs: Tensor, shares: Tensor) -> Tensor:
    return outputs @ shares


def _log_mixture(axis: int) -> Callable[[Tensor, Tensor], Tensor]:
    """log Σ_k π_k p_k."""
    place = axis if axis >= 0 else axis - 1  # outputs have one more axis
    return lambda outputs, shares: (outputs.log_softmax(place) + shares.log()).logsumexp(-1)


KINDS: dict[Kind, TaskKind] = {
    "classification": TaskKind(
        loss=_of_class,
        output_shape=lambda target: (target.classes or 1,),
        main_metric="accuracy",
        has_classes=True,
        class_axis=-1,
        predictions=_most_likely(-1),
        mixture=_log_mixture(-1),
    ),
    "regression": TaskKind(
        loss=_without_weights(SQUARED_ERROR),
        output_shape=lambda target: (),
        main_metric="mse",
        mixture=_mean,
    ),
    "tokens": TaskKind(
        loss=_of_positions,
        output_shape=lambda target: (*target.shape, target.classes or 1),
        main_metric="token_accuracy",
        has_classes=True,
        has_positions=True,
        class_axis=-1,
        predictions=_most_likely(-1),
        mixture=_log_mixture(-1),
    ),
    "segmentation": TaskKind(
        loss=_of_positions,
        output_shape=lambda target: (target.classes or 1, *target.shape),
        main_metric="mean_iou",
        has_classes=True,
        has_positions=True,
        class_axis=1,
        predictions=_most_likely(1),
        mixture=_log_mixture(1),
    ),
    "multilabel": TaskKind(
        loss=lambda target, weights: binary_cross_entropy(weights),
        output_shape=lambda target: target.shape,
        main_metric="micro_f1",
        predictions=lambda out, probabilities: out.sigmoid() if probabilities else (out > 0).long(),
        mixture=lambda outputs, shares: (outputs.sigmoid() @ shares).logit(eps=1e-7),
    ),
    "multioutput": TaskKind(
        loss=_without_weights(MEAN_SQUARED_ERROR),
        output_shape=lambda target: target.shape,
        main_metric="mse",
        mixture=_mean,
    ),
    "custom": TaskKind(loss=_own, output_shape=lambda target: None, main_metric="loss"),
    "self-supervised": TaskKind(loss=_own, output_shape=lambda target: None, main_metric="loss"),
}
