"""The rounds that `speed.py` times: method, data, model, and the equivalent plain loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import coterie as ct
from coterie.runs.run import Run
from plain_loops import (
    Model,
    plain_envelope,
    plain_fedavg,
    plain_fedsoft,
    plain_ifca,
)


@dataclass
class Case:
    name: str
    target: float
    method: ct.Algorithm
    fed: ct.data.Federation
    model: Callable[[], nn.Module]
    plain: Callable[
        [Case, Run], Callable[[], list[Model]]
    ]  # sets a round up; calling the result runs it


def random_images(
    clients: int, rows: int, shape: tuple[int, ...], classes: int = 10
) -> ct.data.Federation:
    g = torch.Generator().manual_seed(0)
    prototypes = torch.rand(classes, *shape, generator=g)
    y = torch.randint(classes, (clients * rows,), generator=g)
    x = (prototypes[y] + 0.5 * torch.rand(len(y), *shape, generator=g)) / 1.5
    return ct.data.from_memory(list(zip(x.split(rows), y.split(rows))), test_share=0.0)


def uneven_images(clients: int) -> ct.data.Federation:
    """Create four kinds of clients with 40 to 500 rows."""
    fed, g = random_images(clients, 500, (28, 28)), torch.Generator().manual_seed(1)
    sizes = torch.randint(40, 501, (clients,), generator=g).tolist()
    rows = [
        (x[:n], (y[:n] + i % 4) % 10)
        for i, (n, (x, y)) in enumerate(zip(sizes, map(fed.train.client, range(clients))))
    ]
    return ct.data.from_memory(rows, test_share=0.0)


def linear_rows(clients: int, rows: int, dim: int) -> ct.data.Federation:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(clients * rows, dim, generator=g)
    y = x @ torch.randn(dim, generator=g) + 0.1 * torch.randn(len(x), generator=g)
    return ct.data.from_memory(list(zip(x.split(rows), y.split(rows))), test_share=0.0)


def cases() -> dict[str, Callable[[], Case]]:
    linear = lambda: nn.Sequential(nn.Linear(10, 1))
    softmax = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    mlp = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    fedavg = lambda lr, steps: ct.FedAvg(lr=lr, local_steps=steps, weighted=False)
    passes = lambda batch, times: ct.FedAvg(
        lr=0.05, batch=batch, local_epochs=times, weighted=False
    )
    ifca = lambda: ct.IFCA(clusters=4, lr=0.1, local_steps=10, init="random")

    dnn = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    fedsoft = lambda: ct.FedSoft(clusters=2, lr=0.005, local_epochs=10, batch=10, pull=1.0)

    def images(name: str, target: float, model: str, *sizes: int) -> Case:
        """One pass of batches of 20 over images [channels, pixels, pixels]."""
        clients, rows, channels, pixels = sizes
        fed = random_images(clients, rows, (channels, pixels, pixels))
        make = ct.models.build(model, fed.roster)
        return Case(name, target, passes(20, 1), fed, make, plain_fedavg)

    def cnn() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 64, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )

    return {
        "linear": lambda: Case(
            "linear d=10, n=100, 1000 clients, 10 steps",
            60,
            fedavg(0.05, 10),
            linear_rows(1000, 100, 10),
            linear,
            plain_fedavg,
        ),
        "softmax": lambda: Case(
            "softmax 784x10, n=50, 1200 clients, 10 steps",
            8,
            fedavg(0.1, 10),
            random_images(1200, 50, (28, 28)),
            softmax,
            plain_fedavg,
        ),
        "ifca200": lambda: Case(
            "IFCA round, MLP 784-200-10, K=4, n=200, 240 clients",
            2.2,
            ifca(),
            random_images(240, 200, (28, 28)),
            mlp,
            plain_ifca,
        ),
        "ifca50": lambda: Case(
            "IFCA round, MLP 784-200-10, K=4, n=50, 480 clients",
            4,
            ifca(),
            random_images(480, 50, (28, 28)),
            mlp,
            plain_ifca,
        ),
        "batch20": lambda: Case(
            "FedAvg, MLP 784-200-10, batch 20, 1 pass, n=200, 120 clients",
            3.5,
            passes(20, 1),
            random_images(120, 200, (28, 28)),
            mlp,
            plain_fedavg,
        ),
        "passes5": lambda: Case(
            "the same, 5 passes, 60 clients",
            6,
            passes(20, 5),
            random_images(60, 200, (28, 28)),
            mlp,
            plain_fedavg,
        ),
        "batch10": lambda: Case(
            "the same, batch 10, 1 pass, n=100, 120 clients",
            5,
            passes(10, 1),
            random_images(120, 100, (28, 28)),
            mlp,
            plain_fedavg,
        ),
        "batch50": lambda: Case(
            "the same, batch 50, 1 pass, n=200, 120 clients",
            1.5,
            passes(50, 1),
            random_images(120, 200, (28, 28)),
            mlp,
            plain_fedavg,
        ),
        "softmax20": lambda: Case(
            "FedAvg, softmax 784x10, batch 20, 1 pass, n=200, 240 clients",
            6,
            passes(20, 1),
            random_images(240, 200, (28, 28)),
            softmax,
            plain_fedavg,
        ),
        "fedsoft": lambda: Case(
            "FedSoft round, linear d=10, Adam, 10 epochs of 10, 100 clients",
            20,
            fedsoft(),
            ct.data.linear("fedsoft", clients=100, test_samples=1),
            linear,
            plain_fedsoft,
        ),
        "pfedme": lambda: Case(
            "pFedMe round, DNN 784-128-10, R=10, S=5, 40 uneven clients",
            4,
            ct.PFedMe(outer=10, inner=5, batch=20),
            uneven_images(40),
            dnn,
            plain_envelope,
        ),
        "cgpfl": lambda: Case(
            "CGPFL round, the same, K=4",
            4,
            ct.CGPFL(clusters=4, outer=10, inner=5, batch=20),
            uneven_images(40),
            dnn,
            plain_envelope,
        ),
        "cnn": lambda: Case(
            "CNN 32-64-512 on 32x32, n=50, 16 clients, 5 steps",
            1,
            fedavg(0.05, 5),
            random_images(16, 50, (3, 32, 32)),
            cnn,
            plain_fedavg,
        ),
        "cnn28": lambda: images(
            "CNN 32-64-512 on 28x28, batch 20, n=100, 8 clients", 1.2, "cnn", 8, 100, 1, 28
        ),
        "cnn32": lambda: images(
            "CNN 32-64-512 on 32x32, batch 20, n=100, 8 clients", 1.2, "cnn", 8, 100, 3, 32
        ),
        "cnn6": lambda: images(
            "six-layer CNN on 32x32, batch 20, n=40, 4 clients", 1.2, "cnn6", 4, 40, 3, 32
        ),
        "resnet18": lambda: images(
            "ResNet-18, group norm, 32x32, batch 20, n=20, 2 clients",
            1,
            "resnet18:group",
            *(2, 20, 3, 32),
        ),
        "lstm": lambda: Case(
            "LSTM of 64 units over 28 rows of 28, batch 20, n=100, 16 clients",
            0.9,
            passes(20, 1),
            random_images(16, 100, (28, 28)),
            Recurrent,
            plain_fedavg,
        ),
    }


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(28, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(x)[0][:, -1])
