"""Wall time of Coterie against a plain PyTorch loop that does the same updates.

The two are interleaved, on all cores.

    python benchmarks/speed.py [NAME...] [--repeats 3]

The loop is what one writes first: for each client, load the parameters, step an optimiser, average.
It runs with one and with all torch threads, and the better of the two counts. Each line also says
how far the two results differ, so that a ratio is never that of different work. Where batches are
drawn, the loop gets them cut already, untimed. The last lines tell how much of a round the server's
clustering takes.
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
from coterie.clustering import kmeans, sketch
from coterie.contract import Data
from coterie.randomness import keys
from coterie.runs.run import Run
from coterie.runs.start import prepare
from coterie.task import Batch
from oracles import private_states

Model = dict[str, Tensor]
Rows = tuple[Tensor, Tensor]


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
    """Four kinds of client, from 40 to 500 rows."""
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


# ------------------------------------------------------------------------------ the plain loops
def loss_of(case: Case, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    return (
        F.cross_entropy(out, y) if case.fed.kind == "classification" else F.mse_loss(out[:, 0], y)
    )


def steps(case: Case, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The client's local training, as PyTorch's own tutorial has it."""
    how = case.method
    optimiser = torch.optim.SGD(model.parameters(), how.lr)
    for _ in range(how.local_steps):
        optimiser.zero_grad()
        loss_of(case, model, x, y).backward()
        optimiser.step()


def clients(fed: ct.data.Federation) -> Iterator[Rows]:
    return zip(
        fed.train.x.split(fed.train.sizes.tolist()), fed.train.y.split(fed.train.sizes.tolist())
    )


def centres_of(run: Run) -> list[Model]:
    found = run.method.centres(run.state)
    found = run.state if found is None else found
    return [{k: v[j] for k, v in found.items()} for j in range(len(next(iter(found.values()))))]


def mean(models: list[Model]) -> Model:
    return {k: torch.stack([m[k] for m in models]).mean(0) for k in models[0]}


def plain_fedavg(case: Case, run: Run) -> Callable[[], list[Model]]:
    model, (start,) = case.model(), centres_of(run)

    def go() -> list[Model]:
        total = {k: torch.zeros_like(v) for k, v in start.items()}
        for x, y in clients(case.fed):
            model.load_state_dict(start)
            steps(case, model, x, y)
            for k, v in model.state_dict().items():
                total[k] += v
        return [{k: v / len(case.fed) for k, v in total.items()}]

    return go


def plain_ifca(case: Case, run: Run) -> Callable[[], list[Model]]:
    model, centres = case.model(), centres_of(run)

    def go() -> list[Model]:
        totals = [{k: torch.zeros_like(v) for k, v in m.items()} for m in centres]
        counts = [0] * len(centres)
        for x, y in clients(case.fed):
            losses = []
            with torch.no_grad():
                for m in centres:
                    model.load_state_dict(m)
                    losses.append(float(F.cross_entropy(model(x), y)))
            j = losses.index(min(losses))
            model.load_state_dict(centres[j])
            steps(case, model, x, y)
            counts[j] += 1
            for k, v in model.state_dict().items():
                totals[j][k] += v
        return [
            {k: v / n for k, v in t.items()} if n else m for t, n, m in zip(totals, counts, centres)
        ]

    return go


def drawn(run: Run, i: int, draw: Callable[[Data], list[Batch]]) -> list[Rows]:
    """Client i's batches in the next round, without padding."""
    x, y = run.engine.fed.train.client(i)
    data = Data(
        Batch.of(x, y, torch.float32),
        keys(run.client_keys[i], run.round + 1, "train"),
        run.client_keys[i],
    )
    return [(b.x[b.mask > 0], b.y[b.mask > 0]) for b in draw(data)]


