"""The tables of reproduction/README.md, from what `python -m reproduction` found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from coterie.core.contract import Algorithm
from reproduction import all_experiments
from reproduction.claims import MARKS
from reproduction.page import markdown, page, verdicts
from reproduction.result_table import ResultTable
from reproduction.spec import Experiment

RESULTS = Path(__file__).parent.parent / "reproduction" / "results"
BEST_FIRST = ("full", "medium")


def outcomes(experiment: Experiment) -> list[ResultTable]:
    """What is shown of an experiment: the largest scale that was run to its end.

    If a part of a larger one was run, that comes first.
    """
    found = []
    for scale in BEST_FIRST:
        results = ResultTable.open(experiment, scale, RESULTS)
        if results.cells:
            found.append(results)
        if not results.missing:
            return found
    return []


def reproduction() -> str:
    """A table of all experiments, then the page of each that was run."""
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
    return "\n\n".join([markdown(head, rows), *parts])


def text_of(results: ResultTable) -> str:
    """The page of what was run, with figures where they are."""
    stem = results.path.stem
    return page(results).strip().replace(f"]({stem}", f"](results/{stem}")


def row_name(name: str, was_run: bool) -> str:
    """An experiment's name with an anchor, and a link to its results where it was run."""
    anchor = f'<a id="{name}"></a>'
    if was_run:
        return f"{anchor}[`{name}`](#{name}-results)"
    return f"{anchor}`{name}`"


def experiments_with(method: type[Algorithm]) -> str:
    """Links to the rows of every experiment that has a method, by paper."""
    papers: dict[str, list[str]] = {}
    for name, experiment in all_experiments().items():
        if any(type(line.method) is method for line in experiment.lines):
            link = f"[`{name}`](../reproduction/README.md#{name})"
            papers.setdefault(experiment.paper, []).append(link)
    if not papers:
        return "None of the papers' tables that are made again has it."
    lines = [f"* {paper}: {', '.join(links)}" for paper, links in papers.items()]
    return "\n".join(["It stands in these tables and figures, made again:", "", *lines])


def summaries(found: list[ResultTable]) -> list[list[str]]:
    """For each scale that is shown: its name, and how many of its claims hold."""
    if not found:
        return [["not run yet", *[""] * len(MARKS)]]
    return [summary(results) for results in found]


def summary(results: ResultTable) -> list[str]:
    """A scale, whole or a part of it, and how many of its claims hold."""
    marks = Counter(verdict.mark for verdict in verdicts(results))
    scale = results.scale
    if results.missing:
        scale = f"a part of {scale}"
    return [scale, *(str(marks[mark]) for mark in MARKS)]
