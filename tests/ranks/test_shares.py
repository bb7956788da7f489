"""Which rank has which clients, and where torchrun says that a process stands."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

from cases import federation
from coterie.core.errors import CoterieError
from coterie.data.shards import ClientSubset, make_shards, pairwise_sum, split_by_samples
from coterie.ranks.engine import join_snapshots, split_snapshot
from coterie.ranks.launch import rank_from_environment


def test_neighbours_share_the_rows_evenly():
    assert [c.tolist() for c in split_by_samples(torch.tensor([1, 1, 1, 1, 2, 2]), 2)] == [
        [0, 1, 2, 3],
        [4, 5],
    ]


def test_every_rank_has_a_client_whatever_their_sizes():
    for sizes in ([1, 1, 1, 100], [100, 1, 1, 1], [1, 100, 1, 1], [5, 5, 5, 5]):
        for ranks in (1, 2, 3, 4):
            cut = split_by_samples(torch.tensor(sizes), ranks)
            assert len(cut) == ranks and all(len(some) for some in cut)
            assert torch.cat(cut).tolist() == [0, 1, 2, 3]


def test_shares_of_a_rank_are_those_of_one_process():
    fed = federation(unseen=3)
    for threads in (1, 2, 3):
        in_one = make_shards(fed.roster, 2 * threads).clients
        for rank, mine in enumerate(make_shards(fed.roster, 2, threads).clients):
            theirs = make_shards(fed.subset(mine).roster, threads).clients
            assert [mine[some].tolist() for some in theirs] == [
                some.tolist() for some in in_one[rank * threads : (rank + 1) * threads]
            ]


def test_every_rank_has_a_client_also_where_they_are_fewer_than_threads():
    for ranks in (2, 3, 5, 7):
        shares = make_shards(federation(unseen=3).roster, ranks, 8)
        assert all(len(shares.training_clients(rank)) for rank in range(ranks))


def test_sums_are_added_in_halves():
    assert pairwise_sum(list("abcde"), lambda a, b: f"({a}{b})") == "((ab)(c(de)))"


def test_rows_of_a_rank_are_aligned_as_in_one_process():
    roster = federation(unseen=3).roster
    sizes = roster.rows.train
    for power in (1, 2):
        in_one = (sizes**power).cumsum(0) - sizes**power
        for mine in make_shards(roster, 3).clients:
            starts = ClientSubset(mine, roster).aligned_starts("train", 4 * 13, power)
            assert ((starts - in_one[mine]) % 4 == 0).all()
            ends = starts + sizes[mine] ** power
            assert (starts[1:] >= ends[:-1]).all() and (starts[1:] - ends[:-1] < 4).all()


def test_unseen_clients_come_last_in_every_share():
    roster = federation(unseen=3).roster
    shares = make_shards(roster, 2)
    together = torch.cat(shares.clients).sort().values
    assert together.tolist() == list(range(10))
    for rank, mine in enumerate(shares.clients):
        assert mine.tolist() == sorted(mine.tolist())
        assert (shares.owner[mine] == rank).all()
        assert shares.local[mine].tolist() == list(range(len(mine)))
    assert [(mine >= 7).sum().item() for mine in shares.clients] == [1, 2]


def test_fewer_unseen_clients_than_ranks_are_all_there():
    assert [c.tolist() for c in split_by_samples(torch.tensor([7, 7]), 3)] == [[0], [], [1]]


def test_a_snapshot_is_cut_and_joined_again():
    shares = make_shards(federation(unseen=3).roster, 3)
    slots = torch.tensor([-1, 3, 0, -1, 2, 1, -1])
    whole = {
        "private": {"slots": slots, "tables": {"w": torch.rand(4, 2)}},
        "contacted": torch.tensor([False, True] * 5),
    }
    pieces = [split_snapshot(whole, shares, rank) for rank in range(3)]
    joined = join_snapshots(pieces, shares)
    assert torch.equal(joined["contacted"], whole["contacted"])
    for client in range(7):
        new, old = int(joined["private"]["slots"][client]), int(slots[client])
        assert (new < 0) == (old < 0)
        if old >= 0:
            assert torch.equal(
                joined["private"]["tables"]["w"][new], whole["private"]["tables"]["w"][old]
            )


def test_a_snapshot_without_private_states_is_joined():
    shares = make_shards(federation().roster, 2)
    whole = {
        "private": {"slots": torch.full((10,), -1), "tables": ()},
        "contacted": torch.ones(10, dtype=torch.bool),
    }
    joined = join_snapshots([split_snapshot(whole, shares, rank) for rank in range(2)], shares)
    assert not tree_leaves(joined["private"]["tables"])
    assert joined["contacted"].all() and (joined["private"]["slots"] == -1).all()


# ------------------------------------------------------------------------------ torchrun
LAUNCHED = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_a_process_of_torchrun_knows_its_place():
    more = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    place = rank_from_environment({**LAUNCHED, **more})
    assert (place.rank, place.size, place.host, place.port) == (3, 4, "node0", 29500)
    assert (place.local_rank, place.local_size, place.has_store) == (1, 2, True)
    assert not place.is_server


def test_other_processes_have_no_place():
    assert rank_from_environment({}) is None
    assert rank_from_environment({"RANK": "0"}) is None
    assert rank_from_environment({**LAUNCHED, "RANK": "0", "WORLD_SIZE": "1"}) is None


def test_a_place_that_is_no_number_is_one_sentence():
    with pytest.raises(CoterieError, match="WORLD_SIZE is 'many'"):
        rank_from_environment({**LAUNCHED, "WORLD_SIZE": "many"})
