"""Clients one by one: rows, group and scores under each method, in a table and a search field.

"Find a site" is the search field of the page; `search_json` gives script.js its data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from coterie.metrics import METRICS
from coterie.reporting.client_statistics import MOST_SHOWN, ClientStatistics, sort_clients
from coterie.reporting.group_membership import format_group
from coterie.reporting.model_fit import SIMILAR, describe_excess, is_baseline, relative_excess
from coterie.reporting.predictions import FEW_ROWS
from coterie.reporting.run_records import RunRecord
from coterie.reporting.text import (
    NOTHING,
    TextTable,
    format_gain,
    format_score,
    join_names,
    natural_order,
)

WORST = 100  # clients in the table if there are more than MOST_SHOWN
MOST_NAMED = 8  # clients with few test rows in a sentence
MOST_SEARCHABLE = 1000  # clients in the search field, to keep the page small
MARK = "†"


class ClientScores(NamedTuple):
    """The rows, group and scores of one client."""

    name: str
    group: int | None  # −1: not seen; None: the method has no groups
    train_rows: int
    test_rows: int
    scores: list[float]  # under each of `ScoresByClient.methods`; NaN: none
    gains: list[float]  # over each of `ScoresByClient.baselines`, positive: better; NaN: none
    confidence: float | None = None  # membership confidence, 0 to 1; None: unknown
    commonest: float | None = (
        None  # share of the most frequent class in its test rows; None: unknown
    )
    balanced: float | None = None  # balanced accuracy under the method; None: unknown
    fit: list[float] | None = None  # by group, the relative excess loss of its model; None: unknown


@dataclass(frozen=True)
class ScoresByClient:
    """The scores of a run's clients under its own and under other methods."""

    method: str
    seed: int
    seeds: int  # largest number of seeds of any method
    metric: str
    methods: list[str]  # the method, its baselines, then all others
    baselines: list[str]
    clients: list[ClientScores]  # by group; of more than MOST_SHOWN, the worst, worst first
    everyone: list[ClientScores]  # all clients by name
    other_data: list[str]  # methods left out because their clients have other data


def scores_by_client(
    run: RunRecord, statistics: Mapping[str, ClientStatistics], seeds: int
) -> ScoresByClient | None:
    """Collect the scores of the clients of a run.

    Args:
        run: The run whose groups are shown.
        statistics: Client statistics by method.
        seeds: Largest number of seeds of any method.

    Returns:
        The scores; None if the run has none by client.
    """
    own = statistics.get(run.label)
    metric = run.metric
    if own is None or metric not in own.per_client:
        return None
    scores = {
        label: other.per_client[metric]
        for label, other in statistics.items()
        if other.fingerprint == own.fingerprint and metric in other.per_client
    }
    others = [label for label in scores if label != run.label]
    baselines = [label for label in others if is_baseline(label)]
    methods = [run.label, *baselines, *(label for label in others if label not in baselines)]
    sign = 1 if METRICS[metric].higher_is_better else -1
    fit: dict[int, list[float]] = {}
    if own.losses is not None:
        fit = dict(zip(own.shown.tolist(), relative_excess(own.losses).tolist()))

    def known(values: np.ndarray | None, i: int) -> float | None:
        return None if values is None or not np.isfinite(values[i]) else float(values[i])

    everyone = [
        ClientScores(
            name=name,
            group=None if own.groups is None else int(own.groups[i]),
            train_rows=int(own.train_rows[i]),
            test_rows=int(own.test_rows[i]),
            scores=[float(scores[label][i]) for label in methods],
            gains=[float(sign * (scores[run.label][i] - scores[label][i])) for label in baselines],
            confidence=known(own.confidence, i),
            commonest=known(own.per_client.get("commonest"), i),
            balanced=known(own.per_client.get("balanced_accuracy"), i),
            fit=fit.get(i),
        )
        for i, name in enumerate(run.training_names)
    ]
    shown = sort_clients(own.groups, run.training_names)
    if len(everyone) > MOST_SHOWN:
        goodness = sign * scores[run.label]
        worst_first = np.argsort(np.where(np.isnan(goodness), np.inf, goodness), kind="stable")
        shown = worst_first[:WORST]
    return ScoresByClient(
        method=run.label,
        seed=run.seed,
        seeds=seeds,
        metric=metric,
        methods=methods,
        baselines=baselines,
        clients=[everyone[i] for i in shown],
        everyone=[everyone[i] for i in natural_order(run.training_names)],
        other_data=[label for label in statistics if label not in methods],
    )


