"""Read Hugging Face data sets from disk, and encode their rows."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data.base_files import pixels
from coterie.data.csv_files import to_one_line
from coterie.data.federation import Federation
from coterie.data.frames import encode_tables
from coterie.data.natural import from_keys, rows_by_key
from coterie.data.table_files import READERS, read_table
from coterie.data.table_options import TableOptions
from coterie.data.tables import Table, check_frames, frames_to_tables

if TYPE_CHECKING:
    import pandas as pd

Rows = Any  # a datasets.Dataset
KeyedRows = tuple[Rows, np.ndarray]  # rows, and the client of each
PART = "train or test"  # the name of a column that says which


def import_optional(name: str) -> Any:
    """A module of an optional dependency."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CoterieError(
            "Hugging Face data sets need flwr-datasets", "pip install 'coterie[data]'"
        ) from None


def check_column_names(rows: Rows, where: str, *names: str) -> None:
    """Refuse names that are no columns."""
    for name in names:
        if name not in rows.column_names:
            raise unknown_name(f"column of {where}:", name, rows.column_names)


def encode_rows(train: KeyedRows, test: KeyedRows | None, options: TableOptions) -> Federation:
    """The federation of these rows: one column of arrays, or a table."""
    datasets = import_optional("datasets")
    rows, key = train
    if test is not None:
        if test[0].features != rows.features:
            raise CoterieError(
                "the columns of training and test rows differ in name or type", "make them alike"
            )
        rows = datasets.concatenate_datasets([rows, test[0]])
        key = np.concatenate([key, test[1]])
    check_column_names(rows, "the data set", options.label, *options.drop)
    single = datasets.Value | datasets.ClassLabel
    plain = [name for name, kind in rows.features.items() if isinstance(kind, single)]
    if options.label not in plain:
        raise CoterieError(
            f"the label column {options.label} holds more than a value per row", "name another one"
        )
    features = [c for c in rows.column_names if c != options.label and c not in options.drop]
    arrays = [name for name in features if name not in plain]
    train_size = len(train[1])
    if arrays:
        check_one_array(arrays[0], features, options)
        return encode_arrays(rows, key, train_size, arrays[0], options)
    frame = to_frame(rows.select_columns(plain))
    options = replace(options, drop=tuple(name for name in options.drop if name in plain))
    if test is not None:
        frame[PART] = np.where(np.arange(len(rows)) < train_size, "train", "test")
        options = replace(options, split_column=PART)
    frames = {name: frame.iloc[numbers] for name, numbers in rows_by_key(key).items()}
    return encode_tables(frames_to_tables(check_frames(frames)), options)


def check_one_array(column: str, features: list[str], options: TableOptions) -> None:
    """Refuse other features, and options of tables, beside a column of arrays."""
    others = [name for name in features if name != column]
    if others:
        raise CoterieError(
            f"the column {column} holds arrays",
            "leave the others out with {}",
            options=[Option("drop", ",".join(others), of_data=True)],
        )
    if options.fill is not None or options.categories or options.drop_incomplete:
        raise CoterieError(
            "fill, categories and drop_incomplete are for tables, and the column "
            f"{column} holds arrays",
            "omit them",
        )


def encode_arrays(
    rows: Rows, key: np.ndarray, train_size: int, column: str, options: TableOptions
) -> Federation:
    """The federation of a column of images or arrays; rows from `train_size` on are for tests."""
    x = read_arrays(rows, column)
    y, labels = read_labels(rows, options.label)
    test = None
    if train_size < len(key):
        test = x[train_size:], y[train_size:], key[train_size:]
    return from_keys(
        x[:train_size],
        y[:train_size],
        key[:train_size],
        test,
        test_share=options.test_share,
        seed=options.seed,
        unseen=options.unseen,
        kind=options.kind,
        labels=labels,
    )


def to_frame(rows: Rows) -> pd.DataFrame:
    """The rows as a DataFrame, with the names of classes."""
    frame = rows.to_pandas()
    for name, feature in rows.features.items():
        if hasattr(feature, "names"):
            names = dict(enumerate(feature.names))
            frame[name] = frame[name].map(names)  # −1, for unknown, becomes a missing cell
    return frame


def read_labels(rows: Rows, label: str) -> tuple[np.ndarray, list[str] | None]:
    """y, and the names of its classes: of a ClassLabel, or the texts; None where y are numbers."""
    frame = rows.select_columns(label).to_pandas()
    cells = Table.of(frame, "").columns[label]
    cells.require_complete("give the rows a label, or remove them", role="label column")
    if cells.values is not None and cells.values.dtype.kind in "iuf":
        return cells.values, getattr(rows.features[label], "names", None)
    codes, texts = cells.text_codes
    names = sorted(texts)
    return np.array([names.index(text) for text in texts])[codes], names


