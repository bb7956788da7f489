"""How well groups fit their clients: scores by group, losses under each model, a map of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from coterie.engines.evaluate import SKETCH_BINS as BINS
from coterie.reporting.clients import is_baseline
from coterie.reporting.excess import AS_WELL, relative_excess
from coterie.reporting.fairness import Grouping
from coterie.reporting.portrait import Portrait
from coterie.reporting.rows import lacks_training_rows
from coterie.reporting.source import Source
from coterie.reporting.text import join_names, natural_key

NAMED = 20  # clients that a sentence names
FLAT = 1e-3  # relative difference between columns of a map, up to which they are alike
FEWEST_IN_BOX = 4  # clients of a group; of fewer, the points say it all


class GroupScores(NamedTuple):
    """The scores of the clients in a figure, by group."""

    metric: str
    names: list[str]  # [shown] of the clients
    groups: np.ndarray  # int64 [shown]; −1: not seen
    scores: dict[str, np.ndarray]  # [shown] under the method itself and under its baselines


class ClientMap(NamedTuple):
    """A number for each client in a figure and each group."""

    what: str  # "loss" or "share"
    names: list[str]  # [shown] of the clients
    values: np.ndarray  # [shown, K]; NaN: unknown
    groups: np.ndarray | None = None  # int64 [shown], the client's own group; −1: not seen

    def excess(self) -> np.ndarray:
        """Return how much larger each loss is than the client's least, [shown, K] as shares."""
        return relative_excess(self.values)

    @property
    def is_flat(self) -> bool:
        """Whether all groups are alike to every client, so that there is nothing to draw."""
        known = self.values[np.isfinite(self.values).all(1)]
        if not len(known):
            return True
        width = known.max(1) - known.min(1)
        return bool((width <= FLAT * np.abs(known).max(1)).all())


class ClientPositions(NamedTuple):
    """The clients in a figure as points in a plane; near points are alike."""

    of: str  # what they are placed by: "personal models" or "losses under the groups' models"
    share: float  # of the variance that the plane holds
    names: list[str]  # [shown] of the clients
    points: np.ndarray  # [shown, 2]
    groups: np.ndarray  # int64 [shown], by which points are coloured; −1: not seen
    group_count: int  # over all clients
    word: str  # what such a group is called: "group" or "true group"
    whose: str  # whose groups these are; "": the method's own


def shown_names(run: Source, portrait: Portrait) -> list[str]:
    """Name the clients in figures."""
    names = run.names
    return [names[i] for i in portrait.shown]


def group_scores(
    run: Source, portrait: Portrait, others: Mapping[str, Portrait]
) -> GroupScores | None:
    """Collect scores by group; None without groups, or where no scores by client are known."""
    metric = run.metric
    if portrait.groups is None or metric not in portrait.per_client:
        return None
    scores = {run.label: portrait.per_client[metric]}
    for label, other in others.items():
        is_same_data = other.fingerprint == portrait.fingerprint
        if is_baseline(label) and is_same_data and metric in other.per_client:
            scores.setdefault(label, other.per_client[metric])
    return GroupScores(
        metric=metric,
        names=shown_names(run, portrait),
        groups=portrait.groups[portrait.shown],
        scores={label: values[portrait.shown] for label, values in scores.items()},
    )


def client_map(run: Source, portrait: Portrait, what: str) -> ClientMap | None:
    """Collect the losses ("loss") or weights ("share") of clients under each group's model."""
    values = portrait.weights
    if what == "loss":
        values = portrait.losses
    if values is None:
        return None
    groups = None
    if portrait.groups is not None:
        groups = portrait.groups[portrait.shown]
    return ClientMap(what, shown_names(run, portrait), values, groups)


