"""FedLab's serial simulation of FedAvg.

Its data sets import torchvision, for which nothing here has a use: an empty module stands in, since
the builds of torchvision that a registry has need not fit this torch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

torchvision: Any = ModuleType("torchvision")
torchvision.transforms = ModuleType("torchvision.transforms")
sys.modules["torchvision"] = torchvision
sys.modules["torchvision.transforms"] = torchvision.transforms

import torch  # noqa: E402
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from contenders.answering import read_request, serve  # noqa: E402
from contenders.problems import Arrays, Problem, first_models, rows_of  # noqa: E402
from contenders.torch_models import arrays_of, build, load, tensors  # noqa: E402


class Rows:
    """FedLab's view of the data: a loader for each client."""

    def __init__(self, problem: Problem) -> None:
        x, y = (torch.from_numpy(array) for array in rows_of(problem))
        self.clients = [TensorDataset(a, b) for a, b in zip(x, y)]
        self.is_shuffled = problem.batch is not None

    def get_dataloader(self, client: int, batch: int) -> DataLoader[Any]:
        return DataLoader(self.clients[client], batch_size=batch, shuffle=self.is_shuffled)


class Pipeline(StandalonePipeline):
    """Rounds without an evaluation."""

    def evaluate(self) -> None:
        pass


class FedLab:
    packages = ("fedlab", "torch", "numpy")

    def __init__(self, problem: Problem, threads: int) -> None:
        logging.disable(logging.INFO)
        self.problem = problem
        self.sizes: list[int] = []
        self.handler = SyncServerHandler(build(problem.shape), 0, sample_ratio=1.0)
        trainer = SGDSerialClientTrainer(build(problem.shape), problem.clients)
        trainer.setup_dataset(Rows(problem))
        epochs = problem.steps if problem.batch is None else problem.passes
        trainer.setup_optim(epochs, problem.batch or problem.rows, problem.lr)
        trainer.criterion = self.loss
        self.pipeline = Pipeline(self.handler, trainer)
        self.start = tensors(first_models(problem)[0])

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        self.sizes.append(len(y))
        if self.problem.is_regression:
            return torch.nn.functional.mse_loss(outputs[:, 0], y)
        return torch.nn.functional.cross_entropy(outputs, y)

    def prepare(self, threads: int) -> Callable[[], Any]:
        torch.set_num_threads(threads)
        load(self.handler.model, self.start)
        self.sizes.clear()
        self.handler.global_round = self.handler.round + 1
        return self.pipeline.main

    def models(self, result: Any) -> list[Arrays]:
        return [arrays_of(self.handler.model)]

    def counts(self) -> dict[str, Any]:
        return {"steps": len(self.sizes), "rows": sum(self.sizes)}


if __name__ == "__main__":
    serve(read_request(), FedLab)
