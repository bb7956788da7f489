"""A mixture of random-effects models: what one client computes.

    symbol      here               shape
    b_i         coefficients       [L, p], the client's own; the intercept comes first
    μ_k         means              [K, L, p], what the coefficients of group k scatter around
    τ           variances          [L, p], between the clients of a group
    s²          noise              [], variance of a label around its prediction; 1 for classes
    π_k         shares             [K]
    r_ik        responsibilities   [K], the probability of each group for client i
    u           scaled             [L, p], (b − μ)/√τ, which remains defined where τ is 0
    G           information        [L, p, p], second derivative of the rows' −log likelihood
    A           1 + √τ G √τ        [L, p, p]; the posterior covariance of b is √τ A⁻¹ √τ

L is 1 for a number or two classes, else the number of classes. Columns and labels are standardised
by `Units`. For classes, posteriors are normal approximations at the mode (Laplace), which Newton's
method finds with a line search; with several classes, A leaves out the covariance between classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.contract import Data
from coterie.core.params import Params
from coterie.core.task import Task

CURVATURES = 3  # how often Newton's method computes A, which takes most of the time
STEPS = 3  # steps with the same A
GRADIENT_STEPS = 6  # conjugate-gradient steps that correct for covariances between classes
# lengths of a step; the best is taken
LENGTHS = (1.0, 0.5, 0.2, 0.05, 0.005, 0.0)


class Units(NamedTuple):
    """Standardisation of columns and labels, over the rows of all clients."""

    shift: Tensor  # [columns], their means; 0 if the model has no intercept
    scale: Tensor  # [columns], their standard deviations
    label_shift: Tensor  # []
    label_scale: Tensor  # []


class Mixture(NamedTuple):
    """The parameters that all clients share."""

    means: Tensor  # μ
    variances: Tensor  # τ
    noise: Tensor  # s²
    shares: Tensor  # π


class Design(NamedTuple):
    """A client's rows, standardised. Padding is zeros."""

    x: Tensor  # [n, p]
    y: Tensor  # [n] numbers, or [n, L] indicators of classes
    mask: Tensor  # [n]


class Posterior(NamedTuple):
    """What a client knows about its coefficients if it belongs to one group."""

    scaled: Tensor  # u
    coefficients: Tensor  # b = μ + √τ u
    determined: Tensor  # [L, p], 1 − diag A⁻¹: how far the rows determine each coefficient
    slope: Tensor  # [L, p], derivative of the rows' log likelihood by the coefficients
    marginal: Tensor  # [L, p, p], the information about μ: (G⁻¹ + τ)⁻¹
    squares: Tensor  # [], sum of squared residuals; 0 for classes
    log_marginal: Tensor  # [], log likelihood of the client's labels with b integrated out


class Expansion(NamedTuple):
    """The rows' log likelihood near a point: its value, slope and curvature there."""

    point: Tensor  # [L, p]
    log_likelihood: Tensor  # []
    slope: Tensor  # [L, p]
    information: Tensor  # G


class Memberships(NamedTuple):
    """A client's posterior under every group, leaves [K, ...], and the group probabilities."""

    posteriors: Posterior
    responsibilities: Tensor  # r, [K]
    log_likelihood: Tensor  # []


# ------------------------------------------------------------------------------ rows
def outputs_of(task: Task) -> int:
    """L, the number of linear predictors."""
    if task.kind == "regression" or task.classes == 2:
        return 1
    return int(task.classes or 1)


def has_intercept(task: Task) -> bool:
    """Whether the linear model has a bias."""
    return task.first is not None and task.first.bias is not None


def raw_labels(task: Task, data: Data) -> Tensor:
    """Labels as numbers in the unit that the model predicts, 0 for padding, [n]."""
    y = data.all.y.double()
    if task.scale is not None:
        y = (y - task.scale.mean) / task.scale.deviation
    return torch.where(data.all.mask > 0, y, 0.0)


def design(task: Task, units: Units, data: Data) -> Design:
    """A client's rows in these units."""
    batch = data.all
    mask = batch.mask.double()
    x = (batch.x.flatten(1).double() - units.shift) / units.scale
    if has_intercept(task):
        x = torch.cat([torch.ones_like(x[:, :1]), x], 1)
    x = x * mask[:, None]
    if task.kind == "regression":
        y = (raw_labels(task, data) - units.label_shift) / units.label_scale * mask
    elif task.classes == 2:
        y = batch.y.double()[:, None] * mask[:, None]
    else:
        y = F.one_hot(batch.y, task.classes or 1).double() * mask[:, None]
    return Design(x, y, mask)


# ------------------------------------------------------------------------------ posteriors
def memberships(rows: Design, mixture: Mixture) -> Memberships:
    """The client's posterior under each group, and the probability of each."""
    find = find_posterior if rows.y.dim() == 1 else find_mode

    def of_group(mean: Tensor) -> Posterior:
        return find(rows, mean, mixture.variances, mixture.noise)

    return compare(torch.vmap(of_group)(mixture.means), mixture.shares)


