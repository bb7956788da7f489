"""FedBN: federated learning on non-IID features via local batch normalization (Li, Jiang, Zhang,
Kamp, Dou, ICLR 2021), Algorithm 1.

    paper       here             shape
    w_0,k^(l)   private          every leaf [...], the batch norm layers that client k keeps
    w^(l)       Upload "base"    every leaf [...], all other layers, which are averaged
    T, E        rounds, local_epochs

Differences from the paper:
* Clients are weighted by their numbers of rows; the paper's mean over clients is `weighted=False`.
* `keep="statistics"` keeps only the running mean and variance of each batch norm and averages its
  scale and shift: SiloBN (Andreux, du Terrail, Beguier, Tramel, DART 2020).
* `own` names further layers that each client keeps, as in FedPer.
* A client that has not participated yet predicts with the initial batch norm layers.
* A new client trains its batch norm layers in `join_steps` steps, with the shared layers fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.core.contract import Scope, setting
from coterie.core.errors import CoterieError
from coterie.core.layers import is_named
from coterie.core.task import Task
from coterie.methods.fedper import FedPer, layer_of


@dataclass(frozen=True, kw_only=True)
class FedBN(FedPer):
    """FedAvg in which each client keeps its batch norm layers for itself.

    Args:
        keep: "layers", or "statistics" for running means and variances alone.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.rotated("digits", clients=4, samples=20)
        >>> result = ct.run(ct.FedBN(lr=0.1), fed, model="mlp_bn:8", rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "fedbn"
    paper: ClassVar[str] = "Li et al. 2021"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "one model for all sites except for batch norms, which each keeps"

    own: tuple[str, ...] = setting((), "further layers each client keeps")
    keep: str = setting(
        "layers",
        "what clients keep of batch norms: the layers, or their running statistics alone",
        choices=("layers", "statistics"),
    )

    def own_parameters(self, task: Task, names: list[str]) -> list[str]:
        kept = set(task.averaged)
        if self.keep == "layers":
            norms = {layer_of(k) for k in task.averaged}
            kept |= {k for k in names if layer_of(k) in norms}
        return [k for k in names if k in kept or is_named(k, self.own)]

    def default_model(self, usual: str) -> str:
        return "mlp_bn"

    def check(self, task: Task, sizes: Tensor) -> None:
        if not task.averaged:
            raise CoterieError(
                "fedbn keeps the batch norms of each client, and this model has none that is "
                "trained: use a model with nn.BatchNorm layers, such as mlp_bn, or fedavg."
            )
        super().check(task, sizes)
