"""The generated part of reproduction/README.md: a table of all experiments and their pages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from coterie.core.contract import Algorithm
from reproduction import all_experiments
from reproduction.claims import MARKS
from reproduction.page import judge_all, make_page, markdown_table
from reproduction.result_table import ResultTable
from reproduction.spec import Experiment

RESULTS = Path(__file__).parent.parent / "reproduction" / "results"
BEST_FIRST = ("full", "medium")


def outcomes(experiment: Experiment) -> list[ResultTable]:
    """Return the results to show: the largest complete scale, after incomplete larger ones."""
    found = []
    for scale in BEST_FIRST:
        results = ResultTable.open(experiment, scale, RESULTS)
        if results.cells:
            found.append(results)
        if not results.missing:
            return found
    return []


def reproduction() -> str:
    """Return a table of all experiments, then the page of each that was run."""
    rows = []
    parts = []
    for name, experiment in all_experiments().items():
        found = outcomes(experiment)
        first, *others = summaries(found)
        rows.append([row_name(name, bool(found)), experiment.where, *first])
        rows += [["", "", *other] for other in others]
        if found:
            parts.append(f'<a id="{name}-results"></a>')
        parts += map(text_of, found)
    head = ["experiment", "paper's", "scale", *MARKS]
    return "\n\n".join([markdown_table(head, rows), *parts])


def text_of(results: ResultTable) -> str:
    """Return the page of an experiment with links to its figures."""
    stem = results.path.stem
    return make_page(results).strip().replace(f"]({stem}", f"](results/{stem}")


def row_name(name: str, was_run: bool) -> str:
    """Return an experiment's name with an anchor and, if it was run, a link to its results."""
    anchor = f'<a id="{name}"></a>'
    if was_run:
        return f"{anchor}[`{name}`](#{name}-results)"
    return f"{anchor}`{name}`"


def experiments_with(method: type[Algorithm]) -> str:
    """Return links to the experiments that have a method, by paper."""
    papers: dict[str, list[str]] = {}
    for name, experiment in all_experiments().items():
        if any(type(line.method) is method for line in experiment.lines):
            link = f"[`{name}`](../reproduction/README.md#{name})"
            papers.setdefault(experiment.paper, []).append(link)
    if not papers:
        return "None of the reproduced tables has it."
    lines = [f"* {paper}: {', '.join(links)}" for paper, links in papers.items()]
    return "\n".join(["Reproduced tables and figures that have it:", "", *lines])


def summaries(found: list[ResultTable]) -> list[list[str]]:
    """Return, for each scale that is shown, its name and the number of claims by mark."""
    if not found:
        return [["not run yet", *[""] * len(MARKS)]]
    return [summary(results) for results in found]


def summary(results: ResultTable) -> list[str]:
    """Return the name of a scale and the number of claims by mark."""
    marks = Counter(verdict.mark for verdict in judge_all(results))
    scale = results.scale
    if results.missing:
        scale = f"a part of {scale}"
    return [scale, *(str(marks[mark]) for mark in MARKS)]
