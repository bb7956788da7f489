"""The tables of experiments/README.md, from what `coterie reproduce` found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from coterie.contract import Algorithm
from coterie.experiments import all_experiments
from coterie.experiments.claims import FAILS, HOLDS, UNSURE
from coterie.experiments.outcome import Outcome
from coterie.experiments.page import markdown, page, verdicts

RESULTS = Path(__file__).parent.parent / "experiments" / "results"
BEST_FIRST = ("full", "medium")


def outcomes() -> list[Outcome]:
    """Of every experiment that was run to its end, the larger scale."""
    found = []
    for experiment in all_experiments().values():
        for scale in BEST_FIRST:
            outcome = Outcome.open(experiment, scale, RESULTS)
            if not outcome.missing:
                found.append(outcome)
                break
    return found


def reproduction() -> str:
    """A table of all experiments, then the page of each that was run."""
    found = {outcome.experiment.name: outcome for outcome in outcomes()}
    rows = []
    for name, experiment in all_experiments().items():
        rows.append([row_name(name, name in found), experiment.where, *summary(found.get(name))])
    head = ["experiment", "paper's", "scale", HOLDS, UNSURE, FAILS]
    parts = [markdown(head, rows)]
    for outcome in found.values():
        stem = outcome.path.stem
        anchor = f'<a id="{outcome.experiment.name}-results"></a>'
        text = page(outcome).strip().replace(f"]({stem}", f"](results/{stem}")
        parts += [anchor, text]
    return "\n\n".join(parts)


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
            link = f"[`{name}`](../experiments/README.md#{name})"
            papers.setdefault(experiment.paper, []).append(link)
    if not papers:
        return "None of the papers' tables that are made again has it."
    lines = [f"* {paper}: {', '.join(links)}" for paper, links in papers.items()]
    return "\n".join(["It stands in these tables and figures, made again:", "", *lines])


def summary(outcome: Outcome | None) -> list[str]:
    """The scale of an experiment, and how many of its claims hold."""
    if outcome is None:
        return ["not run yet", "", "", ""]
    marks = Counter(verdict.mark for verdict in verdicts(outcome))
    return [outcome.scale, *(str(marks[mark]) for mark in (HOLDS, UNSURE, FAILS))]