def read_arrays(rows: Rows, column: str) -> Any:
    """x of one column: an image or array for each row."""
    datasets = import_optional("datasets")
    feature = rows.features[column]
    if isinstance(feature, datasets.Image):
        undecoded = rows.cast_column(column, datasets.Image(decode=False))
        return read_images(undecoded[column], column)
    while hasattr(feature, "feature"):
        feature = feature.feature
    x: Any = None
    dtype = str(getattr(feature, "dtype", "")).rstrip("0123456789")
    if dtype in ("bool", "int", "uint", "float"):
        x = rows.select_columns(column).with_format("numpy", dtype=feature.dtype)[:][column]
    if x is None or x.dtype == object:
        raise CoterieError(
            f"the column {column} holds neither images nor arrays of numbers of one shape",
            "leave it out with {}",
            options=[Option("drop", column, of_data=True)],
        )
    if x.dtype != np.uint8 or x.ndim < 3:
        return x
    channels_last = x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3)
    if channels_last:
        x = np.moveaxis(x, -1, 1)
    return pixels(x)


def read_images(cells: Any, column: str) -> Any:
    """Images as float32 in [0, 1]: [rows, H, W] if all are grey, else [rows, 3, H, W].

    No file or address that a cell names is opened.
    """
    from PIL import Image

    try:
        images = [Image.open(io.BytesIO(cell["bytes"])) for cell in cells]
        sizes = {image.size for image in images}
        modes = {image.mode for image in images}
        if len(sizes) > 1 or any(mode[0] in "IF" for mode in modes):
            shapes = sorted(f"{width}×{height}" for width, height in sizes)[:3]
            raise CoterieError(
                f"the images in {column} differ in size or exceed 8 bits "
                f"({', '.join(shapes + sorted(modes))})",
                "convert them",
            )
        if modes <= {"1", "L"}:
            return pixels(np.stack([np.asarray(image.convert("L")) for image in images]))
        colour = np.stack([np.asarray(image.convert("RGB")) for image in images])
        return pixels(np.moveaxis(colour, -1, 1))
    except (OSError, SyntaxError, TypeError, Image.DecompressionBombError):
        raise CoterieError(
            f"a cell of the column {column} holds no image that can be read",
            "write the data set with save_to_disk, which takes image files in",
        ) from None


def read_splits(path: Path) -> dict[str, Rows]:
    """The splits of a data set on disk by name; one without splits is "train"."""
    import_optional("datasets")
    if not path.exists():
        raise CoterieError(
            f"there is no {path} on disk, and nothing is fetched",
            "write the data set there with save_to_disk, or give a folder of its Parquet files",
        )
    try:
        with offline():
            if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
                return read_saved(path)
            return read_files(path)
    except CoterieError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as why:
        raise CoterieError(
            f"{path} is no Hugging Face data set ({to_one_line(why).rstrip('.')})",
            "write it with save_to_disk",
        ) from None


def read_saved(path: Path) -> dict[str, Rows]:
    """The splits that `save_to_disk` wrote."""
    saved = import_optional("datasets").load_from_disk(str(path.resolve()), keep_in_memory=True)
    if not isinstance(saved, dict):
        saved = {"train": saved}
    return {str(name): rows.with_format(None) for name, rows in saved.items()}


def read_files(path: Path) -> dict[str, Rows]:
    """Tables by split, which their names start with: train-00000-of-00002.parquet is of train."""
    datasets = import_optional("datasets")
    files = [path]
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.suffix in READERS]
    if not files:
        raise CoterieError(
            f"{path} has neither what save_to_disk writes nor a {' or '.join(READERS)} file",
            "add it",
        )
    splits: dict[str, list[Rows]] = {}
    for file in files:
        split = "train" if len(files) == 1 else file.stem.partition("-")[0]
        splits.setdefault(split, []).append(read_file(file))
    return {name: datasets.concatenate_datasets(parts) for name, parts in splits.items()}


def read_file(file: Path) -> Rows:
    """The rows of a CSV or Parquet file."""
    datasets = import_optional("datasets")
    if file.suffix == ".parquet":  # it says what columns mean, which pandas would lose
        return datasets.Dataset(import_optional("pyarrow.parquet").read_table(file))
    return datasets.Dataset(read_table(file))


@contextmanager
def offline() -> Iterator[None]:
    """Keep the Hugging Face libraries from looking anything up.

    HF_HUB_OFFLINE and HF_DATASETS_OFFLINE count only when the libraries are imported.
    """
    names = ("datasets.config", "huggingface_hub.constants")
    modules = [importlib.import_module(name) for name in names]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
        yield
    finally:
        for module, value in zip(modules, before):
            module.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]
