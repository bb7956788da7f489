"""Base sets of images: digits, MNIST, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from coterie.data.base_files import (
    as_int64,
    damaged,
    find_file,
    pixels,
    read_idx,
    read_npz_arrays,
    read_tiles,
    within,
)
from coterie.data.base_set import Base


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
