"""Partitioners of flwr-datasets."""

import pytest
import torch
from hub_samples import N, arrays, partitioners, people, rows

from coterie.core.errors import CoterieError
from coterie.data import from_partitioner, hub, load


def test_dirichlet_is_that_of_flwr_datasets(saved) -> None:
    fed = hub(
        saved,
        "y",
        partitioner="dirichlet",
        clients=5,
        alpha=0.4,
        arguments=("min_partition_size=2",),
        seed=3,
        drop=("site", "age"),
        test_share=0,
    )
    theirs = partitioners.DirichletPartitioner(5, "y", 0.4, min_partition_size=2, seed=3)
    theirs.dataset = arrays().shuffle(seed=3)
    assert fed.total == theirs.num_partitions == 5
    for i in range(5):
        part = theirs.load_partition(i)
        assert (
            rows(fed.train, i) == [int(x[0]) for x in part["x"]]
            and fed.train.client(i)[1].tolist() == part["y"][:]
        )
    assert sorted(fed.train.x[:, 0].long().tolist()) == list(range(N))
    assert load(fed.source, seed=9).fingerprint() == fed.fingerprint()


@pytest.mark.parametrize(
    "name, options, sizes",
    [
        ("iid", {"clients": 4}, [15] * 4),
        ("dirichlet", {"clients": 3, "alpha": 50.0}, None),
        ("inner_dirichlet", {"sizes": (20, 30), "alpha": 1.0}, [20, 30]),
        (
            "pathological",
            {"clients": 3, "classes": 1, "arguments": ("class_assignment_mode=deterministic",)},
            [20] * 3,
        ),
        ("shard", {"clients": 3, "shards": 2}, [20] * 3),
        (
            "continuous",
            {"clients": 4, "arguments": ("partition_by=age", "strictness=1.0")},
            [15] * 4,
        ),
        ("size", {"sizes": (10, 50)}, [10, 50]),
        ("linear", {"clients": 3}, [10, 20, 30]),
        ("square", {"clients": 2}, [12, 48]),
        ("exponential", {"clients": 2}, [16, 44]),
        ("grouped_natural_id", {"arguments": ("partition_by=site", "group_size=2")}, [30, 30]),
    ],
)
def test_partitioners_by_name(saved, name, options, sizes) -> None:
    fed = hub(saved, "y", partitioner=name, drop=("site", "age"), test_share=0, **options)
    assert sizes is None or fed.train.sizes.tolist() == sizes
    dealt = fed.train.x[:, 0].long().tolist()
    assert len({*dealt}) == len(dealt) == sum(sizes or [N]) and fed.names[0] == "client-000"
    if name == "iid":
        assert rows(fed.train, 0) != list(range(15)), "rows are shuffled first"
    if name == "pathological":
        assert [part.unique().tolist() for part in fed.train.y.split(20)] == [[0], [1], [2]]
    if name == "continuous":
        assert sorted(rows(fed.train, 0)) == list(range(15)), "by age"


def test_a_test_split_is_left_alone_by_partitioners(both) -> None:
    fed = hub(both, "y", partitioner="iid", clients=3, drop=("site", "age"))
    assert (
        fed.test.sizes.tolist() == [5] * 3 and int(torch.cat([fed.train.x, fed.test.x]).max()) < N
    )


def test_partitioner_objects() -> None:
    train = partitioners.NaturalIdPartitioner("site")
    train.dataset = arrays()
    test = partitioners.NaturalIdPartitioner("site")
    test.dataset = arrays(100, 8)
    fed = from_partitioner(train, "y", test=test, drop=["site", "age"])
    assert fed.names == ("a", "b", "c", "d") and fed.truth is None
    for i in range(4):
        assert rows(fed.train, i) == list(range(i, N, 4)) and rows(fed.test, i) == [
            100 + i,
            104 + i,
        ]
    plain = partitioners.SizePartitioner([20, 40])
    plain.dataset = arrays()
    fed = from_partitioner(plain, "y", drop=["site", "age"], test_share=0.5, unseen=1)
    assert (len(fed), fed.total) == (1, 2) and sorted(fed.train.sizes.tolist()) == [10, 20]
    table = partitioners.IidPartitioner(2)
    table.dataset = people()
    fed = from_partitioner(table, "ill", drop=["age"], categories=["ward"], test_share=0)
    assert fed.train.sizes.tolist() == [20, 20] and fed.schema.columns[3:] == (
        "ward = 2",
        "ward = 10",
        "ward = (other)",
    )


def test_partitioners_that_cannot_deal() -> None:
    with pytest.raises(CoterieError, match="IidPartitioner has no data set"):
        from_partitioner(partitioners.IidPartitioner(2), "y")
    many = partitioners.IidPartitioner(9)
    many.dataset = arrays(0, 5)
    with pytest.raises(CoterieError, match="IidPartitioner cannot partition these rows"):
        from_partitioner(many, "y", drop=["site", "age"])
    uneven = partitioners.DirichletPartitioner(8, "y", 0.01, min_partition_size=0)
    uneven.dataset = arrays(0, 12)
    with pytest.raises(
        CoterieError, match="leaves client 'client-00.' without rows: ask for fewer"
    ):
        from_partitioner(uneven, "y", drop=["site", "age"])
    vertical = partitioners.VerticalEvenPartitioner(2)
    vertical.dataset = arrays()
    with pytest.raises(CoterieError, match="different columns: use one that partitions rows"):
        from_partitioner(vertical, "y")
    more = partitioners.IidPartitioner(3)
    more.dataset = arrays()
    two = partitioners.IidPartitioner(2)
    two.dataset = arrays()
    with pytest.raises(CoterieError, match="client in the test split 'client-002'"):
        from_partitioner(two, "y", test=more, drop=["site", "age"])
