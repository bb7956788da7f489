"""`coterie store`: write a data set to disk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from coterie.cli.flags import (
    DATA_HELP,
    FlagValues,
    Parser,
    check_names,
    flags_of,
    split_data_options,
)
from coterie.cli.progress import ProgressDisplay
from coterie.cli.run_flags import DataFlags
from coterie.cli.setup import collect_data_options, resolve_data
from coterie.core.settings import setting
from coterie.data import Federation
from coterie.data import store as write_store


@dataclass(frozen=True, kw_only=True)
class StoreFlags(DataFlags):
    """The flags of `coterie store`."""

    valid: float = setting(
        0.0, "fraction of the training rows to store as the validation split", ge=0, lt=1
    )
    seed: int = setting(0, "random seed", ge=0)
    quiet: bool = setting(False, "no progress", switch=True)


def store(names: list[str], argv: list[str]) -> int:
    """`coterie store PATH --data SPEC`"""
    about = (
        "Write a data set to a folder; runs use it as --data store:PATH.\n"
        "Its rows are checked when it is opened, read when they are used, and images stay bytes."
    )
    parser = Parser("coterie store PATH --data SPEC", flags_of(StoreFlags), about, DATA_HELP)
    data_options, argv = split_data_options(argv)
    given = FlagValues(parser.flags, parser.parse(argv))
    asked = given.make(StoreFlags)
    usage = "coterie store PATH --data SPEC, such as coterie store mnist --data rotated:mnist"
    (path,) = check_names(names, 1, usage)
    spec, options = resolve_data(asked.data, collect_data_options(asked, given, data_options))
    with ProgressDisplay(asked.quiet).active():
        fed = write_store(spec, path, seed=asked.seed, valid=asked.valid, **options)
    print(describe_store(fed, Path(path)))
    return 0


def describe_store(fed: Federation, path: Path) -> str:
    """Describe a store in a sentence."""
    rows = sum(len(part.y) for part in fed.parts().values())
    size = sum(file.stat().st_size for file in path.iterdir())
    kind = str(fed.train.x.dtype).removeprefix("torch.")
    if fed.train.x.dtype == torch.uint8:
        kind = "bytes"
    width = math.prod(fed.row_shape)
    return (
        f"{path}: {fed.total:,} clients, {rows:,} rows of {width:,} numbers as {kind}, "
        f"{size / 1e6:,.1f} MB; use it as --data store:{path}"
    )
