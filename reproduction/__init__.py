"""The papers' tables and figures, reproduced: `python -m reproduction NAME`.

spec.py        what an experiment is: lines, columns, scales, cells
catalogue/     the experiments, a file for each paper
work.py        what is done in a cell
runner.py      runs cells side by side and keeps each as it is done
result_table.py the file of results
claims.py      what should hold, checked over the seeds
page.py        Markdown: ours beside the paper's
figures.py     figures of curves, columns and heat maps
figures_of_groups.py  figures of who is in which group, and of clients' weights
sources.py     how centres fit the sources that clients mix
tuning.py      searches for what a paper does not print
"""

from __future__ import annotations

from coterie.core.errors import unknown_name
from reproduction.spec import Experiment


def all_experiments() -> dict[str, Experiment]:
    """Every experiment, by its name."""
    from reproduction.catalogue import EXPERIMENTS

    return {experiment.name: experiment for experiment in EXPERIMENTS}


def find(name: str) -> Experiment:
    """The experiment of a name."""
    every = all_experiments()
    if name not in every:
        raise unknown_name("experiment", name, every)
    return every[name]
