"""All that a page shows, as plain data: a field for each section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.data.site_columns import Constant
from coterie.reporting.benefit import GroupBenefit, group_benefit
from coterie.reporting.clients import EachClient, each_client
from coterie.reporting.coefficients import Coefficients
from coterie.reporting.comparison import Comparison, Methods, compare
from coterie.reporting.constant_guess import ConstantGuess, find_no_better
from coterie.reporting.convergence import Convergence, convergence
from coterie.reporting.cost import CostToTarget, cost_to_target
from coterie.reporting.diverged import Diverged, find_diverged
from coterie.reporting.drawing import Styles, method_styles
from coterie.reporting.fairness import Fairness, choose_grouping, fairness
from coterie.reporting.filled import Filled
from coterie.reporting.guesses import Guesses
from coterie.reporting.membership import MainGroups, last_groups, main_groups
from coterie.reporting.method import MethodByMethod, MethodDetails, method_by_method
from coterie.reporting.overview import describe_data, describe_names, describe_title
from coterie.reporting.portrait import Portrait
from coterie.reporting.provenance import Provenance, Settings, provenance, settings
from coterie.reporting.verdict import Verdict, judge


@dataclass(frozen=True)
class Page:
    """The sections of a page, in their order; None: left out."""

    title: str
    verdict: Verdict | None
    benefit: GroupBenefit | None
    no_better: ConstantGuess | None  # where models are no better than a constant guess
    diverged: Sequence[Diverged]  # methods that are neither judged nor drawn
    data: str  # a sentence about the data
    filled: Filled | None  # of tables: which cells were empty
    constants: Sequence[Constant]  # columns that never change at one site
    one_seed: str  # the seed of all that is shown of one alone; "" where there are not several
    names: str  # sentences on what the names of methods and metrics mean
    missing: Sequence[str]  # a sentence for each thing that the page lacks
    groups: MainGroups | None
    coefficients: Coefficients | None  # of the models of these groups
    clients: EachClient | None
    main: MethodDetails | None  # of the method whose groups are shown first
    comparison: Comparison
    guesses: Guesses | None  # of the best method
    convergence: Convergence | None
    fairness: Fairness | None
    cost: CostToTarget | None
    methods: MethodByMethod
    styles: Styles  # how each method is drawn
    settings: list[Settings]
    provenance: Provenance


def collect_page(
    methods: Methods,
    portraits: Mapping[str, Portrait],
    missing: Sequence[str],
    target: float | None,
) -> Page:
    """Compute everything that the page about these methods shows.

    portraits: by method, of its run with the lowest seed; methods whose data and models cannot be
    had are left out.
    """
    comparison = compare(methods)
    diverged = find_diverged(comparison)
    sound = without_diverged(methods, diverged)
    portraits = {label: portrait for label, portrait in portraits.items() if label in sound}
    ranking = [label for label in comparison.ranking if label in sound]
    by = choose_grouping(ranking, portraits)
    ends = groups_at_end(ranking, methods, portraits)
    main = choose_main(ends, portraits)
    groups = None
    if main is not None:
        groups = main_groups(main, methods, ends, portraits.get(main))
    by_method = method_by_method(
        [methods[label][0] for label in ranking],
        portraits=portraits,
        by=by,
        ends=ends,
        main=main,
        seeds=comparison.seeds,
    )
    judged = judge_methods(sound, target)
    return Page(
        title=describe_title(methods),
        verdict=judged.verdict,
        benefit=judged.benefit,
        no_better=judged.no_better,
        diverged=diverged,
        data=describe_data(next(iter(methods.values()))),
        filled=next((p.filled for p in portraits.values() if p.filled is not None), None),
        constants=next((p.constants for p in portraits.values() if p.constants), ()),
        one_seed=name_one_seed(methods),
        names=describe_names(list(methods), ends, comparison.metric),
        missing=missing,
        groups=groups,
        coefficients=coefficients_of(main, portraits),
        clients=clients_of(main, ranking, methods, portraits, comparison.seeds),
        main=next((details for details in by_method.details if details.label == main), None),
        comparison=comparison,
        guesses=guesses_of_best(ranking, portraits),
        convergence=judged.convergence,
        fairness=fairness(comparison, portraits, by),
        cost=judged.cost,
        methods=by_method,
        styles=method_styles(methods),
        settings=[settings(label, runs) for label, runs in methods.items()],
        provenance=provenance(methods),
    )


def name_one_seed(methods: Methods) -> str:
    """Name the seed that is shown where there are several, the lowest; "" where there is one."""
    if all(len(runs) == 1 for runs in methods.values()):
        return ""
    lowest = {runs[0].seed for runs in methods.values()}
    if len(lowest) > 1:
        return "the lowest seed of each method"
    return f"seed {lowest.pop()}"


class Judged(NamedTuple):
    """What follows from the scores of methods that did not diverge; None where all did."""

    verdict: Verdict | None = None
    benefit: GroupBenefit | None = None
    no_better: ConstantGuess | None = None
    convergence: Convergence | None = None
    cost: CostToTarget | None = None


def judge_methods(methods: Methods, target: float | None) -> Judged:
    """Compare the methods that did not diverge."""
    if not methods:
        return Judged()
    comparison = compare(methods)
    return Judged(
        verdict=judge(comparison),
        benefit=group_benefit(comparison),
        no_better=find_no_better(comparison),
        convergence=convergence(methods, comparison),
        cost=cost_to_target(methods, comparison, target),
    )


def coefficients_of(label: str | None, portraits: Mapping[str, Portrait]) -> Coefficients | None:
    """Return the coefficients of a method's groups, where they are known."""
    if label is None or label not in portraits:
        return None
    return portraits[label].coefficients


def clients_of(
    main: str | None,
    ranking: Sequence[str],
    methods: Methods,
    portraits: Mapping[str, Portrait],
    seeds: int,
) -> EachClient | None:
    """Return the clients of the method whose groups are shown first, else of the best method."""
    if not ranking:
        return None
    return each_client(methods[main or ranking[0]][0], portraits, seeds)


def guesses_of_best(ranking: Sequence[str], portraits: Mapping[str, Portrait]) -> Guesses | None:
    """Return how the best method's guesses came true, where that was counted."""
    for label in ranking[:1]:
        if label in portraits:
            return portraits[label].guesses
    return None


def without_diverged(methods: Methods, diverged: Sequence[Diverged]) -> Methods:
    """Leave out the methods that diverged."""
    names = [one.label for one in diverged]
    return {label: runs for label, runs in methods.items() if label not in names}


def groups_at_end(
    ranking: Sequence[str], methods: Methods, portraits: Mapping[str, Portrait]
) -> dict[str, np.ndarray]:
    """Return the last groups, int64 [N], of the methods that have any, the best method first."""
    ends = {label: last_groups(methods[label][0], portraits.get(label)) for label in ranking}
    return {label: groups for label, groups in ends.items() if groups is not None}


def choose_main(ends: Mapping[str, np.ndarray], portraits: Mapping[str, Portrait]) -> str | None:
    """Choose the method whose groups are shown first: one with several groups and with its data.

    ends: the last groups of each method, the best method first.
    """
    several = [label for label, groups in ends.items() if len(np.unique(groups[groups >= 0])) > 1]
    with_data = [label for label in several if label in portraits]
    candidates = [*with_data, *several, *ends]
    if not candidates:
        return None
    return candidates[0]
