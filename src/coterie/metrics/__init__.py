"""What a run is judged by: scores (`scoring.py`), and the groups' agreement with the truth."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.params import Params, count, flatten, pick_rows
from coterie.metrics.scoring import HIGHER_IS_BETTER as HIGHER_IS_BETTER
from coterie.metrics.scoring import Row as Row
from coterie.metrics.scoring import Scores as Scores
from coterie.metrics.scoring import per_client as per_client
from coterie.metrics.scoring import scores as scores
from coterie.metrics.scoring import summary as summary

ALIKE = 1e-3  # centres nearer than this, relative to their length, are one
MOST_SCREENED = 5  # clients that a sentence names
RESTLESS = (
    0.05  # share of clients that change their group in a round, above which groups are not stable
)


# ------------------------------------------------------------------------------ groups
def hard(groups: Tensor) -> np.ndarray:
    """The group of each client, int64 [N]; −1: not yet seen.

    Soft weights [N, K] become the group of largest weight, or −1 where all are 0.
    """
    labels = groups.cpu()
    if labels.dim() == 2:
        labels = torch.where(labels.any(1), labels.argmax(1), -1)
    return labels.numpy().astype(np.int64)


def agreement(groups: np.ndarray, truth: np.ndarray) -> Row:
    """ARI, NMI and accuracy under the best matching of labels, over the clients with a group.

    All three follow from how many clients are in each group and each true one, so that a million
    clients are counted once.
    """
    from scipy.optimize import linear_sum_assignment

    placed = groups >= 0
    if not placed.any():
        return {}
    g, t = groups[placed], truth[placed]
    shape = (int(g.max()) + 1, int(t.max()) + 1)
    overlap = np.bincount(g * shape[1] + t, minlength=shape[0] * shape[1]).reshape(shape)
    overlap = overlap[overlap.any(1)][:, overlap.any(0)]
    matched = overlap[linear_sum_assignment(-overlap)].sum() / len(g)
    return {
        "ari": adjusted_rand(overlap),
        "nmi": normalized_information(overlap),
        "matched": float(matched),
    }


def adjusted_rand(overlap: np.ndarray) -> float:
    """The adjusted Rand index of two partitions that have so many clients in common."""
    n = int(overlap.sum())
    together = int((overlap.astype(object) ** 2).sum()) - n  # ordered pairs, in both partitions
    in_first = int((overlap.sum(1).astype(object) ** 2).sum()) - n
    in_second = int((overlap.sum(0).astype(object) ** 2).sum()) - n
    if together == in_first == in_second:
        return 1.0
    expected = in_first * in_second / (n * (n - 1))
    return (together - expected) / ((in_first + in_second) / 2 - expected)


def normalized_information(overlap: np.ndarray) -> float:
    """The mutual information of two partitions, divided by the mean of their entropies."""
    n = overlap.sum()
    share, first, second = overlap / n, overlap.sum(1) / n, overlap.sum(0) / n
    entropies = [-float((p * np.log(p)).sum()) for p in (first, second)]
    if len(first) == len(second) == 1:
        return 1.0
    there = share > 0
    terms = share[there] * np.log(share[there] / np.outer(first, second)[there])
    information = float(terms.sum())
    if information <= np.finfo(np.float64).eps:
        return 0.0
    return information / (sum(entropies) / 2)


def group_row(
    groups: Tensor | None,
    before: np.ndarray | None,
    truth: Tensor | None,
    clusters: int | str | None,
) -> Row:
    """Sizes, churn and agreement of one round's groups; clusters="auto" counts those there are."""
    if groups is None:
        return {}
    now = hard(groups)
    asked = clusters if isinstance(clusters, int) else 0
    k = max(asked, int(now.max()) + 1)
    row: Row = {"sizes": np.bincount(now[now >= 0], minlength=k).tolist()}
    if before is not None:
        both = (now >= 0) & (before >= 0)
        row["churn"] = float((now != before)[both].mean()) if both.any() else 0.0
    if truth is not None:
        row |= agreement(now, hard(truth)[: len(now)])
        if groups.dim() == truth.dim() == 2:
            row |= weights_error(groups, truth[: len(now)])
    return row


def weights_error(weights: Tensor, shares: Tensor) -> Row:
    """Mean distance of soft weights [N, K] to the planted shares [N, S], over those with weights.

    Only where there are at least as many groups as sources.
    """
    known = weights.any(1).cpu()
    if weights.shape[1] < shares.shape[1] or not known.any():
        return {}
    found, planted = weights.double().cpu()[known], shares.double()[known]
    group_of = match_sources(found, planted)
    return {"weights_error": float((found[:, group_of] - planted).abs().mean())}


def match_sources(weights: Tensor, shares: Tensor) -> list[int]:
    """For each source the group whose weights are nearest to its planted shares, each once."""
    from scipy.optimize import linear_sum_assignment

    apart = (shares[:, :, None] - weights[:, None, :]).abs().mean(0)
    return list(linear_sum_assignment(apart.numpy())[1])


# ------------------------------------------------------------------------------ who changed
def changed_groups(now: np.ndarray, before: np.ndarray | None) -> Row:
    """What a row of metrics says of everyone's group: all of them, or who changed to which.

    Of a million clients most stay where they are. Nothing is said where all do.
    before: as the rows up to now say it; None: they say nothing.
    """
    if before is None or len(before) != len(now):
        return {"groups": now.tolist()}
    clients = np.flatnonzero(now != before)
    if not len(clients):
        return {}
    if 2 * len(clients) >= len(now):
        return {"groups": now.tolist()}
    return {"moves": {"clients": clients.tolist(), "groups": now[clients].tolist()}}