def compare(posteriors: Posterior, shares: Tensor) -> Memberships:
    """The probability of each group, given the posterior under each."""
    joint = posteriors.log_marginal + shares.log()
    return Memberships(posteriors, joint.softmax(0), joint.logsumexp(0))


def approximate_memberships(near: Expansion, mixture: Mixture) -> Memberships:
    """The same for a quadratic log likelihood: fast, as it does not read the rows."""

    def of_group(mean: Tensor) -> Posterior:
        return expand(near, mean, mixture.variances)

    return compare(torch.vmap(of_group)(mixture.means), mixture.shares)


def expand_at(rows: Design, point: Tensor) -> Expansion:
    """The expansion of the log likelihood of classes at these coefficients."""
    outputs = rows.x @ point.T
    slope, probabilities = slope_at(rows, outputs)
    fit = -(class_losses(outputs, rows.y) * rows.mask).sum()
    return Expansion(point, fit, slope, information_at(rows, probabilities))


def find_posterior(rows: Design, mean: Tensor, variances: Tensor, noise: Tensor) -> Posterior:
    """The exact posterior for a label that is a number."""
    off = rows.y - rows.x @ mean[0]
    fit = -0.5 * (rows.mask.sum() * torch.log(2 * math.pi * noise) + (off**2).sum() / noise)
    information = (rows.x.T @ rows.x / noise)[None]
    found = expand(Expansion(mean, fit, (off @ rows.x / noise)[None], information), mean, variances)
    residual = rows.y - rows.x @ found.coefficients[0]
    return found._replace(squares=(residual**2).sum())


def expand(near: Expansion, mean: Tensor, variances: Tensor) -> Posterior:
    """The posterior if the rows' log likelihood is quadratic, as it is for numbers."""
    root = variances.sqrt()
    inverse, log_det = invert(precision(near.information, root))
    determined, marginal = informations(near.information, inverse, root)
    away = mean - near.point
    bend = apply(near.information, away)
    at_mean = near.log_likelihood + (away * (near.slope - bend / 2)).sum()
    pull = root * (near.slope - bend)
    scaled = apply(inverse, pull)
    coefficients = mean + root * scaled
    return Posterior(
        scaled=scaled,
        coefficients=coefficients,
        determined=determined,
        slope=near.slope - apply(near.information, coefficients - near.point),
        marginal=marginal,
        squares=torch.zeros_like(log_det),
        log_marginal=at_mean + 0.5 * (pull * scaled).sum() - 0.5 * log_det,
    )


def find_mode(rows: Design, mean: Tensor, variances: Tensor, noise: Tensor) -> Posterior:
    """The normal approximation at the mode for a label that is a class."""
    root = variances.sqrt()
    lengths = torch.tensor(LENGTHS, dtype=mean.dtype, device=mean.device)

    def cost_of(outputs: Tensor, scaled: Tensor) -> Tensor:
        """−log likelihood of the rows and of u; [..., n, L] and [..., L, p] to [...]."""
        fit = class_losses(outputs, rows.y) * rows.mask
        return fit.sum(-1) + 0.5 * (scaled**2).sum((-2, -1))

    scaled = torch.zeros_like(mean)
    outputs = rows.x @ mean.T
    for turn in range(CURVATURES * STEPS):
        slope, probabilities = slope_at(rows, outputs)
        if turn % STEPS == 0:
            inverse, _ = invert(precision(information_at(rows, probabilities), root))
        step = newton_step(rows.x, probabilities, root, inverse, root * slope - scaled)
        change = rows.x @ (root * step).T
        costs = cost_of(
            outputs + lengths[:, None, None] * change, scaled + lengths[:, None, None] * step
        )
        # The longest of the best. Costs that differ by rounding errors alone count as equal: near a
        # variance of 0 the choice between them would decide how fast it vanishes.
        costs = costs.nan_to_num(torch.inf)
        least = costs.amin()
        is_best = costs <= least + 1e-9 * (1 + least.abs())
        length = torch.where(is_best, lengths, 0.0).amax()
        scaled, outputs = scaled + length * step, outputs + length * change
    near = expand_at(rows, mean + root * scaled)
    inverse, log_det = invert(precision(near.information, root))
    determined, marginal = informations(near.information, inverse, root)
    return Posterior(
        scaled=scaled,
        coefficients=near.point,
        determined=determined,
        slope=near.slope,
        marginal=marginal,
        squares=torch.zeros_like(noise),
        log_marginal=near.log_likelihood - 0.5 * (scaled**2).sum() - 0.5 * log_det,
    )


def class_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """−log probability of each row's class; [..., n, L] to [..., n]."""
    if y.shape[-1] == 1:
        return (F.softplus(outputs) - y * outputs)[..., 0]
    return outputs.logsumexp(-1) - (y * outputs).sum(-1)


