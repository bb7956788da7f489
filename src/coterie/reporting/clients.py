"""Every client by name: its rows, its group, and its score under each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.metrics import HIGHER_IS_BETTER
from coterie.reporting.excess import relative_excess
from coterie.reporting.membership import format_group
from coterie.reporting.portrait import MOST, Portrait, sort_clients
from coterie.reporting.rows import FEW, count_test_rows
from coterie.reporting.source import Source
from coterie.reporting.tables import Table
from coterie.reporting.text import (
    NOTHING,
    format_gain,
    format_score,
    join_names,
    metric_name,
    natural_order,
)

WORST = 100  # clients that are listed where there are more than MOST
BASELINES = ("fedavg", "local")  # one model for all, one model each: without groups
NAMED = 8  # clients with few test rows that are named
MARK = "†"


class ClientScores(NamedTuple):
    """One client."""

    name: str
    group: int | None  # −1: not seen; None: the method has no groups
    train_rows: int | None  # None: unknown
    test_rows: int | None  # None: unknown
    scores: list[float]  # under each of `EachClient.methods`; NaN: none
    gains: list[float]  # over each of `EachClient.baselines`, above 0 where it is better; NaN: none
    sure: float | None = None  # how sure its group is, 0 to 1; None: unknown
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
    if not HIGHER_IS_BETTER[metric]:
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


# ------------------------------------------------------------------------------ as text
def clients_table(result: EachClient) -> Table:
    """Lay out one row per client; columns of which nothing is known are left out."""
    shown_first = 1 + len(result.baselines)  # the method and its baselines, then the gains
    head = [
        "client",
        "group",
        "how sure",
        "training rows",
        "test rows",
        *result.methods[:shown_first],
        *(f"gain over {label}" for label in result.baselines),
        *result.methods[shown_first:],
    ]
    first = result.clients[0]
    sure = next((client.sure for client in result.clients if client.sure is not None), None)
    unknown = [
        i
        for i, value in enumerate((first.group, sure, first.train_rows, first.test_rows), start=1)
        if value is None
    ]
    rows = []
    for client in result.clients:
        scores = [format_score(score, result.metric) for score in client.scores]
        gains = [format_gain(gain, result.metric) for gain in client.gains]
        cells = [client.name, *row_cells(client)]
        rows.append([*cells, *scores[:shown_first], *gains, *scores[shown_first:]])
    return Table(without(head, unknown), [without(row, unknown) for row in rows])


def row_cells(client: ClientScores) -> list[str]:
    """Write a client's group, how sure it is, and its rows; few test rows have a mark."""
    group = ""
    if client.group is not None:
        group = format_group(client.group)
    test_rows = str(client.test_rows)
    if client.test_rows is not None and 0 < client.test_rows < FEW:
        test_rows += f" {MARK}"
    sure = NOTHING
    if client.sure is not None:
        sure = f"{100 * client.sure:.0f} %"
    return [group, sure, str(client.train_rows), test_rows]


def without(cells: list[str], positions: Sequence[int]) -> list[str]:
    """Leave out the cells at these positions."""
    return [cell for i, cell in enumerate(cells) if i not in positions]


def describe_clients(result: EachClient) -> str:
    """Say how to read the table."""
    score = f"Test {metric_name(result.metric)} of every client on its own test rows"
    if result.baselines:
        score += f"; the gain is that of {result.method}, above 0 where it is better"
    sentences = [f"{score}. A click on a heading sorts by it."]
    if result.count > MOST:
        sentences.append(
            f"Of the {result.count:,} clients, the {WORST} that do worst under {result.method} "
            "are shown."
        )
    if result.seeds > 1:
        sentences.append(
            f"From the lowest seed of each method; that of {result.method} is {result.seed}."
        )
    return " ".join(sentences)


def describe_few_rows(few: FewRows, metric: str) -> str:
    """Say what to think of scores that a few rows decide; "" where there are none."""
    if not few.clients:
        return ""
    who = f"{len(few.clients):,} of the {few.of:,} clients"
    if len(few.clients) <= NAMED:
        who = join_names([f"{name} ({rows})" for name, rows in few.clients])
    why = "one unusual row decides it"
    if metric == "accuracy":
        least = min(rows for _, rows in few.clients)
        points = f"{100 / least:.0f} percentage points"
        why = f"with {least}, one row more or less moves it by {points}"
    return (
        f"{MARK} Fewer than {FEW} test rows: {who}. Such a score is a hint, not a measurement: "
        f"{why}."
    )


def describe_wins(wins: Wins, method: str) -> str:
    """Say for how many clients a method is better than a baseline."""
    of = wins.better + wins.worse + wins.equal
    return (
        f"Compared with {wins.baseline}, {method} is better for {wins.better} of {of} clients, "
        f"worse for {wins.worse} and equal for {wins.equal}."
    )


def describe_client_notes(result: EachClient) -> list[str]:
    """List what there is to say about the clients' scores, a sentence each."""
    sentences = [describe_few_rows(result.few_rows, result.metric)]
    sentences += [describe_wins(wins, result.method) for wins in result.wins]
    if result.clients[0].train_rows is None:
        sentences.append("Training rows are not counted, as they are not at hand.")
    if result.other_rows:
        whose = "its"
        if len(result.other_rows) > 1:
            whose = "their"
        others = join_names(result.other_rows)
        sentences.append(f"Not shown, as {whose} clients had other rows: {others}.")
    return [sentence for sentence in sentences if sentence]
