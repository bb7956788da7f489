"""Which columns of a Hugging Face data set become x and y, and how."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hub_samples import arrays, datasets, partitioners, people

from coterie.core.errors import CoterieError
from coterie.data import from_partitioner, hub


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


def test_rows_without_a_label_are_left_out(tmp_path: Path) -> None:
    table = people().to_pandas()
    table.loc[[0, 1, 5], "ill"] = None
    datasets.Dataset.from_pandas(table, preserve_index=False).save_to_disk(tmp_path / "people")
    with pytest.raises(CoterieError, match="drop them with drop_incomplete"):
        hub(str(tmp_path / "people"), "ill", "ward")
    fed = hub(str(tmp_path / "people"), "ill", "ward", drop_incomplete=True, test_share=0)
    assert dict(zip(fed.names, fed.train.sizes.tolist())) == {"2": 18, "10": 19}
