"""The features of rows for `mixed`, and models as coefficients of features and back.

A row has a feature for the intercept, its standardised columns, and hinges max(0, z − knot), with
which the effect of a column becomes a curve that is linear between knots. Columns are standardised,
and knots placed, by sums over the rows of all clients.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.core.additive import KNOTS, Additive
from coterie.core.contract import Data
from coterie.core.params import Params
from coterie.core.task import Task

BINS = 256  # of the histogram of a column
WIDEST = 20.0  # standard deviations; values further away are counted in the last bin
FINE = 50.0  # bins are narrow near the mean, as skewed columns have most values there
MIN_SHARE = 0.01  # of rows on each side of a knot


class Units(NamedTuple):
    """How rows become features, and labels standardised numbers."""

    shift: Tensor  # [columns], their means; 0 if the model has no intercept
    scale: Tensor  # [columns], their standard deviations
    label_shift: Tensor  # []
    label_scale: Tensor  # []
    bent: Tensor  # int64 [h], the column of each hinge, ascending
    knots: Tensor  # [h], in standard deviations
    hinge_shift: Tensor  # [h], the mean of each hinge

    @property
    def is_smooth(self) -> bool:
        """Whether effects are curves."""
        return len(self.bent) > 0

    @property
    def size(self) -> int:
        """Number of features besides the intercept."""
        return len(self.shift) + len(self.bent)

    def without_hinges(self) -> Units:
        """The same without curves."""
        return self._replace(
            bent=self.bent[:0], knots=self.knots[:0], hinge_shift=self.hinge_shift[:0]
        )


def unknown_units(columns: int) -> Units:
    """Units before any row is known."""
    zeros = torch.zeros(columns, dtype=torch.float64)
    zero, none = zeros.new_zeros(()), zeros[:0]
    return Units(zeros, zeros + 1, zero, zero + 1, none.long(), none, none)


# ------------------------------------------------------------------------------ tasks
def outputs_of(task: Task) -> int:
    """L, the number of linear predictors."""
    if task.kind == "regression" or task.classes == 2:
        return 1
    return int(task.classes or 1)


def additive_layer(task: Task) -> str | None:
    """The name of the additive layer if the model is one; None for a linear model."""
    layers = [(name, m) for name, m in task.module.named_modules() if not list(m.children())]
    layers = [(name, m) for name, m in layers if not isinstance(m, nn.Flatten)]
    if len(layers) == 1 and type(layers[0][1]) is Additive:
        return layers[0][0]
    return None


def has_intercept(task: Task) -> bool:
    """Whether the model has a bias."""
    return additive_layer(task) is not None or (
        task.first is not None and task.first.bias is not None
    )


# ------------------------------------------------------------------------------ rows
def raw_labels(task: Task, data: Data) -> Tensor:
    """Labels as numbers in the unit that the model predicts, 0 for padding, [n]."""
    y = data.all.y.double()
    if task.scale is not None:
        y = (y - task.scale.mean) / task.scale.deviation
    return torch.where(data.all.mask > 0, y, 0.0)


def features(task: Task, units: Units, x: Tensor) -> Tensor:
    """The features of rows x [n, ...]: ones for the intercept, columns, hinges, [n, p]."""
    z = (x.flatten(1).double() - units.shift) / units.scale
    parts = [z]
    if has_intercept(task):
        parts = [torch.ones_like(z[:, :1]), z]
    if units.is_smooth:
        parts.append((z[:, units.bent] - units.knots).relu() - units.hinge_shift)
    return torch.cat(parts, 1)


# ------------------------------------------------------------------------------ units from sums
def sum_moments(task: Task, data: Data) -> Params:
    """Sums of each column, of its squares, and the same of the labels."""
    mask = data.all.mask.double()
    x = data.all.x.flatten(1).double() * mask[:, None]
    y = raw_labels(task, data)
    labels = torch.stack([mask.sum(), y.sum(), (y**2).sum()])
    return {"x": x.sum(0), "xx": (x**2).sum(0), "labels": labels}


def find_units(task: Task, sums: Params) -> Units:
    """Standardise by the moments of all clients' rows."""
    rows, total_y, squares_y = sums["labels"]
    rows = rows.clamp(min=1)

    def moments(total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        mean = total / rows
        if not has_intercept(task):
            mean = torch.zeros_like(mean)
        deviation = (squares / rows - mean**2).clamp(min=0).sqrt()
        is_constant = deviation <= 1e-9 * (1 + mean.abs())
        return mean, torch.where(is_constant, 1.0, deviation)

    shift, scale = moments(sums["x"], sums["xx"])
    units = unknown_units(len(shift))._replace(shift=shift, scale=scale)
    if task.kind == "regression":
        label_shift, label_scale = moments(total_y, squares_y)
        units = units._replace(label_shift=label_shift, label_scale=label_scale)
    return units


def sum_histogram(units: Units, data: Data) -> Tensor:
    """The number of rows in each bin of each column, [columns, BINS]."""
    z = (data.all.x.flatten(1).double() - units.shift) / units.scale
    place = (torch.asinh(FINE * z) / math.asinh(FINE * WIDEST) + 1) / 2 * BINS  # 0 to BINS
    bins = place.long().clamp(0, BINS - 1)
    counts = torch.zeros_like(units.shift)[:, None].repeat(1, BINS)
    weights = data.all.mask.double()[:, None] + 0 * z  # NaN where a cell is, so that it shows
    return counts.scatter_add(1, bins.T, weights.T)


def place_knots(units: Units, histogram: Tensor) -> Units:
    """Place knots at quantiles of each column; a column of two values gets none."""
    edges = torch.linspace(-1, 1, BINS + 1, dtype=torch.float64) * math.asinh(FINE * WIDEST)
    edges = edges.sinh() / FINE
    middle = (edges[1:] + edges[:-1]) / 2
    columns, knots, shifts = [], [], []
    for j, counts in enumerate(histogram.cpu()):
        rows = counts.sum()
        below = counts.cumsum(0) / rows.clamp(min=1)  # share of rows up to each bin
        occupied = counts.nonzero()[:, 0]
        if len(occupied) < 3:
            continue
        levels = torch.arange(1, KNOTS + 1, dtype=torch.float64) / (KNOTS + 1)
        at = torch.searchsorted(below, levels - 1e-9).unique()
        inside = (at > occupied[0]) & (at < occupied[-1])
        enough = (below[at] >= MIN_SHARE) & (below[at] <= 1 - MIN_SHARE)
        for knot in middle[at[inside & enough]].tolist():
            columns.append(j)
            knots.append(knot)
            shifts.append(float((counts * (middle - knot).relu()).sum() / rows))
    like = units.shift
    return units._replace(
        bent=torch.tensor(columns, dtype=torch.int64, device=like.device),
        knots=like.new_tensor(knots),
        hinge_shift=like.new_tensor(shifts),
    )


# ------------------------------------------------------------------------------ models
def to_models(task: Task, units: Units, coefficients: Tensor) -> Params:
    """Models of these coefficients [..., L, p], every leaf [..., outputs, ...]."""
    if task.kind == "classification" and coefficients.shape[-2] == 1:
        coefficients = torch.cat([-coefficients / 2, coefficients / 2], -2)
    if task.kind == "regression":
        coefficients = coefficients * units.label_scale
    start = int(has_intercept(task))
    columns = len(units.shift)
    weight = coefficients[..., start : start + columns] / units.scale
    hinges = coefficients[..., start + columns :]
    intercept = None
    if start:
        shift = units.label_shift if task.kind == "regression" else 0.0
        intercept = coefficients[..., 0] - weight @ units.shift - hinges @ units.hinge_shift + shift
    layer = additive_layer(task)
    if layer is None:
        assert task.first is not None
        model = {task.first.weight: weight}
        if task.first.bias is not None and intercept is not None:
            model[task.first.bias] = intercept
    else:
        assert intercept is not None
        place = hinge_places(units)
        table = hinges.new_zeros(*hinges.shape[:-1], columns * KNOTS)
        table = table.index_copy(-1, place, hinges / units.scale[units.bent])
        knots = hinges.new_zeros(columns * KNOTS).index_copy(
            0, place, units.shift[units.bent] + units.knots * units.scale[units.bent]
        )
        prefix = f"{layer}." if layer else ""
        model = {
            f"{prefix}weight": weight,
            f"{prefix}bias": intercept,
            f"{prefix}hinges": table.unflatten(-1, (columns, KNOTS)),
            f"{prefix}knots": knots.reshape(columns, KNOTS).expand(
                *hinges.shape[:-2], columns, KNOTS
            ),
        }
    return {name: v.to(task.dtype) for name, v in model.items()}


def hinge_places(units: Units) -> Tensor:
    """The place of each hinge in a table of columns by KNOTS, flattened."""
    slot = torch.arange(len(units.bent), device=units.bent.device)
    slot = slot - torch.searchsorted(units.bent, units.bent)  # the first hinge of the column
    return units.bent * KNOTS + slot


def from_models(task: Task, units: Units, models: Params) -> Tensor:
    """The inverse of `to_models`: coefficients [K, L, p] of stacked models.

    Hinges are read as if their knots were those of the units: good enough for a start.
    """
    layer = additive_layer(task)
    prefix = f"{layer}." if layer else ""
    if layer is None:
        assert task.first is not None
        names = (task.first.weight, task.first.bias)
    else:
        names = (f"{prefix}weight", f"{prefix}bias")
    weight = models[names[0]].double()
    parts = [weight * units.scale]
    if units.is_smooth:
        table = models[f"{prefix}hinges"].double().flatten(-2)
        parts.append(table[..., hinge_places(units)] * units.scale[units.bent])
    if names[1] is not None:
        intercept = models[names[1]].double() + weight @ units.shift
        if units.is_smooth:
            intercept = intercept + parts[-1] @ units.hinge_shift
        if task.kind == "regression":
            intercept = intercept - units.label_shift
        parts = [intercept[..., None], *parts]
    coefficients = torch.cat(parts, -1)
    if task.kind == "regression":
        return coefficients / units.label_scale
    if task.classes == 2:
        return coefficients[:, 1:] - coefficients[:, :1]
    return coefficients - coefficients.mean(1, keepdim=True)
