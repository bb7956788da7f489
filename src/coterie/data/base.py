"""Base sets: upright images, or signals, with a training and a test part, from which federations are cut."""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import rng
from coterie.data.shares import places
from coterie.errors import CoterieError, unknown


class Base(NamedTuple):
    """Rows x, float32, and labels y, int64 [rows]; images are [rows, H, W] or [rows, 3, H, W] in [0, 1].

    Where it is known whom a row comes from, `keys` are their names, and `key_train` and `key_test`, int64 [rows], say
    whose each row is.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    labels: tuple[str, ...]
    keys: tuple[str, ...] = ()
    key_train: Tensor | None = None
    key_test: Tensor | None = None


SETS: dict[str, Callable[[], Base]] = {}


def base_set(load: Callable[[], Base]) -> Callable[[], Base]:
    """Make a loader known under its function's name."""
    SETS[load.__name__] = load
    return load


def base(name: str) -> Base:
    """The base set of this name; all but digits are read from the folder COTERIE_DATA, or else ./data."""
    if name not in SETS:
        raise unknown("base set", name, SETS)
    return SETS[name]()


def bases() -> dict[str, str]:
    """Every base set and what it is, in one line."""
    return {name: (load.__doc__ or "").split("\n")[0] for name, load in SETS.items()}


@base_set
def digits() -> Base:
    """Handwritten digits, 8×8 grey, 1,437 train and 360 test images; embedded, needs no files."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    images = (x / 16).astype(np.float32).reshape(-1, 8, 8)
    parts = train_test_split(images, y.astype(np.int64), test_size=0.2, random_state=0, stratify=y)
    x_train, x_test, y_train, y_test = map(torch.from_numpy, parts)
    return Base("digits", x_train, y_train, x_test, y_test, 10, tuple("0123456789"))


@base_set
def mnist() -> Base:
    """Handwritten digits, 28×28 grey, 60,000 train and 10,000 test images."""
    return idx_set("mnist", tuple("0123456789"))


@base_set
def fashion_mnist() -> Base:
    """Clothing, 28×28 grey, 60,000 train and 10,000 test images."""
    clothes = "T-shirt/top,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"
    return idx_set("fashion_mnist", tuple(clothes.split(",")))


@base_set
def cifar10() -> Base:
    """Photographs, 32×32 RGB, 50,000 train and 10,000 test images, as tiles of lossless WebP files."""
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    x = np.concatenate([tiles(find("cifar10", f"{name}.webp")) for name in names])
    path = find("cifar10", "labels.npz")
    found = read_arrays(path, train="whole 1", test="whole 1", names="text 1")
    y, labels = np.concatenate([found["train"], found["test"]]), tuple(found["names"].tolist())
    if len(y) != len(x) or not within(y, len(labels)):
        raise corrupt(
            path, f"{len(y)} labels up to {y.max()} for {len(x)} images of {len(labels)} classes"
        )
    split = len(x) - 10_000
    return Base(
        "cifar10",
        pixels(x[:split]),
        long(y[:split]),
        pixels(x[split:]),
        long(y[split:]),
        len(labels),
        labels,
    )


@base_set
def unipen() -> Base:
    """Handwritten 0-9 A-Z a-z of 307 writers, 28×28 grey, 85,884 train and 17,027 test images."""
    path = find("unipen_chars", "unipen_chars.npz")
    found = read_arrays(
        path, images="bytes 3", labels="whole 1", writer="whole 1", is_test="whole 1", writer_code="text 1",
        classes="text 1",
    )  # fmt: skip
    images, y, writer, is_test = (found[name] for name in ("images", "labels", "writer", "is_test"))
    classes, writers = tuple(found["classes"].tolist()), tuple(found["writer_code"].tolist())
    check(
        path,
        (
            images.dtype == np.uint8 and images.shape[1:] == (28, 28),
            f"images are {images.dtype} {images.shape}",
        ),
        (len(images) == len(y) == len(writer) == len(is_test), "its arrays differ in length"),
        (within(y, len(classes)), f"a label is not one of {len(classes)} classes"),
        (within(writer, len(writers)), f"a writer is not one of {len(writers)}"),
        (len({*writers}) == len(writers), "two writers have the same code"),
        ({*np.unique(is_test)} == {0, 1}, "is_test is not 0 and 1"),
    )
    return keyed("unipen", images, y, classes, writer, writers, is_test == 1)


@base_set
def har() -> Base:
    """Phone motion of 30 subjects in 6 activities, 9 signals × 128 steps, 7,977 train and 2,322 test windows.

    Windows of one recording (a chain) overlap by half, so that whole chains are for training or for tests: of a
    subject's chains of one activity, in a random order that is always the same, every fourth is for tests. Rows that a
    search holds out of training are drawn by window, though, and so flatter what has learnt a window's neighbours.
    """
    path = find("uci_har", "uci_har.npz")
    found = read_arrays(
        path,
        signals="float 2",
        start="whole 1",
        y="whole 1",
        subject="whole 1",
        chain="whole 1",
        activities="text 1",
    )
    signals, start, y, subject, chain = (
        found[name] for name in ("signals", "start", "y", "subject", "chain")
    )
    labels = tuple(found["activities"].tolist())
    check(
        path,
        (
            len(signals) == 9 and np.isfinite(signals).all(),
            "signals are not 9 rows of finite numbers",
        ),
        (0 < len(start) == len(y) == len(subject) == len(chain), "its arrays differ in length"),
        (within(start, signals.shape[1] - 127), "a window lies outside the signals"),
        (within(y, len(labels)), f"a label is not one of {len(labels)} activities"),
        (within(subject, 1000), "a subject's number is not from 0 to 999"),
    )
    _, first, member = np.unique(chain, return_index=True, return_inverse=True)
    whose = (subject * len(labels) + y)[first]  # the subject and activity of each chain
    order = start.argsort()
    near = np.diff(start[order]) < 128
    check(
        path,
        (
            (whose[member] == subject * len(labels) + y).all(),
            "a chain has several subjects or activities",
        ),
        ((np.diff(member[order])[near] == 0).all(), "windows of different chains overlap"),
    )
    is_test = (places(whose, rng(0, "har")) % 4 == 3)[member]
    windows = signals[:, start[:, None] + np.arange(128)].swapaxes(0, 1).astype(np.float32)
    subjects, key = np.unique(subject, return_inverse=True)
    names = tuple(f"subject-{number:02}" for number in subjects.tolist())
    return keyed("har", windows, y, labels, key, names, is_test)


def keyed(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    labels: tuple[str, ...],
    key: np.ndarray,
    keys: tuple[str, ...],
    is_test: np.ndarray,
) -> Base:
    """A set whose rows have a key, cut into its two parts."""
    floats = pixels if x.dtype == np.uint8 else torch.tensor
    train, test = (
        (floats(x[rows]), long(y[rows]), long(key[rows])) for rows in (~is_test, is_test)
    )
    return Base(name, *train[:2], *test[:2], len(labels), labels, keys, train[2], test[2])


# ---------------------------------------------------------------------------------------------- files
def idx_set(name: str, labels: tuple[str, ...]) -> Base:
    """A set in the four gzipped IDX files of MNIST."""
    parts: list[Tensor] = []
    for part in ("train", "t10k"):
        x = read_idx(find(name, f"{part}-images-idx3-ubyte.gz"), 3)
        path = find(name, f"{part}-labels-idx1-ubyte.gz")
        y = read_idx(path, 1)
        if len(y) != len(x) or y.max(initial=0) >= len(labels):
            raise corrupt(path, f"{len(y)} labels up to {y.max(initial=0)} for {len(x)} images")
        parts += [pixels(x), long(y)]
    x_train, y_train, x_test, y_test = parts
    return Base(name, x_train, y_train, x_test, y_test, len(labels), labels)


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The bytes of a gzipped IDX file as an array; its header is checked against its length."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as why:
        raise corrupt(path, str(why)) from None
    magic, start = bytes([0, 0, 8, axes]), 4 + 4 * axes
    if content[:4] != magic or len(content) < start:
        raise corrupt(
            path, f"it starts with {content[:4].hex()}, not with {magic.hex()} and {axes} sizes"
        )
    shape = np.frombuffer(content, ">u4", axes, offset=4).tolist()
    if len(content) - start != math.prod(shape):
        raise corrupt(
            path,
            f"its header says {'×'.join(map(str, shape))} bytes, but {len(content) - start} follow",
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def tiles(path: Path) -> np.ndarray:
    """The 10,000 images of a 3200×3200 picture, 100 rows of 100 tiles: uint8 [10000, 3, 32, 32]."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            pixel = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as why:
        raise corrupt(path, str(why)) from None
    if pixel.shape != (3200, 3200, 3):
        raise corrupt(path, f"it has {pixel.shape[0]}×{pixel.shape[1]} pixels, not 3200×3200")
    return pixel.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)