def client_positions(
    run: Source, portrait: Portrait, by: Grouping | None
) -> ClientPositions | None:
    """Place clients in a plane, coloured by their groups, or by those that all are judged by."""
    projection = portrait.projection
    groups = portrait.groups
    word = "group"
    whose = ""
    if groups is None and by is not None and by.fingerprint == portrait.fingerprint:
        groups, whose, word, _ = by
    if projection is None or groups is None:
        return None
    return ClientPositions(
        of=projection.of,
        share=projection.share,
        names=shown_names(run, portrait),
        points=projection.points,
        groups=groups[portrait.shown],
        group_count=int(groups.max()) + 1,
        word=word,
        whose=whose,
    )


# ------------------------------------------------------------------------------ as text
def describe_group_scores(result: GroupScores) -> str:
    """Say how to read the scores by group."""
    _, *baselines = result.scores
    beside = ""
    if baselines:
        beside = f", beside what the same client gets from {' and '.join(baselines)}"
    box = ""
    if has_boxes(result):
        box = "; a box holds the middle half of a group"
    return f"Each point is a client on its own test rows{beside}{box}."


def has_boxes(result: GroupScores) -> bool:
    """Tell whether any group has members enough for a box."""
    _, sizes = np.unique(result.groups, return_counts=True)
    return bool((sizes >= FEWEST_IN_BOX).any())


def describe_score_boxes(result: GroupScores) -> str:
    """Say in words what the figure of scores by group shows."""
    return (
        f"The clients' scores by group, under {', '.join(result.scores)}; the numbers stand under "
        "Each client."
    )


def describe_as_well(result: ClientMap) -> str:
    """Say which clients would do as well in another group, and which fit another one better."""
    if result.groups is None:
        return ""
    excess = result.excess()
    rows = np.flatnonzero((result.groups >= 0) & np.isfinite(excess).all(1))
    own = excess[rows, result.groups[rows]]
    others = excess[rows].copy()
    others[np.arange(len(rows)), result.groups[rows]] = np.inf
    as_well = names_in_order(result, rows[others.min(1) <= AS_WELL])
    better = names_in_order(result, rows[own > AS_WELL])
    within = f"within {100 * AS_WELL:.0f} %"
    sentences = [f"Nobody would do as well in another group ({within})."]
    if as_well:
        who = join_names(as_well, most=NAMED)
        sentences = [
            f"{len(as_well)} of {len(rows)} clients would do as well ({within}) in another group: "
            f"{who}."
        ]
    if better:
        who = join_names(better, most=NAMED)
        sentences.append(f"Another group's model fits better by more than that: {who}.")
    return " ".join(sentences)


def names_in_order(result: ClientMap, rows: np.ndarray) -> list[str]:
    """Name the clients in these rows of a map, in their natural order."""
    return sorted((result.names[i] for i in rows), key=natural_key)


def describe_client_map(result: ClientMap) -> str:
    """Say in words what a map of clients and groups shows."""
    clients, groups = result.values.shape
    return f"Map of the {result.what} of {clients} clients under the models of {groups} groups."


def describe_positions(result: ClientPositions) -> str:
    """Say how to read the map of clients."""
    placed_by = "its training loss under each group's model, as it has none of its own"
    if result.of == "personal models":
        placed_by = f"all numbers of its own model (folded to {BINS:,} where it has more)"
    colour = f"The colour is the client's {result.word}"
    if result.whose:
        colour += f"; groups are {result.whose}"
    return (
        f"Each point is a client, placed by {placed_by}: near points are alike. Shown are the two "
        f"directions in which clients differ most, with {100 * result.share:.0f} % of the "
        f"variance; the axes have no unit. {colour}."
    )


def describe_points(result: ClientPositions) -> str:
    """Say in words what the map of clients shows."""
    return (
        f"Points for {len(result.names)} clients, placed by their {result.of} and coloured by "
        f"{result.word}."
    )


def describe_left_out(portrait: Portrait) -> str:
    """Say which figures are missing for want of training rows; "" where none is."""
    if not lacks_training_rows(portrait) or portrait.groups is None:
        return ""
    missing = []
    if portrait.losses is None:
        missing.append("how well each group's model fits each client")
    if portrait.projection is None:
        missing.append("the map of the clients")
    if not missing:
        return ""
    return f"Left out, as the training rows are not at hand: {join_names(missing)}."
