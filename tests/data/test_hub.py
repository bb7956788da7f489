"""Hugging Face data sets on disk, and partitioners of flwr-datasets."""

import json
import pickle
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.cli import main
from coterie.data import from_partitioner, hub, load
from coterie.data.hub_files import offline
from coterie.errors import CoterieError

datasets = pytest.importorskip("datasets", reason="needs coterie[data]")
partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="needs coterie[data]")

N = 60
CLASSES = ["cat", "dog", "eel"]
SITES = np.array(["a", "b", "c", "d"])


def arrays(start: int = 0, n: int = N):
    """Rows start … of two numbers, the first the row's own; labels, sites and ages beside."""
    row = np.arange(start, start + n)
    columns = {
        "x": np.stack([row, -row], axis=1).astype(np.float32),
        "y": row % 3,
        "site": SITES[row % 4],
        "age": row * 1.5,
    }
    kinds = {
        "x": datasets.List(datasets.Value("float32"), length=2),
        "y": datasets.ClassLabel(names=CLASSES),
        "site": datasets.Value("string"),
        "age": datasets.Value("float64"),
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def people(n: int = 40):
    """A table: two features, one of them text, and a ward with a number for its name."""
    i = np.arange(n)
    return datasets.Dataset.from_dict(
        {
            "age": (20 + i).tolist(),
            "sex": np.where(i % 2, "f", "m").tolist(),
            "ward": (10 - i % 2 * 8).tolist(),
            "ill": np.where(i % 5 == 0, "yes", "no").tolist(),
        }
    )


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


@pytest.fixture
def saved(tmp_path: Path) -> str:
    arrays().save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


@pytest.fixture
def both(tmp_path: Path) -> str:
    """Train and test splits; the last test rows are of a site that has no training rows."""
    test = arrays(100, 8)
    stranger = datasets.Dataset.from_dict(
        arrays(200, 2).to_dict() | {"site": ["z", "z"]}, features=test.features
    )
    splits = {"train": arrays(), "test": datasets.concatenate_datasets([test, stranger])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "both")
    return str(tmp_path / "both")


def rows(part, i: int) -> list[int]:
    """The rows of client i, by the number that each has in x."""
    return part.client(i)[0][:, 0].long().tolist()


# ------------------------------------------------------------------------------ natural clients
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


# ------------------------------------------------------------------------------ partitioners
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
    with pytest.raises(CoterieError, match="IidPartitioner cannot deal these rows"):
        from_partitioner(many, "y", drop=["site", "age"])
    uneven = partitioners.DirichletPartitioner(8, "y", 0.01, min_partition_size=0)
    uneven.dataset = arrays(0, 12)
    with pytest.raises(
        CoterieError, match="leaves client 'client-00.' without rows: ask for fewer"
    ):
        from_partitioner(uneven, "y", drop=["site", "age"])
    vertical = partitioners.VerticalEvenPartitioner(2)
    vertical.dataset = arrays()
    with pytest.raises(CoterieError, match="different columns: use one that deals rows"):
        from_partitioner(vertical, "y")
    more = partitioners.IidPartitioner(3)
    more.dataset = arrays()
    two = partitioners.IidPartitioner(2)
    two.dataset = arrays()
    with pytest.raises(CoterieError, match="client in the test part 'client-002'"):
        from_partitioner(two, "y", test=more, drop=["site", "age"])


# ------------------------------------------------------------------------------ what becomes x
def one_column(values, kind):
    features = datasets.Features({"x": kind, "y": datasets.Value("int64")})
    data = datasets.Dataset.from_dict(
        {"x": values, "y": [i % 2 for i in range(len(values))]}, features=features
    )
    by = partitioners.IidPartitioner(1)
    by.dataset = data
    return from_partitioner(by, "y", test_share=0)


def test_images_are_scaled_with_channels_first() -> None:
    from PIL import Image

    grey = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    fed = one_column([Image.fromarray(image) for image in grey], datasets.Image())
    assert fed.train.x.equal(torch.tensor(grey) / 255) and fed.train.x.dtype == torch.float32
    colour = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    expected = torch.tensor(colour).permute(0, 3, 1, 2) / 255
    assert one_column([Image.fromarray(image) for image in colour], datasets.Image()).train.x.equal(
        expected
    )
    assert one_column(colour, datasets.Array3D((4, 5, 3), "uint8")).train.x.equal(expected)
    mixed = one_column(
        [Image.fromarray(colour[0]), Image.fromarray(grey[0])], datasets.Image()
    ).train.x
    assert mixed[0].equal(expected[0]) and mixed[1].equal(
        (torch.tensor(grey[0]) / 255).expand(3, 4, 5)
    )


def test_other_arrays_stay_as_they_are() -> None:
    first = np.arange(3 * 3 * 4 * 5, dtype=np.uint8).reshape(3, 3, 4, 5)
    assert one_column(first, datasets.Array3D((3, 4, 5), "uint8")).train.x.equal(
        torch.tensor(first) / 255
    )
    narrow = first[..., :3]  # three channels, and three pixels wide
    assert one_column(narrow, datasets.Array3D((3, 4, 3), "uint8")).train.x.equal(
        torch.tensor(narrow) / 255
    )
    signals = np.random.default_rng(0).normal(size=(4, 2, 6))
    for kind in (
        datasets.Array2D((2, 6), "float64"),
        datasets.List(datasets.List(datasets.Value("float64"))),
    ):
        assert one_column(signals, kind).train.x.equal(torch.tensor(signals))
    vector = one_column(first.reshape(3, -1), datasets.List(datasets.Value("uint8")))
    assert vector.train.x.shape == (3, 60) and vector.train.x.max() == 179, (
        "bytes without axes are no image"
    )
    assert (
        one_column([[1, 2], [3, 4]], datasets.List(datasets.Value("int32"))).train.x.dtype
        == torch.int64
    )


def test_a_format_of_the_data_set_does_not_matter(tmp_path) -> None:
    from PIL import Image

    pictures = [Image.fromarray(np.full((4, 4), i, np.uint8)) for i in range(8)]
    data = datasets.Dataset.from_dict(
        {"image": pictures, "y": [0, 1] * 4, "who": ["a"] * 4 + ["b"] * 4}
    )
    data.with_format("numpy", columns=["y"]).save_to_disk(tmp_path / "formatted")
    fed = hub(str(tmp_path / "formatted"), "y", "who", test_share=0)
    assert (fed.train.x[:, 0, 0] * 255).round().tolist() == list(range(8))
    by = partitioners.SizePartitioner([2, 6])
    by.dataset = data.with_format("numpy", columns=["y"])
    fed = from_partitioner(by, "y", drop=["who"], test_share=0)
    assert (fed.train.client(1)[0][:, 0, 0] * 255).round().tolist() == list(range(2, 8))


def test_labels_of_arrays() -> None:
    data = arrays(0, 12).select_columns("x")
    for values, classes, y in (
        ([2, 0, 1] * 4, None, [2, 0, 1]),
        (["b", "a", "c"] * 4, ("a", "b", "c"), [1, 0, 2]),
        ([True, False, True] * 4, ("False", "True"), [1, 0, 1]),
        ([0.5, 1.5, 2.5] * 4, None, [0.5, 1.5, 2.5]),
    ):
        by = partitioners.IidPartitioner(1)
        by.dataset = data.add_column("y", values)
        fed = from_partitioner(by, "y", test_share=0)
        assert fed.labels == classes and fed.train.y[:3].tolist() == y
        assert fed.kind == ("regression" if values[0] == 0.5 else "classification")


def refused(values, kind) -> str:
    with pytest.raises(CoterieError) as error:
        one_column(values, kind)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_columns_that_are_no_x() -> None:
    from PIL import Image

    picture = lambda *shape: Image.fromarray(np.zeros(shape, np.uint8))
    assert "4×4, 5×4" in refused([picture(4, 4), picture(4, 5)], datasets.Image())
    deep = Image.fromarray(np.zeros((4, 4), np.uint16))
    assert "exceed 8 bits (4×4, I;16)" in refused([deep, deep], datasets.Image())
    broken = {"bytes": b"no image", "path": None}
    assert "holds no image that can be read" in refused([broken, broken], datasets.Image())
    elsewhere = {"bytes": None, "path": "https://example.org/a.png"}
    assert "holds no image that can be read" in refused([elsewhere, elsewhere], datasets.Image())
    assert "of one shape" in refused([[1.0], [1.0, 2.0]], datasets.List(datasets.Value("float32")))
    assert "drop=x" in refused([["a"], ["b"]], datasets.List(datasets.Value("string")))
    assert "drop=x" in refused([{"a": 1}, {"a": 2}], {"a": datasets.Value("int64")})


# ------------------------------------------------------------------------------ files
def test_tables_in_files(tmp_path) -> None:
    people().save_to_disk(tmp_path / "people")
    expected = hub(str(tmp_path / "people"), "ill", "ward")
    people().to_csv(tmp_path / "people.csv")
    people().to_parquet(tmp_path / "people.parquet")
    for name in ("people.csv", "people.parquet"):
        assert hub(str(tmp_path / name), "ill", "ward").fingerprint() == expected.fingerprint()


def test_a_folder_of_parquet_files_has_splits(tmp_path, both) -> None:
    files = tmp_path / "files"
    files.mkdir()
    arrays(0, 40).to_parquet(files / "train-00000-of-00002.parquet")
    arrays(40, 20).to_parquet(files / "train-00001-of-00002.parquet")
    arrays(100, 8).to_parquet(files / "test-00000-of-00001.parquet")
    (files / "README.md").write_text("about")
    fed = hub(str(files), "y", "site", drop=("age",))
    assert fed.labels == ("cat", "dog", "eel"), "what a ClassLabel says is kept"
    assert fed.fingerprint() == hub(both, "y", "site", drop=("age",)).fingerprint()


def test_nothing_is_fetched_unpickled_or_written(saved, both, monkeypatch) -> None:
    def forbidden(*args, **kwargs):
        raise AssertionError("not allowed")

    for module, name in (
        (socket, "socket"),
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
    ):
        monkeypatch.setattr(module, name, forbidden)
    before = {
        file: file.read_bytes() for file in sorted(Path(saved).parent.rglob("*")) if file.is_file()
    }
    hub(both, "y", "site", drop=("age",))
    hub(saved, "y", partitioner="shard", clients=3, shards=2, drop=("site", "age"))
    after = {
        file: file.read_bytes() for file in sorted(Path(saved).parent.rglob("*")) if file.is_file()
    }
    assert before == after


def test_libraries_are_offline_meanwhile(saved, monkeypatch) -> None:
    from datasets import config
    from huggingface_hub import constants

    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    states = []
    real = datasets.load_from_disk
    look = lambda *args, **options: (
        states.append((config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)),
        real(*args),
    )[1]
    monkeypatch.setattr(datasets, "load_from_disk", look)
    before = constants.HF_HUB_OFFLINE
    hub(saved, "y", "site", drop=("age",))
    assert states == [(True, True)] and (False, before) == (
        config.HF_HUB_OFFLINE,
        constants.HF_HUB_OFFLINE,
    )
    with pytest.raises(KeyError), offline():
        raise KeyError
    assert not config.HF_HUB_OFFLINE


def test_without_the_extra(saved, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CoterieError, match=r"pip install 'coterie\[data\]'"):
        hub(saved, "y", "site")


@pytest.mark.parametrize("damage", ["arrow", "state", "features", "split"])
def test_damaged_folders(both, damage) -> None:
    path = Path(both)
    if damage == "arrow":
        (file,) = (path / "train").glob("*.arrow")
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "state":
        (path / "train" / "state.json").write_text("{")
    elif damage == "features":
        file = path / "train" / "dataset_info.json"
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"features": {"x": {"_type": "Popen"}}})
        )
    else:
        shutil.rmtree(path / "test")
    with pytest.raises(CoterieError) as error:
        hub(both, "y", "site")
    assert "is no Hugging Face data set" in str(error.value) and "\n" not in str(error.value)


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
        CoterieError, match="neither what save_to_disk writes nor a .csv or .parquet file"
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
