"""FedSoft: soft clustering with proximal local updating (Ruan, Joe-Wong, AAAI 2022), Algorithm
1.

    paper       here                shape
    c_s         centres             every leaf [S, ...]
    w_k         private.model       every leaf [...], the personal model
    S, N        clusters, the number of clients
    u_ks        importance          [N, S]; a row of zeros: never estimated
    n_k         size                [N]
    v_sk        v                   [N, S]
    Sel_s       weight              [participants, S], how often each was drawn; or v
    K           select
    τ, σ, λ     every, floor, pull

Differences from the paper:
* Equation (6) normalises v over the selected set, but v is what selects: here, as in equation (38),
  over all clients.
* The argmin of line 17 is local_steps (or local_epochs) steps of the solver. `inexact` = γ0 ends
  them as soon as assumption 1 holds, ‖∇h_k(w)‖ ≤ γ0 min_s ‖∇F_s(c_s)‖ over all rows: a client does
  not know F_s, so its own f_k is used.
* `objective` notes theorem 5's Σ_k h_k(w_k; c, u) over the clients that trained, with the centres
  they received and the models they uploaded.
* Draws are with replacement by default, as in the analysis (equations 38 to 42: the mean of the
  draws is then Σ v w in expectation). `replace=False` draws sets, as the listing, the paper's count
  formula and the authors' code do; then clients with v near 0 enter with the full weight 1/K. If
  fewer than K clients have v > 0 (σ = 0, or few participants), all of them are taken, and the mean
  is over those drawn. A client drawn for several centres trains once.
* `select=None`, the default: all clients train and v are the weights (the paper's case of full
  participation), since no K fits every federation; the paper draws 60 of 100.
* With partial participation all clients estimate their weights, and draws are among participants. A
  client that missed the estimate keeps its last weights; one without weights estimates them in its
  next round. A client that is never drawn stays at the start.
* The local problem starts from the client's last w_k, all clients from one common initial model,
  the centres from separate ones. The solver's state (Adam's moments) stays with the client between
  rounds (`keep_solver`).
* `clusters="auto"` chooses S by held-out losses (methods/held_out.py), at least 2.
* Under secure sums a client remembers its own u_k, which participants estimate in one exchange with
  training. v is not normalised, because Σ_k' u_k's n_k' cancels in the mean.
* Table data: the paper prints θ_s ~ N(0, σ0² I) with σ0 = 10. The data set `linear:fedsoft` takes
  10 as the variance: a centre of table 1 has errors of 68.4 and 21.8 on the two sources, so that
  these are at most √67.4 + √20.8 apart, 163 squared, where a standard deviation of 10 gives 2,000
  on average and a variance of 10 gives 200; the released code draws with variance 10. `scale=100`
  is the formula as printed.
* After max(·, σ) the u_ks are not renormalised, as written, so the pull is λ Σ_s u_ks (w − c_s) and
  not equation (5).
* Notes of a round: the distinct clients drawn, the paper's N(1 − (1 − K/N)^S), which holds for
  equal weights without replacement, and with replacement N(1 − (1 − 1/N)^KS).
* Personal models may rightly lie far from the centres, so uploads are clipped by their own norm,
  not by that of the update.
* A new client estimates its weights and solves its own problem from the common initial model, in
  `join_steps` steps.
* In the paper's comparison the "local model" of IFCA and FedEM is the centre of largest importance
  weight, and local models are tested on training data; here every method predicts test rows with
  the model it would deploy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.func import grad

from coterie.core.contract import (
    SOLVERS,
    Algorithm,
    Ask,
    Data,
    Finite,
    Local,
    MixtureShares,
    Repeat,
    RowCount,
    SentWeight,
    Upload,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.params import (
    Params,
    argmin_finite,
    count,
    dot,
    minus,
    norm,
    one_hot,
    repeated,
    unstack,
    where,
    zeros,
)
from coterie.core.task import Batch, Task
from coterie.methods import held_out, held_out_sums, sketch_sums
from coterie.methods.sketch_sums import SecureClientState, initial_client_state
from coterie.methods.start_from import load_centres
from coterie.optim import Moments, adam, descend, each, heavy_ball, moments


class FedSoftState(NamedTuple):
    """What the server keeps between rounds."""

    centres: Params  # c_s
    start: Params  # the common initial model of all clients
    importance: Tensor  # u_ks
    size: Tensor  # n_k


class FedSoftClientState(NamedTuple):
    """What a client keeps."""

    model: Params  # w_k
    solver: Moments | Params | tuple[()]  # the local optimiser's state


@dataclass(frozen=True, kw_only=True)
class FedSoft(Local, Algorithm):
    """Clients are mixtures of clusters: each trains a model that is pulled towards all centres.

    Args:
        clusters: S ≥ 2, or "auto" to choose it in round 0.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.FedSoft(clusters=2, local_steps=2), fed, rounds=2)
        >>> result.weights.shape
        torch.Size([8, 2])
    """

    name: ClassVar[str] = "fedsoft"
    paper: ClassVar[str] = "Ruan and Joe-Wong 2022"

    clusters: int | str = setting(
        "auto", "number of centres S; auto: chosen in round 0", ge=1, literals=("auto",)
    )
    pull: float = setting(0.1, "strength λ of the pull towards the centres", ge=0)
    every: int = setting(2, "τ: rounds between two estimates of the importance weights", ge=1)
    floor: float = setting(1e-4, "σ: lower bound of importance weights", ge=0, lt=1)
    select: int | None = setting(
        None, "K: clients drawn for each centre a round; none: all, by weight", ge=1
    )
    replace: bool = setting(True, "draw clients with replacement")
    keep_solver: bool = setting(True, "keep the local optimiser's state between rounds")
    join_steps: int = setting(200, "full-batch steps in which a new client is trained", ge=1)
    start_from: str | None = setting(None, "folder of exported cluster models to start from")
    inexact: float | None = setting(
        None, "γ0: stop local steps once ‖∇h‖ ≤ γ0·min_s ‖∇f(c_s)‖; none: all local steps", gt=0
    )
    objective: bool = setting(
        False, "note Σ_k h_k(w_k) in each round (one more pass over the rows)"
    )
    lr: float = setting(0.005, "step size", gt=0)
    solver: str = setting("adam", "the local optimiser", choices=SOLVERS)

    # ------------------------------------------------------------------ one client
    def enroll(self, task: Task, start: Any, data: Data) -> Any:
        if isinstance(start, SecureClientState):
            return start._replace(inner=self.enroll(task, start.inner, data))
        if not self.keep_solver:
            return FedSoftClientState(start, ())
        return FedSoftClientState(start, init_solver(self.solver, start))

    @client(
        report={"u": MixtureShares(floor="floor"), "size": RowCount()},
        secure="replaced",
        rounds="later",
    )
    def weigh(
        self, task: Task, centres: Params, per_client: Any, me: FedSoftClientState, data: Data
    ) -> tuple[Upload, FedSoftClientState]:
        """Report the importance weights."""
        report = {"u": self.importance_weights(task, centres, data), "size": data.size}
        return Upload({}, {}, report), me

    def importance_weights(self, task: Task, centres: Params, data: Data) -> Tensor:
        """u_k [S]: the fraction of rows that each centre fits best."""
        losses = torch.stack([task.losses(c, data.all) for c in unstack(centres)], -1)
        j = argmin_finite(losses)  # j = argmin_s ℓ(c_s; x, y)
        best = one_hot(j, count(centres), task.dtype)
        n = torch.where(data.all.mask[:, None] > 0, best, 0).sum(0)
        return (n / data.size).clamp(min=self.floor)  # u_ks = max(n_ks/n_k, σ)

    @client(
        weight=SentWeight(place=1),
        secure="replaced",
        report={
            "steps": Finite("its number of steps", minimum=0),
            "objective": Finite("its objective", minimum=0),
        },
        rounds="later",
    )
    def train(
        self,
        task: Task,
        centres: Params,
        per_client: tuple[Tensor, Tensor],
        me: FedSoftClientState,
        data: Data,
    ) -> tuple[Upload, FedSoftClientState]:
        """Solve the local problem; `per_client` is (u_k, weight)."""
        u, weight = per_client
        report = {}
        h = Proximal(task, centres, u, self.pull)
        if self.inexact is None:
            me = h.solve(self, me, data.batches(self))
        else:
            me, report["steps"] = h.solve_inexactly(self, me, data, self.inexact)
        if self.objective:
            report["objective"] = h.value(me.model, data.all)
        return Upload({"model": me.model}, weight, report), me

    @client(
        report={"u": MixtureShares(floor="floor", secure="summed")}, rounds="later", secure="only"
    )
    def train_own(
        self, task: Task, centres: Params, per_client: Any, private: SecureClientState, data: Data,
        estimate: bool,
    ) -> tuple[Upload, SecureClientState]:  # fmt: skip
        """Estimate or remember u_k, and solve the local problem, with the weights u_ks n_k.

        Args:
            estimate: Whether to estimate u_k again; a client that has none does so anyway.
        """
        k = count(centres)
        estimated = self.importance_weights(task, centres, data)
        remembered = private.group[:k]
        is_used = torch.tensor(not estimate, device=remembered.device) & remembered.any()
        u = torch.where(is_used, remembered, estimated)
        h = Proximal(task, centres, u, self.pull)
        if self.inexact is None:
            me = h.solve(self, private.inner, data.batches(self))
        else:
            me, _ = h.solve_inexactly(self, private.inner, data, self.inexact)
        group = torch.cat([u, private.group[k:]])
        upload = Upload({"model": me.model}, u * data.size, {"u": u})
        return upload, private._replace(inner=me, group=group)

    assign_sketch = sketch_sums.assign_sketch
    sum_sketches = held_out_sums.sum_sketches
    average_own_fold = held_out_sums.average_own_fold
    train_own_fold = held_out_sums.train_own_fold
    sum_losses = held_out_sums.sum_losses

    sketch_fold = held_out.sketch_fold
    average_fold = held_out.average_fold
    train_fold = held_out.train_fold
    weighs_rows: ClassVar[bool] = True

    def start_training(self) -> Self:
        """The method with the local training of round 0, for `held_out`."""
        return self

    # ------------------------------------------------------------------ the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[FedSoftState, Params]:
        common = task.init(seed)
        k = self.clusters if isinstance(self.clusters, int) else 1
        if self.start_from is None and self.clusters != "auto":
            centres = task.inits(seed, k, start=1)  # draw 0 is the common model
        else:
            centres = repeated(common, k)
        importance = torch.zeros(clients, k, dtype=task.dtype)
        size = torch.zeros(clients, dtype=task.dtype)
        return FedSoftState(centres, common, importance, size), common

    def start_secure(self, task: Task, clients: int, seed: int) -> tuple[FedSoftState, Any]:
        for name, is_given in (("select", self.select is not None), ("objective", self.objective)):
            if is_given:
                raise CoterieError(
                    f"{name} needs the weights of each client, and with secure only sums leave "
                    f"them: leave out {name}."
                )
        state, start = self.start(task, clients, seed)
        k = self.clusters if isinstance(self.clusters, int) else held_out.MAX_CLUSTERS
        return state, initial_client_state(start, torch.zeros(k, dtype=task.dtype), task)

    def begin(self, state: FedSoftState, ask: Ask) -> FedSoftState:
        centres = state.centres
        if self.start_from is not None:
            centres = load_centres(self.start_from, self.clusters, ask)
        elif self.clusters == "auto":
            if ask.is_secure:
                found = held_out_sums.count_clusters_from_sums(self, state.start, ask)
            else:
                found = held_out.count_clusters(self, state.start, ask).clusters
            k = max(2, found)
            centres = ask.task.inits(ask.seed, k, start=1)
        importance = state.importance.new_zeros(len(state.size), count(centres))
        return state._replace(centres=centres, importance=importance)

    def round(self, state: FedSoftState, ask: Ask) -> FedSoftState:
        if ask.is_secure:
            return self.round_from_sums(state, ask)
        state = self.estimate_importance(state, ask)
        un = state.importance * state.size[:, None]
        v = un / torch.where(un.sum(0) > 0, un.sum(0), 1)  # v_sk = u_ks n_k / Σ_k' u_k's n_k' (6)
        weight = self.draw(v[ask.participants], ask)
        drawn = weight.any(1)
        ids, weight = ask.participants[drawn], weight[drawn]
        sums = ask(
            self.train,
            ids,
            shared=state.centres,
            per_client=(state.importance[ids], weight),
            stream="train",
        )
        if self.objective:
            ask.note("objective", float(sums.report["objective"].sum()))
        if self.inexact is not None:
            ask.note("steps", float(sums.report["steps"].mean()))
        # c_s = (1/K) Σ_{k∈Sel_s} w_k; where all clients train Σ_k v_sk w_k / Σ_k v_sk
        return state._replace(centres=sums.mean("model", empty=state.centres))

    def round_from_sums(self, state: FedSoftState, ask: Ask) -> FedSoftState:
        """`round` under secure sums: clients remember u_k, and Σ_k' u_k's n_k' cancels in c_s."""
        estimate = (ask.round - 1) % self.every == 0
        sums = ask(
            self.train_own,
            shared=state.centres,
            static={"estimate": estimate},
            stream="train",
        )
        ask.note("sizes", sums.report["u"][0])
        return state._replace(centres=sums.mean("model", empty=state.centres))

    def estimate_importance(self, state: FedSoftState, ask: Ask) -> FedSoftState:
        """Update u of all clients every τ rounds, and in between of participants without one."""
        selected = ask.participants[state.size[ask.participants] == 0]
        if (ask.round - 1) % self.every == 0:
            selected = ask.all_clients
        if not len(selected):
            return state
        answers = ask(self.weigh, selected, shared=state.centres)
        importance = state.importance.index_copy(0, answers.ids, answers.report["u"])
        size = state.size.index_copy(0, answers.ids, answers.report["size"])
        return state._replace(importance=importance, size=size)

    def draw(self, v: Tensor, ask: Ask) -> Tensor:
        """Draw clients for each centre.

        Args:
            v: [participants, S], chances of being drawn.

        Returns:
            [participants, S], how often each was drawn; v itself without `select`.
        """
        if self.select is None:
            return v
        rng = ask.rng("draw")
        times = torch.zeros_like(v)
        for s, chances in enumerate(v.T):
            k = self.select
            if not self.replace:
                k = min(k, int((chances > 0).sum()))
            if k and bool(chances.any()):
                drawn = torch.multinomial(chances, k, self.replace, generator=rng)
                times[:, s] += drawn.bincount(minlength=len(chances))
        self.note_draws(times, ask, self.select)
        return times

    def note_draws(self, times: Tensor, ask: Ask, k: int) -> None:
        """Note the number of distinct clients drawn, and its expectation for equal weights."""
        n, s = times.shape
        ask.note("drawn", int(times.any(1).sum()))
        ask.note("drawn_by_the_paper", n * (1 - max(0.0, 1 - k / n) ** s))  # N(1 − (1 − K/N)^S)
        if self.replace:
            ask.note("drawn_with_replacement", n * (1 - (1 - 1 / n) ** (k * s)))

    # ------------------------------------------------------------------ evaluation
    def use(self, state: FedSoftState) -> tuple[Any, Any]:
        return (state.centres, state.start), ()

    def model(self, task: Task, shared: Any, per_client: Any, me: Any, data: Data) -> Params:
        return me.inner.model if isinstance(me, SecureClientState) else me.model

    def join(
        self, task: Task, shared: tuple[Params, Params], data: Data
    ) -> tuple[Any, FedSoftClientState]:
        centres, start = shared
        h = Proximal(task, centres, self.importance_weights(task, centres, data), self.pull)
        me = self.enroll(task, start, data)
        return (), h.solve(self, me, data.repeated(self.join_steps))

    def centres(self, state: FedSoftState) -> Params:
        return state.centres

    def groups(self, state: FedSoftState) -> Tensor:
        u = state.importance
        return u / torch.where(u.sum(1) > 0, u.sum(1), 1)[:, None]

    # ------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.clusters == 1:
            raise CoterieError(
                "clusters is 1, and a mixture needs at least 2 centres: use 2 or more, or fedprox."
            )
        if self.keep_solver and self.solver not in ("sgd", "heavy_ball", "adam"):
            raise CoterieError(
                f"keep_solver keeps the state of heavy_ball and adam, not of {self.solver}: use "
                "one of these, or keep_solver=False."
            )
        if self.select is not None and not self.replace and self.select > len(sizes):
            raise CoterieError(
                f"select is {self.select}: without replacement at most all {len(sizes)} clients "
                "can be drawn for a centre; use fewer, or replace=True."
            )


