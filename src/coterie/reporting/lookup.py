"""What a reader finds under "Find a site": one client's group, scores, and what else fits it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from markupsafe import Markup

from coterie.metrics import METRICS
from coterie.reporting.clients import ClientScores, EachClient
from coterie.reporting.excess import AS_WELL, describe_excess
from coterie.reporting.rows import FEW
from coterie.reporting.text import format_score

MOST_FOUND = 1000  # clients that can be searched for; the page stays small


def can_search(result: EachClient) -> bool:
    """Tell whether there are clients to choose from, and not too many."""
    return 1 < result.count <= MOST_FOUND


def lookup_json(result: EachClient) -> Markup:
    """Return what script.js shows of each client, as JSON that can stand in a script element."""
    sites = [site_card(client, result) for client in result.everyone]
    data = {"methods": result.methods, "sites": sites}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def site_card(client: ClientScores, result: EachClient) -> dict[str, Any]:
    """Describe one client: name, group, how sure, sentences, and its score under each method.

    `sure` is a number from 0 to 1, or is left out where it is unknown.
    """
    card: dict[str, Any] = {"name": client.name}
    if client.group is not None and client.group >= 0:
        card["group"] = client.group
    if client.sure is not None:
        card["sure"] = round(client.sure, 3)
    card["scores"] = [format_score(score, result.metric) for score in client.scores]
    card["said"] = describe_client(client, result)
    return card


def describe_client(client: ClientScores, result: EachClient) -> list[str]:
    """Say what a client would gain elsewhere: by another method, or in another group."""
    sentences = [describe_own_rows(client), describe_best_method(client, result)]
    sentences.append(describe_other_groups(client))
    return [sentence for sentence in sentences if sentence]


def describe_own_rows(client: ClientScores) -> str:
    """Say how many rows stand behind a client's scores."""
    if client.test_rows is None:
        return ""
    if client.test_rows == 0:
        return "It has no test rows, and so no score."
    rows = "rows"
    if client.test_rows == 1:
        rows = "row"
    sentence = f"Its scores are measured on {client.test_rows} test {rows}"
    if client.test_rows < FEW:
        return f"{sentence}: too few to rely on."
    return f"{sentence}."


def describe_best_method(client: ClientScores, result: EachClient) -> str:
    """Say which method serves a client best, and what that would gain over the method shown."""
    scores = np.array(client.scores)
    if len(scores) < 2 or not np.isfinite(scores).all():
        return ""
    best = int(scores.argmin())
    if METRICS[result.metric].higher_is_better:
        best = int(scores.argmax())
    own = format_score(client.scores[0], result.metric)
    if format_score(client.scores[best], result.metric) == own:
        return f"No method serves it better than {result.method}."
    gain = abs(client.scores[best] - client.scores[0])
    text = format_score(gain, result.metric)
    if gain <= margin_of_chance(client, result.metric):
        return f"{result.methods[best]} does a little better, by {text}, which may be chance."
    return f"{result.methods[best]} serves it better than {result.method}, by {text}."


def margin_of_chance(client: ClientScores, metric: str) -> float:
    """Return a difference between methods that a client's few test rows may bring by chance.

    A rule of thumb: of accuracies two standard errors, of errors a share of 1/√rows.
    """
    if not client.test_rows:
        return 0.0
    score = client.scores[0]
    if METRICS[metric].unit == "share":
        share = (score * client.test_rows + 2) / (client.test_rows + 4)  # 100 % is not certain
        return float(2 * np.sqrt(2 * share * (1 - share) / client.test_rows))
    return float(score / np.sqrt(client.test_rows))


def describe_other_groups(client: ClientScores) -> str:
    """Say how well the models of other groups fit a client's training rows."""
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
    if np.isfinite(own) and own > AS_WELL:
        return f"The model of group {group} fits its training rows better than that of its own."
    if least <= AS_WELL:
        return f"It would do as well in group {group}, whose model fits its training rows as well."
    return (
        f"No other group suits it: the model of the next, group {group}, "
        f"{describe_excess(least)} on its training rows."
    )
