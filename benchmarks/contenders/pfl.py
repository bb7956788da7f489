"""pfl-research's simulation of FedAvg with PyTorch, one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from contenders.answering import read_request, serve
from contenders.problems import Arrays, Problem, first_models, rows_of
from contenders.torch_models import arrays_of, build, load, loss_of, tensors


class WithLoss(nn.Module):
    """What pfl wants of a module."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
        self.net = build(problem.shape)
        self.sizes: list[int] = []  # of the batches of all steps

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.sizes.append(len(y))
        return loss_of(self.problem, self.net, x, y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class Pfl:
    packages = ("pfl", "torch", "numpy")

    def __init__(self, problem: Problem, threads: int) -> None:
        self.problem = problem
        x, y = (torch.from_numpy(array) for array in rows_of(problem))
        clients = [
            PyTorchTensorDataset([a, b], user_id=str(i)) for i, (a, b) in enumerate(zip(x, y))
        ]
        sampler = MinimizeReuseUserSampler(list(range(problem.clients)))
        data = FederatedDataset(clients.__getitem__, sampler)
        self.backend = SimulatedBackend(training_data=data, val_data=data)
        self.module = WithLoss(problem)
        self.model = PyTorchModel(
            self.module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self.module.parameters(), 1.0),
        )
        self.how = NNTrainHyperParams(
            local_num_epochs=problem.steps if problem.batch is None else problem.passes,
            local_learning_rate=problem.lr,
            local_batch_size=problem.batch,
        )
        self.start = tensors(first_models(problem)[0])
        self.algorithm = FederatedAveraging()
        self.rounds = 1  # round 0 is always evaluated, the others are not
        self.algorithm._current_central_iteration = 1

    def prepare(self, threads: int) -> Callable[[], Any]:
        torch.set_num_threads(threads)
        load(self.module.net, self.start)
        self.module.sizes.clear()
        self.rounds += 1
        params = NNAlgorithmParams(
            central_num_iterations=self.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=self.problem.clients,
            val_cohort_size=None,
        )
        return lambda: self.algorithm.run(
            params, self.backend, self.model, self.how, send_metrics_to_platform=False
        )

    def models(self, result: Any) -> list[Arrays]:
        return [arrays_of(self.module.net)]

    def counts(self) -> dict[str, Any]:
        return {"steps": len(self.module.sizes), "rows": sum(self.module.sizes)}


if __name__ == "__main__":
    serve(read_request(), Pfl)
