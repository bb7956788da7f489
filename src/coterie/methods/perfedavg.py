"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, NeurIPS 2020), Algorithm 1, in its two forms without
second derivatives.

    paper       here             shape
    w_k         model            every leaf [1, ...]
    β, τ        lr, local_steps
    a           inner            the adaptation's step size (the paper's α)
    δ           delta
    D, D′, D″   three batches a step; D′ is the one that FedAvg would draw

    order="fo"  w ← w − β ∇f(w − a∇f(w; D); D′)
    order="hf"  g as above;  w ← w − β [g − a (∇f(w + δg; D″) − ∇f(w − δg; D″))/(2δ)]

Differences from the paper:
* Without `batch` all three batches are all of the client's rows.
* A client predicts with w − a∇f(w) on all its TRAINING rows (released code adapts on test rows),
  also one that was never trained.
* The mean is unweighted (`weighted=True`: by rows); l2 belongs to f; `decay` applies to β, not to
  a.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.core.contract import Data, Scope, Upload, Weight, client, setting
from coterie.core.errors import CoterieError
from coterie.core.params import Params, axpy, minus, pick
from coterie.core.task import Batch, Task
from coterie.methods.fedavg import FedAvg
from coterie.optim import each, gradient, walk


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(FedAvg):
    """One global model that a gradient step on a client's rows personalises.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.PerFedAvg(inner=0.05), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "perfedavg"
    paper: ClassVar[str] = "Fallah et al. 2020"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "one model for all sites, made to be adapted by each with one step"

    weighted: bool = setting(False, "weight clients by their numbers of rows")
    inner: float = setting(0.05, "step size a of the adaptation", ge=0)
    order: str = setting("hf", "first order, or Hessian-free", choices=("fo", "hf"))
    delta: float = setting(1e-3, "δ of the finite differences that approximate the Hessian", gt=0)

    @client(weight=Weight(rows="weighted"), rounds="later")
    def train(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        firsts = self.more_batches(data, 1)  # D
        thirds = self.more_batches(data, 2)  # D″

        def step(w: Params, batch: Batch) -> Params:
            adapted = self.adapt(task, w, next(firsts))
            g = gradient(task, adapted, batch, self)  # ∇f(w − a∇f(w; D); D′)
            if self.order == "hf":
                curved = self.hessian_product(task, w, g, next(thirds))
                g = axpy(-self.inner, curved, g)  # (I − a∇²f(w; D″)) g
            return axpy(-self.lr, g, w)

        w = walk(pick(model, 0), data.batches(self), step)
        return Upload({"model": w}, self.weight(data), {}), private

    def more_batches(self, data: Data, number: int) -> Iterator[Batch]:
        """Batches drawn like D′, but with other random numbers."""
        return each(data._replace(key=data.key + (number << 32)).batches(self))

    def adapt(self, task: Task, w: Params, batch: Batch) -> Params:
        """The personal model of a client with these rows: one gradient step from w."""
        return axpy(-self.inner, gradient(task, w, batch, self), w)  # w − a∇f(w)

    def hessian_product(self, task: Task, w: Params, g: Params, batch: Batch) -> Params:
        """∇²f(w)·g by differences: (∇f(w + δg) − ∇f(w − δg))/(2δ)."""
        up = gradient(task, axpy(self.delta, g, w), batch, self)
        down = gradient(task, axpy(-self.delta, g, w), batch, self)
        return {k: v / (2 * self.delta) for k, v in minus(up, down).items()}

    def model(
        self, task: Task, shared: Params, per_client: Any, private: Any, data: Data
    ) -> Params:
        return self.adapt(task, pick(shared, 0), data.all)

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.solver != "sgd":
            raise CoterieError(
                f"solver is {self.solver!r}, and perfedavg takes plain gradient steps: "
                "use solver='sgd'."
            )
        if self.clip is not None and self.order == "hf":
            raise CoterieError(
                "clip changes the gradients whose difference approximates the Hessian: "
                "leave out clip, or use order='fo'."
            )
