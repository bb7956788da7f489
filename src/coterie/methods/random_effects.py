"""A mixture of random-effects models: what one client computes.

    symbol      here               shape
    b_i         coefficients       [L, p], the client's own; the intercept comes first
    μ_k         means              [K, L, p], what the coefficients of group k scatter around
    τ           variances          [L, q], between the clients of a group, of the first q ≤ p
                                   coefficients; the others are the same in a group
    s²          noise              [], variance of a label around its prediction; 1 for classes
    π_k         shares             [K]
    r_ik        responsibilities   [K], the probability of each group for client i
    u           scaled             [L, q], (b − μ)/√τ, which remains defined where τ is 0
    G           information        [L, p, p], second derivative of the rows' −log likelihood
    A           1 + √τ G √τ        [L, q, q]; the posterior covariance of b is √τ A⁻¹ √τ

L is 1 for a number or two classes, else the number of classes; features are those of
`features.py`. For classes, posteriors are normal approximations at the mode (Laplace), which
Newton's method finds with a line search; with several classes, A leaves out the covariance between
classes.
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
from coterie.methods.features import Units, features, raw_labels

CURVATURES = 3  # how often Newton's method computes A, which takes most of the time
STEPS = 2  # steps with the same A
GRADIENT_STEPS = 6  # conjugate-gradient steps that correct for covariances between classes
# lengths of a step; the best is taken
LENGTHS = (1.0, 0.5, 0.2, 0.05, 0.005, 0.0)
SCORES = 400  # bins of the histogram of scores
WIDEST = 10.0  # the largest score
PRIOR_ROWS = 20.0  # with normal scores, added to those of all clients


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
    covariance: Tensor  # [L, q, q], V = √τ A⁻¹ √τ
    kept: Tensor  # [L, q, p], V G: how far b depends on the rows rather than on μ
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


class Predictive(NamedTuple):
    """The linear predictors of rows if the client belongs to each group, in standard units."""

    shares: Tensor  # r, [K]
    means: Tensor  # [K, n, L]
    variances: Tensor  # [K, n, L], from what is not known about b


class Memberships(NamedTuple):
    """A client's posterior under every group, leaves [K, ...], and the group probabilities."""

    posteriors: Posterior
    responsibilities: Tensor  # r, [K]
    log_likelihood: Tensor  # []


