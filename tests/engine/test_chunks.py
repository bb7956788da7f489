"""Chunks: cut by rows, so that uneven clients cost what their rows cost."""

from dataclasses import replace

import pytest
import torch

import coterie as ct
from coterie.client_data import Store
from coterie.engine.chunks import Chunk, divide_work, in_turn, plan_of_call
from coterie.engine.shares import equal_shares
from coterie.runs.start import prepare

PLAN = ct.Plan(True, 256, 2, 20_000)


def uneven_sizes() -> torch.Tensor:
    draws = torch.randn(600, generator=torch.Generator().manual_seed(0))
    return (30 * (1.6 * draws).exp()).long().clamp(1, 7402)


def of_shares(sizes: torch.Tensor, plan: ct.Plan) -> list[list[Chunk]]:
    """The chunks of each share, with positions among the clients of the share."""
    shares = equal_shares(sizes, plan.workers)
    return [divide_work(ids, sizes[None, ids], plan) for ids in shares]


def rows_of_workers(shares: list[list[Chunk]], workers: int) -> list[int]:
    """How many rows each worker has, if the one who is done first takes the next chunk."""
    rows = [0] * workers
    for share, number in in_turn(shares):
        rows[rows.index(min(rows))] += shares[share][number].rows
    return rows


def test_uneven_clients_are_hardly_padded():
    sizes = uneven_sizes()
    shares = of_shares(sizes, PLAN)
    padded = rows_of_workers(shares, PLAN.workers)
    assert sum(padded) <= 1.5 * int(sizes.sum())
    assert max(padded) <= 1.2 * min(padded), "workers have as much to do"
    for ids, share in zip(equal_shares(sizes, PLAN.workers), shares):
        positions = torch.cat([chunk.positions for chunk in share])
        assert torch.equal(positions.sort().values, torch.arange(len(ids))), "each client once"


def test_a_worker_who_is_done_takes_chunks_of_another_share():
    """Of two shares, one has 40 of the clients that are asked, and one has 20."""
    plan = ct.Plan(True, 10, 2, 20_000)
    shares = [divide_work(torch.arange(n), torch.full((1, n), 100), plan) for n in (40, 20)]
    assert in_turn(shares) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (0, 3)]
    assert rows_of_workers(shares, 2) == [3_000, 3_000]


def test_no_chunk_exceeds_the_plan_unless_a_client_does():
    sizes = uneven_sizes()
    plan = ct.Plan(True, 50, 2, 2_000)
    for share in of_shares(sizes, plan):
        for chunk in share:
            assert len(chunk.positions) <= 50
            assert chunk.rows <= 2_000 or len(chunk.positions) == 1


def test_equal_clients_are_split_evenly_and_tiny_ones_stay_together():
    shares = of_shares(torch.full((250,), 100), PLAN)
    assert [[c.rows for c in share] for share in shares] == [[12_500], [12_500]]
    alone = of_shares(torch.arange(1, 13), ct.Plan(True, 256, 1, 20_000))
    assert [len(share) for share in alone] == [1]


def test_the_measured_part_counts_too():
    """Few training rows and many test rows: chunks are cut by both."""
    test_rows = torch.tensor([5_000, 5, 5, 5, 5])
    sizes = torch.stack([torch.full((5,), 10), test_rows])
    chunks = divide_work(torch.arange(5), sizes, ct.Plan(True, 256, 1, 20_000))
    assert [c.positions.tolist() for c in chunks] == [[0], [1, 2, 3, 4]]


# ------------------------------------------------------------------------------ drawn rows
def drawn_call(method: ct.PFedMe, fed: ct.data.Federation) -> tuple:
    """(a call of `train`, the run)"""
    run = prepare(method, fed, "mlp:16", rounds=1)
    calls = []
    run.engine.map = spy(run.engine.map, calls)
    next(run.rounds())
    next(run.rounds())
    return next(call for call in calls if call.name == "train"), run


def spy(ask, calls: list):
    def asked(call, fold):
        calls.append(call)
        return ask(call, fold)

    return asked


@pytest.fixture
def fed() -> ct.data.Federation:
    """Digits, of which one client has many more than the others."""
    sizes = [400, *[30] * 11]
    x, y = torch.rand(sum(sizes), 64), torch.arange(sum(sizes)) % 3
    parts = zip(x.split(sizes), y.split(sizes))
    return ct.data.from_memory({f"c{i}": part for i, part in enumerate(parts)})


def test_clients_that_draw_few_rows_are_worked_on_together(fed):
    plan = ct.Plan(True, 4, 1, 500, drawing=64)
    call, run = drawn_call(ct.PFedMe(batch=5), fed)
    assert call.draws == 5
    assert plan_of_call(call, run.roster, plan) == replace(plan, chunk=64, rows=8 * 500)
    by_rows = plan_of_call(call, run.roster, replace(plan, rows=50))
    assert by_rows.chunk == 10, "of the rows that are drawn no more than the plan allows"
    whole, _ = drawn_call(ct.PFedMe(batch=None), fed)
    assert whole.draws is None and plan_of_call(whole, run.roster, plan) == plan


@pytest.mark.parametrize("method", [ct.PFedMe(batch=5), ct.CGPFL(clusters=2, batch=5)])
def test_rows_that_are_not_drawn_are_not_copied(fed, method, monkeypatch):
    """What a call takes out of the store, against the loop, which has views of its rows."""
    taken = []
    rows = Store.rows

    def counted(store, numbers):
        found = rows(store, numbers)
        taken.append(found.shape[0])
        return found

    monkeypatch.setattr(Store, "rows", counted)
    options = {"rounds": 3, "dtype": "float64"}
    fast = ct.run(method, fed, "mlp:16", **options)
    assert taken and max(taken) <= 5
    slow = ct.run(method, fed, "mlp:16", engine="loop", **options)
    a, b = (result.final["loss"] for result in (fast, slow))
    assert a == pytest.approx(b, rel=1e-9)
