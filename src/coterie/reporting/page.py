"""All that a page shows, as plain data: a field for each section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.reporting.benefit import GroupBenefit, group_benefit
from coterie.reporting.clients import EachClient, each_client
from coterie.reporting.comparison import Comparison, Methods, compare
from coterie.reporting.convergence import Convergence, convergence
from coterie.reporting.cost import CostToTarget, cost_to_target
from coterie.reporting.fairness import Fairness, choose_grouping, fairness
from coterie.reporting.membership import MainGroups, last_groups, main_groups
from coterie.reporting.method import MethodByMethod, method_by_method
from coterie.reporting.overview import describe_data, describe_title
from coterie.reporting.portrait import Portrait
from coterie.reporting.provenance import Provenance, Settings, provenance, settings
from coterie.reporting.verdict import Verdict, judge


@dataclass(frozen=True)
class Page:
    """The sections of a page, in their order; None: left out."""

    title: str
    verdict: Verdict | None
    benefit: GroupBenefit | None
    data: str  # a sentence about the data
    missing: Sequence[str]  # a sentence for each thing that the page lacks
    comparison: Comparison
    groups: MainGroups | None
    clients: EachClient | None
    fairness: Fairness | None
    convergence: Convergence
    cost: CostToTarget | None
    methods: MethodByMethod
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
    ranking = comparison.ranking
    by = choose_grouping(ranking, portraits)
    ends = groups_at_end(ranking, methods, portraits)
    main = choose_main(ends, portraits)
    groups = None
    if main is not None:
        groups = main_groups(main, methods, ends, portraits.get(main))
    first = methods[main or ranking[0]][0]
    return Page(
        title=describe_title(methods),
        verdict=judge(comparison),
        benefit=group_benefit(comparison),
        data=describe_data(next(iter(methods.values()))),
        missing=missing,
        comparison=comparison,
        groups=groups,
        clients=each_client(first, portraits, comparison.seeds),
        fairness=fairness(comparison, portraits, by),
        convergence=convergence(methods, comparison),
        cost=cost_to_target(methods, comparison, target),
        methods=method_by_method(
            [methods[label][0] for label in ranking],
            portraits=portraits,
            by=by,
            ends=ends,
            main=main,
            seeds=comparison.seeds,
        ),
        settings=[settings(label, runs) for label, runs in methods.items()],
        provenance=provenance(methods),
    )


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
