"""The page: all sections as plain data, and rendering by the templates beside this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from coterie.data.site_columns import ConstantColumn, describe_constants
from coterie.reporting import (
    clients,
    coefficients,
    comparison,
    convergence,
    drawing,
    fairness,
    figures,
    group_differences,
    group_membership,
    method,
    model_fit,
    overview,
    predictions,
    svg,
    text,
    verdict,
)
from coterie.reporting.client_statistics import ClientStatistics
from coterie.reporting.clients import ScoresByClient
from coterie.reporting.coefficients import Coefficients, EffectCurves
from coterie.reporting.comparison import Comparison
from coterie.reporting.convergence import Convergence, CostToTarget
from coterie.reporting.drawing import Styles
from coterie.reporting.fairness import Fairness
from coterie.reporting.group_membership import MainGroups
from coterie.reporting.method import MethodByMethod, MethodDetails
from coterie.reporting.overview import EmptyCells, NextStep, Provenance
from coterie.reporting.predictions import ConstantBaseline, Predictions
from coterie.reporting.run_records import Methods
from coterie.reporting.verdict import GroupBenefit

MARKER = "<!doctype html><!-- a report of coterie -->"  # the start of each page

# Templates may call every function describe_… and …_table of these modules
STATISTICS = (
    clients,
    coefficients,
    comparison,
    convergence,
    fairness,
    group_differences,
    group_membership,
    method,
    model_fit,
    overview,
    predictions,
    verdict,
)


@dataclass(frozen=True)
class Page:
    """What the templates show; None: left out."""

    title: str
    verdict: str  # sentences about the best method and those that diverged
    no_groups: str  # a sentence if every method that looks for groups found one
    benefit: GroupBenefit | None
    next_step: NextStep | None
    constant_baseline: ConstantBaseline | None
    about_data: str  # sentences
    empty_cells: EmptyCells | None
    constants: Sequence[ConstantColumn]  # columns that are constant at one site
    one_seed: str  # the seed of sections that show a single one; "" if there is only one
    about_names: str  # sentences that explain the names of methods and metrics
    missing: Sequence[str]  # one sentence for each missing part
    groups: MainGroups | None
    coefficients: Coefficients | None  # of the models of these groups
    effects: EffectCurves | None  # of the best method with models for groups or for all
    clients: ScoresByClient | None
    main: MethodDetails | None  # of the method whose groups are shown first
    comparison: Comparison
    predictions: Predictions | None  # of the best method
    convergence: Convergence | None
    fairness: Fairness | None
    cost: CostToTarget | None
    methods: MethodByMethod
    styles: Styles  # line style of each method
    provenance: Provenance


def collect_page(
    methods: Methods,
    statistics: Mapping[str, ClientStatistics],
    missing: Sequence[str],
    target: float | None,
) -> Page:
    """Compute all sections of a page.

    Methods that diverged are named, but neither ranked nor drawn.

    Args:
        methods: The runs by method.
        statistics: Client statistics of the lowest seed, by method; methods whose models are not
            available are left out.
        missing: One sentence for each missing part.
        target: Target score for the cost section; None: see `cost_to_target`.
    """
    compared = comparison.compare(methods)
    in_curves = replace(compared, metric=next(iter(methods.values()))[0].curve_metric)
    not_diverged = {
        label: runs for label, runs in methods.items() if label not in compared.diverged
    }
    statistics = {label: own for label, own in statistics.items() if label in not_diverged}
    ranking = [label for label in compared.ranking if label in not_diverged]
    reference = fairness.choose_grouping(ranking, statistics)
    final_groups = {}
    for label in ranking:
        groups = group_membership.last_groups(methods[label][0], statistics.get(label))
        if groups is not None:
            final_groups[label] = groups
    # the groups shown first: of the best method with several groups, preferably with its models
    several = [
        label for label, groups in final_groups.items() if len(np.unique(groups[groups >= 0])) > 1
    ]
    with_models = [label for label in several if label in statistics]
    benefit = verdict.group_benefit(compared)
    main = None
    if benefit is None or benefit.may_pay:
        main = next(iter([*with_models, *several]), None)
    details = method.method_by_method(
        [methods[label][0] for label in ranking],
        statistics=statistics,
        reference=reference,
        final_groups=final_groups,
        main=main,
        seeds=compared.seeds,
    )
    main_statistics = statistics.get(main or "")
    best_statistics = statistics.get(ranking[0]) if ranking else None
    all_statistics = list(statistics.values())
    return Page(
        title=overview.describe_title(methods),
        verdict=verdict.describe_verdict(compared),
        no_groups=verdict.describe_no_groups(compared),
        benefit=benefit,
        next_step=choose_next_step(methods, compared, several),
        constant_baseline=predictions.compare_with_constant(compared),
        about_data=overview.describe_data(next(iter(methods.values()))),
        empty_cells=next(
            (s.empty_cells for s in all_statistics if s.empty_cells is not None), None
        ),
        constants=next((s.constants for s in all_statistics if s.constants), ()),
        one_seed=name_one_seed(methods),
        about_names=overview.describe_names(list(methods), several, compared.metric),
        missing=missing,
        groups=(
            group_membership.main_groups(main, methods, final_groups, main_statistics)
            if main
            else None
        ),
        coefficients=main_statistics.coefficients if main_statistics else None,
        effects=next(
            (statistics[label].effects for label in ranking if has_effects(statistics, label)), None
        ),
        clients=(
            clients.scores_by_client(methods[main or ranking[0]][0], statistics, compared.seeds)
            if ranking
            else None
        ),
        main=next((one for one in details.details if one.label == main), None),
        comparison=compared,
        predictions=best_statistics.predictions if best_statistics else None,
        convergence=convergence.convergence(not_diverged, in_curves) if not_diverged else None,
        fairness=fairness.fairness(compared, statistics, reference),
        cost=convergence.cost_to_target(not_diverged, in_curves, target),
        methods=details,
        styles=drawing.method_styles(methods),
        provenance=overview.provenance(methods),
    )


def has_effects(statistics: Mapping[str, ClientStatistics], label: str) -> bool:
    """Return whether the effects of columns are known for a method."""
    return label in statistics and statistics[label].effects is not None


def choose_next_step(
    methods: Methods, compared: Comparison, with_groups: Sequence[str]
) -> NextStep | None:
    """Describe how to use the best model; None if no method has a score."""
    if not compared.best:
        return None
    leader = compared.best[0]
    return overview.next_step(
        methods[leader][0], leader, with_groups, describe_accuracy_of(compared, leader)
    )


def describe_accuracy_of(compared: Comparison, leader: str) -> str:
    """Describe the typical error of predictions for readers without statistics."""
    if compared.metric == "mse":
        error = text.format_error(compared.scores[leader] ** 0.5)
        return f"its predictions are typically off by {error}, in the unit of the label"
    accuracy = comparison.average(compared.runs[leader], "accuracy")
    if accuracy is None:
        return ""
    guess = comparison.average(compared.runs[leader], "commonest")
    sentence = f"it predicts {100 * accuracy:.0f} % of the test rows right"
    if guess is not None:
        sentence += (
            f"; always guessing the most frequent class would be right in {100 * guess:.0f} %"
        )
    return sentence


def name_one_seed(methods: Methods) -> str:
    """Name the seed that a page shows of several, "seed 3"; "" if every method has only one."""
    if all(len(runs) == 1 for runs in methods.values()):
        return ""
    lowest = {runs[0].seed for runs in methods.values()}
    if len(lowest) > 1:
        return "the lowest seed of each method"
    return f"seed {lowest.pop()}"


# ------------------------------------------------------------------------------ rendering
@cache
def environment() -> Environment:
    """Return the template environment, which escapes all values."""
    templates = Environment(
        loader=PackageLoader("coterie.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for module in STATISTICS:
        for name, value in vars(module).items():
            if name.startswith("describe_") or name.endswith("_table"):
                templates.globals[name] = value
    templates.globals.update(
        capitalise=text.capitalise,
        join_names=text.join_names,
        figures=figures,
        group_colour=drawing.group_colour,
        draw=svg.draw,
        describe_constants=describe_constants,
        answer_benefit=verdict.answer_benefit,
        can_search=clients.can_search,
        search_json=clients.search_json,
    )
    return templates


def render(template: str, **data: Any) -> str:
    """Render a template."""
    return environment().get_template(template).render(**data)


def render_page(page: Page) -> str:
    """Render a page as one HTML document with style sheet, script and figures."""

    def read(name: str) -> Markup:
        return Markup(files("coterie.reporting").joinpath(name).read_text(encoding="utf-8"))

    return render(
        "page.html.jinja",
        page=page,
        styles=page.styles,
        marker=Markup(MARKER),
        style=read("style.css"),
        script=read("script.js"),
    )
