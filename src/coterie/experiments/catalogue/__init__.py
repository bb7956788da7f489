"""Every experiment, a file for each paper."""

from __future__ import annotations

from coterie.experiments.catalogue import cfl_mgd, ifca
from coterie.experiments.spec import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (*ifca.EXPERIMENTS, *cfl_mgd.EXPERIMENTS)
