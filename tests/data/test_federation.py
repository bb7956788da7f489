import dataclasses

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import Federation, Ragged, from_memory


def make(sizes=(3, 5, 4, 6, 2, 7, 5, 4), **options) -> Federation:
    """Client i's rows are i + 0.01, i + 0.02, …; so a value tells client and row."""
    rows = [i + torch.arange(1, n + 1) / 100 for i, n in enumerate(sizes)]
    x = torch.cat(rows)[:, None].repeat(1, 2)
    y = torch.cat([torch.arange(n) % 2 for n in sizes])
    data = Ragged(x, y, torch.tensor(sizes))
    names = tuple("abcdefghij"[: len(sizes)])
    return Federation(names, data, data, "classification", 2, **options)


def test_clients_are_views_of_the_one_store() -> None:
    fed = make()
    assert fed.train.starts.tolist() == [0, 3, 8, 12, 18, 20, 27, 32]
    x, y = fed.train.client(2)
    assert x[:, 0].tolist() == pytest.approx([2.01, 2.02, 2.03, 2.04]) and len(y) == 4
    assert x.untyped_storage().data_ptr() == fed.train.x.untyped_storage().data_ptr()
    x[0] = 77
    assert fed.train.x[8, 0] == 77


def test_length_counts_the_clients_that_train() -> None:
    fed = make(unseen=3)
    assert (len(fed), fed.total) == (5, 8)
    assert "5 clients + 3 unseen" in repr(fed)


def test_valid_is_disjoint_covering_and_leaves_a_row() -> None:
    fed = make(sizes=(1, 2, 9, 40))
    cut = fed.with_valid(0.5, seed=1)
    assert cut.valid is not None
    assert cut.valid.sizes.tolist() == [0, 1, 4, 20]
    for i in range(4):
        train, valid = cut.train.client(i)[0][:, 0], cut.valid.client(i)[0][:, 0]
        assert not set(train.tolist()) & set(valid.tolist())
        assert torch.cat([train, valid]).sort().values.equal(fed.train.client(i)[0][:, 0])
    assert cut.test is fed.test
    again, other = fed.with_valid(0.5, seed=1), fed.with_valid(0.5, seed=2)
    assert again.fingerprint() == cut.fingerprint() != other.fingerprint()
    assert fed.with_valid(0, seed=1) is fed
    assert make(sizes=(9, 9)).with_valid(0.99, 0).train.sizes.tolist() == [1, 1]


def test_permuting_clients_permutes_the_split() -> None:
    fed, order = make(truth=torch.arange(8) % 2), [3, 0, 7, 1, 2, 6, 5, 4]
    one, other = (
        fed.with_valid(0.4, seed=5).subset(order),
        fed.subset(order).with_valid(0.4, seed=5),
    )
    assert one.fingerprint() == other.fingerprint()
    assert one.names == tuple("dahbcgfe")
    assert one.truth is not None and one.truth.tolist() == [1, 0, 1, 1, 0, 0, 1, 0]
    x, y = fed.subset(order).train.client(2)
    assert x.equal(fed.train.client(7)[0]) and y.equal(fed.train.client(7)[1])


def test_unseen_clients_are_balanced_and_last() -> None:
    fed = make(sizes=(2,) * 8, truth=torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    out = fed.with_unseen(4, seed=0)
    assert len(out) == 4 and out.truth is not None
    assert sorted(out.truth[4:].tolist()) == sorted(out.truth[:4].tolist()) == [0, 1, 2, 3]
    for i, name in enumerate(out.names):
        assert out.train.client(i)[0].equal(fed.train.client(fed.names.index(name))[0])
    assert len({fed.with_unseen(4, seed).names for seed in range(5)}) > 1
    later = out.with_unseen(2, seed=1)
    assert later.unseen == 6 and later.names[4:] == out.names[4:]


def test_unseen_clients_are_drawn_in_proportion_to_the_groups() -> None:
    fed = make(sizes=(2,) * 9, truth=torch.tensor([0] * 6 + [1] * 3))
    for seed in range(5):
        truth = fed.with_unseen(3, seed).truth
        assert truth is not None and sorted(truth[6:].tolist()) == [0, 0, 1]


def test_soft_truth_moves_with_its_client() -> None:
    weights = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
    out = make(truth=weights).with_unseen(3, seed=0)
    assert out.truth is not None
    assert out.truth.equal(weights[["abcdefgh".index(name) for name in out.names]])


def test_fingerprint_changes_with_every_kind_of_change() -> None:
    fed = make()
    seen = {fed.fingerprint()}
    for change in ("x", "y"):
        tensor = getattr(fed.train, change).clone()
        tensor[3] += 1
        seen.add(
            dataclasses.replace(fed, train=fed.train._replace(**{change: tensor})).fingerprint()
        )
    seen.add(dataclasses.replace(fed, names=("z", *fed.names[1:])).fingerprint())
    seen.add(dataclasses.replace(fed, unseen=1).fingerprint())
    seen.add(fed.to(torch.float64).fingerprint())
    sizes = fed.train.sizes.clone()
    sizes[0], sizes[1] = 4, 4
    seen.add(dataclasses.replace(fed, train=fed.train._replace(sizes=sizes)).fingerprint())
    assert len(seen) == 7
    assert make().fingerprint() == fed.fingerprint()
    assert dataclasses.replace(fed, source="elsewhere").fingerprint() == fed.fingerprint()


def test_fingerprint_of_an_empty_test_part() -> None:
    fed = from_memory([(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))], test_share=0)
    assert fed.test.sizes.tolist() == [0] and len(fed.fingerprint()) == 64


def test_precision() -> None:
    double = make().to(torch.float64)
    assert double.train.x.dtype == double.test.x.dtype == torch.float64
    assert double.train.y.dtype == double.train.sizes.dtype == torch.int64
    targets = from_memory([(torch.rand(4, 2), torch.rand(4))]).to(torch.float64)
    assert targets.train.y.dtype == torch.float64


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda fed: dataclasses.replace(fed, names=("a", "b", "a", *fed.names[3:])),
            ["'a'", "more than once"],
        ),
        (lambda fed: dataclasses.replace(fed, unseen=8), ["unseen=8", "8 clients"]),
        (
            lambda fed: dataclasses.replace(fed, truth=torch.zeros(3, dtype=torch.long)),
            ["truth", "3", "8 clients"],
        ),
        (
            lambda fed: dataclasses.replace(fed, test=fed.test._replace(sizes=fed.test.sizes[1:])),
            ["test", "7 sizes"],
        ),
        (lambda fed: dataclasses.replace(fed, names=()), ["at least one client"]),
        (lambda fed: make(sizes=(2, 0, 3)), ["'b'", "no training rows"]),
        (lambda fed: fed.with_valid(1.0, 0), ["valid share", "1.0"]),
        (lambda fed: fed.with_valid(0.2, 0).with_valid(0.2, 0), ["already"]),
        (lambda fed: fed.with_unseen(8, 0), ["unseen=8", "must train"]),
        (lambda fed: fed.subset([0, 8]), ["0..7", "8"]),
        (lambda fed: fed.with_unseen(2, 0).subset([7, 0]), ["unseen", "last"]),
    ],
)
def test_errors(change, words) -> None:
    with pytest.raises(CoterieError) as error:
        change(make())
    assert all(word in str(error.value) for word in words), error.value
