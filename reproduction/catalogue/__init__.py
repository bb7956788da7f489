"""Every experiment, a file for each paper."""

from __future__ import annotations

from reproduction.catalogue import (
    cfl_mgd,
    cfl_mgd_cifar,
    cgpfl,
    cgpfl_cifar,
    cgpfl_figure3,
    fedsoft,
    fedsoft_cifar,
    fedsoft_letters,
    ifca,
    ifca_cifar,
    ifca_figure3,
    ifca_writers,
    natural,
    people,
    planted_sites,
    threshold,
    threshold_theorem1,
)
from reproduction.spec import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    *ifca.EXPERIMENTS,
    *ifca_cifar.EXPERIMENTS,
    *ifca_writers.EXPERIMENTS,
    *ifca_figure3.EXPERIMENTS,
    *cfl_mgd.EXPERIMENTS,
    *cfl_mgd_cifar.EXPERIMENTS,
    *fedsoft.EXPERIMENTS,
    *fedsoft_letters.EXPERIMENTS,
    *fedsoft_cifar.EXPERIMENTS,
    *cgpfl.EXPERIMENTS,
    *cgpfl_figure3.EXPERIMENTS,
    *cgpfl_cifar.EXPERIMENTS,
    *threshold.EXPERIMENTS,
    *threshold_theorem1.EXPERIMENTS,
    *natural.EXPERIMENTS,
    *people.EXPERIMENTS,
    *planted_sites.EXPERIMENTS,
)
