"""What a run is judged by: scores (`scoring.py`), and the groups' agreement with the truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.params import Params, count, flatten, pick_rows
from coterie.scoring import HIGHER_IS_BETTER as HIGHER_IS_BETTER
from coterie.scoring import Row as Row
from coterie.scoring import Scores as Scores
from coterie.scoring import per_client as per_client
from coterie.scoring import scores as scores
from coterie.scoring import summary as summary

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
    """ARI, NMI and accuracy under the best matching of labels, over the clients with a group."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    placed = groups >= 0
    if not placed.any():
        return {}
    g, t = groups[placed], truth[placed]
    overlap = np.zeros((g.max() + 1, t.max() + 1))
    np.add.at(overlap, (g, t), 1)
    matched = overlap[linear_sum_assignment(-overlap)].sum() / len(g)
    return {
        "ari": float(adjusted_rand_score(t, g)),
        "nmi": float(normalized_mutual_info_score(t, g)),
        "matched": float(matched),
    }


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
    return row


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
