"""Base sets of images, and their files."""

import functools
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import base, bases

packed = functools.partial(gzip.compress, mtime=0)  # the same bytes, whenever they are made


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty and ten images of 4×4 in the four files of MNIST."""
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    random = np.random.default_rng(0)
    (tmp_path / "mnist").mkdir()
    for part, n in (("train", 20), ("t10k", 10)):
        images = random.integers(0, 256, (n, 4, 4), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        (tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz").write_bytes(packed(idx(images)))
        (tmp_path / "mnist" / f"{part}-labels-idx1-ubyte.gz").write_bytes(packed(idx(labels)))
    return tmp_path / "mnist"


def test_digits_are_embedded() -> None:
    digits = base("digits")
    assert digits.x_train.shape == (1437, 8, 8) and digits.x_test.shape == (360, 8, 8)
    assert digits.x_train.dtype == torch.float32 and digits.y_train.dtype == torch.int64
    assert (digits.x_train.min(), digits.x_train.max()) == (0, 1)
    share = torch.bincount(digits.y_test) / (
        torch.bincount(digits.y_train) + torch.bincount(digits.y_test)
    )
    assert (share - 0.2).abs().max() < 0.01
    assert base("digits").x_train.equal(digits.x_train)


def test_idx_files(small: Path) -> None:
    mnist = base("mnist")
    raw = gzip.decompress((small / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    expected = torch.tensor(list(raw)).view(10, 4, 4) / 255
    assert mnist.x_test.equal(expected) and mnist.x_train.shape == (20, 4, 4)
    assert mnist.y_test.tolist() == list(range(10)) and mnist.y_test.dtype == torch.int64
    assert (mnist.name, mnist.classes, mnist.labels) == ("mnist", 10, tuple("0123456789"))


@pytest.mark.parametrize(
    "file, content, words",
    [
        ("train-images-idx3-ubyte.gz", None, ["is not there", "COTERIE_DATA", "digits"]),
        ("train-images-idx3-ubyte.gz", b"no gzip at all", ["damaged", "fetch it again"]),
        (
            "train-images-idx3-ubyte.gz",
            packed(idx(np.zeros((20, 4, 4), np.uint8)))[:-12],
            ["damaged"],
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            packed(idx(np.zeros((10, 4, 4), np.uint8))[:-1]),
            ["10×4×4", "159"],
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            packed(idx(np.zeros((10, 4, 4), np.uint8))),
            ["00000803", "00000801"],
        ),
        ("t10k-labels-idx1-ubyte.gz", packed(b"\0\0\x08\x01"), ["damaged"]),
        ("t10k-labels-idx1-ubyte.gz", packed(b""), ["damaged"]),
        (
            "t10k-labels-idx1-ubyte.gz",
            packed(idx(np.zeros(9, np.uint8))),
            ["9 labels", "10 images"],
        ),
        ("t10k-labels-idx1-ubyte.gz", packed(idx(np.full(10, 12, np.uint8))), ["up to 12"]),
    ],
)
def test_bad_idx_files(small: Path, file: str, content: bytes | None, words: list[str]) -> None:
    (small / file).unlink()
    if content is not None:
        (small / file).write_bytes(content)
    with pytest.raises(CoterieError) as error:
        base("mnist")
    assert all(word in str(error.value) for word in [file, *words]), error.value
    assert "\n" not in str(error.value)


def test_default_folder_is_data(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_DATA")
    small.parent.joinpath("data").mkdir()
    small.rename(small.parent / "data" / "mnist")
    monkeypatch.chdir(small.parent)
    assert len(base("mnist").y_train) == 20


def test_cifar_tiles_are_put_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from coterie.data.base_files import read_tiles

    picture = np.zeros((3200, 3200, 3), dtype=np.uint8)
    picture[32:64, 64:96] = [1, 2, 3]  # image 102
    picture[32, 64 + 5] = [9, 8, 7]
    Image.fromarray(picture).save(tmp_path / "good.png", compress_level=1)  # faster than WebP
    images = read_tiles(tmp_path / "good.png")
    assert images.shape == (10000, 3, 32, 32)
    assert images[102, :, 0, 5].tolist() == [9, 8, 7] and images[102, :, 31, 31].tolist() == [
        1,
        2,
        3,
    ]
    assert not images[101].any() and not images[103].any()

    Image.fromarray(picture[:64]).save(tmp_path / "short.webp", lossless=True, method=0)
    (tmp_path / "text.webp").write_text("no picture")
    for file, word in (("short.webp", "64×3200"), ("text.webp", "damaged")):
        with pytest.raises(CoterieError, match=word):
            read_tiles(tmp_path / file)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    with pytest.raises(CoterieError, match=r"cifar10/data_batch_1.webp.*COTERIE_DATA"):
        base("cifar10")


def test_unknown_set() -> None:
    with pytest.raises(CoterieError, match="'mnsit': did you mean 'mnist'"):
        base("mnsit")
    assert set(bases()) >= {"digits", "mnist", "fashion_mnist", "cifar10", "unipen", "har"}
    assert all(bases().values())


@pytest.mark.usefixtures("real_data")
def test_the_real_mnist() -> None:
    mnist = base("mnist")
    assert mnist.x_train.shape == (60000, 28, 28) and mnist.x_test.shape == (10000, 28, 28)
    assert torch.bincount(mnist.y_test).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
    assert mnist.x_train.mean().item() == pytest.approx(0.1307, abs=1e-4)


def test_a_file_of_tiles_is_decoded_again_only_after_it_has_changed(tmp_path: Path) -> None:
    from PIL import Image

    from coterie.data.base_files import read_tiles

    path = tmp_path / "tiles.png"
    picture = np.zeros((3200, 3200, 3), dtype=np.uint8)
    Image.fromarray(picture).save(path, compress_level=1)
    first = read_tiles(path)
    assert read_tiles(path) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1

    Image.fromarray(picture + 5).save(path, compress_level=1)
    assert (read_tiles(path) == 5).all()
