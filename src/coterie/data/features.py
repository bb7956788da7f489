"""Rows of a Hugging Face data set as tensors or tables."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.base import pixels
from coterie.data.federation import Federation
from coterie.data.folder import from_frames
from coterie.data.natural import from_keys, rows_of
from coterie.data.schema import Fill
from coterie.data.tables import refuse_missing, texts
from coterie.errors import CoterieError, Option, unknown

if TYPE_CHECKING:
    import pandas as pd

Rows = Any  # a datasets.Dataset
Dealt = tuple[Rows, np.ndarray]  # rows, and the client of each
PART = "train or test"  # the name of a column that says which


def library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CoterieError(
            "Hugging Face data sets need flwr-datasets: pip install 'coterie[data]'."
        ) from None


def known_columns(rows: Rows, where: str, *names: str) -> None:
    for name in names:
        if name not in rows.column_names:
            raise unknown(f"column of {where}:", name, rows.column_names)


def encoded(
    train: Dealt,
    test: Dealt | None,
    label: str,
    drop: Sequence[str],
    fill: Fill | None,
    categories: Sequence[str] | None,
    **common: Any,
) -> Federation:
    """The federation of these rows, by `from_keys` or `from_frames`; `common` are options of both."""
    datasets = library("datasets")
    (rows, key), size = train, len(train[1])
    if test is not None:
        if test[0].features != rows.features:
            raise CoterieError(
                "the columns of training and test rows differ in name or type: make them alike."
            )
        rows, key = datasets.concatenate_datasets([rows, test[0]]), np.concatenate([key, test[1]])
    known_columns(rows, "the data set", label, *drop)
    plain = [
        c
        for c, kind in rows.features.items()
        if isinstance(kind, datasets.Value | datasets.ClassLabel)
    ]
    if label not in plain:
        raise CoterieError(
            f"the label column {label} holds more than a value per row: name another one."
        )
    features = [c for c in rows.column_names if c not in (label, *drop)]
    arrays = [c for c in features if c not in plain]
    if not arrays:
        frame = table_of(rows.select_columns(plain))
        common |= {"fill": fill, "categories": categories, "drop": [c for c in drop if c in plain]}
        if test is not None:
            frame[PART] = np.where(np.arange(len(rows)) < size, "train", "test")
            common["split_column"] = PART
        return from_frames(
            {name: frame.iloc[mine] for name, mine in rows_of(key).items()}, label, **common
        )
    if len(features) > 1:
        others = ",".join(c for c in features if c != arrays[0])
        raise CoterieError(
            f"the column {arrays[0]} holds arrays",
            "leave the others out with {}",
            options=[Option("drop", others, of_data=True)],
        )
    if fill is not None or categories:
        raise CoterieError(
            f"fill and categories are for tables, and the column {arrays[0]} holds arrays: omit them."
        )
    x, (y, labels) = array_of(rows, arrays[0]), labels_of(rows, label)
    held = None if test is None else (x[size:], y[size:], key[size:])
    return from_keys(x[:size], y[:size], key[:size], held, labels=labels, **common)


def table_of(rows: Rows) -> pd.DataFrame:
    """The rows as a table, with the names of classes."""
    frame = rows.to_pandas()
    for name, feature in rows.features.items():
        if hasattr(feature, "names"):
            frame[name] = frame[name].map(
                dict(enumerate(feature.names))
            )  # -1, for unknown, becomes a missing cell
    return frame


def labels_of(rows: Rows, label: str) -> tuple[np.ndarray, list[str] | None]:
    """y, and the names of its classes: those of a ClassLabel, or the different texts; None where y are numbers."""
    column = rows.select_columns(label).to_pandas()[label]
    refuse_missing(column, f"the label column {label}", "give the rows a label, or remove them")
    if column.dtype.kind in "iuf":
        return column.to_numpy(), getattr(rows.features[label], "names", None)
    names, y = np.unique(texts(column), return_inverse=True)
    return y, names.tolist()


def array_of(rows: Rows, column: str) -> Any:
    """x of one column: a row for each row."""
    datasets = library("datasets")
    feature = rows.features[column]
    if isinstance(feature, datasets.Image):
        return pictures(rows.cast_column(column, datasets.Image(decode=False))[column], column)
    while hasattr(feature, "feature"):
        feature = feature.feature
    x: Any = None
    if str(getattr(feature, "dtype", "")).rstrip("0123456789") in ("bool", "int", "uint", "float"):
        x = rows.select_columns(column).with_format("numpy", dtype=feature.dtype)[:][column]
    if x is None or x.dtype == object:
        raise CoterieError(
            f"the column {column} holds neither images nor arrays of numbers of one shape",
            "leave it out with {}",
            options=[Option("drop", column, of_data=True)],
        )
    if x.dtype != np.uint8 or x.ndim < 3:
        return x
    last = x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3)
    return pixels(np.moveaxis(x, -1, 1) if last else x)


def pictures(cells: Any, column: str) -> Any:
    """Images as float32 in [0, 1], [rows, H, W] if all are grey, else [rows, 3, H, W]; no file or address is opened."""
    from PIL import Image

    try:
        opened = [Image.open(io.BytesIO(cell["bytes"])) for cell in cells]
        sizes, modes = {image.size for image in opened}, {image.mode for image in opened}
        mode = "L" if modes <= {"1", "L"} else "RGB"
        if len(sizes) > 1 or any(mode[0] in "IF" for mode in modes):
            seen = ", ".join(
                sorted(f"{width}×{height}" for width, height in sizes)[:3] + sorted(modes)
            )
            raise CoterieError(
                f"the images in {column} differ in size or exceed 8 bits ({seen}): convert them."
            )
        x = np.stack([np.asarray(image.convert(mode)) for image in opened])
    except (OSError, SyntaxError, TypeError, Image.DecompressionBombError):
        raise CoterieError(
            f"a cell of the column {column} holds no image that can be read: write the data set with save_to_disk, "
            "which takes image files in."
        ) from None
    return pixels(x if mode == "L" else np.moveaxis(x, -1, 1))
