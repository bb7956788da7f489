"""Chunks: cut by rows, so that uneven clients cost what their rows cost."""

import torch

import coterie as ct
from coterie.engine.chunks import divide_work

PLAN = ct.Plan(True, 256, 2, 20_000)


def uneven_sizes() -> torch.Tensor:
    draws = torch.randn(600, generator=torch.Generator().manual_seed(0))
    return (30 * (1.6 * draws).exp()).long().clamp(1, 7402)


def test_uneven_clients_are_hardly_padded():
    sizes = uneven_sizes()
    shares = divide_work(torch.arange(len(sizes)), sizes[None], PLAN)
    padded = [sum(chunk.rows for chunk in share) for share in shares]
    assert sum(padded) <= 1.5 * int(sizes.sum())
    assert max(padded) <= 1.2 * min(padded), "workers have equal shares"
    positions = torch.cat([chunk.positions for share in shares for chunk in share])
    assert torch.equal(positions.sort().values, torch.arange(len(sizes))), "each client once"


def test_no_chunk_exceeds_the_plan_unless_a_client_does():
    sizes = uneven_sizes()
    plan = ct.Plan(True, 50, 2, 2_000)
    for share in divide_work(torch.arange(len(sizes)), sizes[None], plan):
        for chunk in share:
            assert len(chunk.positions) <= 50
            assert chunk.rows <= 2_000 or len(chunk.positions) == 1


def test_equal_clients_are_split_evenly_and_tiny_ones_stay_together():
    shares = divide_work(torch.arange(250), torch.full((1, 250), 100), PLAN)
    assert [[c.rows for c in share] for share in shares] == [[12_500], [12_500]]
    alone = divide_work(torch.arange(12), torch.arange(1, 13)[None], ct.Plan(True, 256, 1, 20_000))
    assert [len(share) for share in alone] == [1]


def test_the_measured_part_counts_too():
    """Few training rows and many test rows: chunks are cut by both."""
    test_rows = torch.tensor([5_000, 5, 5, 5, 5])
    sizes = torch.stack([torch.full((5,), 10), test_rows])
    (share,) = divide_work(torch.arange(5), sizes, ct.Plan(True, 256, 1, 20_000))
    assert [c.positions.tolist() for c in share] == [[0], [1, 2, 3, 4]]
