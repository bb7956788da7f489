"""Hugging Face data sets on disk. Nothing is fetched, no script is run and nothing is unpickled."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.data.features import Rows, library
from coterie.data.tables import READERS, one_line, read_table


def read_splits(path: Path) -> dict[str, Rows]:
    """The splits of a data set on disk by name; one without splits is "train"."""
    library("datasets")
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
            f"{path} is no Hugging Face data set ({one_line(why).rstrip('.')})",
            "write it with save_to_disk",
        ) from None


def read_saved(path: Path) -> dict[str, Rows]:
    """The splits that `save_to_disk` wrote."""
    saved = library("datasets").load_from_disk(str(path.resolve()), keep_in_memory=True)
    if not isinstance(saved, dict):
        saved = {"train": saved}
    return {str(name): rows.with_format(None) for name, rows in saved.items()}


def read_files(path: Path) -> dict[str, Rows]:
    """Tables by split, which their names start with: train-00000-of-00002.parquet is of train."""
    datasets = library("datasets")
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
    datasets = library("datasets")
    if file.suffix == ".parquet":  # it says what columns mean, which pandas would lose
        return datasets.Dataset(library("pyarrow.parquet").read_table(file))
    return datasets.Dataset.from_pandas(read_table(file), preserve_index=False)


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
