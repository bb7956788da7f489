"""The time of Coterie against a plain PyTorch loop that does the same updates.

The two are interleaved, on all cores.

    python benchmarks/speed.py [NAME...] [--repeats 3] [--one-thread] [--save]

The loop is what one writes first: for each client, load the parameters, step an optimiser, average.
It runs with one and with all torch threads, and the better of the two counts. Each line also says
how far the two results differ, so that a ratio is never that of different work. Where batches are
drawn, the loop gets them cut already, untimed. The last lines tell how much of a round the server's
clustering takes.

Wall time is what one waits for. Processor time, of all threads against the loop on one, depends
less on what else the machine does: its ratios are compared with those in baseline.json, and what
fell by more than a quarter is named. --save writes them there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import coterie as ct
from coterie.clustering import kmeans, sketch
from coterie.contract import Data
from coterie.randomness import keys
from coterie.runs.run import Run
from coterie.runs.start import prepare
from coterie.task import Batch

Model = dict[str, Tensor]
Rows = tuple[Tensor, Tensor]

BASELINE = Path(__file__).with_name("baseline.json")
FELL = 0.75  # of its ratio in the baseline: what is below is named


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


def steps(case: Case, model: nn.Module, batches: list[Rows]) -> None:
    """The client's local training, as PyTorch's own tutorial has it."""
    optimiser = torch.optim.SGD(model.parameters(), case.method.lr)
    for x, y in batches:
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
    how = case.method
    batches = [[rows] * how.local_steps for rows in clients(case.fed)]
    if how.batch is not None:
        draw = lambda data: list(data.batches(how))
        batches = [drawn(run, i, draw) for i in range(len(case.fed))]

    def go() -> list[Model]:
        total = {k: torch.zeros_like(v) for k, v in start.items()}
        for of_client in batches:
            model.load_state_dict(start)
            steps(case, model, of_client)
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
            steps(case, model, [(x, y)] * case.method.local_steps)
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


def private_states(run: Run) -> Any:
    """The private state of every client, a table per leaf."""
    states = []
    for i, key in enumerate(run.client_keys[: len(run.roster)]):
        data = Data(run.engine.rows("train", i), key, key)
        states.append(run.engine.private.one(i, data, run.task))
    return tree_map(lambda *rows: torch.stack(rows), *states)


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
    passes = lambda batch, times: ct.FedAvg(
        lr=0.05, batch=batch, local_epochs=times, weighted=False
    )
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
    }


# ------------------------------------------------------------------------------ side by side
def warm(case: Case, rounds: int = 2) -> Run:
    run = prepare(case.method, case.fed, case.model, rounds=10**6, eval_every=10**6)
    for _ in run.rounds():
        if run.round == rounds:
            return run
    raise AssertionError


class Took(NamedTuple):
    """Seconds of one round."""

    wall: float
    processor: float  # of all threads together


def timed_round(work: Callable[[], list[Model]]) -> tuple[Took, list[Model]]:
    began = time.perf_counter(), time.process_time()
    models = work()
    return Took(time.perf_counter() - began[0], time.process_time() - began[1]), models


def cores() -> int:
    return len(os.sched_getaffinity(0))


def compare(case: Case, repeats: int, threads: set[int]) -> float:
    """Print a line about a case; return the ratio of the processor times.

    threads: numbers of threads on which the loop runs.
    """
    run = warm(case)
    state, at = run.state, run.round
    snapshot = tree_map(torch.clone, run.engine.snapshot())
    contenders = ["coterie"] + [f"{t} thread{'s' * (t > 1)}" for t in sorted(threads)]
    took: dict[str, list[Took]] = {who: [] for who in contenders}
    results: dict[str, Tensor] = {}
    for _ in range(repeats):
        for who in contenders:
            torch.set_num_threads(cores() if who == "coterie" else int(who.split()[0]))
            run.state, run.round = state, at
            run.engine.restore(tree_map(torch.clone, snapshot))
            work = case.plain(case, run)
            if who == "coterie":
                work = lambda: (run.step(), centres_of(run))[1]
            seconds, models = timed_round(work)
            took[who].append(seconds)
            flat = [torch.cat([v.flatten() for v in m.values()]) for m in models]
            results[who] = torch.stack(flat)
    wall = {who: min(t.wall for t in times) for who, times in took.items()}
    processor = {who: min(t.processor for t in times) for who, times in took.items()}
    best = min(contenders[1:], key=wall.__getitem__)
    off = float((results["coterie"] - results[best]).norm() / results[best].norm())
    ratio = processor["1 thread"] / processor["coterie"]
    print(
        f"{case.name:62s} {wall['coterie']:8.3f} s   plain {wall[best]:8.3f} s ({best})   "
        f"{wall[best] / wall['coterie']:6.1f}x   target {case.target}x   "
        f"processor time {ratio:.2f}x   differ {off:.0e}",
        flush=True,
    )
    return ratio


# ------------------------------------------------------------------------------ the baseline
def compare_with_baseline(ratios: dict[str, float]) -> list[str]:
    """A line for each case whose ratio fell by more than a quarter."""
    baseline = read_baseline()
    return [
        f"{name} fell: processor time {ratio:.2f}x, {baseline[name]:.2f}x in {BASELINE.name}"
        for name, ratio in ratios.items()
        if name in baseline and ratio < FELL * baseline[name]
    ]


def read_baseline() -> dict[str, float]:
    if not BASELINE.exists():
        return {}
    baseline: dict[str, float] = json.loads(BASELINE.read_text())
    return baseline


def save_baseline(ratios: dict[str, float]) -> None:
    """Write the ratios of the cases that ran; those of others stay."""
    both = {**read_baseline(), **{name: round(ratio, 2) for name, ratio in ratios.items()}}
    BASELINE.write_text(json.dumps(both, indent=2) + "\n")


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
    parser.add_argument(
        "--one-thread",
        action="store_true",
        help="run the loop on one thread only: on a busy machine, two wait for each other",
    )
    parser.add_argument("--save", action="store_true", help="write the ratios to baseline.json")
    args = parser.parse_args()
    ratios = {}
    for name, make in cases().items():
        if not args.names or name in args.names:
            ratios[name] = compare(make(), args.repeats, {1} if args.one_thread else {1, cores()})
    if not args.names or "clustering" in args.names:
        clustering(args.repeats)
    if args.save:
        save_baseline(ratios)
    fell = compare_with_baseline(ratios)
    for line in fell:
        print(line)
    sys.exit(1 if fell else 0)
