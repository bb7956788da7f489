"""Every experiment, a file for each paper."""

from __future__ import annotations

from coterie.experiments.catalogue import (
    cfl_mgd,
    cgpfl,
    fedsoft,
    fedsoft_letters,
    ifca,
    ifca_figure3,
    natural,
    threshold,
)
from coterie.experiments.spec import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    *ifca.EXPERIMENTS,
    *ifca_figure3.EXPERIMENTS,
    *cfl_mgd.EXPERIMENTS,
    *fedsoft.EXPERIMENTS,
    *fedsoft_letters.EXPERIMENTS,
    *cgpfl.EXPERIMENTS,
    *threshold.EXPERIMENTS,
    *natural.EXPERIMENTS,
)
