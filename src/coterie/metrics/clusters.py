"""Metrics of cluster assignments: sizes, churn, and agreement with planted groups.

An assignment is an int64 array [N]: the cluster of each client, or −1 for clients not seen yet.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from coterie.core.params import Params, count, flatten, is_bias, pick_rows
from coterie.metrics.scores import Row


def hard_labels(groups: Tensor) -> np.ndarray:
    """Return the cluster of each client, int64 [N]; −1 for clients not seen yet.

    Args:
        groups: Cluster numbers [N], or soft weights [N, K], of which the largest decides.

    Example:
        >>> import coterie as ct, torch
        >>> ct.metrics.hard_labels(torch.tensor([[0.2, 0.8], [0.0, 0.0]])).tolist()
        [1, -1]
    """
    labels = groups.cpu()
    if labels.dim() == 2:
        labels = torch.where(labels.any(1), labels.argmax(1), -1)
    return labels.numpy().astype(np.int64)


def agreement(groups: np.ndarray, truth: np.ndarray) -> Row:
    """Compare an assignment with the planted groups.

    Args:
        groups: The assignment, int64 [N]; clients with −1 do not count.
        truth: The planted group of each client, int64 [N].

    Returns:
        "ari" and "nmi", and "matched", the accuracy under the best one-to-one matching of labels.
        Empty if no client has a cluster.

    Example:
        >>> import coterie as ct, numpy as np
        >>> ct.metrics.agreement(np.array([1, 1, 0]), np.array([0, 0, 1]))
        {'ari': 1.0, 'nmi': 1.0, 'matched': 1.0}
    """
    from scipy.optimize import linear_sum_assignment  # loaded here: together they take 1.5 s
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    known = groups >= 0
    if not known.any():
        return {}
    found, planted = groups[known], truth[known]
    overlap = contingency_matrix(planted, found)
    return {
        "ari": float(adjusted_rand_score(planted, found)),
        "nmi": float(normalized_mutual_info_score(planted, found)),
        "matched": float(overlap[linear_sum_assignment(-overlap)].sum() / len(found)),
    }


def cluster_row(
    groups: Tensor | None,
    before: np.ndarray | None,
    truth: Tensor | None,
    clusters: int | str | None,
) -> Row:
    """Compute sizes, churn and agreement of one round's clusters, for a row of metrics.jsonl.

    Args:
        groups: Cluster numbers [N] or soft weights [N, K]; None for methods without clusters.
        before: The assignment before the round; None if there was none.
        truth: The planted groups [N] or shares [N, S], if known.
        clusters: The method's number of clusters; "auto" or None counts those in use.
    """
    if groups is None:
        return {}
    now = hard_labels(groups)
    declared = clusters if isinstance(clusters, int) else 0
    k = max(declared, int(now.max()) + 1)
    row: Row = {"sizes": np.bincount(now[now >= 0], minlength=k).tolist()}
    if before is not None:
        in_both = (now >= 0) & (before >= 0)
        row["churn"] = float((now != before)[in_both].mean()) if in_both.any() else 0.0
    if truth is not None:
        row |= agreement(now, hard_labels(truth)[: len(now)])
        if groups.dim() == truth.dim() == 2:
            row |= weights_error(groups, truth[: len(now)])
    return row


def secure_cluster_row(notes: Row) -> Row:
    """Take sizes and churn of one round's clusters from what a method noted of its sums.

    Args:
        notes: The notes of the round: "sizes" [K] and "changed", the share of clients that changed
            cluster. They are removed.
    """
    row: Row = {}
    if "sizes" in notes:
        row["sizes"] = [round(size) for size in notes.pop("sizes")]  # weights in a mixture
    if "changed" in notes:
        row["churn"] = notes.pop("changed")
    return row


def weights_error(weights: Tensor, shares: Tensor) -> Row:
    """Compute the mean absolute difference of soft weights to the planted shares.

    Args:
        weights: [N, K]; clients whose weights are all 0 do not count.
        shares: The planted share of each source, [N, S].

    Returns:
        "weights_error"; empty if there are fewer clusters than sources.

    Example:
        >>> import coterie as ct, torch
        >>> ct.metrics.weights_error(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.75]]))
        {'weights_error': 0.25}
    """
    known = weights.any(1).cpu()
    if weights.shape[1] < shares.shape[1] or not known.any():
        return {}
    found, planted = weights.double().cpu()[known], shares.double()[known]
    cluster_of = match_sources(found, planted)
    return {"weights_error": float((found[:, cluster_of] - planted).abs().mean())}


def match_sources(weights: Tensor, shares: Tensor) -> list[int]:
    """Match each source to a cluster of its own, so that weights and shares differ least.

    Args:
        weights: [N, K].
        shares: [N, S] with S ≤ K.

    Returns:
        The cluster of each source, length S.

    Example:
        >>> import coterie as ct, torch
        >>> ct.metrics.match_sources(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.0, 1.0]]))
        [1, 0]
    """
    from scipy.optimize import linear_sum_assignment

    difference = (shares[:, :, None] - weights[:, None, :]).abs().mean(0)
    return linear_sum_assignment(difference.numpy())[1].tolist()


def planted_error(centres: Params | None, planted: Tensor | None) -> Row:
    """Compute the mean distance ‖θ_j − θ*_j‖ of cluster models to the planted parameters.

    Models and planted vectors are matched one to one. Defined for models that are one vector of
    the planted length (a linear model; its bias does not count) if there are at least as many.

    Args:
        centres: The cluster models, every leaf [K, ...].
        planted: [S, d].

    Returns:
        "planted_error"; empty where it is not defined or not finite.

    Example:
        >>> import coterie as ct, torch
        >>> centres = {"weight": torch.tensor([[[3.0, 4.0]]])}
        >>> ct.metrics.planted_error(centres, torch.zeros(1, 2))
        {'planted_error': 5.0}
    """
    from scipy.optimize import linear_sum_assignment

    if centres is None or planted is None:
        return {}
    weights = {name: v for name, v in centres.items() if not is_bias(name)}
    vectors = flatten(pick_rows(weights, torch.arange(count(centres)))).double().cpu()
    if vectors.shape[1] != planted.shape[1] or len(vectors) < len(planted):
        return {}
    distances = torch.cdist(planted.double(), vectors).numpy()
    if not np.isfinite(distances).all():
        return {}
    return {"planted_error": float(distances[linear_sum_assignment(distances)].mean())}


# ------------------------------------------------------------------------------ in metrics.jsonl
def encode_assignment(now: np.ndarray, before: np.ndarray | None) -> Row:
    """Encode an assignment for a row of metrics.jsonl: in full, or only the clients that changed.

    Args:
        now: The assignment after the round, int64 [N].
        before: The assignment that the rows so far encode; None if they encode none.

    Returns:
        "groups" (all clients) or "moves" (those that changed cluster); empty if none changed.
    """
    if before is None or len(before) != len(now):
        return {"groups": now.tolist()}
    changed = np.flatnonzero(now != before)
    if not len(changed):
        return {}
    if 2 * len(changed) >= len(now):
        return {"groups": now.tolist()}
    return {"moves": {"clients": changed.tolist(), "groups": now[changed].tolist()}}


def decode_assignments(history: Iterable[Row], num_clients: int) -> list[np.ndarray] | None:
    """Return the assignment after each round, int64 [N] each; None if the rows encode none.

    Rounds without a change share an array.
    """
    unknown = np.full(num_clients, -1)
    groups, after_rounds = unknown, []
    for row in history:
        if row.get("groups") is not None:
            groups = np.array(row["groups"])
        elif row.get("moves") is not None:
            groups = groups.copy()
            groups[row["moves"]["clients"]] = row["moves"]["groups"]
        after_rounds.append(groups)
    return None if groups is unknown else after_rounds


def is_valid_assignment(row: Row, num_clients: int) -> bool:
    """Return whether the assignment in a row, if any, is one of this number of clients."""
    groups, moves = row.get("groups"), row.get("moves")
    if groups is not None and len(groups) != num_clients:
        return False
    if moves is None:
        return True
    clients = moves["clients"]
    return len(clients) == len(moves["groups"]) and all(0 <= i < num_clients for i in clients)
