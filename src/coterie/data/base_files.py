"""Files of base sets: IDX, npz and tiled pictures, each checked before it is used."""

from __future__ import annotations

import functools
import gzip
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError

NPZ_ERRORS = (
    OSError, ValueError, LookupError, EOFError, TypeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
KINDS = {"bytes": "u", "integer": "iu", "float": "f", "text": "U"}  # and NumPy's letters for them


def find_file(name: str, file: str) -> Path:
    """The path of a file of a base set."""
    path = Path(os.environ.get("COTERIE_DATA", "data")) / name / file
    if not path.is_file():
        raise CoterieError(
            f"{name} needs the file {path}, which is not there",
            f"set COTERIE_DATA to a folder that holds {name}/{file}, "
            "or use digits, which is embedded",
        )
    return path


def damaged(path: Path, why: str) -> CoterieError:
    """An error for a file that does not hold what its name says."""
    return CoterieError(f"the file {path} is damaged ({why})", "fetch it again")


def check_file(path: Path, conditions: Sequence[tuple[bool, str]]) -> None:
    """Refuse a file unless all conditions hold; beside each stands the fault if it does not."""
    for holds, fault in conditions:
        if not holds:
            raise damaged(path, fault)


def within(numbers: np.ndarray, end: int) -> bool:
    """Whether all are from 0 to below `end`."""
    return bool(((numbers >= 0) & (numbers < end)).all())


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The bytes of a gzipped IDX file as an array; its header is checked against its length."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as why:
        raise damaged(path, str(why)) from None
    magic = bytes([0, 0, 8, axes])
    start = 4 + 4 * axes
    if content[:4] != magic or len(content) < start:
        raise damaged(
            path, f"it starts with {content[:4].hex()}, not with {magic.hex()} and {axes} sizes"
        )
    shape = np.frombuffer(content, ">u4", axes, offset=4).tolist()
    follow = len(content) - start
    if follow != math.prod(shape):
        sizes = "×".join(map(str, shape))
        raise damaged(path, f"its header says {sizes} bytes, but {follow} follow")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_tiles(path: Path) -> np.ndarray:
    """The images of a 3200×3200 picture, 100 rows of 100 tiles: uint8 [10000, 3, 32, 32].

    A file is decoded once in a process, for that takes most of the time of loading CIFAR-10.
    """
    try:
        changed = path.stat().st_mtime_ns
    except OSError as why:
        raise damaged(path, str(why)) from None
    return _decode_tiles(path, changed)


@functools.lru_cache(maxsize=6)  # the six files of CIFAR-10: 184 MB
def _decode_tiles(path: Path, changed: int) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            pixel = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as why:
        raise damaged(path, str(why)) from None
    if pixel.shape != (3200, 3200, 3):
        raise damaged(path, f"it has {pixel.shape[0]}×{pixel.shape[1]} pixels, not 3200×3200")
    tiles = pixel.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
    tiles.setflags(write=False)  # all who read the file share it
    return tiles


def read_npz_arrays(path: Path, **forms: str) -> dict[str, np.ndarray]:
    """Arrays of an npz file by name; nothing is unpickled.

    A form is the kind of an array and the number of its axes, such as "integer 1".
    """
    try:
        with np.load(path, allow_pickle=False) as npz:
            arrays = {name: npz[name] for name in forms}
    except NPZ_ERRORS as why:
        raise damaged(path, " ".join(str(why).split())) from None
    for name, form in forms.items():
        kind, axes = form.split()
        array = arrays[name]
        if array.dtype.kind not in KINDS[kind] or array.ndim != int(axes):
            raise damaged(path, f"{name} is {array.dtype} {array.shape}")
        if kind == "integer":
            arrays[name] = array.astype(np.int64)
    return arrays


def pixels(values: np.ndarray) -> Tensor:
    """Bytes 0..255 as float32 in [0, 1]."""
    return torch.tensor(values, dtype=torch.float32).div_(255)


def as_float32(x: np.ndarray) -> Tensor:
    """Bytes scaled to [0, 1], floats as they are."""
    if x.dtype == np.uint8:
        return pixels(x)
    return torch.tensor(x, dtype=torch.float32)


def as_int64(labels: np.ndarray) -> Tensor:
    """Labels as an int64 tensor."""
    return torch.tensor(labels, dtype=torch.int64)
