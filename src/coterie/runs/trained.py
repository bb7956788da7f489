"""A trained run as data: models, history, scores and memberships, and nothing of any sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.contract import Algorithm, Sums, at_round
from coterie.core.params import Params, count, flatten, pick_rows
from coterie.core.task import Task
from coterie.data.roster import Roster
from coterie.engines.exchange import RoundContext
from coterie.metrics import Row, hard_labels
from coterie.runs.options import Options

MAX_CENTRES = 50  # with more, measuring all losses takes a client longer than a round
MIN_HELD_OUT = 10  # held-out samples that the confidence of a membership needs
DOUBTFUL = 0.8  # a membership with less confidence is doubtful
SAME_MODEL = 1e-3  # relative distance below which two models are the same
MAX_NAMED = 5  # clients or groups that a warning names
MAX_CHURN = 0.05  # share of clients per round above which clusters are not stable
# "losses" and "shares" [N, K], "rows" [N]; NaN for clients that did not report
MembershipReports = dict[str, np.ndarray]


class MembershipConfidence(NamedTuple):
    """How clearly each client belongs to its cluster; arrays [N], NaN where unknown."""

    confidence: np.ndarray  # share of bootstrap samples in which its cluster has the least loss
    margin: np.ndarray  # relative excess of the second cluster's loss; negative if it is lower
    second: np.ndarray  # int64, the best of the other clusters; −1: unknown
    rows: np.ndarray  # number of samples that decided

    @property
    def doubtful(self) -> np.ndarray:
        """Which memberships are doubtful, bool [N]."""
        return self.confidence < DOUBTFUL


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A trained run, made by a `Run` or read from its folder."""

    method: Algorithm
    task: Task
    roster: Roster
    options: Options
    state: Any  # of the server, after the last round
    round: int  # the last completed round; round 0 initialises the method
    history: list[Row]  # a row of metrics per round
    client_scores: dict[str, np.ndarray] = field(default_factory=dict)  # [N], NaN: not measured
    client_curves: dict[str, np.ndarray] = field(default_factory=dict)  # as in `Run`
    pooled_counts: dict[str, np.ndarray] = field(
        default_factory=dict
    )  # confusion matrix, histogram of predictions
    membership_reports: MembershipReports = field(default_factory=dict)  # of the last round
    model_name: str = ""
    folder: Path | None = None

    @property
    def method_now(self) -> Algorithm:
        """The method with the step sizes of the last round."""
        return at_round(self.method, self.round)

    @property
    def centres(self) -> Params | None:
        """The cluster models, every leaf [K, ...]; None for methods without clusters."""
        return self.method.centres(self.state)

    @property
    def groups(self) -> Tensor | None:
        """Cluster numbers int64 [N] or soft weights [N, K]; None without clusters.

        None under secure sums, too, where only the clients know.
        """
        return None if self.options.only_sums else self.method.groups(self.state)

    @property
    def finds_groups(self) -> bool:
        """Whether the method finds groups, even if only the clients know theirs."""
        return self.method.groups(self.state) is not None

    @property
    def hard_groups(self) -> np.ndarray | None:
        """The cluster of each client, int64 [N]; −1: not seen yet; None without clusters."""
        groups = self.groups
        return None if groups is None else hard_labels(groups)

    @property
    def membership(self) -> MembershipConfidence | None:
        """The confidence of memberships; None before the last round, or without clusters."""
        return membership_confidence(self.membership_reports, self.hard_groups)

    @property
    def last_evaluation(self) -> Row:
        """The newest row with scores; the last row if none has."""
        return next((row for row in reversed(self.history) if "loss" in row), self.history[-1])

    @property
    def warnings(self) -> list[str]:
        """Problems with clients and clusters, one sentence each."""
        return describe_warnings(self.history, self.centres, self.groups)


# ------------------------------------------------------------------------------ memberships
def measure_memberships(
    ask: RoundContext, centres: Params | None, groups: np.ndarray | None, min_rows: int
) -> MembershipReports:
    """Let each client with a cluster report its loss under every cluster model.

    Samples that formed the clusters fit their own cluster best, whether or not there are clusters:
    a client uses its validation samples or, if it has fewer than `MIN_HELD_OUT`, its test samples.
    With too few of both it does not report.

    Args:
        ask: The context of an evaluation.
        centres: The cluster models, every leaf [K, ...].
        groups: The assignment, int64 [N].
        min_rows: Clients with fewer samples do not report.

    Returns:
        Mean losses and bootstrap shares per cluster; empty if there are no clusters to compare, or
        no client has enough samples.
    """
    if centres is None or groups is None or not 2 <= count(centres) <= MAX_CENTRES:
        return {}
    rows = ask.roster.rows
    ids = ask.all_clients[torch.from_numpy(groups[ask.all_clients.numpy()] >= 0)]
    enough = max(min_rows, MIN_HELD_OUT)
    has_valid = rows.valid[ids] >= enough
    has_test = ~has_valid & (rows.test[ids] >= enough)
    by_split = {"valid": ids[has_valid], "test": ids[has_test]}
    if not len(ids[has_valid | has_test]):
        return {}
    reports: MembershipReports = {
        "losses": np.full((len(groups), count(centres)), np.nan),
        "shares": np.full((len(groups), count(centres)), np.nan),
        "rows": np.full(len(groups), np.nan),
    }
    for split, some in by_split.items():
        if not len(some):
            continue
        sums: Sums = ask(ask.root.membership, some, shared=centres, stream="evaluate", split=split)
        at = sums.ids.numpy()
        for name in ("losses", "shares"):
            reports[name][at] = sums.report[name].cpu().double().numpy()
        reports["rows"][at] = getattr(rows, split)[sums.ids].numpy()
    return reports