def plain_fedsoft(case: Case, run: Run) -> Callable[[], list[Model]]:
    """A module and an Adam per client, which live on between rounds."""
    how, centres, kept = run.method, centres_of(run), private_states(run)
    everyone = range(len(case.fed))
    models, adams = [case.model() for _ in everyone], []
    for i, model in enumerate(models):
        model.load_state_dict({k: v[i] for k, v in kept.model.items()})
        adam = torch.optim.Adam(model.parameters(), how.lr)
        for k, p in model.named_parameters():
            moments = {"exp_avg": kept.solver.first[k][i], "exp_avg_sq": kept.solver.second[k][i]}
            adam.state[p] = {
                name: v.clone() for name, v in {"step": kept.solver.steps[i], **moments}.items()
            }
        adams.append(adam)
    batches = [drawn(run, i, lambda d: list(d.batches(how))) for i in everyone]

    def go() -> list[Model]:
        weights, scratch = [], case.model()
        for i, (x, y) in enumerate(clients(case.fed)):
            with torch.no_grad():
                losses = []
                for c in centres:
                    scratch.load_state_dict(c)
                    losses.append((scratch(x)[:, 0] - y) ** 2)
            share = torch.stack(losses).argmin(0).bincount(minlength=len(centres)) / len(y)
            u = share.clamp(min=how.floor)
            for bx, by in batches[i]:
                adams[i].zero_grad()
                loss = loss_of(case, models[i], bx, by)
                for s, c in enumerate(centres):
                    for k, p in models[i].named_parameters():
                        loss = loss + how.pull / 2 * u[s] * ((p - c[k]) ** 2).sum()
                loss.backward()
                adams[i].step()
            weights.append(u * len(y))
        v = torch.stack(weights) / torch.stack(weights).sum(0)
        return [
            {k: sum(v[i, s] * m.state_dict()[k] for i, m in enumerate(models)) for k in centres[0]}
            for s in range(len(centres))
        ]

    return go


def plain_envelope(case: Case, run: Run) -> Callable[[], list[Model]]:
    """pFedMe and CGPFL.

    R times S steps of θ towards its own loss and w, then w goes some of the way to θ.
    """
    how, centres, kept = run.method, centres_of(run), private_states(run)
    group = getattr(run.state, "group", torch.zeros(len(case.fed), dtype=torch.long))
    batches = [
        drawn(run, i, lambda d: [d.sample(how.batch, r) for r in range(how.outer)])
        for i in range(len(case.fed))
    ]

    def go() -> list[Model]:
        new = []
        model = case.model()
        for i in range(len(case.fed)):
            w = centres[int(group[i])]
            model.load_state_dict(w if how.restart else {k: v[i] for k, v in kept.model.items()})
            optimiser = torch.optim.SGD(model.parameters(), how.inner_lr)
            for x, y in batches[i]:
                for _ in range(how.inner):
                    optimiser.zero_grad()
                    tie = sum(((p - w[k]) ** 2).sum() for k, p in model.named_parameters())
                    (loss_of(case, model, x, y) + how.lam / 2 * tie).backward()
                    optimiser.step()
                with torch.no_grad():
                    w = {k: w[k] - how.fraction() * (w[k] - p) for k, p in model.named_parameters()}
            new.append({k: v.detach() for k, v in w.items()})
        if len(centres) == 1:
            return [mean(new)]
        from sklearn.cluster import KMeans

        flat, old = (
            torch.stack([torch.cat([v.flatten() for v in m.values()]) for m in ms])
            for ms in (new, centres)
        )
        label = KMeans(len(centres), init=old.numpy(), n_init=1).fit(flat.numpy()).labels_
        return [mean([m for m, j in zip(new, label) if j == k]) for k in range(len(centres))]

    return go


def cases() -> dict[str, Callable[[], Case]]:
    linear = lambda: nn.Sequential(nn.Linear(10, 1))
    softmax = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    mlp = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    fedavg = lambda lr, steps: ct.FedAvg(lr=lr, local_steps=steps, weighted=False)
    ifca = lambda: ct.IFCA(clusters=4, lr=0.1, local_steps=10, init="random")

    dnn = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    fedsoft = lambda: ct.FedSoft(clusters=2, lr=0.005, local_epochs=10, batch=10, pull=1.0)

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
    }


