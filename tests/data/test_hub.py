"""Hugging Face data sets, dealt to clients by a column."""

import json

import numpy as np
import pytest
import torch
from hub_samples import N, arrays, datasets, people, rows

import coterie as ct
from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.data import hub, load


def test_a_column_names_the_clients(saved) -> None:
    fed = hub(saved, label="y", client_column="site", drop=("age",), test_share=0)
    assert fed.names == ("a", "b", "c", "d") and (fed.classes, fed.labels) == (
        3,
        ("cat", "dog", "eel"),
    )
    for i in range(4):
        assert rows(fed.train, i) == list(range(i, N, 4))
        assert fed.train.client(i)[1].tolist() == [row % 3 for row in range(i, N, 4)]
    assert fed.truth is None and fed.train.x.dtype == torch.float32 and len(fed.test.y) == 0
    assert load(fed.source, seed=9).fingerprint() == fed.fingerprint()


def test_without_a_test_split_a_share_is_held_out(saved) -> None:
    fed = hub(saved, label="y", client_column="site", drop=("age",), test_share=0.2, seed=1)
    assert fed.train.sizes.tolist() == [12] * 4 and fed.test.sizes.tolist() == [3] * 4
    for i in range(4):
        assert sorted(rows(fed.train, i) + rows(fed.test, i)) == list(range(i, N, 4))
    assert (
        fed.fingerprint()
        == hub(saved, "y", "site", drop=("age",), test_share=0.2, seed=1).fingerprint()
    )


def test_the_test_split_goes_to_the_clients_it_names(both) -> None:
    fed = hub(both, label="y", client_column="site", drop=("age",))
    assert fed.names == ("a", "b", "c", "d"), "nobody who has no training rows"
    for i in range(4):
        assert rows(fed.train, i) == list(range(i, N, 4)) and rows(fed.test, i) == [
            100 + i,
            104 + i,
        ]
    alone = hub(both, label="y", client_column="site", drop=("age",), split="train")
    assert alone.test.sizes.tolist() == [4] * 4 and int(alone.test.x.max()) < N


def test_clients_and_rows_are_drawn(both) -> None:
    drawn = set()
    for seed in range(8):
        fed = hub(both, "y", "site", clients=2, samples=5, drop=("age",), seed=seed)
        assert fed.train.sizes.tolist() == [5, 5] and fed.test.sizes.tolist() == [2, 2]
        drawn.add(fed.names)
    assert len(drawn) > 2
    with pytest.raises(CoterieError, match="4 of 4 have at least 1 training rows"):
        hub(both, "y", "site", clients=5, drop=("age",))


def test_tables_are_encoded_by_a_schema(tmp_path) -> None:
    people().save_to_disk(tmp_path / "people")
    fed = hub(str(tmp_path / "people"), label="ill", client_column="ward", seed=2)
    assert fed.names == ("2", "10") and fed.labels == ("no", "yes")
    assert fed.schema is not None and fed.schema.columns == (
        "age",
        "sex = f",
        "sex = m",
        "sex = (other)",
    )
    frames = {
        ward: part.drop(columns="ward") for ward, part in people().to_pandas().groupby("ward")
    }
    assert fed.fingerprint() == ct.data.from_frames(frames, "ill", seed=2).fingerprint()