def membership_confidence(
    reports: MembershipReports, groups: np.ndarray | None
) -> MembershipConfidence | None:
    """Compute the confidence of each client's membership from the clients' reports.

    Args:
        reports: What `measure_memberships` returned.
        groups: The assignment, int64 [N].

    Returns:
        None if no client reported.
    """
    if not reports or groups is None:
        return None
    clients = np.arange(len(groups))
    known = (groups >= 0) & ~np.isnan(reports["rows"])
    own = np.where(known, groups, 0)
    others = reports["losses"].copy()
    others[clients, own] = np.inf
    others[~known] = np.inf
    second = others.argmin(1)
    own_loss = reports["losses"][clients, own]
    other_loss = others[clients, second]
    with np.errstate(divide="ignore", invalid="ignore"):
        margin = (other_loss - own_loss) / np.minimum(own_loss, other_loss)
    return MembershipConfidence(
        confidence=np.where(known, reports["shares"][clients, own], np.nan),
        margin=np.where(known, margin, np.nan),
        second=np.where(known, second, -1),
        rows=np.where(known, reports["rows"], np.nan),
    )


# ------------------------------------------------------------------------------ warnings
def describe_warnings(
    history: list[Row], centres: Params | None, groups: Tensor | None
) -> list[str]:
    """Describe problems of a run: clipping, free riders, empty, equal or unstable clusters.

    Args:
        history: The run's rows of metrics.
        centres: The cluster models, every leaf [K, ...].
        groups: Cluster numbers [N] or soft weights [N, K].

    Returns:
        One sentence per problem.
    """
    warnings = warn_of_clients(history)
    if groups is None:
        return warnings
    sizes = history[-1].get("sizes", [])
    masses = _cluster_masses(sizes, groups)
    empty = [k for k, mass in enumerate(masses) if mass < 1e-3 * len(groups)]
    if empty:
        who = "almost no client" if any(masses[k] > 0 for k in empty) else "no client"
        warnings.append(
            f"{who} is in group {_list_some(empty)} of {len(sizes)}: use fewer clusters, "
            "another initialisation or another seed."
        )
    for a, b in _equal_models(centres, empty):
        warnings.append(
            f"the models of groups {a} and {b} are almost equal: use fewer clusters, more rounds "
            "or larger steps."
        )
    churn = [row["churn"] for row in history[1:] if "churn" in row]
    late = churn[-max(3, len(history) // 4) :]
    is_finished = history[-1].get("finished", False)  # its rounds may differ in their groups
    if not is_finished and len(late) >= 3 and sum(late) / len(late) > MAX_CHURN:
        percent = 100 * sum(late) / len(late)
        warnings.append(
            f"the groups are not stable: in the last {len(late)} rounds {percent:.0f} % of the "
            "clients changed group per round."
        )
    return warnings


def warn_of_clients(history: list[Row]) -> list[str]:
    """Describe problems with clients: clipped updates and free riders, one sentence each."""
    return _warn_of_clipping(history) + _warn_of_free_riders(history)


def _warn_of_clipping(history: list[Row]) -> list[str]:
    rounds = [row for row in history if row.get("clipped")]
    if not rounds:
        return []
    names = sorted({name for row in rounds for name in row["clipped"]})
    return [
        f"in {len(rounds)} rounds updates with unusually large norms were clipped, from "
        f"{_list_some(names)}: check the data there, or turn off clipping, clip_factor=0."
    ]


def _warn_of_free_riders(history: list[Row]) -> list[str]:
    rounds = [row for row in history if row.get("free_riders")]
    if not rounds:
        return []
    names = sorted({name for row in rounds for name in row["free_riders"]})
    who, verb = ("1 client", "was") if len(names) == 1 else (f"{len(names)} clients", "were")
    times = "1 round" if len(rounds) == 1 else f"{len(rounds)} rounds"
    return [
        f"{who} sent back models unchanged instead of training them and {verb} left out in "
        f"{times}: {', '.join(names)}."
    ]


def _cluster_masses(sizes: list[int], groups: Tensor) -> list[float]:
    """Return the number of clients in each cluster, or the sum of their soft weights.

    Empty if no client is in any cluster yet.
    """
    if not any(sizes):
        return []
    if groups.dim() == 2:
        return list(groups.sum(0).tolist())
    return list(map(float, sizes))


def _equal_models(centres: Params | None, skip: list[int]) -> list[tuple[int, int]]:
    """Return the pairs of clusters whose models are the same."""
    if centres is None:
        return []
    k = count(centres)
    vectors = flatten(pick_rows(centres, torch.arange(k))).double()
    is_near = torch.cdist(vectors, vectors) < SAME_MODEL * vectors.norm(dim=1)
    kept = [j for j in range(k) if j not in skip]
    return [(a, b) for a in kept for b in kept if a < b and is_near[a, b]]


def _list_some(items: list[Any]) -> str:
    """Return "1, 2, 3 and 5 more"."""
    text = ", ".join(map(str, items[:MAX_NAMED]))
    if len(items) > MAX_NAMED:
        text += f" and {len(items) - MAX_NAMED} more"
    return text