# ------------------------------------------------------------------------------ side by side
def warm(case: Case, rounds: int = 2) -> Run:
    run = prepare(case.method, case.fed, case.model, rounds=10**6, eval_every=10**6)
    for _ in run.rounds():
        if run.round == rounds:
            return run
    raise AssertionError


def compare(case: Case, repeats: int) -> None:
    cores = len(os.sched_getaffinity(0))
    run = warm(case)
    took: dict[str, list[float]] = {
        "coterie": [],
        **{f"plain, {t} thread{'s' * (t > 1)}": [] for t in {1, cores}},
    }
    results: dict[str, Tensor] = {}
    state, at, private = (
        run.state,
        run.round,
        torch.utils._pytree.tree_map(torch.clone, private_states(run)),
    )
    for _ in range(repeats):
        for who, times in took.items():
            torch.set_num_threads(cores if who == "coterie" else int(who.split()[1]))
            run.state, run.round = state, at
            run.engine.restore(torch.utils._pytree.tree_map(torch.clone, private))
            plain = case.plain(case, run)
            began = time.perf_counter()
            new = plain() if who != "coterie" else (run.step(), centres_of(run))[1]
            times.append(time.perf_counter() - began)
            results[who] = torch.stack([torch.cat([v.flatten() for v in m.values()]) for m in new])
    ours, theirs = min(took.pop("coterie")), {k: min(v) for k, v in took.items()}
    best = min(theirs, key=theirs.__getitem__)
    off = float((results["coterie"] - results[best]).norm() / results[best].norm())
    print(
        f"{case.name:62s} {ours:8.3f} s   plain {theirs[best]:8.3f} s ({best[7:]})   "
        f"{theirs[best] / ours:6.1f}x   target {case.target}x   differ {off:.0e}",
        flush=True,
    )


# ------------------------------------------------------------------------------ clustering
def timed(work: Callable[[], object], repeats: int) -> float:
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


def clustering(repeats: int) -> None:
    """The server's part of a CGPFL round and of IFCA's start, beside the rounds themselves."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    run = warm(cases()["cgpfl"]())
    asked = run.asker(run.round + 1)
    uploads = run.method.ask_all(run.state, asked).values["model"]
    server = timed(
        lambda: run.method.partition(run.state.centres, uploads, run.state.group, asked), repeats
    )
    whole = timed(run.step, repeats)
    share = f"{100 * server / whole:.0f} % of a CGPFL round ({whole:.2f} s)"
    print(f"clustering 40 x 101,770 uploads: {server:.3f} s, {share}   target 10 %", flush=True)
    case = cases()["ifca50"]()
    run = warm(case, rounds=1)
    whole = timed(run.step, repeats) * 4800 / len(case.fed)
    g = torch.Generator().manual_seed(0)
    some = torch.randn(48, 159_010, generator=g)
    sketches = timed(lambda: torch.vmap(lambda w: sketch({"w": w}, 256, 1))(some), repeats) * 100
    points = torch.nn.functional.normalize(
        torch.randn(4800, 256, generator=g) + 3 * torch.eye(256)[torch.arange(4800) % 4]
    )
    server = timed(lambda: kmeans(F.normalize(points), 4, g), repeats)
    print(
        f"clustering 4,800 x 159,010 through sketches: {sketches:.2f} s for the sketches "
        f"(48 timed, x 100) and {server:.2f} s for k-means, "
        f"{100 * (sketches + server) / whole:.0f} % of an IFCA round ({whole:.1f} s: 480 clients "
        f"timed, x 10)   target 10 %",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(cases())}, clustering")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many rounds counts")
    args = parser.parse_args()
    for name, make in cases().items():
        if not args.names or name in args.names:
            compare(make(), args.repeats)
    if not args.names or "clustering" in args.names:
        clustering(args.repeats)
