"""Whether groups pay: the best method with groups against every method without."""

from __future__ import annotations

from typing import NamedTuple

from coterie.reporting.comparison import Comparison
from coterie.reporting.text import join_names
from coterie.reporting.verdict import (
    Lead,
    describe_lead,
    describe_no_interval,
    has_interval,
    is_certain,
    lead_of,
)

ONE_FOR_ALL = ("fedavg", "fedprox")
ONE_EACH = (
    "local",
    "fedavg-ft",
    "ditto",
    "apfl",
    "fedper",
    "pfedme",
    "perfedavg",
    "l2sgd",
    "fedbcd",
)


class GroupBenefit(NamedTuple):
    """How the best method with several groups compares with those that have none."""

    method: str
    leads: list[Lead]  # over each method without groups, the best of them first
    missing: list[str]  # kinds of methods that are not there to compare with

    @property
    def pays(self) -> bool:
        """Whether groups are better than one model for all and one for each, for certain."""
        return not self.missing and all(map(is_certain, self.leads))


def group_benefit(comparison: Comparison) -> GroupBenefit | None:
    """Judge whether groups pay; None without a method with groups, or without any other method."""
    with_groups = [label for label in comparison.scores if has_groups(comparison, label)]
    if not with_groups or len(comparison.runs) == 1:
        return None
    best = comparison.best_of(with_groups)
    without = [label for label in comparison.scores if not has_groups(comparison, label)]
    leads = [lead_of(comparison, best, other) for other in comparison.sort(without)]
    return GroupBenefit(best, leads, missing_kinds(without, list(comparison.diverged)))


def has_groups(comparison: Comparison, label: str) -> bool:
    """Tell whether any run of a method ended with clients in several groups."""
    for run in comparison.runs[label]:
        filled = [size for size in run.get("sizes") or [] if size > 0]
        if len(filled) > 1:
            return True
    return False


def missing_kinds(labels: list[str], diverged: list[str]) -> list[str]:
    """Name the kinds of methods without groups that are not among these; or that diverged."""
    kinds = {"one model for all": ONE_FOR_ALL, "one model for each client": ONE_EACH}
    missing = []
    for kind, names in kinds.items():
        if any(method_name(label) in names for label in labels):
            continue
        lost = [label for label in diverged if method_name(label) in names]
        if lost:
            missing.append(f"{kind} ({lost[0]} diverged)")
        else:
            missing.append(f"{kind} (such as {names[0]})")
    return missing


def method_name(label: str) -> str:
    """The name of a method, without the settings that a label may have after it."""
    return label.split()[0]


def describe_benefit(benefit: GroupBenefit) -> str:
    """Say whether groups pay, or what is known of it."""
    if benefit.pays:
        return (
            f"Groups pay: {benefit.method} beats every method without groups; "
            f"{describe_lead(benefit.leads[0])}, the best of them."
        )
    in_doubt = [lead for lead in benefit.leads if not is_certain(lead)]
    if not in_doubt:
        return f"Whether groups pay cannot be told without {join_names(benefit.missing)}."
    nearest = in_doubt[0]
    if not has_interval(nearest):
        return f"Whether groups pay cannot be told. {describe_no_interval(nearest)}"
    assert nearest.difference is not None
    if nearest.difference.value <= 0:
        return f"Groups do not pay: {describe_lead(nearest)}."
    return (
        f"Whether groups pay cannot be told on these sites: {describe_lead(nearest)}, which may be "
        "chance."
    )
