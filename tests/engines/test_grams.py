"""XXᵀ of clients' rows, kept from round to round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.engines.clients import GramCache
from coterie.engines.plan import grams_fit, plan_for
from coterie.runs.start import prepare_run

X = torch.randn(11, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SIZES = torch.tensor([4, 4, 3])


def rows_of(i: int) -> Tensor:
    return X.split(SIZES.tolist())[i]


def some_grams(wanted: bool = True) -> tuple[GramCache, list[int]]:
    """The matrices of three clients, and whose rows were read."""
    read: list[int] = []

    def rows(i: int) -> Tensor:
        read.append(i)
        return rows_of(i)

    grams = GramCache(SIZES, rows, X)
    grams.wanted[:] = wanted
    return grams, read


def test_nothing_is_computed_until_it_is_wanted() -> None:
    grams, read = some_grams(wanted=False)
    assert grams.one(0).shape == (0, 0)
    assert grams.some(torch.tensor([0, 2])).shape == (2, 0, 0)
    assert not read


def test_each_client_is_computed_once() -> None:
    grams, read = some_grams()
    for _ in range(2):
        for i in range(3):
            torch.testing.assert_close(grams.one(i), rows_of(i) @ rows_of(i).T)
    grams.some(torch.tensor([0, 1, 2]))
    assert read == [0, 1, 2]


def test_neighbours_of_equal_size_are_a_view() -> None:
    grams, _ = some_grams()
    some = grams.some(torch.tensor([0, 1]))
    assert some.data_ptr() == grams.buffer.data_ptr()
    torch.testing.assert_close(some[1], rows_of(1) @ rows_of(1).T)


def test_clients_of_other_sizes_are_padded_with_zeros() -> None:
    grams, _ = some_grams()
    some = grams.some(torch.tensor([2, 0]))
    torch.testing.assert_close(some[0, :3, :3], rows_of(2) @ rows_of(2).T)
    torch.testing.assert_close(some[1], rows_of(0) @ rows_of(0).T)
    assert not some[0, 3].any() and not some[0, :, 3].any()


# ------------------------------------------------------------------------------ in runs
def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


def run_of(method: ct.Algorithm, keeps: bool, **options: Any) -> Any:
    """A run of three rounds on ragged clients, in float64."""
    fed = ct.data.rotated("digits", clients=6, samples=20, test_samples=8)
    plan = ct.Plan(vectorise=True, chunk=3, workers=2, keeps_grams=keeps)
    run = prepare_run(method, fed, mlp, rounds=3, dtype="float64", plan=plan, **options)
    for _ in run.rounds():
        pass
    return run


METHODS: dict[str, ct.Algorithm] = {
    "full batch": ct.FedAvg(local_steps=8, lr=0.1),
    "passes": ct.FedAvg(local_epochs=3, batch=5, lr=0.1),
    "ifca": ct.IFCA(clusters=2, local_steps=8, lr=0.1, init="random"),
    "momentum": ct.FedAvg(local_epochs=3, batch=5, lr=0.1, solver="heavy_ball"),
    "pull": ct.FedProx(local_epochs=3, batch=5, lr=0.1),
    "fine-tuned": ct.FineTuned(local_steps=8, lr=0.1, finetune=9),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("choose_on", ["train", "test"])
def test_runs_that_keep_them_are_those_that_do_not(name: str, choose_on: str) -> None:
    """With choose_on="test" a method trains on test rows, to which the matrices do not belong."""
    kept, other = (
        run_of(METHODS[name], keeps, choose_on=choose_on, participation=0.7)
        for keeps in (True, False)
    )
    assert kept.engine.grams.wanted.any() and kept.engine.grams.known.any()
    assert other.engine.grams is None
    for v, v_other in zip(tree_leaves(kept.state), tree_leaves(other.state)):
        torch.testing.assert_close(v, v_other, rtol=0, atol=1e-10)
    assert kept.history[-1]["loss"] == pytest.approx(other.history[-1]["loss"], abs=1e-9)


def test_a_method_that_takes_plain_steps_keeps_none() -> None:
    run = run_of(ct.FedAvg(local_steps=3, solver="adam", lr=0.01), keeps=True)
    assert not run.engine.grams.wanted.any() and not run.engine.grams.known.any()


def test_they_are_kept_only_where_they_take_no_more_memory_than_the_rows() -> None:
    few = ct.data.rotated("digits", clients=4, samples=50).roster
    assert grams_fit(few)  # 50 rows of 64 numbers
    many = few.rows._replace(train=torch.full_like(few.rows.train, 65))
    assert not grams_fit(replace(few, rows=many))
    huge = few.rows._replace(train=torch.full((70_000,), 64))
    assert not grams_fit(replace(few, rows=huge))
    assert plan_for(run_of(METHODS["passes"], False).task, few).keeps_grams
