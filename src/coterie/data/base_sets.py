"""Base data sets by name: images or signals with a training and a test part."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import unknown_name
from coterie.data.base_files import (
    as_float32,
    as_int64,
    check_file,
    damaged,
    find_file,
    pixels,
    read_idx,
    read_npz_arrays,
    read_tiles,
    within,
)
from coterie.data.federation import rank_in_group, rng


class Base(NamedTuple):
    """Rows x, float32, and labels y, int64 [rows].

    Images are [rows, H, W] or [rows, 3, H, W] in [0, 1]. Where it is known whom a row comes from,
    `keys` are their names, and `key_train` and `key_test`, int64 [rows], say whose each row is.
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


def digits() -> Base:
    """Handwritten digits, 8×8 grey, 1,437 train and 360 test images; embedded, needs no files."""
    x_train, x_test, y_train, y_test = map(torch.tensor, read_digits())
    return Base(
        name="digits",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=10,
        labels=tuple("0123456789"),
    )


@functools.cache
def read_digits() -> list[np.ndarray]:
    """x_train, x_test, y_train and y_test of digits, read once in a process."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    images = (x / 16).astype(np.float32).reshape(-1, 8, 8)
    return train_test_split(images, y.astype(np.int64), test_size=0.2, random_state=0, stratify=y)


def mnist() -> Base:
    """Handwritten digits, 28×28 grey, 60,000 train and 10,000 test images."""
    return load_idx_set("mnist", tuple("0123456789"))


def fashion_mnist() -> Base:
    """Clothing, 28×28 grey, 60,000 train and 10,000 test images."""
    clothes = "T-shirt/top,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"
    return load_idx_set("fashion_mnist", tuple(clothes.split(",")))


def load_idx_set(name: str, labels: tuple[str, ...]) -> Base:
    """A set in the four gzipped IDX files of MNIST."""
    x_train, y_train = load_idx_part(name, "train", len(labels))
    x_test, y_test = load_idx_part(name, "t10k", len(labels))
    return Base(
        name=name,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=len(labels),
        labels=labels,
    )


def load_idx_part(name: str, part: str, classes: int) -> tuple[Tensor, Tensor]:
    """(x, y) of the training or the test part."""
    x = read_idx(find_file(name, f"{part}-images-idx3-ubyte.gz"), 3)
    path = find_file(name, f"{part}-labels-idx1-ubyte.gz")
    y = read_idx(path, 1)
    if len(y) != len(x) or y.max(initial=0) >= classes:
        raise damaged(path, f"{len(y)} labels up to {y.max(initial=0)} for {len(x)} images")
    return pixels(x), as_int64(y)


def cifar10() -> Base:
    """Photographs, 32×32 RGB, 50,000 train and 10,000 test images, as tiles of WebP files."""
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    x = np.concatenate([read_tiles(find_file("cifar10", f"{name}.webp")) for name in names])
    path = find_file("cifar10", "labels.npz")
    arrays = read_npz_arrays(path, train="integer 1", test="integer 1", names="text 1")
    y = np.concatenate([arrays["train"], arrays["test"]])
    labels = tuple(arrays["names"].tolist())
    if len(y) != len(x) or not within(y, len(labels)):
        raise damaged(
            path, f"{len(y)} labels up to {y.max()} for {len(x)} images of {len(labels)} classes"
        )
    train = len(x) - 10_000
    return Base(
        name="cifar10",
        x_train=pixels(x[:train]),
        y_train=as_int64(y[:train]),
        x_test=pixels(x[train:]),
        y_test=as_int64(y[train:]),
        classes=len(labels),
        labels=labels,
    )


def unipen() -> Base:
    """Handwritten 0-9 A-Z a-z of 307 writers, 28×28 grey, 85,884 train and 17,027 test images."""
    path = find_file("unipen_chars", "unipen_chars.npz")
    arrays = read_npz_arrays(
        path,
        images="bytes 3",
        labels="integer 1",
        writer="integer 1",
        is_test="integer 1",
        writer_code="text 1",
        classes="text 1",
    )
    images, y, writer, is_test = (arrays[k] for k in ("images", "labels", "writer", "is_test"))
    classes = tuple(arrays["classes"].tolist())
    writers = tuple(arrays["writer_code"].tolist())
    is_image = images.dtype == np.uint8 and images.shape[1:] == (28, 28)
    check_file(
        path,
        [
            (is_image, f"images are {images.dtype} {images.shape}"),
            (len(images) == len(y) == len(writer) == len(is_test), "its arrays differ in length"),
            (within(y, len(classes)), f"a label is not one of {len(classes)} classes"),
            (within(writer, len(writers)), f"a writer is not one of {len(writers)}"),
            (len({*writers}) == len(writers), "two writers have the same code"),
            ({*np.unique(is_test)} == {0, 1}, "is_test is not 0 and 1"),
        ],
    )
    return with_keys("unipen", images, y, classes, (writer, writers), is_test == 1)


def har() -> Base:
    """Phone motion of 30 subjects in 6 activities, 9 signals × 128 steps, 7,977 train, 2,322 test.

    Windows of one recording (a chain) overlap by half, so that whole chains are for training or for
    tests: of a subject's chains of one activity, in a random order that is always the same, every
    fourth is for tests. Rows that a search holds out of training are drawn by window, though, and
    so flatter what has learnt a window's neighbours.
    """
    path = find_file("uci_har", "uci_har.npz")
    arrays = read_npz_arrays(
        path,
        signals="float 2",
        start="integer 1",
        y="integer 1",
        subject="integer 1",
        chain="integer 1",
        activities="text 1",
    )
    signals, start, y, subject = (arrays[k] for k in ("signals", "start", "y", "subject"))
    labels = tuple(arrays["activities"].tolist())
    finite = len(signals) == 9 and bool(np.isfinite(signals).all())
    lengths = {len(start), len(y), len(subject), len(arrays["chain"])}
    check_file(
        path,
        [
            (finite, "signals are not 9 rows of finite numbers"),
            (len(lengths) == 1 and lengths != {0}, "its arrays differ in length"),
            (within(start, signals.shape[1] - 127), "a window lies outside the signals"),
            (within(y, len(labels)), f"a label is not one of {len(labels)} activities"),
            (within(subject, 1000), "a subject's number is not from 0 to 999"),
        ],
    )
    _, first, chain = np.unique(arrays["chain"], return_index=True, return_inverse=True)
    stratum = subject * len(labels) + y  # subject and activity
    by_start = start.argsort()
    overlap = np.diff(start[by_start]) < 128
    check_file(
        path,
        [
            (
                (stratum[first][chain] == stratum).all(),
                "a chain has several subjects or activities",
            ),
            (not np.diff(chain[by_start])[overlap].any(), "windows of different chains overlap"),
        ],
    )
    is_test = (rank_in_group(stratum[first], rng(0, "har")) % 4 == 3)[chain]
    windows = signals[:, start[:, None] + np.arange(128)].swapaxes(0, 1).astype(np.float32)
    subjects, key = np.unique(subject, return_inverse=True)
    names = tuple(f"subject-{number:02}" for number in subjects.tolist())
    return with_keys("har", windows, y, labels, (key, names), is_test)


def with_keys(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    labels: tuple[str, ...],
    keys: tuple[np.ndarray, tuple[str, ...]],
    is_test: np.ndarray,
) -> Base:
    """A set whose rows have keys, (the number of each row's key, all names), in its two parts."""
    key, names = keys
    return Base(
        name=name,
        x_train=as_float32(x[~is_test]),
        y_train=as_int64(y[~is_test]),
        x_test=as_float32(x[is_test]),
        y_test=as_int64(y[is_test]),
        classes=len(labels),
        labels=labels,
        keys=names,
        key_train=as_int64(key[~is_test]),
        key_test=as_int64(key[is_test]),
    )


# A new base set is one function and its name here.
SETS = {load.__name__: load for load in (digits, mnist, fashion_mnist, cifar10, unipen, har)}


def base(name: str) -> Base:
    """Load a base set.

    Files are read from the folder COTERIE_DATA, default ./data; digits needs no files.

    Args:
        name: See `bases`.

    Example:
        >>> base("digits").x_train.shape
        torch.Size([1437, 8, 8])
    """
    if name not in SETS:
        raise unknown_name("base set", name, SETS)
    return SETS[name]()


def bases() -> dict[str, str]:
    """Return all base sets by name, with a one-line description.

    Example:
        >>> list(bases())[:2]
        ['digits', 'mnist']
    """
    return {name: (load.__doc__ or "").split("\n")[0] for name, load in SETS.items()}
