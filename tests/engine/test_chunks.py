"""Chunks: cut by rows, so that uneven clients cost what their rows cost."""

import torch

import coterie as ct
from coterie.engine.chunks import Chunk, divide_work, in_turn
from coterie.engine.shares import equal_shares

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
