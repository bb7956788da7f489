"""Chunks: cut by rows, so that uneven clients cost what their rows cost."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import coterie as ct
from coterie.cli.dry_run import WorkingMemory
from coterie.core.client_data import Store
from coterie.core.contract import Upload, Weight, client
from coterie.core.params import axpy, pick
from coterie.data.shards import balance_samples
from coterie.engines.plan import Chunk, adapt_plan, chunk_clients, make_chunks, order_chunks
from coterie.optim import gradient
from coterie.runs.start import prepare_run

PLAN = ct.Plan(True, 256, 2, 20_000)


def uneven_sizes() -> torch.Tensor:
    draws = torch.randn(600, generator=torch.Generator().manual_seed(0))
    return (30 * (1.6 * draws).exp()).long().clamp(1, 7402)


def of_shares(sizes: torch.Tensor, plan: ct.Plan) -> list[list[Chunk]]:
    """The chunks of each share, with positions among the clients of the share."""
    shares = balance_samples(sizes, plan.workers)
    return [chunk_clients(ids, sizes[None, ids], plan) for ids in shares]


def rows_of_workers(shares: list[list[Chunk]], workers: int) -> list[int]:
    """How many rows each worker has, if the one who is done first takes the next chunk."""
    rows = [0] * workers
    for share, number in order_chunks(shares):
        rows[rows.index(min(rows))] += shares[share][number].rows
    return rows


def test_uneven_clients_are_hardly_padded():
    sizes = uneven_sizes()
    shares = of_shares(sizes, PLAN)
    padded = rows_of_workers(shares, PLAN.workers)
    assert sum(padded) <= 1.5 * int(sizes.sum())
    assert max(padded) <= 1.2 * min(padded), "workers have as much to do"
    for ids, share in zip(balance_samples(sizes, PLAN.workers), shares):
        positions = torch.cat([chunk.positions for chunk in share])
        assert torch.equal(positions.sort().values, torch.arange(len(ids))), "each client once"


def test_a_worker_who_is_done_takes_chunks_of_another_share():
    """Of two shares, one has 40 of the clients that are asked, and one has 20."""
    plan = ct.Plan(True, 10, 2, 20_000)
    shares = [chunk_clients(torch.arange(n), torch.full((1, n), 100), plan) for n in (40, 20)]
    assert order_chunks(shares) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (0, 3)]
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
    chunks = chunk_clients(torch.arange(5), sizes, ct.Plan(True, 256, 1, 20_000))
    assert [c.positions.tolist() for c in chunks] == [[0], [1, 2, 3, 4]]


# ------------------------------------------------------------------------------ drawn rows
DRAWING = ct.Plan(True, 4, 1, 500, drawing=64)


@pytest.fixture
def fed() -> ct.data.Federation:
    """Rows of noise; one client has many more than the others."""
    draw = torch.Generator().manual_seed(0)
    sizes = [400, *[30] * 11]
    x = torch.rand(sum(sizes), 64, generator=draw)
    y = torch.arange(sum(sizes)) % 3
    parts = zip(x.split(sizes), y.split(sizes))
    return ct.data.from_memory({f"c{i}": part for i, part in enumerate(parts)})


def calls_of(method: ct.Algorithm, fed: ct.data.Federation, rounds: int = 1) -> tuple:
    """(the calls of a run, the run)"""
    run = prepare_run(method, fed, "mlp:16", rounds=rounds, plan=DRAWING)
    calls = []
    ask = run.engine.map

    def noted(call, aggregator):
        calls.append(call)
        return ask(call, aggregator)

    run.engine.map = noted
    run.train()
    return calls, run


def named(calls: list, name: str):
    return next(call for call in calls if call.name == name)


def test_clients_that_draw_few_rows_are_worked_on_together(fed):
    calls, run = calls_of(ct.PFedMe(batch=5), fed)
    call = named(calls, "train")
    assert call.sample_size == 5
    assert adapt_plan(call, run.roster, DRAWING) == replace(DRAWING, chunk=64, rows=8 * 500)
    few_rows = adapt_plan(call, run.roster, replace(DRAWING, rows=50))
    assert few_rows.chunk == 10, "of the rows that are drawn no more than the plan allows"
    measured = named(calls, "measure")
    assert measured.sample_size is None and adapt_plan(measured, run.roster, DRAWING) == DRAWING


@pytest.mark.parametrize("batch", [None, 300, 10_000])
def test_a_batch_of_all_rows_is_no_draw(fed, batch):
    calls, run = calls_of(ct.PFedMe(batch=batch), fed)
    assert adapt_plan(named(calls, "train"), run.roster, DRAWING) == DRAWING


def in_bytes(fed: ct.data.Federation) -> ct.data.Federation:
    """The same clients, whose rows are kept as bytes."""
    parts = {
        name: part._replace(x=(255 * part.x).round().to(torch.uint8))
        for name, part in {"train": fed.train, "test": fed.test}.items()
    }
    return replace(fed, byte_scale=255.0, **parts)


@pytest.mark.parametrize("method", [ct.PFedMe(batch=5), ct.CGPFL(clusters=2, batch=5)])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_rows_that_are_not_drawn_are_not_copied(fed, method, as_bytes, monkeypatch):
    """What is taken out of the store in larger chunks, against the loop, which has none."""
    taken = []
    rows = Store.rows

    def counted(store, places):
        taken.append(rows(store, places))
        return taken[-1]

    if as_bytes:
        fed = in_bytes(fed)
    monkeypatch.setattr(Store, "rows", counted)
    options = {"rounds": 3, "dtype": "float64"}
    fast = ct.run(method, fed, "mlp:16", plan=DRAWING, **options)
    assert taken and max(len(found) for found in taken) <= 5
    slow = ct.run(method, fed, "mlp:16", engine="loop", **options)
    a, b = (result.final["loss"] for result in (fast, slow))
    assert a == pytest.approx(b, rel=1e-9)


@dataclass(frozen=True, kw_only=True)
class Looks(ct.PFedMe):
    """pFedMe whose clients also report a loss on all their rows, by which the server steps."""

    name: ClassVar[str] = "looks"

    @client(weight=Weight())
    def look(self, task, model, per_client, private, data):
        w = pick(model, 0)
        g = gradient(task, w, data.all, self)
        return Upload({"g": g}, torch.ones_like(data.size)[None], {}), private

    def round(self, model, ask):
        model = super().round(model, ask)
        sums = ask(self.look, shared=model, stream="look")
        return axpy(-0.1, sums.mean("g", empty=model), model)


def test_a_resumed_run_has_the_chunks_of_one_that_never_stopped(fed, tmp_path):
    """Calls that draw and calls that do not are divided each in their own way, in any order."""
    calls, run = calls_of(Looks(batch=5), fed)
    for call in calls:
        chunks = run.engine._chunks(call)
        expected = make_chunks(call, run.roster, DRAWING, run.engine.shards)
        assert [len(share) for share in chunks] == [len(share) for share in expected]
    options = {"model": "mlp:16", "plan": DRAWING}
    whole = ct.run(Looks(batch=5), fed, rounds=4, **options)
    ct.run(Looks(batch=5), fed, rounds=2, out=tmp_path / "run", **options)
    again = ct.resume(tmp_path / "run", fed, "mlp:16", Looks(batch=5), rounds=4)
    for name, value in whole.state.items():
        assert torch.equal(value, again.state[name])


def test_the_memory_of_draws_is_that_of_the_rows_that_are_drawn(fed):
    """The large client alone has its rows; many small ones at once hold more."""
    calls, run = calls_of(ct.PFedMe(batch=5), fed)
    memory = WorkingMemory(run.task, run.roster, DRAWING, run.engine.private.like)
    call = named(calls, "train")
    plain = WorkingMemory(run.task, run.roster, replace(DRAWING, drawing=0), memory.private)
    together = Chunk(torch.arange(12), (300,))
    assert memory._numbers(call, together) < plain._numbers(named(calls, "measure"), together) / 3
    assert memory.estimate(call) > 0
