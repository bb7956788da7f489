"""IFCA from many starts at once is IFCA from each of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.experiments import all_experiments
from coterie.experiments.catalogue.ifca_figure3 import error_of, shrunk
from coterie.experiments.many_starts import EqualRows, descend_from
from coterie.runs.start import prepare

LR = 0.2
ROUNDS = 5


@pytest.fixture
def fed() -> ct.data.Federation:
    """Twelve clients in two groups."""
    return ct.data.linear(clients=12, samples=8, dim=6, clusters=2, noise=0.1, seed=1)


def at_once(fed: ct.data.Federation, starts: Tensor, lr: float = LR) -> Tensor:
    """The centres that many starts end with, in one run."""
    rows = EqualRows.of(fed)
    exact = rows._replace(x=rows.x.double(), y=rows.y.double())
    return descend_from(starts, exact, lr, ROUNDS)


def alone(fed: ct.data.Federation, start: Tensor, lr: float = LR) -> Tensor:
    """The centres that IFCA itself ends with from one start."""
    method = ct.IFCA(clusters=len(start), average="gradients", init="random", lr=lr)
    options = {"rounds": ROUNDS, "dtype": "float64", "paper": True, "screen": 0}
    task = prepare(method, fed, "linear:nobias", **options).task
    state, _ = method.start(task, len(fed), seed=0)
    (name,) = state.centres
    state = state._replace(centres={name: start[:, None]})
    result = ct.run(method, fed, "linear:nobias", start=state, **options)
    return result.state.centres[name][:, 0]


def coins(starts: int, clusters: int = 2) -> Tensor:
    """Starts of zeros and ones."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(2, (starts, clusters, 6), generator=draw).double()


@pytest.mark.parametrize("clusters", [2, 3])
def test_each_start_ends_where_ifca_does(fed, clusters):
    starts = coins(3, clusters)
    ends = at_once(fed, starts)
    for start, end in zip(starts, ends):
        assert torch.allclose(end, alone(fed, start), rtol=0, atol=1e-9)
        assert not torch.allclose(end, start)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_start_that_diverges_does_no_harm_to_the_others(fed):
    starts = coins(3)
    starts[1] = 1e155  # its losses are infinite
    ends = at_once(fed, starts)
    for number in (0, 2):
        assert torch.allclose(ends[number], alone(fed, starts[number]), rtol=0, atol=1e-9)
    with pytest.raises(ct.Diverged):
        alone(fed, starts[1])
    assert error_of(ends[1], fed.planted) > 1e100


def test_a_centre_that_is_not_finite_attracts_nobody(fed):
    starts = coins(3)
    starts[1, 0] = torch.nan
    starts[2, 1] = torch.inf
    ends = at_once(fed, starts)
    for start, end in zip(starts, ends):
        assert torch.allclose(end, alone(fed, start), rtol=0, atol=1e-9, equal_nan=True)
    assert error_of(ends[1], fed.planted) == error_of(ends[2], fed.planted) == np.inf


def test_steps_that_are_too_large_grow_as_they_do_in_ifca(fed):
    starts = coins(2)
    ends = at_once(fed, starts, lr=20.0)
    for start, end in zip(starts, ends):
        assert end.abs().max() > 1e3
        assert torch.allclose(end, alone(fed, start, lr=20.0), rtol=1e-9)


@pytest.mark.parametrize("part", "abcd")
def test_medium_keeps_the_paper_s_clients_and_rows_per_dimension(part):
    experiment = all_experiments()[f"ifca.figure3{part}"]
    for cell in experiment.cells("medium"):
        paper = cell.data_options
        here = shrunk(cell)
        assert paper["dim"] / paper["samples"] == here["dim"] / here["samples"]
        assert paper["clients"] == here["clients"]
