"""What a run is judged by: from each client's sums to scores, and from groups to agreement with the truth."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.params import Params, count, flatten, pick_rows
from coterie.task import Kind

Row = dict[str, Any]


class Scores(NamedTuple):
    """One metric over the clients."""

    weighted: float  # by their number of test rows
    mean: float
    std: float
    worst_decile: float  # mean over the tenth of the clients that do worst, at least one


ALIKE = 1e-3  # centres nearer than this, relative to their length, are one
RESTLESS = (
    0.05  # share of clients that change their group in a round, above which groups are not stable
)
HIGHER_IS_BETTER = {
    "accuracy": True,
    "balanced_accuracy": True,
    "f1": True,
    "r2": True,
    "mse": False,
    "loss": False,
}


def per_client(kind: Kind, report: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Each metric per client [N]; NaN where a client has no rows to measure on."""
    r = {k: v.cpu().double().numpy() for k, v in report.items()}
    with np.errstate(divide="ignore", invalid="ignore"):
        out = {"rows": r["n"], "loss": r["loss"] / r["n"]}
        if kind == "regression":
            spread = r["y2"] - r["y"] ** 2 / r["n"]
            return {
                **out,
                "mse": out["loss"],
                "r2": np.where(spread > 0, 1 - r["loss"] / spread, np.nan),
            }
        recall = np.where(r["true"] > 0, r["hit"] / r["true"], np.nan)
        either = r["true"] + r["guessed"]
        f1 = np.where(either > 0, 2 * r["hit"] / either, np.nan)
    out["accuracy"] = r["hit"].sum(1) / np.where(r["n"] > 0, r["n"], np.nan)
    return {**out, "balanced_accuracy": _row_mean(recall), "f1": _row_mean(f1)}


def _row_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the classes a client has; NaN where it has none."""
    there = ~np.isnan(values)
    count = there.sum(1)
    return np.where(count > 0, np.where(there, values, 0).sum(1) / np.maximum(count, 1), np.nan)


def scores(values: np.ndarray, rows: np.ndarray, higher_is_better: bool) -> Scores:
    ok = ~np.isnan(values)
    v, w = values[ok], rows[ok]
    if not len(v):
        return Scores(math.nan, math.nan, math.nan, math.nan)
    ordered = np.sort(v) if higher_is_better else np.sort(v)[::-1]
    tenth = ordered[: max(1, len(v) // 10)]
    with np.errstate(invalid="ignore"):  # an infinite loss has no spread
        std = float(v.std())
    return Scores(float((v * w).sum() / w.sum()), float(v.mean()), std, float(tenth.mean()))


def summary(kind: Kind, report: dict[str, Tensor], prefix: str = "") -> Row:
    """Flat columns: accuracy, accuracy_mean, accuracy_std, accuracy_worst, and so on for each metric."""
    clients = per_client(kind, report)
    row: Row = {}
    if kind == "classification":
        true = report["true"].double().sum(0)
        row[f"{prefix}commonest"] = float(
            true.max() / true.sum().clamp(min=1)
        )  # who always guesses it is so often right
    for name, values in clients.items():
        if name == "rows":
            continue
        s = scores(values, clients["rows"], HIGHER_IS_BETTER[name])
        row[f"{prefix}{name}"] = s.weighted
        if name != "loss":
            row |= {
                f"{prefix}{name}_mean": s.mean,
                f"{prefix}{name}_std": s.std,
                f"{prefix}{name}_worst": s.worst_decile,
            }
    return row


# ---------------------------------------------------------------------------------------------- groups
def hard(groups: Tensor) -> np.ndarray:
    """int64 [N]: soft weights [N, K] become the group of largest weight; −1, or weights of 0: not yet seen."""
    g = groups.cpu()
    return (torch.where(g.any(1), g.argmax(1), -1) if g.dim() == 2 else g).numpy().astype(np.int64)


def agreement(groups: np.ndarray, truth: np.ndarray) -> Row:
    """ARI, NMI and accuracy under the best matching of labels, over the clients that have a group."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    seen = groups >= 0
    if not seen.any():
        return {}
    g, t = groups[seen], truth[seen]
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
    k = max(clusters if isinstance(clusters, int) else 0, int(now.max()) + 1)
    row: Row = {"sizes": np.bincount(now[now >= 0], minlength=k).tolist()}
    if before is not None:
        both = (now >= 0) & (before >= 0)
        row["churn"] = float((now != before)[both].mean()) if both.any() else 0.0
    if truth is not None:
        row |= agreement(now, hard(truth)[: len(now)])
    return row


def concerns(history: list[Row], centres: Params | None, groups: Tensor | None) -> list[str]:
    """What is odd about the groups that a run ended with, a sentence each."""
    if groups is None:
        return []
    found, sizes = [], history[-1].get("sizes", [])
    soft = groups.sum(0).tolist() if groups.dim() == 2 else None
    empty = (
        [k for k, size in enumerate(soft or sizes) if size < 1e-3 * len(groups)]
        if any(sizes)
        else []
    )
    if empty:
        found.append(
            f"no client is in group {listed(empty)} of {len(sizes)}: fewer clusters may do, or another start or seed."
        )
    for a, b in twins(centres, skip=empty) if centres is not None else []:
        found.append(
            f"the models of groups {a} and {b} are all but equal: they are one group, or have not parted; try fewer "
            "clusters, more rounds or larger steps."
        )
    late = [row["churn"] for row in history[1:] if "churn" in row][-max(3, len(history) // 4) :]
    if len(late) >= 3 and sum(late) / len(late) > RESTLESS:
        found.append(
            f"the groups are not stable: in the last {len(late)} rounds {100 * sum(late) / len(late):.0f} % of the "
            "clients changed theirs each round."
        )
    return found


def twins(centres: Params, skip: list[int]) -> list[tuple[int, int]]:
    """Pairs of centres that differ by less than a thousandth of their length."""
    k = count(centres)
    rows = flatten(pick_rows(centres, torch.arange(k))).double()
    near = torch.cdist(rows, rows) < ALIKE * rows.norm(dim=1)
    return [
        (a, b) for a in range(k) for b in range(a + 1, k) if near[a, b] and not {a, b} & set(skip)
    ]


def listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (
        f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    )


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