KINDS = {
    "bytes": "u",
    "whole": "iu",
    "float": "f",
    "text": "U",
}  # of arrays, and what numpy calls them


def read_arrays(path: Path, **forms: str) -> dict[str, np.ndarray]:
    """Arrays of an npz file by name, each of the kind and number of axes that `forms` says; nothing is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in forms}
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        TypeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as why:
        raise corrupt(path, " ".join(str(why).split())) from None
    for name, form in forms.items():
        kind, axes = form.split()
        array = found[name]
        if array.dtype.kind not in KINDS[kind] or array.ndim != int(axes):
            raise corrupt(path, f"{name} is {array.dtype} {array.shape}")
        if kind == "whole":
            found[name] = array.astype(np.int64)
    return found


def check(path: Path, *facts: tuple[bool, str]) -> None:
    """Refuse a file of which any fact does not hold."""
    for holds, otherwise in facts:
        if not holds:
            raise corrupt(path, otherwise)


def within(numbers: np.ndarray, end: int) -> bool:
    """Whether all are from 0 to below `end`."""
    return bool(((numbers >= 0) & (numbers < end)).all())


def pixels(bytes_: np.ndarray) -> Tensor:
    """Bytes 0..255 as float32 in [0, 1]."""
    return torch.tensor(bytes_, dtype=torch.float32).div_(255)


def long(labels: np.ndarray) -> Tensor:
    """Labels as int64."""
    return torch.tensor(labels, dtype=torch.int64)


def find(name: str, file: str) -> Path:
    """A file of a base set."""
    path = Path(os.environ.get("COTERIE_DATA", "data")) / name / file
    if not path.is_file():
        raise CoterieError(
            f"{name} needs the file {path}, which is not there: set COTERIE_DATA to a folder that holds "
            f"{name}/{file}, or use digits, which is embedded."
        )
    return path


def corrupt(path: Path, why: str) -> CoterieError:
    """An error for a file that does not hold what its name says."""
    return CoterieError(f"the file {path} is damaged ({why}): fetch it again.")
