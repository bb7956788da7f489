"""Which method is best, in sentences for the terminal and the page."""

from __future__ import annotations

from typing import NamedTuple

from coterie.metrics import METRICS
from coterie.reporting.comparison import Comparison
from coterie.reporting.intervals import FEWEST_SITES, Difference
from coterie.reporting.text import format_score, join_names, metric_name


class Lead(NamedTuple):
    """How far one method is ahead of another; negative: behind."""

    one: str
    other: str
    metric: str
    other_score: float
    difference: Difference | None  # None: no scores by site are known


class Verdict(NamedTuple):
    """The best method, and how the others compare with it."""

    metric: str
    best: list[str]  # the best, then those level with it; none where all diverged
    score: float  # of the first of `best`
    is_only: bool  # there is one method, and nothing to compare it with
    leads: list[Lead]  # of the best over each other method with a score, the nearest first
    diverged: list[str]

    @property
    def level(self) -> list[str]:
        """The methods that cannot be told apart from the best."""
        return self.best[1:]

    @property
    def nearest_beaten(self) -> Lead | None:
        """The lead over the best of the methods that are worse for certain."""
        for lead in self.leads:
            if lead.other not in self.best and is_certain(lead):
                return lead
        return None


def lead_of(comparison: Comparison, one: str, other: str) -> Lead:
    """Measure how far one method is ahead of another."""
    score = comparison.scores[other]
    return Lead(one, other, comparison.metric, score, comparison.lead(one, other))


def is_certain(lead: Lead) -> bool:
    """Tell whether the whole interval of a lead is above 0."""
    return lead.difference is not None and lead.difference.is_above


def is_certainly_worse(lead: Lead) -> bool:
    """Tell whether the whole interval of a lead is below 0."""
    return lead.difference is not None and lead.difference.is_below


def has_interval(lead: Lead) -> bool:
    """Tell whether a lead has an interval."""
    return lead.difference is not None and lead.difference.has_interval


def judge(comparison: Comparison) -> Verdict | None:
    """Name the best methods; None where no method was measured."""
    best = comparison.best
    diverged = list(comparison.diverged)
    if not best and not diverged:
        return None
    score = float("nan")
    leads = []
    if best:
        score = comparison.scores[best[0]]
        for other, difference in comparison.leads_of_best.items():
            of_other = comparison.scores[other]
            leads.append(Lead(best[0], other, comparison.metric, of_other, difference))
    return Verdict(
        metric=comparison.metric,
        best=best,
        score=score,
        is_only=len(comparison.runs) == 1,
        leads=leads,
        diverged=diverged,
    )


# ------------------------------------------------------------------------------ as text
def describe_verdict(verdict: Verdict) -> str:
    """Say which method is best, by how much, and which others may be as good."""
    sentences = []
    if verdict.best:
        sentences.append(describe_best(verdict))
    if verdict.level:
        sentences.append(describe_level(verdict))
    beaten = verdict.nearest_beaten
    if beaten is not None:
        sentences.append(f"{describe_lead(beaten)}.")
    if verdict.leads and not any(map(has_interval, verdict.leads)):
        sentences.append(describe_no_interval(verdict.leads[0]))
    if verdict.diverged:
        sentences.append(f"{join_names(verdict.diverged)} diverged: no finite test loss.")
    return " ".join(sentences)


def describe_best(verdict: Verdict) -> str:
    """Say which method has the best score."""
    score = f"a test {metric_name(verdict.metric)} of"
    number = format_score(verdict.score, verdict.metric)
    if verdict.is_only:
        return f"{verdict.best[0]} reaches {score} {number}."
    return f"{verdict.best[0]} scores best, with {score} {number}."


def describe_level(verdict: Verdict) -> str:
    """Name the methods that are too near to the best to tell them apart."""
    verb = "are"
    if len(verdict.level) == 1:
        verb = "is"
    sentence = f"{join_names(verdict.level)} {verb} level with it"
    nearest = verdict.leads[0]
    if not has_interval(nearest):
        return f"{sentence}."
    return f"{sentence}: {describe_lead(nearest)}, which may be chance."


def describe_no_interval(lead: Lead) -> str:
    """Say why nobody can tell whether a difference is chance."""
    return f"Whether the difference is chance cannot be told: {explain_no_interval(lead)}."


def explain_no_interval(lead: Lead) -> str:
    """Say why a difference has no interval."""
    if lead.difference is None:
        return "the runs did not keep scores by site"
    return f"an interval takes {FEWEST_SITES} sites or more, not {lead.difference.sites}"


def describe_lead(lead: Lead) -> str:
    """Say by how much a method is better or worse than another, with the interval."""
    if lead.difference is None:
        return f"{lead.one} is compared with {lead.other}"
    what = metric_name(lead.metric)
    if not METRICS[lead.metric].higher_is_better:
        what = "error"
    return f"{lead.one}'s {what} is {describe_size(lead)}"


def describe_size(lead: Lead) -> str:
    """Write "0.012 higher than n's", with the interval.

    Errors are compared in percent, scores as they are. Numbers have a direction instead of a sign.
    """
    difference = lead.difference
    assert difference is not None
    unit = 1.0
    after = ""
    if not METRICS[lead.metric].higher_is_better:
        unit = lead.other_score / 100
        after = " %"
        difference = difference.negated()  # a lower error is better
    direction = "higher"
    if is_lower(lead):
        direction = "lower"
    size = format_part(abs(difference.value) / unit, lead.metric)
    sentence = f"{size}{after} {direction} than {lead.other}'s"
    if difference.low is None or difference.high is None:
        return sentence
    low = format_part(abs(difference.low) / unit, lead.metric)
    high = format_part(abs(difference.high) / unit, lead.metric)
    interval = f"{low}{after} lower to {high}{after} higher"
    if difference.low >= 0:
        interval = f"{low} to {high}{after}"
    elif difference.high <= 0:
        interval = f"{high} to {low}{after}"
    return f"{sentence} ({interval}, {count_evidence(difference)})"


def is_lower(lead: Lead) -> bool:
    """Tell whether the score or the error of a method is lower than that of the other."""
    assert lead.difference is not None
    if not METRICS[lead.metric].higher_is_better:
        return lead.difference.value >= 0
    return lead.difference.value < 0


def format_part(value: float, metric: str) -> str:
    """Write a part of an interval: percent of an error with one decimal, a score with three."""
    if not METRICS[metric].higher_is_better:
        return f"{value:.1f}"
    return f"{value:.3f}"


def count_evidence(difference: Difference) -> str:
    """Write what an interval comes from, "65 sites, 3 seeds"."""
    seeds = "1 seed"
    if difference.seeds > 1:
        seeds = f"{difference.seeds} seeds"
    return f"{difference.sites} sites, {seeds}"
