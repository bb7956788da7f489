"""From the words of a command to methods, data and options.

Flags count over the config file, and the file over the defaults.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.cli.config_file import read_config
from coterie.cli.data_set import all_data_options, with_full_paths
from coterie.cli.flags import DATA_HELP, Parser, take_data
from coterie.cli.general import General, Searching, general_flags
from coterie.cli.grids import Classes, Grid, read_grids
from coterie.cli.methods import (
    find_methods,
    make_method,
    method_flags,
    refuse_without_effect,
    with_full_path,
)
from coterie.cli.ranks import with_launched_ranks
from coterie.cli.values import Given
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.methods import registry
from coterie.runs.files import write_error
from coterie.runs.options import Options
from coterie.runs.search import VALID

COMPARE_HELP = (
    "\nfor one method alone: --METHOD.NAME, such as --ifca.lr 0.05 or --ifca.tune lr=0.1,1"
)


class Setup(NamedTuple):
    """All that `run`, `compare` or `search` was asked for."""

    methods: dict[str, Algorithm]  # by name, or by file and class with the full path
    general: General
    options: dict[str, Any]  # of the runs; see `Options`
    spec: str  # of the data
    data: dict[str, Any]  # options of the data beside those in the spec
    over: dict[str, Grid]  # by method: the values to choose among
    random: int | None = None  # try only this many combinations of them

    @property
    def ranks(self) -> int:
        """How many processes share the clients."""
        ranks: int = self.options.get("ranks", Options.ranks)
        return ranks

    @property
    def seeds(self) -> range:
        """The seeds to run with."""
        first = self.options.get("seed", Options.seed)
        return range(first, first + self.general.seeds)

    def origin(self, seed: int) -> dict[str, Any]:
        """The arguments of `data.load` that make the data of a seed."""
        return {"spec": self.spec, "seed": seed, **self.data}

    def refit(self) -> Setup:
        """The same, for runs with the settings that a search chose: on all training rows.

        The rows that the search held out are trained on, too, unless early stopping needs them.
        """
        if self.options.get("stop_after") is not None:
            return self
        options = {name: value for name, value in self.options.items() if name != "valid"}
        return self._replace(options=options)

    def planned_runs(self) -> Iterator[tuple[str, str, int]]:
        """(folder, method, seed) of every run, those on the same data together.

        The folders are below that of the command; it is "." where there is one run alone.
        """
        for seed in self.seeds:
            for name, method in self.methods.items():
                parts = []
                if len(self.methods) > 1 or self.over:
                    parts.append(method.name)
                if self.general.seeds > 1:
                    parts.append(f"seed-{seed}")
                yield "/".join(parts) or ".", name, seed

    @property
    def given_folder(self) -> Path | None:
        """The folder of --out, if it is given."""
        if self.general.out is None:
            return None
        return Path(self.general.out)

    def folder(self) -> Path:
        """The folder that all is written to: --out, or a new one in runs/, which is made here.

        Of many commands that make one at once, each has its own.
        """
        if self.given_folder is not None:
            return self.given_folder
        maker, _, first = self.spec.partition("?")[0].partition(":")
        names = [method.name for method in self.methods.values()]
        if len(names) > 1:
            names = ["compare"]
        parts = [*names, maker, Path(first).name, time.strftime("%Y%m%d-%H%M%S")]
        return make_new_folder("-".join(filter(None, parts)))


def make_new_folder(name: str) -> Path:
    """Make runs/NAME, or runs/NAME-2 and so on where another command has made it."""
    for number in itertools.count(1):
        folder = Path("runs") / name
        if number > 1:
            folder = Path("runs") / f"{name}-{number}"
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir()
            return folder
        except FileExistsError:
            continue
        except OSError as e:
            raise write_error(e, folder) from e
    raise AssertionError("numbers do not end")


def setup(command: str, words: list[str], argv: list[str]) -> Setup:
    """Read the words (methods) and flags of `run`, `compare` or `search`."""
    is_alone = command != "compare"  # one method, whose settings need no prefix
    classes = find_methods(command, words)
    parser = make_parser(command, words, classes, is_alone)
    data_options, argv = take_data(argv)
    given = read_given(parser, argv, classes)

    general = given.make(General)
    spec, data = with_full_paths(general.data, all_data_options(general, given, data_options))
    if general.model is not None:
        general = replace(general, model=with_full_path(general.model))

    over = read_grids(classes, given)
    if command == "search" and not over:
        raise CoterieError("search needs --over, the values to try, as in --over lr=0.01,0.1,1.")
    refuse_without_effect(classes, given, over, is_alone)
    methods = {
        origin: make_method(cls, given, over.get(origin, {}), is_alone, counts_by_itself=not words)
        for origin, cls in classes.items()
    }
    options = with_launched_ranks(given.fields_of(Options))
    if over and options.get("ranks", Options.ranks) > 1:
        raise CoterieError("each run of a search is one process: leave out --ranks and torchrun.")
    if over:
        options = {"valid": VALID, **options}
    return Setup(
        methods=methods,
        general=general,
        options=options,
        spec=spec,
        data=data,
        over=over,
        random=given.make(Searching).random,
    )


def make_parser(command: str, words: list[str], classes: Classes, is_alone: bool) -> Parser:
    """The parser of a command that trains these methods."""
    flags = [*method_flags(classes, is_alone), *general_flags(command)]
    prog = " ".join(["coterie", command, *words])
    if not is_alone:
        return Parser(prog, flags, epilog=DATA_HELP + COMPARE_HELP)
    (cls,) = classes.values()
    return Parser(prog, flags, cls.__doc__ or "", DATA_HELP)


def read_given(parser: Parser, argv: list[str], classes: Classes) -> Given:
    """What the flags and the config file give."""
    flags = parser.parse(argv)
    if "config" not in flags:
        return Given(parser.flags, flags)
    running = {cls.name for cls in classes.values()}
    others = {name.replace("-", "_") for name in registry.methods() if name not in running}
    values = read_config(flags["config"], parser.flags, others)
    return Given(parser.flags, flags, values, flags["config"])
