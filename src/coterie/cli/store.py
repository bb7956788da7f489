"""`coterie store`: write a data set once to disk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from coterie.cli.data_set import all_data_options, with_full_paths
from coterie.cli.flags import DATA_HELP, Parser, flags_of, take_data
from coterie.cli.general import DataSet
from coterie.cli.progress import Watcher
from coterie.cli.values import Given
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.data import Federation
from coterie.data import store as write_store


@dataclass(frozen=True, kw_only=True)
class StoreFlags(DataSet):
    """The flags of `coterie store`."""

    valid: float = setting(
        0.0, "share of the training rows to hold out as the valid part", ge=0, lt=1
    )
    seed: int = setting(0, "seed of the draws", ge=0)
    quiet: bool = setting(False, "no progress", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


def store(words: list[str], argv: list[str]) -> int:
    """`coterie store PATH --data SPEC`"""
    about = (
        "Write a data set once to a folder on disk; runs use it as --data store:PATH.\n"
        "It opens at once, rows are read as they are used, and images stay bytes."
    )
    parser = Parser("coterie store PATH --data SPEC", flags_of(StoreFlags), about, DATA_HELP)
    data_options, argv = take_data(argv)
    given = Given(parser.flags, parser.parse(argv))
    asked = given.make(StoreFlags)
    if len(words) != 1 or not words[0]:
        raise CoterieError(
            "store needs one path to write to, as in `coterie store mnist --data rotated:mnist`."
        )
    spec, options = with_full_paths(asked.data, all_data_options(asked, given, data_options))
    watcher = Watcher(asked.quiet)
    with watcher():
        fed = write_store(spec, words[0], seed=asked.seed, valid=asked.valid, **options)
    print(describe(fed, Path(words[0])))
    return 0


def describe(fed: Federation, path: Path) -> str:
    """What was written, in a sentence."""
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