# ------------------------------------------------------------------------------ the table
def clients_table(result: ScoresByClient) -> TextTable:
    """Return one row per client; columns without any value are left out."""
    balanced = "balanced" if len(result.methods) == 1 else f"balanced, {result.method}"
    first = 1 + len(result.baselines)  # the method and its baselines come before the gains
    columns: dict[str, list[str]] = {
        "client": [c.name for c in result.clients],
        "group": ["" if c.group is None else format_group(c.group) for c in result.clients],
        "membership confidence": [
            "" if c.confidence is None else f"{100 * c.confidence:.0f} %" for c in result.clients
        ],
        "training rows": [str(c.train_rows) for c in result.clients],
        "test rows": [
            f"{c.test_rows} {MARK}" if has_few_rows(c) else str(c.test_rows) for c in result.clients
        ],
        "most frequent class": [format_share(c.commonest) for c in result.clients],
    }
    scores = {
        label: [format_score(c.scores[i], result.metric) for c in result.clients]
        for i, label in enumerate(result.methods)
    }
    columns |= {label: scores[label] for label in result.methods[:first]}
    columns[balanced] = [format_share(c.balanced) for c in result.clients]
    for i, label in enumerate(result.baselines):
        gains = [format_gain(c.gains[i], result.metric) for c in result.clients]
        columns[f"gain over {label}"] = gains
    columns |= {label: scores[label] for label in result.methods[first:]}
    known = {title: cells for title, cells in columns.items() if any(cells)}
    rows = [[cell or NOTHING for cell in row] for row in zip(*known.values())]
    return TextTable(list(known), rows)


def has_few_rows(client: ClientScores) -> bool:
    """Return whether a client has test rows, but too few for a reliable score."""
    return 0 < client.test_rows < FEW_ROWS


def format_share(share: float | None) -> str:
    """Format a share with three decimals; "" if unknown."""
    return "" if share is None else f"{share:.3f}"


def describe_clients(result: ScoresByClient) -> str:
    """Explain the table."""
    score = f"Test {METRICS[result.metric].label} of each client on its own test rows"
    if result.baselines:
        score += f"; gains are those of {result.method}, positive if it is better"
    sentences = [f"{score}. Click a heading to sort."]
    if any(client.commonest is not None for client in result.clients):
        sentences.append(
            "Most frequent class: its share in the client's test rows, "
            "which is the accuracy of always predicting it. Its balanced accuracy is 1 / number of "
            "classes."
        )
    if len(result.everyone) > MOST_SHOWN:
        sentences.append(
            f"The table has the {WORST} of {len(result.everyone):,} clients with the worst scores "
            f"under {result.method}."
        )
    if result.seeds > 1:
        sentences.append(f"Lowest seed of each method; for {result.method}, seed {result.seed}.")
    return " ".join(sentences)


def describe_client_scores(result: ScoresByClient) -> list[str]:
    """Summarise the clients' scores: unreliable ones, and gains over each baseline."""
    sentences = []
    few = [client for client in result.everyone if has_few_rows(client)]
    if few:
        sentences.append(describe_few_rows(few, len(result.everyone), result.metric))
    start = "Compared" if result.seeds == 1 else f"With seed {result.seed}, compared"
    for i, baseline in enumerate(result.baselines):
        gain = np.array([client.gains[i] for client in result.everyone])
        better, worse, equal = (gain > 0).sum(), (gain < 0).sum(), (gain == 0).sum()
        sentences.append(
            f"{start} with {baseline}, {result.method} is better for {better} of "
            f"{better + worse + equal} clients, worse for {worse} and equal for {equal}."
        )
    if result.other_data:
        whose = "its" if len(result.other_data) == 1 else "their"
        others = join_names(result.other_data)
        sentences.append(f"Not shown because {whose} clients have other data: {others}.")
    return sentences


