"""Mixed: a mixture of random-effects models, fitted by expectation-maximisation from sums over
clients.

    paper       here               shape
    μ_k         means              [K, L, p], the group models; L outputs, p coefficients each
    τ           variances          [L, p], of each coefficient between the clients of a group
    s²          noise              [], variance of a label around its prediction
    π_k         shares             [K]
    r_ik        memberships        [N, K]
    α_k         ridge              [K, L, p], precision of the prior N(0, 1/α) of each coefficient

A client's coefficients are drawn around its group's: b_i ~ N(μ_k, τ) with k ~ π. The variances say
how far clients differ, so how much a client borrows from the others is estimated rather than set.

Round 0 sums the moments of the columns, by which they are standardised. Each further round fits one
number of groups, 1, 2, 3 and so on, each in many exchanges, until the likelihood stays the same.
The run ends by itself when two numbers in a row have not lowered BIC (or, with `clusters` given,
after round 1). The next number of groups starts from the best split of one group along a principal
direction of its clients' coefficients. Everything that clients send for this is summed.

Differences from the paper: the building blocks are textbook statistics (Laird and Ware 1982 for
random effects, MacKay 1992 for the updates of variances and ridge, which reach zero where plain EM
creeps); their federated form and the start are ours. One exchange reports each client's
memberships, for the groups in reports; the fit does not need it.
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
    Sums,
    Upload,
    Weight,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.params import Params
from coterie.core.task import Task
from coterie.methods.random_effects import (
    Memberships,
    Mixture,
    Units,
    approximate_memberships,
    design,
    expand_at,
    from_models,
    has_intercept,
    memberships,
    outputs_of,
    raw_labels,
    statistics,
    to_models,
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
MAX_VARIANCE = 4.0  # of coefficients for classes, on the scale of log odds


class Fit(NamedTuple):
    """A mixture during its fit."""

    mixture: Mixture
    ridge: Tensor  # α


class MixedState(NamedTuple):
    """What the server keeps between rounds."""

    centres: Params  # the group models of `best`
    units: Units
    best: Fit  # of the number of groups with the lowest BIC
    last: Fit  # of the last number of groups
    bic: Tensor  # [numbers of groups tried]
    memberships: Tensor  # r_ik under `best`; a row of zeros: never reported
    is_finished: Tensor  # bool []


@dataclass(frozen=True, kw_only=True)
class Mixed(Algorithm):
    """Random effects: each client has its own linear model, as near to its group's as data say.

    Args:
        clusters: K, or "auto" to choose it by BIC.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.Mixed(clusters=2), fed)
        >>> result.weights.shape
        torch.Size([8, 2])
    """

    name: ClassVar[str] = "mixed"
    paper: ClassVar[str] = "Laird and Ware 1982"
    needs_all_clients: ClassVar[bool] = True

    clusters: int | str = setting(
        "auto", "number of groups K; auto: chosen by BIC", ge=1, literals=("auto",)
    )
    shrink: bool = setting(
        True, "shrink the group models by the marginal likelihood; else maximum likelihood"
    )
    tolerance: float = setting(
        1e-3, "end a fit when the log likelihood changes by less in a step", gt=0
    )
    max_steps: int = setting(100, "EM steps for one number of groups, at most", ge=1)
    start_from: str | None = setting(None, "folder of exported cluster models to start from")

    # ------------------------------------------------------------------ one client
    @client(weight=Weight(), rounds="start", sums=True)
    def describe(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Sum each column, its squares, and the same of the labels."""
        mask = data.all.mask.double()
        x = data.all.x.flatten(1).double() * mask[:, None]
        y = raw_labels(task, data)
        labels = torch.stack([mask.sum(), y.sum(), (y**2).sum()])
        return upload({"x": x.sum(0), "xx": (x**2).sum(0), "labels": labels}), private

    @client(
        weight=Weight(),
        rounds="later",
        sums=True,
        max_calls=lambda method: method.max_steps * method.most_fits,
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
        units, mixture, directions = shared  # directions: [K, Lp, d]
        found = memberships(design(task, units, data), mixture)
        deviation = (found.posteriors.coefficients - mixture.means).flatten(1)  # [K, Lp]
        along = (deviation[:, :, None] * directions).sum(1, keepdim=True)  # [K, 1, d]
        weighted = found.responsibilities[:, None] * deviation
        return upload({"moments": weighted[:, :, None] * along}), private

    @client(report={"memberships": MixtureShares("its probability of each group")}, rounds="later")
    def join_groups(
        self, task: Task, shared: tuple[Units, Mixture], per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the probability of each group."""
        units, mixture = shared
        found = memberships(design(task, units, data), mixture)
        return Upload({}, {}, {"memberships": found.responsibilities}), private

    def model(
        self, task: Task, shared: tuple[Units, Mixture], per_client: Any, private: Any, data: Data
    ) -> Params:
        """The posterior mean of the client's coefficients, over all groups."""
        units, mixture = shared
        found = memberships(design(task, units, data), mixture)
        return to_models(task, units, mean_coefficients(found))

    # ------------------------------------------------------------------ the server
    @property
    def most_fits(self) -> int:
        """The largest number of fits in a round."""
        return 1 if isinstance(self.clusters, str) else self.clusters

    def start(self, task: Task, clients: int, seed: int) -> tuple[MixedState, Any]:
        columns = math.prod(task.row_shape)
        zeros = torch.zeros(columns, dtype=torch.float64)
        units = Units(zeros, zeros + 1, zeros.new_zeros(()), zeros.new_ones(()))
        shape = (1, outputs_of(task), columns + int(has_intercept(task)))
        fit = self.begin_fit(task, zeros.new_zeros(shape))
        unknown = zeros.new_zeros(clients, 1)
        centres = to_models(task, units, fit.mixture.means)
        return MixedState(centres, units, fit, fit, zeros[:0], unknown, torch.tensor(False)), ()

    def begin_fit(self, task: Task, means: Tensor) -> Fit:
        """The start of a fit from these group models."""
        k = len(means)
        mixture = Mixture(
            means=means,
            variances=torch.full_like(means[0], START_VARIANCE),
            noise=means.new_ones(()),
            shares=means.new_full((k,), 1 / k),
        )
        return Fit(mixture, self.first_ridge(task, means))

    def begin(self, state: MixedState, ask: Ask) -> MixedState:
        sums = ask(self.describe, ask.all_clients)
        if not len(sums.ids):
            return state
        units = find_units(ask.task, totals(sums))
        state = state._replace(units=units)
        if self.start_from is None:
            return state
        models = load_centres(self.start_from, self.clusters, ask)
        fit = self.begin_fit(ask.task, from_models(ask.task, units, models))
        unknown = state.memberships.new_zeros(len(state.memberships), len(fit.mixture.means))
        return state._replace(centres=models, best=fit, last=fit, memberships=unknown)

    def round(self, state: MixedState, ask: Ask) -> MixedState:
        fit = state.last
        if len(state.bic):
            fit = self.add_group(fit, state.units, ask)
        lowest = min(state.bic.tolist(), default=math.inf)
        done = self.fit(fit, state.units, ask, lowest)
        while done is not None and len(done[0].mixture.means) < self.most_fits:
            done = self.fit(self.add_group(done[0], state.units, ask), state.units, ask)
        if done is None:
            return state
        fit, bic = done
        k = len(fit.mixture.means)
        ask.note("groups", k)
        ask.note("bic", bic)
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
        return MixedState(
            centres=to_models(ask.task, state.units, best.mixture.means),
            units=state.units,
            best=best,
            last=fit,
            bic=scores,
            memberships=self.find_memberships(state, best, ask),
            is_finished=torch.tensor(is_finished),
        )

    def fit(
        self, fit: Fit, units: Units, ask: Ask, lowest: float = math.inf
    ) -> tuple[Fit, float] | None:
        """EM from this start to the end, with its BIC; None if no client answered.

        It also ends once BIC can no longer fall below `lowest`.
        """
        last = -math.inf
        bic = math.inf
        for step in range(self.max_steps):
            answers = ask(self.expect, shared=(units, fit.mixture))
            if not len(answers.ids):
                return None
            sums = totals(answers)
            likelihood = float(sums["log_likelihood"])
            fit, penalty = self.maximise(ask.task, fit, sums)
            bic = -2 * likelihood + penalty
            gain = abs(likelihood - last)
            if step >= MIN_STEPS and (gain < self.tolerance or bic - lowest > HOPELESS * gain):
                break
            last = likelihood
        ask.note("steps", step + 1)
        ask.note("log_likelihood", likelihood)
        return fit, bic

    def maximise(self, task: Task, fit: Fit, sums: Params) -> tuple[Fit, float]:
        """The M step from the sums of all clients.

        Returns:
            The new parameters, and the penalty of BIC.
        """
        mixture, ridge = fit
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
        if self.shrink:
            ridge = determined.clamp(min=1e-3) / (means**2 + 1e-12)
            ridge = torch.where(self.is_slope(task, means), ridge.clamp(1e-2, 1e6), 1e-3)
        # MacKay: τ = Σ (b − μ)² / (number of well-determined coefficients)
        squares = mixture.variances * sums["scaled_squares"]
        count = sums["determined"]
        if self.shrink:
            squares, count = squares + 1e-3, count + 1
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
        penalty = float((determined * torch.where(varies, clients, rows)).sum())
        penalty += int(varies.sum()) * clients + (len(shares) - 1) * (clients + MARGIN)
        return Fit(Mixture(means, variances, noise, shares), ridge), penalty

    def first_ridge(self, task: Task, means: Tensor) -> Tensor:
        """The prior precisions at the start of a fit."""
        if not self.shrink:
            return torch.full_like(means, 1e-9)
        return torch.where(self.is_slope(task, means), torch.ones_like(means), 1e-3)

    def is_slope(self, task: Task, means: Tensor) -> Tensor:
        """Which coefficients are not the intercept."""
        place = torch.arange(means.shape[-1], device=means.device)
        return (place >= int(has_intercept(task))).expand(means.shape)

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
                self.maximise(ask.task, one, {name: v[j] for name, v in of_starts.items()})[0]
                for j, one in enumerate(starts)
            ]
            stacked = stack_mixtures(starts)
        return starts[int(of_starts["log_likelihood"].argmax())]

    def split(self, fit: Fit, units: Units, ask: Ask) -> list[Fit]:
        """Split each group in two along principal directions of its clients' coefficients."""
        mixture = fit.mixture
        k, *shape = mixture.means.shape
        size = math.prod(shape)
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
        most = max(2, min(MAX_STARTS, MAX_NUMBERS // ((k + 1) * size * shape[1])))
        starts = []
        order = [(g, d) for d in range(spread.shape[1]) for g in range(k)]
        for g, d in order[: (most + 1) // 2]:
            step = (spread[g, d] * directions[g, :, d]).reshape(shape)
            means = torch.cat([mixture.means, mixture.means[g : g + 1] - step])
            means[g] += step
            starts.append(means)
        while len(starts) < most:  # group models drawn like clients of the last mixture
            of = torch.multinomial(mixture.shares, k + 1, replacement=True, generator=generator)
            draws = torch.randn(k + 1, spread.shape[1], generator=generator, dtype=torch.float64)
            step = (directions[of] @ (spread[of] * draws)[..., None])[..., 0]
            starts.append(mixture.means[of] + step.reshape(k + 1, *shape))
        return [
            Fit(
                Mixture(
                    means=means,
                    variances=mixture.variances * NARROW,
                    noise=mixture.noise,
                    shares=means.new_full((k + 1,), 1 / (k + 1)),
                ),
                self.first_ridge(ask.task, means),
            )
            for means in starts
        ]

    def find_memberships(self, state: MixedState, best: Fit, ask: Ask) -> Tensor:
        """r_ik of every client whose sums are in the fit."""
        rejected = torch.tensor(ask.rejected, dtype=torch.long)
        fitted = ask.all_clients[~torch.isin(ask.all_clients, rejected)]
        sums = ask(self.join_groups, fitted, shared=(state.units, best.mixture))
        k = len(best.mixture.means)
        known = state.memberships
        if known.shape[1] != k:
            known = known.new_zeros(len(known), k)
        return known.index_copy(0, sums.ids, sums.report["memberships"])

    # ------------------------------------------------------------------ evaluation
    def finished(self, state: MixedState) -> bool:
        return bool(state.is_finished)

    def use(self, state: MixedState) -> tuple[tuple[Units, Mixture], Any]:
        return (state.units, state.best.mixture), ()

    def centres(self, state: MixedState) -> Params:
        return state.centres

    def groups(self, state: MixedState) -> Tensor:
        return state.memberships

    # ------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if not task.is_linear:
            raise CoterieError(
                "mixed fits linear models, and this model has other layers", "use --model linear"
            )
        outputs = task.module.get_parameter(task.first.weight).shape[0]  # type: ignore[union-attr]
        if task.kind == "classification" and outputs != task.classes:
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
    """The sums over all clients."""
    return {name: v[0] for name, v in sums.totals["sums"].items()}


def find_units(task: Task, sums: Params) -> Units:
    """The standardisation by the moments of all clients' rows."""

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
    if task.kind == "regression":
        return Units(shift, scale, *moments(total_y, squares_y))
    return Units(shift, scale, shift.new_zeros(()), shift.new_ones(()))


def stack_mixtures(fits: list[Fit]) -> Mixture:
    """Mixtures with the same number of groups, stacked."""
    return Mixture(*(torch.stack(leaves) for leaves in zip(*(fit.mixture for fit in fits))))
