"""Mixed: a mixture of random-effects models, fitted by expectation-maximisation from sums over
clients.

    paper       here               shape
    μ_k         means              [K, L, p], the group models; L outputs, p coefficients each
    τ           variances          [L, q], of intercept and slopes between the clients of a group
    s²          noise              [], variance of a label around its prediction
    π_k         shares             [K]
    r_ik        memberships        [N, K]
    α_k         ridge              [K, L, p], precision of the prior N(0, 1/α) of each coefficient

A client's coefficients are drawn around its group's: b_i ~ N(μ_k, τ) with k ~ π. The variances say
how far clients differ, so how much a client borrows from the others is estimated rather than set.

Round 0 sums the moments of the columns, by which they are standardised, and histograms, by which
the knots of curves are placed (features.py). Round 1 fits one group with straight lines and with
curves, and keeps what the evidence favours. Each further round fits one more group. A fit takes
many exchanges, until the likelihood stays the same. The run ends by itself when two numbers of
groups in a row have not lowered BIC (or, with `clusters` given, after round 1). The next number of
groups starts from the best split of one group along a principal direction of its clients'
coefficients. Everything that clients send for this is summed.

Differences from the paper: the building blocks are textbook statistics (Laird and Ware 1982 for
random effects, MacKay 1992 for the updates of variances and ridge, which reach zero where plain EM
creeps; Ruppert, Wand and Carroll 2003 for curves with a common penalty for the hinges of a column);
their federated form, the start, and the correction of intervals by leave-one-out scores are ours.
One exchange reports each client's memberships, for the groups in reports; the fit does not need it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.contract import (
    Algorithm,
    Ask,
    Data,
    MixtureShares,
    Scope,
    Sums,
    Upload,
    Weight,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.losses import CROSS_ENTROPY, SQUARED_ERROR
from coterie.core.params import Params
from coterie.core.task import Task
from coterie.methods.features import (
    Units,
    additive_layer,
    features,
    find_units,
    from_models,
    has_intercept,
    outputs_of,
    place_knots,
    sum_histogram,
    sum_moments,
    to_models,
    unknown_units,
)
from coterie.methods.random_effects import (
    SCORES,
    Memberships,
    Mixture,
    Predictive,
    approximate_memberships,
    class_log_probabilities,
    design,
    expand_at,
    memberships,
    predict_rows,
    quantile_of_rows,
    score_at,
    statistics,
    sum_scores,
)
from coterie.methods.start_from import load_centres

MIN_STEPS = 6
TRIAL_STEPS = 6  # EM steps after which the best of several starts is kept
MAX_STARTS = 12  # tried for each number of groups
MAX_NUMBERS = 1 << 17  # in the upload of all starts; large models have fewer starts
NARROW = 0.5  # variances between clients at the start of a fit with more groups
HOPELESS = 40  # a fit ends if BIC is above the lowest by this many times the last step's gain
POWER_STEPS = 3  # exchanges that find the principal directions
DIRECTIONS = 8  # vectors that these exchanges carry
MARGIN = 10.0  # by which a further group must lower BIC: "very strong" (Kass and Raftery 1995)
PATIENCE = 2  # numbers of groups without a lower BIC, after which the search ends
MAX_GROUPS = 12
MAX_COLUMNS = 1000
ZERO = 1e-8  # variances below are zero
START_VARIANCE = 0.05
PRIOR_SQUARES = 1e-3  # added to the squares of a variance between clients,
PRIOR_COUNT = 0.5  # and to their number
MAX_FEATURES = 400  # with curves; beyond it, auto takes straight lines
MAX_VARIANCE = 4.0  # of coefficients for classes, on the scale of log odds


class Fit(NamedTuple):
    """A mixture during its fit."""

    mixture: Mixture
    ridge: Tensor  # α
    covariance: Tensor  # [K, L, p, p], of what is not known about μ


class FitResult(NamedTuple):
    """A fit, and how well it explains the labels for its size."""

    fit: Fit
    bic: float
    evidence: float  # log marginal likelihood, without μ


class Trained(NamedTuple):
    """What a client needs for its model and its predictions."""

    units: Units
    mixture: Mixture
    covariance: Tensor  # of μ
    scores: Tensor  # [SCORES], of the rows of all clients: see `sum_scores`


class MixedState(NamedTuple):
    """What the server keeps between rounds."""

    centres: Params  # the group models of `best`
    units: Units
    best: Fit  # of the number of groups with the lowest BIC
    last: Fit  # of the last number of groups
    bic: Tensor  # [numbers of groups tried]
    memberships: Tensor  # r_ik under `best`; a row of zeros: never reported
    scores: Tensor  # under `best`
    is_finished: Tensor  # bool []


@dataclass(frozen=True, kw_only=True)
class Mixed(Algorithm):
    """Random effects: each client has its own linear model, as near to its group's as data say.

    Args:
        clusters: K, or "auto" to choose it by BIC.
        features: "linear", "smooth" (a curve for each column of numbers), or "auto".

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.Mixed(clusters=2), fed)
        >>> result.weights.shape
        torch.Size([8, 2])
    """

    name: ClassVar[str] = "mixed"
    paper: ClassVar[str] = "Laird and Ware 1982"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "a model for each site, as near to the others as their rows say"
    needs_all_clients: ClassVar[bool] = True

    clusters: int | str = setting(
        "auto", "number of groups K; auto: chosen by BIC", ge=1, literals=("auto",)
    )
    shrink: bool = setting(
        True, "shrink the group models by the marginal likelihood; else maximum likelihood"
    )
    tolerance: float = setting(
        1e-2, "end a fit when the log likelihood changes by less in a step", gt=0
    )
    max_steps: int = setting(100, "EM steps for one number of groups, at most", ge=1)
    features: str = setting(
        "auto",
        "effects of columns: straight lines or curves; auto: what the evidence favours",
        choices=("linear", "smooth", "auto"),
    )
    start_from: str | None = setting(None, "folder of exported cluster models to start from")

    # ------------------------------------------------------------------ one client
    @client(weight=Weight(), rounds="start", sums=True)
    def describe(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Sum each column, its squares, and the same of the labels."""
        return upload(sum_moments(task, data)), private

    @client(weight=Weight(), rounds="start", sums=True, when=lambda method: method.is_smooth)
    def count_values(
        self, task: Task, units: Units, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Count the rows in each bin of each column, which gives the knots of curves."""
        return upload({"counts": sum_histogram(units, data)}), private

    @client(
        weight=Weight(),
        rounds="later",
        sums=True,
        max_calls=lambda method: method.max_steps * (method.most_fits + 1),
    )
    def expect(
        self, task: Task, shared: tuple[Units, Mixture], per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Sum the statistics of an EM step."""
        units, mixture = shared
        found = memberships(design(task, units, data), mixture)
        return upload(statistics(found, data.size)), private

    @client(
        weight=Weight(),
        rounds="later",
        sums=True,
        max_calls=lambda method: TRIAL_STEPS * method.most_fits,
    )
    def expect_each(
        self,
        task: Task,
        shared: tuple[Units, Mixture, Mixture],
        per_client: Any,
        private: Any,
        data: Data,
    ) -> tuple[Upload, Any]:
        """Sum the statistics of an EM step for each of several starts.

        For classes, the likelihood is expanded at the coefficients under the last mixture, as
        otherwise every start would take as long as a step of its own.
        """
        units, last, starts = shared
        rows = design(task, units, data)
        if task.kind == "classification":
            near = expand_at(rows, mean_coefficients(memberships(rows, last)))

        def of_start(start: Mixture) -> Params:
            if task.kind == "classification":
                found = approximate_memberships(near, start)
            else:
                found = memberships(rows, start)
            return statistics(found, data.size)

        return upload(torch.vmap(of_start)(starts)), private

    @client(
        weight=Weight(),
        rounds="later",
        sums=True,
        max_calls=lambda method: POWER_STEPS * method.most_fits,
    )
    def spread(
        self,
        task: Task,
        shared: tuple[Units, Mixture, Tensor],
        per_client: Any,
        private: Any,
        data: Data,
    ) -> tuple[Upload, Any]:
        """Sum r_k δ δᵀ D of the deviation δ = b − μ_k, with D the directions of group k."""
        units, mixture, directions = shared  # directions: [K, Lq, d]
        found = memberships(design(task, units, data), mixture)
        deviation = (mixture.variances.sqrt() * found.posteriors.scaled).flatten(1)  # [K, Lq]
        along = (deviation[:, :, None] * directions).sum(1, keepdim=True)  # [K, 1, d]
        weighted = found.responsibilities[:, None] * deviation
        return upload({"moments": weighted[:, :, None] * along}), private

    @client(
        report={"memberships": MixtureShares("its probability of each group", secure="summed")},
        rounds="later",
    )
    def join_groups(
        self, task: Task, shared: tuple[Units, Mixture], per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the probability of each group."""
        units, mixture = shared
        found = memberships(design(task, units, data), mixture)
        return Upload({}, {}, {"memberships": found.responsibilities}), private

    @client(
        weight=Weight(),
        rounds="later",
        sums=True,
        max_calls=lambda method: 1,
    )
    def score_rows(
        self,
        task: Task,
        shared: tuple[Units, Mixture, Tensor],
        per_client: Any,
        private: Any,
        data: Data,
    ) -> tuple[Upload, Any]:
        """Sum how far labels lie from predictions, for intervals."""
        units, mixture, covariance = shared
        rows = design(task, units, data)
        found = memberships(rows, mixture)
        scores = sum_scores(found, covariance, mixture.noise, rows)
        return upload({"scores": scores}), private

    def model(
        self, task: Task, shared: Trained, per_client: Any, private: Any, data: Data
    ) -> Params:
        """The posterior mean of the client's coefficients, over all groups."""
        found = memberships(design(task, shared.units, data), shared.mixture)
        return to_models(task, shared.units, mean_coefficients(found))

    def predict(
        self, task: Task, shared: Trained, per_client: Any, private: Any, data: Data, x: Tensor
    ) -> Tensor:
        """Outputs averaged over what the client does not know about its coefficients."""
        predicted = self.predict_rows(task, shared, data, x)
        if task.kind == "classification":
            return class_log_probabilities(predicted).to(task.dtype)
        return to_labels(task, shared.units, predicted.shares @ predicted.means[..., 0])

    def predict_interval(
        self,
        task: Task,
        shared: Trained,
        per_client: Any,
        private: Any,
        data: Data,
        x: Tensor,
        level: float,
    ) -> Tensor:
        """The interval that holds a label with this probability, [n, 2]."""
        predicted = self.predict_rows(task, shared, data, x)
        ends = [
            quantile_of_rows(predicted, shared.mixture.noise, score_at(shared.scores, tail))
            for tail in ((1 - level) / 2, (1 + level) / 2)
        ]
        return to_labels(task, shared.units, torch.stack(ends, 1))

    def predict_rows(self, task: Task, shared: Trained, data: Data, x: Tensor) -> Predictive:
        """The posterior of the client's linear predictors for rows x."""
        found = memberships(design(task, shared.units, data), shared.mixture)
        return predict_rows(found, shared.covariance, features(task, shared.units, x))

    # ------------------------------------------------------------------ the server
    @property
    def most_fits(self) -> int:
        """The largest number of fits in a round."""
        return 1 if isinstance(self.clusters, str) else self.clusters

    @property
    def is_smooth(self) -> bool:
        """Whether effects may be curves."""
        return self.features != "linear"

    def default_model(self, name: str) -> str:
        return "additive" if name == "linear" and self.is_smooth else name

    def start(self, task: Task, clients: int, seed: int) -> tuple[MixedState, Any]:
        units = unknown_units(math.prod(task.row_shape))
        p = len(units.shift) + int(has_intercept(task))
        zeros = units.shift.new_zeros(1, outputs_of(task), p)
        fit = self.begin_fit(task, zeros, torch.full_like(zeros[0], START_VARIANCE))
        state = MixedState(
            centres=to_models(task, units, zeros),
            units=units,
            best=fit,
            last=fit,
            bic=zeros.new_zeros(0),
            memberships=zeros.new_zeros(clients, 1),
            scores=zeros.new_zeros(SCORES),
            is_finished=torch.tensor(False),
        )
        return state, ()

    def begin_fit(
        self, task: Task, means: Tensor, variances: Tensor, noise: Tensor | None = None
    ) -> Fit:
        """The start of a fit from these group models, variances and noise."""
        if noise is None:
            noise = means.new_ones(())
        mixture = Mixture(means, variances, noise, means.new_full((len(means),), 1 / len(means)))
        ridge = self.first_ridge(task, means)
        return Fit(mixture, ridge, torch.diag_embed(1 / ridge))

    def begin(self, state: MixedState, ask: Ask) -> MixedState:
        sums = ask(self.describe, ask.all_clients)
        if not len(sums.ids):
            return state
        units = find_units(ask.task, totals(sums))
        if self.is_smooth and additive_layer(ask.task) is not None:
            counts = ask(self.count_values, ask.all_clients, shared=units)
            if len(counts.ids):
                units = place_knots(units, totals(counts)["counts"])
        fit = with_hinges(state.best, units, ask.task)
        state = state._replace(units=units, best=fit, last=fit)
        if self.start_from is None:
            return state
        models = load_centres(self.start_from, self.clusters, ask)
        means = from_models(ask.task, units, models)
        fit = self.begin_fit(ask.task, means, state.best.mixture.variances)
        unknown = state.memberships.new_zeros(len(state.memberships), len(means))
        return state._replace(centres=models, best=fit, last=fit, memberships=unknown)

    def round(self, state: MixedState, ask: Ask) -> MixedState:
        fit, units = state.last, state.units
        lowest = min(state.bic.tolist(), default=math.inf)
        if len(state.bic):
            done = self.fit(self.add_group(fit, units, ask), units, ask, lowest)
        else:
            done, units = self.choose_features(fit, units, ask)
        while done is not None and len(done.fit.mixture.means) < self.most_fits:
            done = self.fit(self.add_group(done.fit, units, ask), units, ask)
        if done is None:
            return state
        fit, bic = done.fit, done.bic
        k = len(fit.mixture.means)
        ask.note("groups", k)
        ask.note("bic", bic)
        ask.note("curves", len(units.bent.unique()))
        best = state.best
        if bic < lowest:
            best = fit
        scores = torch.cat([state.bic, state.bic.new_tensor([bic])])
        waited = len(scores) - 1 - int(scores.argmin())
        most = min(MAX_GROUPS, len(ask.all_clients) // 3)
        is_finished = (
            self.clusters != "auto"
            or self.start_from is not None
            or waited >= PATIENCE
            or k >= most
        )
        state = state._replace(units=units)
        return MixedState(
            centres=to_models(ask.task, units, best.mixture.means),
            units=units,
            best=best,
            last=fit,
            bic=scores,
            memberships=self.find_memberships(state, best, ask),
            scores=self.find_scores(state, best, ask),
            is_finished=torch.tensor(is_finished),
        )

    def choose_features(self, fit: Fit, units: Units, ask: Ask) -> tuple[FitResult | None, Units]:
        """The first fit, with curves or straight lines, whichever the evidence favours."""
        straight = units.without_hinges()
        lines = None
        if self.features != "smooth" or not units.is_smooth:
            lines = self.fit(with_hinges(fit, straight, ask.task), straight, ask)
        if not units.is_smooth or units.size > MAX_FEATURES:
            return lines, straight
        if lines is not None:
            fit = lines.fit
        mixture = with_hinges(fit, units, ask.task).mixture
        start = self.begin_fit(ask.task, mixture.means, mixture.variances, mixture.noise)
        curves = self.fit(start, units, ask)
        if lines is not None and (curves is None or curves.evidence < lines.evidence):
            return lines, straight
        return curves, units

    def fit(self, fit: Fit, units: Units, ask: Ask, lowest: float = math.inf) -> FitResult | None:
        """EM from this start to the end; None if no client answered.

        It also ends once BIC can no longer fall below `lowest`.
        """
        last = -math.inf
        for step in range(self.max_steps):
            answers = ask(self.expect, shared=(units, fit.mixture))
            if not len(answers.ids):
                return None
            sums = totals(answers)
            likelihood = float(sums["log_likelihood"])
            found = self.maximise(ask.task, units, fit, sums)
            fit = found.fit
            gain = abs(likelihood - last)
            is_hopeless = found.bic - lowest > HOPELESS * gain
            if step >= MIN_STEPS and (gain < self.tolerance or is_hopeless):
                break
            last = likelihood
        ask.note("steps", step + 1)
        ask.note("log_likelihood", likelihood)
        return found

    def maximise(self, task: Task, units: Units, fit: Fit, sums: Params) -> FitResult:
        """The M step from the sums of all clients."""
        mixture, ridge, _ = fit
        is_number = task.kind == "regression"
        shares = (sums["mass"] + 0.5) / (sums["mass"].sum() + 0.5 * len(mixture.shares))
        # generalised least squares for μ: Newton's method on the likelihood without b
        matrix = sums["information"] + torch.diag_embed(ridge)
        gradient = sums["slope"] - ridge * mixture.means
        inverse = torch.linalg.inv(matrix)
        step = (inverse @ gradient[..., None])[..., 0]
        if mixture.means.shape[1] > 1:
            step = step / 2  # without covariances between classes, twice too long at worst
        if not is_number:
            step = step * (3 / step.norm(dim=(1, 2), keepdim=True).clamp(min=3))
        means = mixture.means + step
        determined = 1 - ridge * torch.diagonal(inverse, dim1=-2, dim2=-1)
        log_prior = 0.5 * (ridge.log() - ridge * means**2).sum()
        evidence = sums["log_likelihood"] + log_prior - 0.5 * torch.linalg.slogdet(matrix)[1].sum()
        if self.shrink:
            ridge = self.find_ridge(task, units, means, determined)
        # MacKay: τ = Σ (b − μ)² / (number of well-determined coefficients)
        squares = mixture.variances * sums["scaled_squares"]
        count = sums["determined"]
        if self.shrink:
            squares, count = pool(squares + PRIOR_SQUARES, count + PRIOR_COUNT)
        variances = squares / count.clamp(min=1e-12)
        variances = variances.clamp(1e-12, None if is_number else MAX_VARIANCE)
        noise = mixture.noise
        if is_number:
            noise = sums["squares"] / (sums["rows"] - sums["determined"].sum()).clamp(min=1)
            noise = noise.clamp(min=1e-9).reshape(())
        # Delattre, Lavielle, Poursat 2014: what varies between clients is known from them, all else
        # from rows
        varies = variances > 1e-4
        clients, rows = float(sums["mass"].sum().log()), float(sums["rows"].log())
        q = varies.shape[1]
        penalty = float((determined[..., :q] * torch.where(varies, clients, rows)).sum())
        penalty += float(determined[..., q:].sum()) * rows
        penalty += int(varies.sum()) * clients + (len(shares) - 1) * (clients + MARGIN)
        return FitResult(
            fit=Fit(Mixture(means, variances, noise, shares), ridge, inverse),
            bic=-2 * float(sums["log_likelihood"]) + penalty,
            evidence=float(evidence),
        )

    def find_ridge(self, task: Task, units: Units, means: Tensor, determined: Tensor) -> Tensor:
        """MacKay: α = (how far data determine the coefficients) / (their squares).

        The intercept has a fixed one, slopes one each, the hinges of a column one in common.
        """
        start = int(has_intercept(task))
        end = start + len(units.shift)
        determined = determined.clamp(min=1e-3)
        squares, counts = pool(means[..., start:end] ** 2, determined[..., start:end], weight=0.25)
        parts = [torch.full_like(means[..., :start], 1e-3), counts / (squares + 1e-12)]
        if units.is_smooth:
            empty = means.new_zeros(*means.shape[:-1], len(units.shift))
            squares = empty.index_add(-1, units.bent, means[..., end:] ** 2)
            counts = empty.index_add(-1, units.bent, determined[..., end:])
            parts.append((counts / (squares + 1e-12))[..., units.bent])
        return torch.cat([parts[0], *(part.clamp(1e-2, 1e6) for part in parts[1:])], -1)

    def first_ridge(self, task: Task, means: Tensor) -> Tensor:
        """The prior precisions at the start of a fit."""
        if not self.shrink:
            return torch.full_like(means, 1e-9)
        ridge = torch.ones_like(means)
        ridge[..., : int(has_intercept(task))] = 1e-3
        return ridge

    # ------------------------------------------------------------------ more groups
    def add_group(self, fit: Fit, units: Units, ask: Ask) -> Fit:
        """The start of a fit with one more group: the best of several splits."""
        starts = self.split(fit, units, ask)
        stacked = stack_mixtures(starts)
        for _ in range(min(TRIAL_STEPS, self.max_steps)):
            sums = ask(self.expect_each, shared=(units, fit.mixture, stacked))
            if not len(sums.ids):
                return fit
            of_starts = totals(sums)
            starts = [
                self.maximise(ask.task, units, one, {k: v[j] for k, v in of_starts.items()}).fit
                for j, one in enumerate(starts)
            ]
            stacked = stack_mixtures(starts)
        return starts[int(of_starts["log_likelihood"].argmax())]

    def split(self, fit: Fit, units: Units, ask: Ask) -> list[Fit]:
        """Split each group in two along principal directions of its clients' coefficients."""
        mixture = fit.mixture
        k, outputs, p = mixture.means.shape
        size = mixture.variances.numel()
        # fewer than clients: the rest would be rounding errors
        number = max(1, min(size, DIRECTIONS, len(ask.all_clients) // (2 * k)))
        generator = ask.rng("directions")
        drawn = torch.randn(k, size, number, generator=generator, dtype=torch.float64)
        directions = torch.linalg.qr(drawn).Q.contiguous()
        for _ in range(POWER_STEPS):
            sums = ask(self.spread, shared=(units, mixture, directions))
            if not len(sums.ids):
                return [fit]
            moments = totals(sums)["moments"]
            inside = directions.mT @ moments
            values, turn = torch.linalg.eigh((inside + inside.mT) / 2)  # ascending
            directions = torch.linalg.qr(moments @ turn.flip(-1)).Q.contiguous()
        # eigenvectors have no sign: let their largest component be positive
        largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
        directions = directions * largest.sign()
        # [K, d], standard deviations along the directions
        spread = (values.flip(-1).clamp(min=0) / (mixture.shares[:, None] * len(sums.ids))).sqrt()
        most = max(2, min(MAX_STARTS, MAX_NUMBERS // ((k + 1) * outputs * p * p)))

        def as_step(values: Tensor) -> Tensor:
            """[..., Lq] as [..., L, p]: only the first coefficients differ between clients."""
            step = values.unflatten(-1, mixture.variances.shape)
            return torch.nn.functional.pad(step, (0, p - step.shape[-1]))

        starts = []
        order = [(g, d) for d in range(spread.shape[1]) for g in range(k)]
        for g, d in order[: (most + 1) // 2]:
            step = as_step(spread[g, d] * directions[g, :, d])
            means = torch.cat([mixture.means, mixture.means[g : g + 1] - step])
            means[g] += step
            starts.append(means)
        while len(starts) < most:  # group models drawn like clients of the last mixture
            of = torch.multinomial(mixture.shares, k + 1, replacement=True, generator=generator)
            draws = torch.randn(k + 1, spread.shape[1], generator=generator, dtype=torch.float64)
            step = (directions[of] @ (spread[of] * draws)[..., None])[..., 0]
            starts.append(mixture.means[of] + as_step(step))
        narrow = mixture.variances * NARROW
        return [self.begin_fit(ask.task, means, narrow, mixture.noise) for means in starts]

    def find_memberships(self, state: MixedState, best: Fit, ask: Ask) -> Tensor:
        """r_ik of every client whose sums are in the fit."""
        rejected = torch.tensor(ask.rejected, dtype=torch.long)
        fitted = ask.all_clients[~torch.isin(ask.all_clients, rejected)]
        sums = ask(self.join_groups, fitted, shared=(state.units, best.mixture))
        k = len(best.mixture.means)
        known = state.memberships
        if ask.is_secure:
            ask.note("sizes", sums.report["memberships"][0])
            return known
        if known.shape[1] != k:
            known = known.new_zeros(len(known), k)
        return known.index_copy(0, sums.ids, sums.report["memberships"])

    def find_scores(self, state: MixedState, best: Fit, ask: Ask) -> Tensor:
        """The histogram of scores under the best fit, for intervals; zeros for classes."""
        if ask.task.kind == "classification":
            return state.scores
        sums = ask(self.score_rows, shared=(state.units, best.mixture, best.covariance))
        return totals(sums)["scores"] if len(sums.ids) else state.scores

    # ------------------------------------------------------------------ evaluation
    def finished(self, state: MixedState) -> bool:
        return bool(state.is_finished)

    def use(self, state: MixedState) -> tuple[Trained, Any]:
        return Trained(state.units, state.best.mixture, state.best.covariance, state.scores), ()

    def standard_errors(
        self, task: Task, state: MixedState, x: Tensor, reference: Tensor
    ) -> Tensor | None:
        units = state.units
        along = features(task, units, x) - features(task, units, reference)  # [n, p]
        covariance = state.best.covariance[:, 0]  # [K, p, p]
        errors = ((along @ covariance) * along).sum(-1).clamp(min=0).sqrt()
        if task.kind == "classification":
            return errors if task.classes == 2 else None
        return errors * units.label_scale * math.sqrt(task.loss_unit)

    def centres(self, state: MixedState) -> Params:
        return state.centres

    def groups(self, state: MixedState) -> Tensor:
        return state.memberships

    # ------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if task.kind not in ("classification", "regression"):
            raise CoterieError(
                f"mixed is for one class or number per row, and the targets are of the kind "
                f"{task.kind}: use another method, such as ifca."
            )
        if task.row_loss not in (CROSS_ENTROPY, SQUARED_ERROR):
            raise CoterieError(
                "mixed maximises a likelihood and has no other loss: leave out loss and "
                "class_weights."
            )
        is_additive = additive_layer(task) is not None
        if self.features == "smooth" and not is_additive:
            raise CoterieError(
                "smooth features need a table and the model additive",
                "use them on a table without --model, or --features linear",
            )
        if not task.is_linear and not is_additive:
            raise CoterieError(
                "mixed fits linear or additive models, and this model has other layers",
                "use --model linear",
            )
        if task.is_linear and task.kind == "classification":
            outputs = len(task.module.get_parameter(task.first.weight))  # type: ignore[union-attr]
            if outputs != task.classes:
                raise CoterieError(
                    f"the model has {outputs} outputs for {task.classes} classes: give it as many."
                )
        columns = math.prod(task.row_shape)
        if columns > MAX_COLUMNS:
            raise CoterieError(
                f"mixed inverts matrices of columns by columns, and rows have {columns} columns: "
                f"use at most {MAX_COLUMNS}."
            )


def upload(sums: Params) -> Upload:
    """An upload of sums, which count once."""
    values = {name: torch.atleast_1d(v) for name, v in sums.items()}
    return Upload({"sums": values}, next(iter(values.values())).new_ones(1), {})


def mean_coefficients(found: Memberships) -> Tensor:
    """The posterior mean of a client's coefficients over all groups, [L, p]."""
    return (found.responsibilities[:, None, None] * found.posteriors.coefficients).sum(0)


def totals(sums: Sums) -> Params:
    """The sums over all clients, on the CPU, where the server solves its small systems."""
    return {name: v[0].cpu() for name, v in sums.totals["sums"].items()}


def to_labels(task: Task, units: Units, values: Tensor) -> Tensor:
    """Standardised numbers in the unit of the label."""
    values = values * units.label_scale + units.label_shift
    if task.scale is not None:
        values = values * task.scale.deviation + task.scale.mean
    return values.to(task.dtype)


def pool(squares: Tensor, counts: Tensor, weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """Add `weight` observations of average size to each of several variances, [..., L, q].

    A variance that few observations determine is then near the average of all, instead of 0.
    """
    average = squares.sum((-2, -1), keepdim=True) / counts.sum((-2, -1), keepdim=True)
    return squares + weight * average, counts + weight


def with_hinges(fit: Fit, units: Units, task: Task) -> Fit:
    """The fit with as many hinges as the units have; those that it lacks are 0."""
    more = units.size + int(has_intercept(task)) - fit.mixture.means.shape[-1]
    pad = torch.nn.functional.pad
    covariance = pad(fit.covariance, (0, more, 0, more))
    means = pad(fit.mixture.means, (0, more))
    ridge = pad(fit.ridge, (0, more), value=1.0)
    return Fit(fit.mixture._replace(means=means), ridge, covariance)


def stack_mixtures(fits: list[Fit]) -> Mixture:
    """Mixtures with the same number of groups, stacked."""
    return Mixture(*(torch.stack(leaves) for leaves in zip(*(fit.mixture for fit in fits))))
