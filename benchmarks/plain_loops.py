"""The plain PyTorch loops that Coterie is timed against: a round of each method, client by client.

Each function prepares a round (for example, the batches that the run would draw) and returns a
function that runs the round and returns the server's models. Only that call is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coterie as ct
from coterie.core.contract import Data
from coterie.core.randomness import keys
from coterie.core.task import Batch
from coterie.core.trees import tree_map
from coterie.runs.run import Run

if TYPE_CHECKING:
    from workloads import Case

Model = dict[str, Tensor]
Rows = tuple[Tensor, Tensor]


def loss_of(case: Case, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    return (
        F.cross_entropy(out, y) if case.fed.kind == "classification" else F.mse_loss(out[:, 0], y)
    )


def steps(case: Case, model: nn.Module, batches: list[Rows]) -> None:
    """Train one client, as in the PyTorch tutorial."""
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
    """Convolutions run in channels-last layout, in which they are fast."""
    model, (start,) = case.model(), centres_of(run)
    how = case.method
    batches = [[rows] * how.local_steps for rows in clients(case.fed)]
    if how.batch is not None:
        draw = lambda data: list(data.batches(how))
        batches = [drawn(run, i, draw) for i in range(len(case.fed))]
    if any(isinstance(part, nn.Conv2d) for part in model.modules()):
        model = model.to(memory_format=torch.channels_last)
        batches = [[(channels_last(x), y) for x, y in of_client] for of_client in batches]

    def go() -> list[Model]:
        total = {k: torch.zeros_like(v) for k, v in start.items()}
        for of_client in batches:
            model.load_state_dict(start)
            steps(case, model, of_client)
            for k, v in model.state_dict().items():
                total[k] += v
        return [{k: v / len(case.fed) for k, v in total.items()}]

    return go


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


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
    """Return client i's batches in the next round, without padding."""
    x, y = run.engine.federation.train.client(i)
    data = Data(
        Batch.of(x, y, torch.float32),
        keys(run.client_keys[i], run.round + 1, "train"),
        run.client_keys[i],
    )
    return [(b.x[b.mask > 0], b.y[b.mask > 0]) for b in draw(data)]


def private_states(run: Run) -> Any:
    """Return the private state of every client, every leaf [N, ...]."""
    states = []
    for i, key in enumerate(run.client_keys[: len(run.roster)]):
        data = Data(run.engine.rows("train", i), key, key)
        states.append(run.engine.private.one(i, data, run.task))
    return tree_map(lambda *rows: torch.stack(rows), *states)


def plain_fedsoft(case: Case, run: Run) -> Callable[[], list[Model]]:
    """A module and an Adam optimiser per client, kept between rounds."""
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
                    w = {
                        k: w[k] - how.pull_fraction() * (w[k] - p)
                        for k, p in model.named_parameters()
                    }
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