def newton_step(
    x: Tensor, probabilities: Tensor, root: Tensor, inverse: Tensor, gradient: Tensor
) -> Tensor:
    """Solve for the step with the true curvature: A⁻¹ is its inverse only without other classes."""
    if len(root) == 1:
        return apply(inverse, gradient)

    def bend(v: Tensor) -> Tensor:
        """The true curvature times v."""
        outputs = x @ (root * v).T
        mean = (probabilities * outputs).sum(1, keepdim=True)
        return v + root * ((probabilities * (outputs - mean)).T @ x)

    step = torch.zeros_like(gradient)
    left = gradient
    direction = preconditioned = apply(inverse, left)
    size = (left * preconditioned).sum()
    for _ in range(GRADIENT_STEPS):  # conjugate gradients, preconditioned by A⁻¹
        bent = bend(direction)
        length = size / (direction * bent).sum().clamp(min=1e-300)
        step, left = step + length * direction, left - length * bent
        preconditioned = apply(inverse, left)
        before, size = size, (left * preconditioned).sum()
        direction = preconditioned + size / before.clamp(min=1e-300) * direction
    return step


def slope_at(rows: Design, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """(derivative [L, p] of the log likelihood, probabilities [n, L]) at these outputs [n, L]."""
    probabilities = outputs.sigmoid() if outputs.shape[1] == 1 else outputs.softmax(1)
    return ((rows.y - probabilities) * rows.mask[:, None]).T @ rows.x, probabilities


def information_at(rows: Design, probabilities: Tensor) -> Tensor:
    """G [L, p, p] at these probabilities [n, L]."""
    curvature = probabilities * (1 - probabilities) * rows.mask[:, None]
    return (curvature.T[:, :, None] * rows.x).mT @ rows.x


def precision(information: Tensor, root: Tensor) -> Tensor:
    """A = 1 + √τ G √τ."""
    eye = torch.eye(root.shape[1], dtype=root.dtype, device=root.device)
    return eye + root[:, :, None] * information * root[:, None, :]


def invert(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """(inverses, sum of log determinants) of A; NaN in gives NaN out instead of an error."""
    return torch.linalg.inv_ex(matrices).inverse, torch.linalg.slogdet(matrices).logabsdet.sum()


def informations(information: Tensor, inverse: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """(1 − diag A⁻¹ [L, p], (G⁻¹ + τ)⁻¹ [L, p, p]), exact where τ is nearly 0."""
    beside = root[:, :, None] * inverse * root[:, None, :]  # the posterior covariance
    determined = (beside * information).sum(-1)
    return determined, information - information @ beside @ information


def apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Matrix times vector: [L, p, p] and [L, p] to [L, p]."""
    return (matrices @ vectors[..., None])[..., 0]


# ------------------------------------------------------------------------------ sums
def statistics(found: Memberships, size: Tensor) -> Params:
    """What a client adds to the sums of an EM step."""
    r = found.responsibilities
    post = found.posteriors
    return {
        "mass": r,
        "slope": as_weights(r, post.slope),
        "information": as_weights(r, post.marginal),
        "scaled_squares": as_weights(r, post.scaled**2).sum(0),
        "determined": as_weights(r, post.determined).sum(0),
        "squares": (r * post.squares).sum(),
        "rows": size.double(),
        "log_likelihood": found.log_likelihood,
    }


def as_weights(r: Tensor, values: Tensor) -> Tensor:
    """Multiply row k of values [K, ...] by r_k."""
    return values * r.reshape(-1, *[1] * (values.dim() - 1))


# ------------------------------------------------------------------------------ models
def to_models(task: Task, units: Units, coefficients: Tensor) -> Params:
    """Linear models of these coefficients [..., L, p], every leaf [..., outputs, ...]."""
    assert task.first is not None
    if task.kind == "classification" and coefficients.shape[-2] == 1:
        coefficients = torch.cat([-coefficients / 2, coefficients / 2], -2)
    if task.kind == "regression":
        coefficients = coefficients * units.label_scale
    start = int(has_intercept(task))
    weight = coefficients[..., start:] / units.scale
    model = {task.first.weight: weight}
    if task.first.bias is not None:
        shift = units.label_shift if task.kind == "regression" else 0.0
        model[task.first.bias] = coefficients[..., 0] - weight @ units.shift + shift
    return {name: v.to(task.dtype) for name, v in model.items()}


def from_models(task: Task, units: Units, models: Params) -> Tensor:
    """The inverse of `to_models`: coefficients [K, L, p] of stacked models."""
    assert task.first is not None
    weight = models[task.first.weight].double()
    coefficients = weight * units.scale
    if task.first.bias is not None:
        intercept = models[task.first.bias].double() + weight @ units.shift
        coefficients = torch.cat([intercept[..., None], coefficients], -1)
    if task.kind == "regression":
        if task.first.bias is not None:
            coefficients = torch.cat(
                [coefficients[..., :1] - units.label_shift, coefficients[..., 1:]], -1
            )
        return coefficients / units.label_scale
    if task.classes == 2:
        return coefficients[:, 1:] - coefficients[:, :1]
    return coefficients - coefficients.mean(1, keepdim=True)
