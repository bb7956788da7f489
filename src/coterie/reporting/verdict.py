"""The conclusions of a comparison: whether there are groups and pay off, and which method is best.

Methods are compared by paired differences with confidence intervals (`intervals.py`). Numbers in
sentences have a direction instead of a sign: "0.012 higher than fedavg's".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import mean
from typing import NamedTuple

from coterie.core.contract import Scope
from coterie.methods import registry
from coterie.metrics import METRICS
from coterie.reporting.comparison import Comparison, Lead, describe_diverged
from coterie.reporting.intervals import MIN_SITES
from coterie.reporting.text import format_error, format_score, join_names

# kinds of methods without groups, with a method of each
WITHOUT_GROUPS: dict[Scope, tuple[str, str]] = {
    "global": ("one model for all", "fedavg"),
    "personal": ("one model for each client", "local"),
}


# ------------------------------------------------------------------------------ the best method
def describe_verdict(comparison: Comparison) -> str:
    """Name the best method, its lead, and the methods that are level with it.

    Returns:
        Some sentences; "" if no method has a score and none diverged.
    """
    sentences = []
    leads = comparison.leads_of_best
    if comparison.best:
        first, *level = comparison.best
        verb = "has" if len(comparison.scores) == 1 else "scores best, with"
        sentences.append(f"{first} {verb} {describe_score(comparison, first)}.")
        if level:
            verb = "is" if len(level) == 1 else "are"
            sentence = f"{join_names(level)} {verb} level with it"
            undecided = [lead for lead in leads if lead.other in level and lead.is_undecided]
            if undecided:
                sentence += f": {describe_lead(undecided[0])}, which may be chance"
            sentences.append(f"{sentence}.")
    beaten = [lead for lead in leads if lead.other not in comparison.best and lead.is_better]
    if beaten:
        sentences.append(f"{describe_lead(beaten[0])}.")
    if leads and not any(lead.has_interval for lead in leads):
        sentences.append(
            f"Whether the difference is chance is unknown: {explain_no_interval(leads[0])}."
        )
    if comparison.diverged:
        sentences.append(describe_diverged(comparison))
    return " ".join(sentences)


def describe_score(comparison: Comparison, label: str) -> str:
    """Return a method's score as a phrase; the error of numbers is given in the label's unit."""
    score = comparison.scores[label]
    metric = METRICS[comparison.metric]
    if metric.name == "mse":
        return f"a typical error of {format_error(score**0.5)} (the root of the test MSE)"
    return f"a test {metric.label} of {format_score(score, metric.name)}"


def explain_no_interval(lead: Lead) -> str:
    """Return why a difference has no interval."""
    if lead.difference is None:
        return "the runs did not store scores by site"
    return f"an interval takes {MIN_SITES} sites or more, not {lead.difference.sites}"


def describe_lead(lead: Lead) -> str:
    """Describe the difference between two methods, with its interval."""
    if lead.difference is None:
        return f"{lead.one} is compared with {lead.other}"
    metric = METRICS[lead.metric]
    what = "error" if metric.name == "mse" else metric.label
    return f"{lead.one}'s {what} is {describe_size(lead)}"


def describe_size(lead: Lead) -> str:
    """Return "0.012 higher than n's" with the interval; errors are compared in percent."""
    difference = lead.difference
    assert difference is not None
    is_lower = difference.value < 0
    unit = 1.0
    form = ".3f"
    after = ""
    if not METRICS[lead.metric].higher_is_better:
        is_lower = difference.value >= 0  # a lower error is better
        unit = lead.other_score / 100
        form = ".1f"
        after = " %"
        difference = difference.negate()

    def part(value: float) -> str:
        return f"{abs(value) / unit:{form}}"

    direction = "lower" if is_lower else "higher"
    sentence = f"{part(difference.value)}{after} {direction} than {lead.other}'s"
    if difference.low is None or difference.high is None:
        return sentence
    low = part(difference.low)
    high = part(difference.high)
    interval = f"{low}{after} lower to {high}{after} higher"
    if difference.low >= 0:
        interval = f"{low} to {high}{after}"
    elif difference.high <= 0:
        interval = f"{high} to {low}{after}"
    seeds = "1 seed" if difference.seeds == 1 else f"{difference.seeds} seeds"
    return f"{sentence} ({interval}, {difference.sites} sites, {seeds})"


# ------------------------------------------------------------------------------ whether groups pay
STABLE = 0.8  # agreement between seeds (ARI) from which groups are called stable


class GroupBenefit(NamedTuple):
    """The best method with several groups, compared with the methods without groups."""

    method: str
    leads: list[Lead]  # over each method without groups, the best of them first
    missing: list[str]  # kinds of methods that are missing from the comparison
    singles: int = 0  # groups of the first seed if all groups of all seeds have one member, else 0
    agreement: float | None = None  # mean ARI of the groups of its seeds; None: not known

    @property
    def may_pay(self) -> bool:
        """Whether groups pay, or the comparison lacks the methods or sites to decide it."""
        is_unknown = bool(self.missing) or not any(lead.has_interval for lead in self.leads)
        return self.pays or (is_unknown and not any(lead.is_worse for lead in self.leads))

    @property
    def is_unstable(self) -> bool:
        """Whether other seeds find other groups."""
        return self.agreement is not None and self.agreement < STABLE

    @property
    def pays(self) -> bool:
        """Whether groups beat every method without groups, and both kinds of these are present."""
        return not self.missing and all(lead.is_better for lead in self.leads)


def group_sizes(comparison: Comparison) -> dict[str, list[list[int]]]:
    """Return the sizes of the groups of each seed, by method that looks for groups."""
    return {
        label: [[size for size in run.get("sizes") or [] if size > 0] for run in runs]
        for label, runs in comparison.runs.items()
        if label in comparison.scores and any(run.get("sizes") for run in runs)
    }


def finds_several(sizes_by_seed: list[list[int]]) -> bool:
    """Return whether a method found several groups with any seed."""
    return any(len(sizes) > 1 for sizes in sizes_by_seed)


def describe_no_groups(comparison: Comparison) -> str:
    """Return a sentence if no method found more than one group, else ""."""
    sizes = group_sizes(comparison)
    if not sizes or any(map(finds_several, sizes.values())):
        return ""
    clients = next(iter(comparison.runs.values()))[0]["clients"]
    verb = "puts" if len(sizes) == 1 else "put"
    return f"No groups were found: {join_names(list(sizes))} {verb} all {clients:,} sites together."


def group_benefit(comparison: Comparison) -> GroupBenefit | None:
    """Compare groups with one model for all and with one model per client.

    Returns:
        The comparison; None if there is a single method, or none with several groups.
    """
    sizes = group_sizes(comparison)
    grouped = [label for label, of_seeds in sizes.items() if finds_several(of_seeds)]
    if not grouped or len(comparison.runs) == 1:
        return None
    best = comparison.sort(grouped)[0]
    others = comparison.sort([label for label in comparison.scores if label not in grouped])
    leads = [comparison.lead(best, other) for other in others]
    singles = 0
    if all(max(s, default=0) == 1 for s in sizes[best]):
        singles = len(sizes[best][0])
    return GroupBenefit(
        method=best,
        leads=leads,
        missing=missing_kinds(others, list(comparison.diverged)),
        singles=singles,
        agreement=seed_agreement([run.get("group_of") for run in comparison.runs[best]]),
    )


def seed_agreement(groups: Sequence[Mapping[str, int] | None]) -> float | None:
    """Return the mean adjusted Rand index between the groups of all pairs of seeds.

    Args:
        groups: By seed, the group of each client; None: not known, or other clients.

    Returns:
        1 if all seeds find the same groups, 0 if they agree as by chance; None for fewer than two.
    """
    from sklearn.metrics import adjusted_rand_score  # loaded here: it takes a second

    known = [of_seed for of_seed in groups if of_seed is not None]
    pairs = []
    for one, other in combinations(known, 2):
        names = sorted(one.keys() & other.keys())
        pairs.append(adjusted_rand_score([one[n] for n in names], [other[n] for n in names]))
    return float(mean(pairs)) if pairs else None


def describe_agreement(benefit: GroupBenefit) -> str:
    """Describe the agreement of groups between seeds; "" if it is unknown."""
    if benefit.agreement is None or benefit.singles:
        return ""
    number = f"ARI {benefit.agreement:.2f}; 1: the same groups, 0: as by chance"
    if benefit.is_unstable:
        return f"The groups of {benefit.method} are unstable: other seeds find others ({number})."
    return f"Other seeds of {benefit.method} find the same groups or nearly ({number})."


def missing_kinds(labels: list[str], diverged: list[str]) -> list[str]:
    """Return the kinds of methods without groups that are missing, or that diverged."""
    missing = []
    for scope, (kind, example) in WITHOUT_GROUPS.items():
        if any(method_scope(label) == scope for label in labels):
            continue
        lost = [label for label in diverged if method_scope(label) == scope]
        reason = f"{lost[0]} diverged" if lost else f"such as {example}"
        missing.append(f"{kind} ({reason})")
    return missing


def method_scope(label: str) -> Scope | None:
    """Return whom the models of a method are for; None for a user's own method."""
    method = registry.methods().get(method_name(label))
    return None if method is None else method.scope


