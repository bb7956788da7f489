"""The papers' tables and figures, reproduced: `python -m reproduction NAME`.

spec.py           what an experiment is: lines, columns, scales, cells
catalogue/        the experiments, one module per paper, with notes in Markdown
work.py           the work of a cell: train, then measure
runner.py         runs cells in several processes and saves each result
result_table.py   the results of an experiment and their file
claims.py         what should hold, judged by confidence intervals
page.py           the Markdown page of an experiment
command.py        the command
figures.py        curves over rounds, and what all figures share
figures_of_tables.py, figures_of_groups.py, site_groups.py   other figures and lists
many_starts.py    IFCA on linear regression from many starts at once
references.py     central models by scikit-learn
"""

from __future__ import annotations

from coterie.core.errors import unknown_name
from reproduction.spec import Experiment


def all_experiments() -> dict[str, Experiment]:
    """Return every experiment, by name."""
    from reproduction.catalogue import EXPERIMENTS

    return {experiment.name: experiment for experiment in EXPERIMENTS}


def find(name: str) -> Experiment:
    """Return the experiment with this name.

    Raises:
        CoterieError: There is no such experiment.
    """
    every = all_experiments()
    if name not in every:
        raise unknown_name("experiment", name, every)
    return every[name]