# ------------------------------------------------------------------------------ the local problem
def init_solver(solver: str, w: Params) -> Moments | Params | tuple[()]:
    """The initial state of a local optimiser."""
    if solver == "adam":
        return moments(w)
    if solver == "heavy_ball":
        return zeros(w)
    return ()


class Proximal(NamedTuple):
    """The problem of one client: h(w) = f(w) + (λ/2) Σ_s u_s ‖w − c_s‖², equation (4)."""

    task: Task
    centres: Params
    u: Tensor  # [S]
    strength: float  # λ

    def value(self, w: Params, batch: Batch) -> Tensor:
        """h(w), with f over a batch."""
        differences = [minus(w, c) for c in unstack(self.centres)]
        squares = torch.stack([dot(d, d) for d in differences])
        return self.task.loss(w, batch) + self.strength / 2 * (self.u * squares).sum()

    def solve(
        self, how: FedSoft, me: FedSoftClientState, batches: Repeat | Iterable[Batch]
    ) -> FedSoftClientState:
        """Take local steps on h.

        Its gradient is that of f plus one pull of λ Σ u towards the centres' weighted mean.
        """
        w = me.model
        state = me.solver if how.keep_solver else init_solver(how.solver, w)
        total = self.u.sum()
        pull = self.strength * total
        towards = {
            k: torch.einsum("s,s...->...", self.u / total, c) for k, c in self.centres.items()
        }
        if isinstance(state, Moments):
            w, state = adam(self.task, w, state, batches, how, pull=pull, towards=towards)
        elif isinstance(state, dict):
            beta = how.momentum
            w, state = heavy_ball(
                self.task, w, state, batches, how, beta, pull=pull, towards=towards
            )
        else:
            w = descend(self.task, w, batches, how, pull=pull, towards=towards)
        return me._replace(model=w, solver=state if how.keep_solver else ())

    def solve_inexactly(
        self, how: FedSoft, me: FedSoftClientState, data: Data, gamma: float
    ) -> tuple[FedSoftClientState, Tensor]:
        """Take steps until assumption 1 holds; return also their number.

        All local steps are computed, since clients are vectorised; those after it change nothing.
        """
        at_centres = [norm(grad(self.task.loss)(c, data.all)) for c in unstack(self.centres)]
        limit = gamma * torch.stack(at_centres).min()
        steps = torch.zeros_like(limit)
        for batch in each(data.batches(how)):
            # ‖∇h_k(w_k)‖ ≤ γ0 min_s ‖∇F_s(c_s)‖ (9)
            unsolved = norm(grad(self.value)(me.model, data.all)) > limit
            me = where(unsolved, self.solve(how, me, [batch]), me)
            steps = steps + unsolved
        return me, steps
