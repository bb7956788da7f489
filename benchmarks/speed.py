"""Wall time of Coterie against a plain PyTorch loop that does the same updates, interleaved, on all cores.

    python benchmarks/speed.py [NAME...] [--repeats 3]

The loop is what one writes first: for each client, load the parameters, step an optimiser, average. It runs with one
and with all torch threads, and the better of the two counts. Each line also says how far the two results differ, so
that a ratio is never that of different work.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coterie as ct
from coterie.params import flatten
from coterie.result import prepare

Models = list[dict[str, Tensor]]


@dataclass
class Case:
    name: str
    target: float
    method: ct.Algorithm
    fed: ct.data.Federation
    model: Callable[[], nn.Module]
    plain: Callable[[Case, Models], Models]  # one round


def random_images(clients: int, rows: int, shape: tuple[int, ...], classes: int = 10) -> ct.data.Federation:
    g = torch.Generator().manual_seed(0)
    prototypes = torch.rand(classes, *shape, generator=g)
    y = torch.randint(classes, (clients * rows,), generator=g)
    x = (prototypes[y] + 0.5 * torch.rand(len(y), *shape, generator=g)) / 1.5
    return ct.data.from_memory(list(zip(x.split(rows), y.split(rows))), test_share=0.0)


def linear_rows(clients: int, rows: int, dim: int) -> ct.data.Federation:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(clients * rows, dim, generator=g)
    y = x @ torch.randn(dim, generator=g) + 0.1 * torch.randn(len(x), generator=g)
    return ct.data.from_memory(list(zip(x.split(rows), y.split(rows))), test_share=0.0)


# ---------------------------------------------------------------------------------------------- the plain loop
def steps(case: Case, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The client's local training, as PyTorch's own tutorial has it."""
    how = case.method
    optimiser = torch.optim.SGD(model.parameters(), how.lr)
    for _ in range(how.local_steps):
        optimiser.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y) if case.fed.kind == "classification" else F.mse_loss(out[:, 0], y)
        loss.backward()
        optimiser.step()


def clients(fed: ct.data.Federation) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(fed.train.x.split(fed.train.sizes.tolist()), fed.train.y.split(fed.train.sizes.tolist()))


def plain_fedavg(case: Case, models: Models) -> Models:
    model = case.model()
    total = {k: torch.zeros_like(v) for k, v in models[0].items()}
    for x, y in clients(case.fed):
        model.load_state_dict(models[0])
        steps(case, model, x, y)
        for k, v in model.state_dict().items():
            total[k] += v
    return [{k: v / len(case.fed) for k, v in total.items()}]


def plain_ifca(case: Case, models: Models) -> Models:
    model = case.model()
    totals = [{k: torch.zeros_like(v) for k, v in m.items()} for m in models]
    counts = [0] * len(models)
    for x, y in clients(case.fed):
        losses = []
        with torch.no_grad():
            for m in models:
                model.load_state_dict(m)
                losses.append(float(F.cross_entropy(model(x), y)))
        j = losses.index(min(losses))
        model.load_state_dict(models[j])
        steps(case, model, x, y)
        counts[j] += 1
        for k, v in model.state_dict().items():
            totals[j][k] += v
    return [{k: v / n for k, v in t.items()} if n else m for t, n, m in zip(totals, counts, models)]


def cases() -> dict[str, Callable[[], Case]]:
    linear = lambda: nn.Sequential(nn.Linear(10, 1))
    softmax = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    mlp = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    fedavg = lambda lr, steps: ct.FedAvg(lr=lr, local_steps=steps, weighted=False)
    ifca = lambda: ct.IFCA(clusters=4, lr=0.1, local_steps=10, init="random")

    def cnn() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 64, 512), nn.ReLU(), nn.Linear(512, 10),
        )  # fmt: skip

    return {
        "linear": lambda: Case("linear d=10, n=100, 1000 clients, 10 steps", 60, fedavg(0.05, 10),
                               linear_rows(1000, 100, 10), linear, plain_fedavg),
        "softmax": lambda: Case("softmax 784x10, n=50, 1200 clients, 10 steps", 8, fedavg(0.1, 10),
                                random_images(1200, 50, (28, 28)), softmax, plain_fedavg),
        "ifca200": lambda: Case("IFCA round, MLP 784-200-10, K=4, n=200, 240 clients", 2.2, ifca(),
                                random_images(240, 200, (28, 28)), mlp, plain_ifca),
        "ifca50": lambda: Case("IFCA round, MLP 784-200-10, K=4, n=50, 480 clients", 4, ifca(),
                               random_images(480, 50, (28, 28)), mlp, plain_ifca),
        "cnn": lambda: Case("CNN 32-64-512 on 32x32, n=50, 16 clients, 5 steps", 1, fedavg(0.05, 5),
                            random_images(16, 50, (3, 32, 32)), cnn, plain_fedavg),
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------- side by side
def compare(case: Case, repeats: int) -> None:
    cores = len(os.sched_getaffinity(0))
    run = prepare(case.method, case.fed, case.model, rounds=10**6, eval_every=10**6)
    for _ in run.rounds():  # round 0 and one more: warm
        if run.round == 1:
            break
    shared, _ = run.method.use(run.state)
    models = [{k: v[j] for k, v in shared.items()} for j in range(len(next(iter(shared.values()))))]
    took: dict[str, list[float]] = {"coterie": [], **{f"plain, {t} thread{'s' * (t > 1)}": [] for t in {1, cores}}}
    results: dict[str, Tensor] = {}
    state, at = run.state, run.round
    for _ in range(repeats):
        for who, times in took.items():
            threads = cores if who == "coterie" else int(who.split()[1])
            torch.set_num_threads(threads)
            run.state, run.round = state, at
            began = time.perf_counter()
            new = None if who == "coterie" else case.plain(case, models)
            if new is None:
                run.step()
            times.append(time.perf_counter() - began)
            shared, _ = run.method.use(run.state)
            results[who] = flatten(shared if new is None else {k: torch.stack([m[k] for m in new]) for k in shared})
    ours, theirs = min(took.pop("coterie")), {k: min(v) for k, v in took.items()}
    best = min(theirs, key=theirs.__getitem__)
    off = float((results["coterie"] - results[best]).norm() / results[best].norm())
    print(f"{case.name:55s} {ours:8.3f} s   plain {theirs[best]:8.3f} s ({best[7:]})   {theirs[best] / ours:6.1f}x"
          f"   target {case.target}x   differ {off:.0e}", flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(cases())}")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many rounds counts")
    args = parser.parse_args()
    for name, make in cases().items():
        if not args.names or name in args.names:
            compare(make(), args.repeats)
