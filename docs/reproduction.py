"""The tables of experiments/README.md, from what `coterie reproduce` found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

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
        rows.append([f"`{name}`", experiment.where, *summary(found.get(name))])
    head = ["experiment", "paper's", "scale", HOLDS, UNSURE, FAILS]
    parts = [markdown(head, rows)]
    for outcome in found.values():
        stem = outcome.path.stem
        parts.append(page(outcome).strip().replace(f"]({stem}", f"](results/{stem}"))
    return "\n\n".join(parts)


def summary(outcome: Outcome | None) -> list[str]:
    """The scale of an experiment, and how many of its claims hold."""
    if outcome is None:
        return ["not run yet", "", "", ""]
    marks = Counter(verdict.mark for verdict in verdicts(outcome))
    return [outcome.scale, *(str(marks[mark]) for mark in (HOLDS, UNSURE, FAILS))]