def groups_after_rounds(history: Iterable[Row], clients: int) -> list[np.ndarray] | None:
    """Everyone's group after each round, int64 [N]; −1: not seen yet. None: there are no groups.

    Rounds in which nobody moved share an array.
    """
    nobody = np.full(clients, -1)
    groups, result, is_known = nobody, [], False
    for row in history:
        if row.get("groups") is not None:
            groups = np.array(row["groups"])
        elif row.get("moves") is not None:
            groups = groups.copy()
            groups[row["moves"]["clients"]] = row["moves"]["groups"]
        is_known = is_known or groups is not nobody
        result.append(groups)
    return result if is_known else None


def fits_clients(row: Row, clients: int) -> bool:
    """Whether the groups in a row of metrics are those of so many clients."""
    groups, moves = row.get("groups"), row.get("moves")
    if groups is not None and len(groups) != clients:
        return False
    if moves is None:
        return True
    numbers = moves["clients"]
    return len(numbers) == len(moves["groups"]) and all(0 <= i < clients for i in numbers)


def planted_error(centres: Params | None, planted: Tensor | None) -> Row:
    """Mean distance ‖θ_j − θ*_j‖ of the centres to the planted parameters, matched one to one.

    Only for models that are one vector of the planted length (a linear model; its bias, if it has
    one, is left out), and where there are at least as many centres as planted vectors.
    """
    from scipy.optimize import linear_sum_assignment

    if centres is None or planted is None:
        return {}
    weights = {name: v for name, v in centres.items() if not name.endswith("bias")}
    vectors = flatten(pick_rows(weights, torch.arange(count(centres)))).double().cpu()
    if vectors.shape[1] != planted.shape[1] or len(vectors) < len(planted):
        return {}
    distances = torch.cdist(planted.double(), vectors).numpy()
    if not np.isfinite(distances).all():
        return {}
    return {"planted_error": float(distances[linear_sum_assignment(distances)].mean())}


# ------------------------------------------------------------------------------ warnings
def concerns(history: list[Row], centres: Params | None, groups: Tensor | None) -> list[str]:
    """What is odd about a run's clients and the groups it ended with, a sentence each."""
    return screened_clients(history) + group_concerns(history, centres, groups)


def screened_clients(history: list[Row]) -> list[str]:
    """A sentence on the clients whose moves were shortened, if there were any."""
    rounds = [row for row in history if row.get("screened")]
    if not rounds:
        return []
    names = sorted({name for row in rounds for name in row["screened"]})
    some = ", ".join(names[:MOST_SCREENED])
    if len(names) > MOST_SCREENED:
        some += f" and {len(names) - MOST_SCREENED} more"
    return [
        f"in {len(rounds)} rounds updates were far longer than is usual, and were shortened, of "
        f"{some}: look at the rows there, or leave screening out (screen 0)."
    ]


def group_concerns(history: list[Row], centres: Params | None, groups: Tensor | None) -> list[str]:
    """What is odd about the groups that a run ended with, a sentence each."""
    if groups is None:
        return []
    sizes = history[-1].get("sizes", [])
    empty = empty_groups(sizes, groups)
    sentences = []
    if empty:
        sentences.append(
            f"no client is in group {join_numbers(empty)} of {len(sizes)}: fewer clusters may do, "
            "or another start or seed."
        )
    for a, b in twins(centres, empty):
        sentences.append(
            f"the models of groups {a} and {b} are all but equal: they are one group, or have not "
            "parted; try fewer clusters, more rounds or larger steps."
        )
    churn = [row["churn"] for row in history[1:] if "churn" in row]
    late = churn[-max(3, len(history) // 4) :]
    if len(late) >= 3 and sum(late) / len(late) > RESTLESS:
        percent = 100 * sum(late) / len(late)
        sentences.append(
            f"the groups are not stable: in the last {len(late)} rounds {percent:.0f} % of the "
            "clients changed theirs each round."
        )
    return sentences


def empty_groups(sizes: list[int], groups: Tensor) -> list[int]:
    """The groups that next to nobody is in, where anybody is in any."""
    if not any(sizes):
        return []
    masses: list[float] = list(sizes)
    if groups.dim() == 2:
        masses = groups.sum(0).tolist()
    return [k for k, mass in enumerate(masses) if mass < 1e-3 * len(groups)]


def twins(centres: Params | None, skip: list[int]) -> list[tuple[int, int]]:
    """Pairs of centres that differ by less than a thousandth of their length."""
    if centres is None:
        return []
    k = count(centres)
    rows = flatten(pick_rows(centres, torch.arange(k))).double()
    near = torch.cdist(rows, rows) < ALIKE * rows.norm(dim=1)
    kept = [j for j in range(k) if j not in skip]
    return [(a, b) for a in kept for b in kept if a < b and near[a, b]]


def join_numbers(numbers: list[int]) -> str:
    """1, 2, 3 and 5 more"""
    text = ", ".join(map(str, numbers[:5]))
    if len(numbers) > 5:
        return f"{text} and {len(numbers) - 5} more"
    return text


def to_json(value: Any) -> Any:
    """NaN and infinities as null: JSON has neither."""
    if isinstance(value, dict):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, torch.Tensor | np.ndarray):
        return to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
