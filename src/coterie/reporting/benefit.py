"""Whether groups pay: the best method with groups against every method without."""

from __future__ import annotations

from typing import NamedTuple

from coterie.metrics import Row
from coterie.reporting.comparison import Comparison
from coterie.reporting.text import join_names
from coterie.reporting.verdict import (
    Lead,
    describe_lead,
    describe_size,
    explain_no_interval,
    has_interval,
    is_certain,
    is_certainly_worse,
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
    singles: int = 0  # groups, if each has a single member with every seed; else 0

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
    return GroupBenefit(
        method=best,
        leads=leads,
        missing=missing_kinds(without, list(comparison.diverged)),
        singles=count_singles(comparison, best),
    )


def has_groups(comparison: Comparison, label: str) -> bool:
    """Tell whether any run of a method ended with clients in several groups."""
    return any(len(group_sizes(run)) > 1 for run in comparison.runs[label])


def count_singles(comparison: Comparison, label: str) -> int:
    """Count the groups of a method whose clients are all alone, with every seed; else 0."""
    of_seeds = [group_sizes(run) for run in comparison.runs[label]]
    if any(max(sizes, default=0) != 1 for sizes in of_seeds):
        return 0
    return len(of_seeds[0])


def group_sizes(run: Row) -> list[int]:
    """The sizes of the groups that a run ended with, without the empty ones."""
    return [size for size in run.get("sizes") or [] if size > 0]


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


# ------------------------------------------------------------------------------ as text
class Answer(NamedTuple):
    """Whether groups pay, in words."""

    short: str  # without a full stop, as `reason`
    reason: str  # "": none


def describe_benefit(benefit: GroupBenefit) -> str:
    """Say whether groups pay, or what is known of it, and why."""
    answer = answer_of(benefit)
    if not answer.reason:
        return f"{answer.short}."
    return f"{answer.short}: {answer.reason}."


def answer_of(benefit: GroupBenefit) -> Answer:
    """Answer whether groups pay.

    They pay if every difference is above 0 with its whole interval, and do not if any is below.
    """
    if benefit.singles:
        alone = f"each of the {benefit.singles} groups of {benefit.method} has one member"
        reason = join_clauses(f"{alone}, which is what local does", describe_leads(benefit, []))
        return Answer("No two sites belong together", reason)
    if benefit.pays:
        reason = f"{benefit.method} beats every method without groups"
        return Answer("Groups pay", join_clauses(reason, describe_leads(benefit, [])))
    worse = [lead for lead in benefit.leads if is_certainly_worse(lead)]
    if worse:
        return Answer("Groups do not pay", describe_leads(benefit, worse))
    unknown = "Whether groups pay cannot be told"
    in_doubt = [lead for lead in benefit.leads if not is_certain(lead)]
    if not in_doubt:
        short = f"{unknown} without {join_names(benefit.missing)}"
        return Answer(short, describe_leads(benefit, []))
    if not any(map(has_interval, benefit.leads)):
        return Answer(unknown, explain_no_interval(in_doubt[0]))
    return Answer(unknown, describe_leads(benefit, in_doubt))


def join_clauses(first: str, second: str) -> str:
    """Join two clauses, of which the second may be empty."""
    if not second:
        return first
    return f"{first}; {second}"


def describe_leads(benefit: GroupBenefit, deciding: list[Lead]) -> str:
    """Compare groups with the best method without any, and with one model for all.

    deciding: differences that decide the verdict, of which the first is described, too.
    "" where no difference has an interval.
    """
    one_for_all = [lead for lead in benefit.leads if method_name(lead.other) in ONE_FOR_ALL]
    chosen = {lead.other: lead for lead in [*benefit.leads[:1], *deciding[:1], *one_for_all[:1]]}
    known = [lead for lead in chosen.values() if has_interval(lead)]
    if not known:
        return ""
    first, *others = known
    sentence = describe_lead(first)
    is_tagged = len(benefit.leads) > 1 and first is benefit.leads[0]
    if is_tagged:
        sentence += ", the best without groups"
    if not others:
        return sentence
    if is_tagged:
        sentence += ","
    return f"{sentence} and {join_names([describe_size(lead) for lead in others])}"