def method_name(label: str) -> str:
    """Return the method of a label, without its settings."""
    return label.split()[0]


def describe_benefit(benefit: GroupBenefit) -> str:
    """Return whether groups pay, and why, as one sentence for the command line."""
    answer, reason = answer_benefit(benefit)
    return f"{answer}: {reason}." if reason else f"{answer}."


def answer_benefit(benefit: GroupBenefit) -> tuple[str, str]:
    """Answer whether groups pay; the page shows the answer and the reason as two sentences.

    Groups of one member are no groups. Otherwise groups pay if both kinds of methods without groups
    are present and every difference is above 0 with its whole interval; they do not pay if the
    whole interval of any difference is below 0.

    Returns:
        The answer and the reason, both without a full stop; the reason may be "".
    """
    if benefit.singles:
        reason = (
            f"each of the {benefit.singles} groups of {benefit.method} has one member, like local"
        )
        clauses = [reason, describe_leads(benefit, [])]
        return "No two sites belong together", "; ".join(filter(None, clauses))
    if benefit.pays:
        clauses = [
            f"{benefit.method} beats every method without groups",
            describe_leads(benefit, []),
        ]
        return "Groups pay", "; ".join(filter(None, clauses))
    worse = [lead for lead in benefit.leads if lead.is_worse]
    if worse:
        return "Groups do not pay", describe_leads(benefit, worse)
    undecided = [lead for lead in benefit.leads if not lead.is_better]
    if not undecided:
        answer = f"Whether groups pay is unknown without {join_names(benefit.missing)}"
        return answer, describe_leads(benefit, [])
    if not any(lead.has_interval for lead in benefit.leads):
        return "Whether groups pay is unknown", explain_no_interval(undecided[0])
    return "Whether groups pay is undecided", describe_leads(benefit, undecided)


def describe_leads(benefit: GroupBenefit, deciding: list[Lead]) -> str:
    """Compare groups with the best method without groups, and with one model for all.

    Args:
        benefit: The comparison.
        deciding: Differences that decide the answer, of which the first is described as well.

    Returns:
        A clause; "" if no difference has an interval.
    """
    one_for_all = [lead for lead in benefit.leads if method_scope(lead.other) == "global"]
    chosen = {lead.other: lead for lead in [*benefit.leads[:1], *deciding[:1], *one_for_all[:1]]}
    known = [lead for lead in chosen.values() if lead.has_interval]
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
