"""IFCA from many starts at once is IFCA from each of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.runs.start import prepare_run
from reproduction import all_experiments
from reproduction.catalogue.ifca_figure3 import error_of, shrunk
from reproduction.many_starts import (
    EqualRows,
    PlantedGroups,
    rounds_to_check,
    run_starts,
    run_step_by_step,
    step,
)

LR = 0.2
ROUNDS = 5


@pytest.fixture
def fed() -> ct.data.Federation:
    """Twelve clients in two groups."""
    return ct.data.linear(clients=12, samples=8, dim=6, clusters=2, noise=0.1, seed=1)


def exact_rows(fed: ct.data.Federation) -> EqualRows:
    """The rows in double precision."""
    rows = EqualRows.of(fed)
    return rows._replace(x=rows.x.double(), y=rows.y.double())


def at_once(fed: ct.data.Federation, starts: Tensor, lr: float = LR) -> Tensor:
    """The centres that many starts end with, in one run."""
    return run_step_by_step(starts, exact_rows(fed), lr, ROUNDS)


def alone(fed: ct.data.Federation, start: Tensor, lr: float = LR) -> Tensor:
    """The centres that IFCA itself ends with from one start."""
    method = ct.IFCA(clusters=len(start), average="gradients", init="random", lr=lr)
    options = {"rounds": ROUNDS, "dtype": "float64", "paper": True, "clip_factor": 0}
    task = prepare_run(method, fed, "linear:nobias", **options).task
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


# ------------------------------------------------------------------------------ as soon as known
def known(fed: ct.data.Federation, starts: Tensor, rounds: int, lr: float = LR) -> dict:
    """By number of the start, the centres that it ends with, in the order in which they came."""
    rows = exact_rows(fed)
    return dict(run_starts(starts, rows, lr, rounds, PlantedGroups(rows, fed.truth)))


@pytest.fixture
def wide() -> ct.data.Federation:
    """Two groups far apart, with more rows than dimensions, so that many starts find them."""
    return ct.data.linear(clients=12, samples=20, dim=6, clusters=2, noise=0.1, seed=1)


@pytest.fixture
def four() -> ct.data.Federation:
    """Four groups, of which starts leave some together."""
    return ct.data.linear(clients=16, samples=30, dim=6, clusters=4, noise=0.1, seed=1)


@pytest.mark.parametrize("name, clusters", [("wide", 2), ("four", 4)])
def test_every_start_ends_where_its_steps_would_lead(name, clusters, request, monkeypatch):
    fed = request.getfixturevalue(name)
    jumps = []
    after = PlantedGroups.after

    def counted(self, centres, centre_of, rows, lr, rounds):
        jumps.append(len(centre_of.unique()))
        return after(self, centres, centre_of, rows, lr, rounds)

    monkeypatch.setattr(PlantedGroups, "after", counted)
    rounds = 60
    starts = coins(8, clusters)
    ends = known(fed, starts, rounds)
    slow = run_step_by_step(starts, exact_rows(fed), LR, rounds)
    assert sorted(ends) == list(range(8))
    for number, end in ends.items():
        assert torch.allclose(end, slow[number], rtol=0, atol=1e-9)
    assert clusters in jumps  # the groups were told apart,
    assert min(jumps) < clusters  # and others stayed together


def test_rounds_in_closed_form_are_the_steps_that_ifca_takes(wide):
    rows = exact_rows(wide)
    groups = PlantedGroups(rows, wide.truth)
    near = wide.planted.double() + 0.01
    after, choice = step(near[None], rows, LR)
    assert torch.equal(choice[0], wide.truth)
    told_apart = torch.arange(2)
    assert torch.allclose(groups.after(near, told_apart, rows, LR, 1), after[0], atol=1e-12)
    assert torch.allclose(groups.after(near, told_apart, rows, LR, 0), near, atol=1e-12)
    far = near.clone()
    far[1] = 1e3  # so that all choose centre 0
    after, choice = step(far[None], rows, LR)
    assert not choice.any()
    together = torch.zeros(2, dtype=torch.long)
    assert torch.allclose(groups.after(far, together, rows, LR, 1), after[0], atol=1e-12)


def test_groups_with_fewer_rows_than_dimensions_keep_what_no_row_sees():
    fed = ct.data.linear(clients=2, samples=3, dim=6, clusters=2, noise=0.1, seed=1)
    rows = exact_rows(fed)
    start = fed.planted.double() + 0.01
    slow = run_step_by_step(start[None], rows, LR, 40)[0]
    ends = PlantedGroups(rows, fed.truth).after(start, torch.arange(2), rows, LR, 40)
    assert torch.allclose(ends, slow, rtol=0, atol=1e-9)


def test_clients_of_a_group_that_choose_differently_need_steps(wide):
    rows = exact_rows(wide)
    groups = PlantedGroups(rows, wide.truth)
    near = wide.planted.double() + 0.01
    one_wrong = wide.truth.clone()
    one_wrong[-1] = 1 - one_wrong[-1]
    nobody = torch.full_like(wide.truth, -1)
    assert groups.closed_form_end(near, wide.truth, rows, LR, 10) is not None
    assert groups.closed_form_end(near, one_wrong, rows, LR, 10) is None
    assert groups.closed_form_end(near, nobody, rows, LR, 10) is None
    # swapped centres: at once nobody would choose them
    assert groups.closed_form_end(near.flip(0), wide.truth, rows, LR, 10) is None


def test_groups_that_would_fall_apart_later_are_followed_step_by_step(wide):
    """A step that is too large: the identities are right at first, and then are not."""
    start = wide.planted.double() + 0.001
    rows = exact_rows(wide)
    groups = PlantedGroups(rows, wide.truth)
    lr, rounds = 2.5, 40
    assert torch.equal(step(start[None], rows, lr)[1][0], wide.truth)
    assert groups.closed_form_end(start, wide.truth, rows, lr, rounds) is None
    ((_, end),) = run_starts(start[None], rows, lr, rounds, groups)
    assert end.abs().max() > 10


def test_even_and_odd_rounds_are_looked_at_the_last_among_them():
    assert rounds_to_check(0) == [0]
    assert rounds_to_check(5) == [0, 1, 2, 3, 4, 5]
    many = rounds_to_check(290)
    assert many[:9] == [0, 1, 2, 3, 4, 6, 7, 8, 12] and many[-1] == 290
    assert {number % 2 for number in many if 50 < number < 290} == {0, 1}


def test_a_start_that_has_diverged_is_given_up(wide):
    starts = coins(3)
    starts[1] = 1e7
    ends = known(wide, starts, 3)
    assert next(iter(ends)) == 1  # at once
    assert error_of(ends[1], wide.planted) > 1e5
    slow = run_step_by_step(starts, exact_rows(wide), LR, 3)
    for number in (0, 2):
        assert torch.allclose(ends[number], slow[number], rtol=0, atol=1e-9)


@pytest.mark.parametrize("part", "abcd")
def test_medium_keeps_the_paper_s_clients_and_rows_per_dimension(part):
    experiment = all_experiments()[f"ifca.figure3{part}"]
    for cell in experiment.cells("medium"):
        paper = cell.data_options
        here = shrunk(cell)
        assert paper["dim"] / paper["samples"] == here["dim"] / here["samples"]
        assert paper["clients"] == here["clients"]
