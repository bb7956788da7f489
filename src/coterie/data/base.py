"""Base image sets: upright images with a training and a test part, from which federations are cut."""

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

from coterie.errors import CoterieError, unknown


class Base(NamedTuple):
    """Images x [rows, H, W] or [rows, 3, H, W], float32 in [0, 1], and labels y, int64 [rows]."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    labels: tuple[str, ...]


SETS: dict[str, Callable[[], Base]] = {}


def base_set(load: Callable[[], Base]) -> Callable[[], Base]:
    """Make a loader known under its function's name."""
    SETS[load.__name__] = load
    return load


def base(name: str) -> Base:
    """The base image set of this name; all but digits are read from the folder COTERIE_DATA, or else ./data."""
    if name not in SETS:
        raise unknown("image set", name, SETS)
    return SETS[name]()


def bases() -> dict[str, str]:
    """Every base image set and what it is, in one line."""
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
    try:
        with np.load(path) as arrays:
            y = np.concatenate([arrays["train"], arrays["test"]])
            labels = tuple(map(str, arrays["names"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as why:
        raise corrupt(path, str(why)) from None
    if len(y) != len(x) or y.max() >= len(labels):
        raise corrupt(path, f"{len(y)} labels up to {y.max()} for {len(x)} images of {len(labels)} classes")
    split = len(x) - 10_000
    return Base("cifar10", pixels(x[:split]), long(y[:split]), pixels(x[split:]), long(y[split:]), len(labels), labels)


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
        raise corrupt(path, f"it starts with {content[:4].hex()}, not with {magic.hex()} and {axes} sizes")
    shape = np.frombuffer(content, ">u4", axes, offset=4).tolist()
    if len(content) - start != math.prod(shape):
        raise corrupt(path, f"its header says {'×'.join(map(str, shape))} bytes, but {len(content) - start} follow")
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