def describe_few_rows(few: list[ClientScores], total: int, metric: str) -> str:
    """Warn of scores that depend on a few test rows."""
    who = f"{len(few):,} of the {total:,} clients"
    if len(few) <= MOST_NAMED:
        who = join_names([f"{client.name} ({client.test_rows})" for client in few])
    why = "a single unusual row decides it"
    if METRICS[metric].unit == "share":
        least = min(client.test_rows for client in few)
        why = f"with {least} rows, one prediction changes it by {100 / least:.0f} percentage points"
    return f"{MARK} Fewer than {FEW_ROWS} test rows: {who}. Such a score is unreliable: {why}."


# ------------------------------------------------------------------------------ the search field
def can_search(result: ScoresByClient) -> bool:
    """Return whether the page has a search field: for 2 to MOST_SEARCHABLE clients."""
    return 1 < len(result.everyone) <= MOST_SEARCHABLE


def search_json(result: ScoresByClient) -> Markup:
    """Return the data of the search field as JSON that can stand in a script element."""
    sites = []
    for client in result.everyone:
        site: dict[str, Any] = {"name": client.name}
        if client.group is not None and client.group >= 0:
            site["group"] = client.group
        if client.confidence is not None:
            site["confidence"] = round(client.confidence, 3)
        site["scores"] = [format_score(score, result.metric) for score in client.scores]
        site["notes"] = describe_client(client, result)
        sites.append(site)
    data = {"methods": result.methods, "sites": sites}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def describe_client(client: ClientScores, result: ScoresByClient) -> list[str]:
    """Describe a client: its test rows, and what it gains from another method or group."""
    rows = "row" if client.test_rows == 1 else "rows"
    first = f"Its scores are measured on {client.test_rows} test {rows}."
    if client.test_rows == 0:
        first = "It has no test rows, so it has no score."
    elif client.test_rows < FEW_ROWS:
        first = f"Its scores are measured on {client.test_rows} test {rows}: too few to rely on."
    sentences = [first, describe_best_method(client, result), describe_other_groups(client)]
    return [sentence for sentence in sentences if sentence]


def describe_best_method(client: ClientScores, result: ScoresByClient) -> str:
    """Name the best method for a client; "" unless all its scores are known."""
    scores = np.array(client.scores)
    if len(scores) < 2 or not np.isfinite(scores).all():
        return ""
    best = int(scores.argmax() if METRICS[result.metric].higher_is_better else scores.argmin())
    own = format_score(client.scores[0], result.metric)
    if format_score(client.scores[best], result.metric) == own:
        return f"No method is better for it than {result.method}."
    gain = abs(client.scores[best] - client.scores[0])
    text = format_score(gain, result.metric)
    if gain <= margin_of_error(client, result.metric):
        return f"{result.methods[best]} is slightly better, by {text}, which may be chance."
    return f"{result.methods[best]} is better for it than {result.method}, by {text}."


def margin_of_error(client: ClientScores, metric: str) -> float:
    """Return the difference between methods that a client's test rows may show by chance.

    A rule of thumb: two standard errors for accuracies, 1/√rows of the score for errors.
    """
    if not client.test_rows:
        return 0.0
    score = client.scores[0]
    if METRICS[metric].unit == "share":
        share = (score * client.test_rows + 2) / (client.test_rows + 4)  # 100 % is not certain
        return float(2 * np.sqrt(2 * share * (1 - share) / client.test_rows))
    return float(score / np.sqrt(client.test_rows))


def describe_other_groups(client: ClientScores) -> str:
    """Describe how well other groups' models fit a client's training rows; "" if unknown."""
    if client.fit is None or client.group is None or client.group < 0:
        return ""
    others = [
        (value, group)
        for group, value in enumerate(client.fit)
        if group != client.group and np.isfinite(value)
    ]
    if not others:
        return ""
    own = client.fit[client.group]
    least, group = min(others)
    if np.isfinite(own) and own > SIMILAR:
        return f"The model of group {group} fits its training rows better than its own group's."
    if least <= SIMILAR:
        return f"The model of group {group} fits its training rows as well as its own group's."
    return (
        f"No other group's model fits as well: the next best, group {group}, "
        f"{describe_excess(least)} on its training rows."
    )
