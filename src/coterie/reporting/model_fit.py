"""Fit of group models to clients: scores by group, losses under each model, a map of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from coterie.data.roster import natural_key
from coterie.engines.evaluate import SKETCH_BINS
from coterie.reporting.client_statistics import ClientStatistics
from coterie.reporting.fairness import Grouping
from coterie.reporting.run_records import RunRecord
from coterie.reporting.text import join_names
from coterie.runs.trained import DOUBTFUL, MIN_HELD_OUT

BASELINES = ("fedavg", "local")  # without groups: one model for all, one model per client
EXCESS_BOUNDS = (1e-9, 0.05, 0.1, 0.25, 0.5)  # shades of the map; the first is the best model
SIMILAR = 0.05  # a model with an excess loss up to this share fits as well
MOST_NAMED = 20  # clients in a sentence
FLAT = 1e-3  # relative difference up to which losses or weights count as equal
MIN_BOX = 4  # clients for a box plot; fewer are shown as points


class GroupScores(NamedTuple):
    """The scores of the clients in a figure, by group."""

    metric: str
    names: list[str]  # [shown]
    groups: np.ndarray  # int64 [shown]; −1: not seen
    scores: dict[str, np.ndarray]  # [shown] under the method and its baselines


class ClientMap(NamedTuple):
    """A number for each client in a figure and each group."""

    what: str  # "loss" or "weight"
    names: list[str]  # [shown]
    values: np.ndarray  # [shown, K]; NaN: unknown
    groups: np.ndarray | None = None  # int64 [shown], the client's group; −1: not seen
    confidence: np.ndarray | None = None  # [shown] of the membership; NaN: too few rows

    @property
    def is_flat(self) -> bool:
        """Whether the values of all groups are equal for every client."""
        known = self.values[np.isfinite(self.values).all(1)]
        if not len(known):
            return True
        width = known.max(1) - known.min(1)
        return bool((width <= FLAT * np.abs(known).max(1)).all())


class ClientPositions(NamedTuple):
    """The clients in a figure as points of a plane."""

    of: str  # the projected values: "personal models" or "losses under the groups' models"
    share: float  # explained variance
    names: list[str]  # [shown]
    points: np.ndarray  # [shown, 2]
    groups: np.ndarray  # int64 [shown], for the colours; −1: not seen
    word: str  # "group" or "true group"
    whose: str  # whose groups these are; "": the method's own


def is_baseline(label: str) -> bool:
    """Return whether a method is a baseline: one model for all, or one per client."""
    return label.split()[0] in BASELINES


def group_scores(
    run: RunRecord, own: ClientStatistics, statistics: Mapping[str, ClientStatistics]
) -> GroupScores | None:
    """Collect scores by group, with those of the baselines; None without groups or scores."""
    metric = run.metric
    if own.groups is None or metric not in own.per_client:
        return None
    scores = {run.label: own.per_client[metric]}
    for label, other in statistics.items():
        is_same_data = other.fingerprint == own.fingerprint
        if is_baseline(label) and is_same_data and metric in other.per_client:
            scores.setdefault(label, other.per_client[metric])
    return GroupScores(
        metric=metric,
        names=[run.training_names[i] for i in own.shown],
        groups=own.groups[own.shown],
        scores={label: values[own.shown] for label, values in scores.items()},
    )


def client_map(run: RunRecord, own: ClientStatistics, what: str) -> ClientMap | None:
    """Collect the "loss" or "weight" of each client under each group's model; None if unknown."""
    values = own.losses if what == "loss" else own.weights
    if values is None:
        return None
    groups = None if own.groups is None else own.groups[own.shown]
    confidence = None if own.confidence is None else own.confidence[own.shown]
    names = [run.training_names[i] for i in own.shown]
    return ClientMap(what, names, values, groups=groups, confidence=confidence)


