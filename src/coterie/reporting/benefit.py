"""Whether groups pay: the best method with groups against one model for all and one model each."""

from __future__ import annotations

from typing import NamedTuple

from coterie.reporting.comparison import Comparison, chance_margin

ONE_FOR_ALL = "fedavg"
ONE_EACH = "local"


class GroupBenefit(NamedTuple):
    """How the best method with several groups compares with having none."""

    method: str
    beats_one_for_all: bool  # one model for all clients, fedavg
    beats_one_each: bool  # one model for each client, local


def group_benefit(comparison: Comparison) -> GroupBenefit | None:
    """Judge whether groups pay; None unless fedavg and local ran beside a method with groups."""
    scores = comparison.scores
    with_groups = [label for label in scores if has_groups(comparison, label)]
    if not with_groups or not {ONE_FOR_ALL, ONE_EACH} <= scores.keys():
        return None
    best = comparison.best_of(with_groups)
    return GroupBenefit(
        best, beats(comparison, best, ONE_FOR_ALL), beats(comparison, best, ONE_EACH)
    )


def has_groups(comparison: Comparison, label: str) -> bool:
    """Tell whether any run of a method ended with several groups."""
    return any(len(run.get("sizes", [])) > 1 for run in comparison.runs[label])


def beats(comparison: Comparison, one: str, other: str) -> bool:
    """Tell whether one method is better than another by more than chance would bring."""
    lead = comparison.scores[one] - comparison.scores[other]
    if not comparison.higher_is_better:
        lead = -lead
    return lead > margin_between(comparison, one, other)


def margin_between(comparison: Comparison, one: str, other: str) -> float:
    """Return the larger spread over seeds, or else the margin of chance of one accuracy."""
    spreads = [comparison.spread_over_seeds(label) for label in (one, other)]
    known = [spread for spread in spreads if spread is not None]
    if known:
        return max(known)
    if not comparison.higher_is_better:
        return 0.0  # errors have no such bound
    return chance_margin(comparison.scores[one], comparison.test_rows) or 0.0


def describe_benefit(benefit: GroupBenefit) -> str:
    """Say whether groups pay."""
    if not benefit.beats_one_for_all:
        return (
            f"The groups of {benefit.method} are no better than one model for all "
            f"({ONE_FOR_ALL}): there may be none that matter."
        )
    if benefit.beats_one_each:
        return (
            f"Groups pay: {benefit.method} beats one model for all ({ONE_FOR_ALL}) and one model "
            f"for each client ({ONE_EACH})."
        )
    return (
        f"There are groups that matter, since {benefit.method} beats one model for all "
        f"({ONE_FOR_ALL}); but clients have enough rows to do as well alone ({ONE_EACH}). Clients "
        "with few rows, and new ones, still gain by their group."
    )