# ------------------------------------------------------------------------------ rows
def design(task: Task, units: Units, data: Data) -> Design:
    """A client's rows in these units."""
    batch = data.all
    mask = batch.mask.double()
    x = features(task, units, batch.x) * mask[:, None]
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
    return Expansion(point, fit, slope, information_at(rows.x, rows, probabilities))


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
    covariance, kept, marginal = informations(near.information, inverse, root)
    away = mean - near.point
    bend = apply(near.information, away)
    at_mean = near.log_likelihood + (away * (near.slope - bend / 2)).sum()
    pull = root * (near.slope - bend)[:, : root.shape[1]]
    scaled = apply(inverse, pull)
    coefficients = move(mean, root * scaled)
    return Posterior(
        scaled=scaled,
        coefficients=coefficients,
        covariance=covariance,
        kept=kept,
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

    varying = rows.x[:, : root.shape[1]]  # the columns whose coefficients differ from μ
    scaled = torch.zeros_like(variances)
    outputs = rows.x @ mean.T
    for turn in range(CURVATURES * STEPS):
        slope, probabilities = slope_at(rows, outputs)
        if turn % STEPS == 0:
            inverse, _ = invert(precision(information_at(varying, rows, probabilities), root))
        gradient = root * slope[:, : root.shape[1]] - scaled
        step = newton_step(varying, probabilities, root, inverse, gradient)
        change = varying @ (root * step).T
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
    near = expand_at(rows, move(mean, root * scaled))
    inverse, log_det = invert(precision(near.information, root))
    covariance, kept, marginal = informations(near.information, inverse, root)
    return Posterior(
        scaled=scaled,
        coefficients=near.point,
        covariance=covariance,
        kept=kept,
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


def information_at(x: Tensor, rows: Design, probabilities: Tensor) -> Tensor:
    """G of the columns x [n, q] of the rows, [L, q, q], at these probabilities [n, L]."""
    curvature = probabilities * (1 - probabilities) * rows.mask[:, None]
    return (curvature.T[:, :, None] * x).mT @ x


def precision(information: Tensor, root: Tensor) -> Tensor:
    """A = 1 + √τ G √τ."""
    q = root.shape[1]
    eye = torch.eye(q, dtype=root.dtype, device=root.device)
    return eye + root[:, :, None] * information[:, :q, :q] * root[:, None, :]


def invert(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """(inverses, sum of log determinants) of A; NaN in gives NaN out instead of an error."""
    return torch.linalg.inv_ex(matrices).inverse, torch.linalg.slogdet(matrices).logabsdet.sum()


def informations(
    information: Tensor, inverse: Tensor, root: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(V, V G, (G⁻¹ + τ)⁻¹ [L, p, p]), exact where τ is nearly 0."""
    covariance = root[:, :, None] * inverse * root[:, None, :]
    kept = covariance @ information[:, : root.shape[1]]
    return covariance, kept, information - information[:, :, : root.shape[1]] @ kept


def move(mean: Tensor, by: Tensor) -> Tensor:
    """Add by [L, q] to the first coefficients of mean [L, p]."""
    return mean + F.pad(by, (0, mean.shape[1] - by.shape[1]))


def apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Matrix times vector: [L, p, p] and [L, p] to [L, p]."""
    return (matrices @ vectors[..., None])[..., 0]


# ------------------------------------------------------------------------------ predictions
def predict_rows(found: Memberships, covariance: Tensor, x: Tensor) -> Predictive:
    """The posterior of x·b for rows x [n, p], given what the client knows.

    The covariance of b is V + (1 − V G) Cov(μ) (1 − V G)ᵀ: what its own rows leave open, and what
    all rows leave open about μ, with Cov(μ) = `covariance` [K, L, p, p].
    """
    post = found.posteriors
    varying = x[:, : post.kept.shape[-2]]
    own = ((varying @ post.covariance) * varying).sum(-1)  # [K, L, n]
    borrowed = x - varying @ post.kept  # x (1 − V G)
    variances = own + ((borrowed @ covariance) * borrowed).sum(-1)
    means = x @ post.coefficients.mT
    return Predictive(found.responsibilities, means, variances.clamp(min=0).mT)


def sum_scores(found: Memberships, covariance: Tensor, noise: Tensor, rows: Design) -> Tensor:
    """A histogram of how far labels lie from their predictions without their own row.

    Each label is converted to the standard normal score of its place in the predictive
    distribution that the other rows give. If the model holds, the scores are standard normal;
    skewed or heavy-tailed labels show here, and `score_at` corrects intervals for them.
    """
    predicted = predict_rows(found, covariance, rows.x)
    # the predictive variance without a row is s²/(1 − h), and its residual e/(1 − h)
    left = (1 - predicted.variances[..., 0] / noise).clamp(min=1e-3)
    errors = (rows.y - predicted.means[..., 0]) / (noise * left).sqrt()
    level = predicted.shares @ torch.special.ndtr(errors)
    score = torch.special.ndtri(level.clamp(1e-15, 1 - 1e-15)).clamp(-WIDEST, WIDEST)
    bins = ((score + WIDEST) / (2 * WIDEST) * SCORES).long().clamp(0, SCORES - 1)
    counts = torch.zeros(SCORES, dtype=score.dtype, device=score.device)
    return counts.scatter_add(0, bins, rows.mask + 0 * score)


def score_at(histogram: Tensor, level: float) -> Tensor:
    """The score below which this share of labels lies, from the `sum_scores` of all clients."""
    edges = torch.linspace(-WIDEST, WIDEST, SCORES + 1, dtype=histogram.dtype)
    normal = torch.special.ndtr(edges).diff()
    below = (histogram + PRIOR_ROWS * normal).cumsum(0)
    below = below / below[-1]
    bin = int(torch.searchsorted(below, level).clamp(max=SCORES - 1))
    before = below[bin - 1] if bin else below.new_zeros(())
    inside = (level - before) / (below[bin] - before)
    return edges[bin] + inside * (edges[bin + 1] - edges[bin])


def quantile_of_rows(predicted: Predictive, noise: Tensor, score: Tensor) -> Tensor:
    """The value of each row's label with this score in its predictive distribution, [n]."""
    means, level = predicted.means[..., 0], torch.special.ndtr(score)
    deviations = (predicted.variances[..., 0] + noise).sqrt()
    low, high = (means + score * deviations).aminmax(dim=0)
    for _ in range(50):  # bisection; with one group both ends are the answer
        middle = (low + high) / 2
        is_below = predicted.shares @ torch.special.ndtr((middle - means) / deviations) < level
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return (low + high) / 2


def class_log_probabilities(predicted: Predictive) -> Tensor:
    """The log probability of each class, averaged over what is unknown, [n, classes].

    The average over normal logits is near that of logits divided by √(1 + π/8 variance)
    (MacKay 1992).
    """
    logits = predicted.means / (1 + math.pi / 8 * predicted.variances).sqrt()  # [K, n, L]
    if logits.shape[-1] == 1:
        logits = torch.cat([-logits / 2, logits / 2], -1)
    return (logits.log_softmax(-1) + predicted.shares.log()[:, None, None]).logsumexp(0)


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
        "determined": as_weights(r, torch.diagonal(post.kept, dim1=-2, dim2=-1)).sum(0),
        "squares": (r * post.squares).sum(),
        "rows": size.double(),
        "log_likelihood": found.log_likelihood,
    }


def as_weights(r: Tensor, values: Tensor) -> Tensor:
    """Multiply row k of values [K, ...] by r_k."""
    return values * r.reshape(-1, *[1] * (values.dim() - 1))