def client_positions(
    run: RunRecord, own: ClientStatistics, reference: Grouping | None
) -> ClientPositions | None:
    """Place clients in a plane, coloured by their groups or by the `reference` groups."""
    projection = own.projection
    groups = own.groups
    word = "group"
    whose = ""
    if groups is None and reference is not None and reference.fingerprint == own.fingerprint:
        groups, whose, word, _ = reference
    if projection is None or groups is None:
        return None
    return ClientPositions(
        of=projection.of,
        share=projection.share,
        names=[run.training_names[i] for i in own.shown],
        points=projection.points,
        groups=groups[own.shown],
        word=word,
        whose=whose,
    )


# ------------------------------------------------------------------------------ excess loss
def relative_excess(losses: np.ndarray) -> np.ndarray:
    """Return by which share each loss is above the minimum of its row.

    Minimums near 0 count as 1 % of the median minimum, to avoid huge ratios.

    Args:
        losses: [clients, K].

    Returns:
        [clients, K]; 0 for the best model, NaN where the loss is not finite.
    """
    known = np.where(np.isfinite(losses), losses, np.inf)
    least = known.min(1, keepdims=True)
    floor = 0.0
    if np.isfinite(least).any():
        floor = 0.01 * float(np.abs(np.median(least[np.isfinite(least)])))
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = (known - least) / np.maximum(np.abs(least), floor)
    return np.where(np.isfinite(losses), np.nan_to_num(shares, posinf=np.inf), np.nan)


def name_bounds() -> list[str]:
    """Return the legend of the map of losses, best first."""
    names = [f"up to {100 * bound:.0f} % worse" for bound in EXCESS_BOUNDS[1:]]
    return ["fits best", *names, "more than 50 % worse"]


def describe_excess(value: float) -> str:
    """Describe how much worse a model fits than the best one."""
    if value <= EXCESS_BOUNDS[0]:
        return "fits best"
    if value > 10:
        return "fits far worse"
    if value < 0.005:
        return "fits as well"
    return f"fits {100 * value:.0f} % worse"


# ------------------------------------------------------------------------------ as text
def describe_group_scores(result: GroupScores) -> str:
    """Explain the figure of scores by group."""
    _, *baselines = result.scores
    beside = f", next to its score under {' and '.join(baselines)}" if baselines else ""
    _, sizes = np.unique(result.groups, return_counts=True)
    box = "; boxes contain the middle half of a group" if (sizes >= MIN_BOX).any() else ""
    return f"Each point is a client on its own test rows{beside}{box}."


def describe_uncertain_members(result: ClientMap) -> str:
    """Name the clients whose group is uncertain, and count those of whom it is not known."""
    if result.groups is None or result.confidence is None:
        return ""
    has_group = result.groups >= 0
    uncertain = np.flatnonzero(has_group & (result.confidence < DOUBTFUL))
    unknown = int((has_group & np.isnan(result.confidence)).sum())
    level = f"membership confidence below {100 * DOUBTFUL:.0f} %, on rows that formed no group"
    sentences = []
    if len(uncertain):
        names = sorted((result.names[i] for i in uncertain), key=natural_key)
        who = "1 client" if len(uncertain) == 1 else f"{len(uncertain)} clients"
        listed = join_names(names, most=MOST_NAMED)
        sentences.append(f"The group of {who} is uncertain ({level}): {listed}.")
    elif unknown < has_group.sum():
        sentences.append(f"The group of no client is uncertain ({level}).")
    if unknown:
        who = "1 client" if unknown == 1 else f"{unknown} clients"
        sentences.append(
            f"The confidence of {who} is unknown: it takes {MIN_HELD_OUT} rows that formed no "
            "group (test or validation rows)."
        )
    return " ".join(sentences)


def describe_positions(result: ClientPositions) -> str:
    """Explain the map of clients."""
    source = "its training loss under each group's model, since it has no model of its own"
    if result.of == "personal models":
        source = f"the parameters of its own model (hashed to {SKETCH_BINS:,} if it has more)"
    colour = f"Colours show the client's {result.word}"
    if result.whose:
        colour += f"; groups are {result.whose}"
    return (
        f"Each point is a client, placed by {source}: similar clients are close. The axes are the "
        f"first two principal components, which explain {100 * result.share:.0f} % of the "
        f"variance. {colour}."
    )
