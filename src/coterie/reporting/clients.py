"""Every client by name: its rows, its group, and its score under each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.metrics import METRICS
from coterie.reporting.excess import relative_excess
from coterie.reporting.portrait import MOST, Portrait, sort_clients
from coterie.reporting.rows import FEW, count_test_rows
from coterie.reporting.source import Source
from coterie.reporting.text import (
    natural_order,
)

WORST = 100  # clients that are listed where there are more than MOST
BASELINES = ("fedavg", "local")  # one model for all, one model each: without groups


class ClientScores(NamedTuple):
    """One client."""

    name: str
    group: int | None  # −1: not seen; None: the method has no groups
    train_rows: int | None  # None: unknown
    test_rows: int | None  # None: unknown
    scores: list[float]  # under each of `EachClient.methods`; NaN: none
    gains: list[float]  # over each of `EachClient.baselines`, above 0 where it is better; NaN: none
    sure: float | None = None  # how sure its group is, 0 to 1; None: unknown
    commonest: float | None = None  # share of its commonest class in its test rows; None: unknown
    balanced: float | None = None  # its balanced accuracy under the method; None: unknown
    fit: list[float] | None = None  # by group: by which share its model fits worse than the best


class Wins(NamedTuple):
    """For how many clients a method is better, worse and equal in comparison with a baseline."""

    baseline: str
    better: int
    worse: int
    equal: int


class FewRows(NamedTuple):
    """Clients whose scores a few test rows decide."""

    clients: list[tuple[str, int]]  # (name, test rows)
    of: int  # clients in all


@dataclass(frozen=True)
class EachClient:
    """The scores of a run's clients, beside those of the same clients under other methods."""

    method: str
    seed: int
    seeds: int  # the most that any method has
    metric: str
    methods: list[str]  # the method itself, the baselines, then all others
    baselines: list[str]
    clients: list[ClientScores]  # by group; of very many clients, those that do worst, these first
    everyone: list[ClientScores]  # all clients by name
    few_rows: FewRows
    wins: list[Wins]
    other_rows: list[str]  # methods that are not shown, as their clients had other rows

    @property
    def count(self) -> int:
        """Of clients in all."""
        return len(self.everyone)


def is_baseline(label: str) -> bool:
    """Tell whether a method shows what a client would have without groups."""
    return label.split()[0] in BASELINES


def each_client(run: Source, portraits: Mapping[str, Portrait], seeds: int) -> EachClient | None:
    """Collect the scores of the clients of `run`; None where it has none by client."""
    portrait = portraits.get(run.label)
    metric = run.metric
    if portrait is None or metric not in portrait.per_client:
        return None
    scores = {
        label: other.per_client[metric]
        for label, other in portraits.items()
        if other.fingerprint == portrait.fingerprint and metric in other.per_client
    }
    others = [label for label in scores if label != run.label]
    baselines = [label for label in others if is_baseline(label)]
    methods = [run.label, *baselines, *(label for label in others if label not in baselines)]
    goodness = scores[run.label]
    sign = 1
    if not METRICS[metric].higher_is_better:
        sign = -1
    gains = {label: sign * (goodness - scores[label]) for label in baselines}
    counts = count_test_rows(portrait)
    names = run.names
    fit = fit_by_client(portrait)
    everyone = [
        ClientScores(
            name=names[i],
            group=value_of(portrait.groups, i),
            train_rows=value_of(portrait.train_rows, i),
            test_rows=value_of(counts, i),
            scores=[float(scores[label][i]) for label in methods],
            gains=[float(gains[label][i]) for label in baselines],
            sure=certainty_of(portrait, i),
            commonest=score_of(portrait, "commonest", i),
            balanced=score_of(portrait, "balanced_accuracy", i),
            fit=fit.get(i),
        )
        for i in range(len(names))
    ]
    shown = order_clients(portrait.groups, sign * goodness, names)
    return EachClient(
        method=run.label,
        seed=run.seed,
        seeds=seeds,
        metric=metric,
        methods=methods,
        baselines=baselines,
        clients=[everyone[i] for i in shown],
        everyone=[everyone[i] for i in natural_order(names)],
        few_rows=find_few_rows(names, counts),
        wins=[count_wins(label, gain) for label, gain in gains.items()],
        other_rows=[label for label in portraits if label not in methods],
    )


def value_of(values: np.ndarray | None, client: int) -> int | None:
    """Return the number of one client; None where numbers are unknown."""
    if values is None:
        return None
    return int(values[client])


def score_of(portrait: Portrait, name: str, client: int) -> float | None:
    """Return a score of one client; None where it was not measured."""
    values = portrait.per_client.get(name)
    if values is None or not np.isfinite(values[client]):
        return None
    return float(values[client])


def fit_by_client(portrait: Portrait) -> dict[int, list[float]]:
    """Return how much worse each group's model fits than the best, of the clients in figures."""
    if portrait.losses is None:
        return {}
    excess = relative_excess(portrait.losses)
    return {int(client): row for client, row in zip(portrait.shown, excess.tolist())}


def certainty_of(portrait: Portrait, client: int) -> float | None:
    """Return how sure a client's group is; None where that is unknown."""
    if portrait.sure is None or np.isnan(portrait.sure[client]):
        return None
    return float(portrait.sure[client])


def order_clients(
    groups: np.ndarray | None, goodness: np.ndarray, names: Sequence[str]
) -> list[int]:
    """Sort clients by group, then by name; of too many, the worst ones, worst first."""
    if len(goodness) > MOST:
        worst_first = np.argsort(np.where(np.isnan(goodness), np.inf, goodness), kind="stable")
        worst: list[int] = worst_first[:WORST].tolist()
        return worst
    by_group: list[int] = sort_clients(groups, names).tolist()
    return by_group


def find_few_rows(names: Sequence[str], test_rows: np.ndarray | None) -> FewRows:
    """List the clients with few test rows, but some."""
    if test_rows is None:
        return FewRows([], len(names))
    few = [i for i in natural_order(names) if 0 < test_rows[i] < FEW]
    return FewRows([(names[i], int(test_rows[i])) for i in few], len(names))


def count_wins(baseline: str, gain: np.ndarray) -> Wins:
    """Count the clients for whom a method is better than a baseline, worse, and equal."""
    return Wins(baseline, int((gain > 0).sum()), int((gain < 0).sum()), int((gain == 0).sum()))