def test_tables_keep_their_test_split(tmp_path) -> None:
    table = people().cast_column("sex", datasets.ClassLabel(names=["m", "f"]))
    splits = {"train": table.select(range(30)), "test": table.select(range(30, 40))}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "people")
    fed = hub(str(tmp_path / "people"), label="ill", client_column="ward")
    assert (
        fed.train.sizes.tolist() == [15, 15]
        and fed.test.sizes.tolist() == [5, 5]
        and fed.valid is None
    )
    assert fed.schema.columns == ("age", "sex = f", "sex = m", "sex = (other)"), (
        "the names of a ClassLabel"
    )
    ages = fed.schema.features[0]
    assert ages.mean == pytest.approx(np.mean(np.arange(20, 50))), "of training rows alone"
    back = fed.test.client(1)[0][:, 0].double() * ages.deviation + ages.mean
    assert back.round().long().tolist() == [50, 52, 54, 56, 58]


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, ["label=COLUMN", "x, y, site, age"]),
        ({"label": "y"}, ["client_column=COLUMN", "partitioner=iid", "x, y, site, age"]),
        ({"label": "y", "client_column": "site", "partitioner": "iid"}, ["either"]),
        ({"label": "z", "client_column": "site"}, ["'z'", "x, y"]),
        ({"label": "y", "client_column": "sit"}, ["'sit'", "'site'"]),
        ({"label": "y", "client_column": "site", "drop": ("agee",)}, ["'agee'", "'age'"]),
        ({"label": "y", "client_column": "site"}, ["column x holds arrays", "drop=age"]),
        ({"label": "x", "client_column": "site"}, ["label column x"]),
        (
            {"label": "y", "client_column": "site", "drop": ("age",), "fill": "mean"},
            ["fill", "tables"],
        ),
        (
            {"label": "y", "client_column": "site", "alpha": 1.0},
            ["alpha", "partitioners", "leave it out"],
        ),
        (
            {"label": "y", "client_column": "site", "split": "trian"},
            ["split", "'trian'", "'train'"],
        ),
        (
            {"label": "y", "partitioner": "dirichlett", "clients": 3},
            ["'dirichlett'", "'dirichlet'"],
        ),
        ({"label": "y", "partitioner": "dirichlet", "clients": 3}, ["needs alpha", "give alpha."]),
        ({"label": "y", "partitioner": "iid"}, ["needs num_partitions", "give clients."]),
        (
            {"label": "y", "partitioner": "continuous", "clients": 3},
            ["arguments='strictness=VALUE'"],
        ),
        (
            {"label": "y", "partitioner": "iid", "clients": 3, "alpha": 1.0},
            ["alpha is not for the partitioner iid"],
        ),
        (
            {"label": "y", "partitioner": "size", "sizes": (5,), "clients": 3},
            ["clients is not for"],
        ),
        ({"label": "y", "partitioner": "iid", "clients": 3, "arguments": ("sed=1",)}, ["'sed'"]),
        (
            {"label": "y", "partitioner": "iid", "clients": 3, "arguments": ("seed",)},
            ["seed=VALUE"],
        ),
        (
            {"label": "y", "partitioner": "dirichlet", "clients": 3, "alpha": -1.0},
            ["dirichlet", "greater than zero"],
        ),
        (
            {"label": "y", "partitioner": "size", "sizes": (50, 50)},
            ["SizePartitioner", "greater than the size"],
        ),
    ],
)
def test_errors(saved, options, words) -> None:
    with pytest.raises(CoterieError) as error:
        hub(saved, **options)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def test_more_errors(tmp_path, both) -> None:
    with pytest.raises(CoterieError, match="no owner/name on disk, and nothing is fetched"):
        hub("owner/name", "y", "site")
    with pytest.raises(
        CoterieError, match="neither what save_to_disk writes nor a .csv or .xlsx or .parquet file"
    ):
        hub(str(tmp_path), "y", "site")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(CoterieError, match="bad.parquet is no Hugging Face data set"):
        hub(str(tmp_path / "bad.parquet"), "y", "site")
    others = arrays(0, 8)
    others = datasets.Dataset.from_dict(
        others.to_dict() | {"site": ["z"] * 8}, features=others.features
    )
    for name, test, words in (
        ("others", others, "no row of a client of the split train: .*split=train"),
        ("less", arrays(0, 8).remove_columns("age"), "differ in name or type"),
        ("nobody", arrays(0, 8).remove_columns("site"), "column of the split test"),
    ):
        datasets.DatasetDict({"train": arrays(), "test": test}).save_to_disk(tmp_path / name)
        with pytest.raises(CoterieError, match=words):
            hub(str(tmp_path / name), "y", "site", drop=("age",))
    hidden = datasets.Dataset.from_dict(
        arrays(0, 8).to_dict() | {"y": [-1] * 8}, features=arrays().features
    )
    hidden.save_to_disk(tmp_path / "hidden")
    with pytest.raises(CoterieError, match="label -1"):
        hub(str(tmp_path / "hidden"), "y", "site", drop=("age",))
    with pytest.raises(CoterieError, match="label column y of client 'a' has 2 missing values"):
        hub(str(tmp_path / "hidden"), "y", "site", drop=("x",))


# ------------------------------------------------------------------------------ all the way
def test_it_trains(saved, tmp_path, monkeypatch, capsys) -> None:
    small = "min_partition_size=2"
    fed = hub(
        saved,
        "y",
        partitioner="dirichlet",
        alpha=1.0,
        clients=4,
        arguments=(small,),
        drop=("site", "age"),
    )
    result = ct.run(ct.IFCA(clusters=2), fed, model="softmax", rounds=2)
    assert result.clusters.shape == (3, 4) and 0 <= result.final["accuracy"] <= 1
    monkeypatch.chdir(tmp_path)
    options = (
        f"--data.partitioner dirichlet --data.alpha 1 --data.arguments {small} "
        "--data.drop site,age --clients 4"
    )
    assert (
        main(f"run ifca --data hub:saved --label y {options} --clusters 2 --dry-run --json".split())
        == 0
    )
    (summary,) = json.loads(capsys.readouterr().out)
    assert (summary["clients"], summary["train_rows"], summary["test_rows"]) == (
        4,
        len(fed.train.y),
        len(fed.test.y),
    )
    assert "hub:" in summary["data"] and "partitioner=dirichlet" in summary["data"]
    assert (
        main(["run", "ifca", "--data", "hub:saved", "--label", "y", "--clusters", "2", "--dry-run"])
        == 2
    )
    assert "--client-column" in capsys.readouterr().err
    command = (
        "run ifca --data hub:saved --label y --client-column site --data.drop age --clusters 2 "
        "--rounds 1 --model softmax --quiet"
    )
    assert main([*command.split(), "--out", "mine"]) == 0
    assert main(["resume", "mine", "--rounds", "2", "--quiet"]) == 0
    assert "ifca" in capsys.readouterr().out
