"""From the arguments of `run`, `compare` or `search` to methods, data and options.

Flags override the config file, and the file overrides the defaults.
"""

from __future__ import annotations

import datetime
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from inspect import getdoc, signature
from pathlib import Path
from typing import Any, NamedTuple

from coterie.cli.flags import DATA_HELP, Flag, FlagValues, Parser, split_data_options
from coterie.cli.method_flags import (
    Classes,
    Grid,
    find_methods,
    make_method,
    method_flags,
    read_grids,
    refuse_unused_flags,
    with_full_path,
)
from coterie.cli.ranks import with_launched_ranks
from coterie.cli.run_flags import (
    RECOMMENDED,
    SETTLED_OPTIONS,
    TRAINED_UNTIL_SETTLED,
    DataFlags,
    ReferenceFlags,
    RunFlags,
    SearchFlags,
    run_flags,
)
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.toml import read_toml
from coterie.data import makers
from coterie.data.spec import unknown_data_set
from coterie.methods import registry
from coterie.runs.files import write_error
from coterie.runs.options import Options
from coterie.runs.search import VALID

COMPARE_HELP = (
    "\nfor one method only: --METHOD.NAME, such as --ifca.lr 0.05 or --ifca.tune lr=0.1,1"
)
FOR_NETWORKS = ("method", "network")  # keys and tables that only `coterie network` reads
NOT_IN_FILES = {"config", "debug"}  # flags that are no keys of a config file
DATA_FLAGS = [f.name for f in fields(DataFlags) if f.name != "data"]


class Setup(NamedTuple):
    """Everything that `run`, `compare` or `search` is asked to do."""

    methods: dict[str, Algorithm]  # by name, or by file and class with the full path
    flags: RunFlags
    options: dict[str, Any]  # the given fields of `Options`
    spec: str  # of the data set
    data: dict[str, Any]  # options of the data set beside those in the spec
    grids: dict[str, Grid]  # by method, the values to try: of --over or --tune
    random: int | None = None  # number of random combinations to try; None: all
    is_recommended: bool = False  # a comparison without names of methods
    references: bool | None = None  # whether to fit reference models; None: if recommended

    @property
    def ranks(self) -> int:
        """Number of processes that share the clients."""
        ranks: int = self.options.get("ranks", Options.ranks)
        return ranks

    @property
    def seeds(self) -> range:
        """The seeds to run with."""
        first = self.options.get("seed", Options.seed)
        return range(first, first + self.flags.seeds)

    def options_for(self, method: str) -> dict[str, Any]:
        """Return the given options of a method's runs, and those of the recommended comparison."""
        has_own_rounds = bool(self.options.keys() & {*SETTLED_OPTIONS, "stop_after"}) or self.grids
        if self.is_recommended and not has_own_rounds and method in TRAINED_UNTIL_SETTLED:
            return {**SETTLED_OPTIONS, **self.options}
        return self.options

    def data_arguments(self, seed: int) -> dict[str, Any]:
        """Return the arguments of `data.load` that make the data of a seed."""
        return {"spec": self.spec, "seed": seed, **self.data}

    def without_validation_split(self) -> Setup:
        """Return the setup for training with the chosen hyper-parameters, on all training rows.

        The validation split of the search becomes training data, unless early stopping needs it.
        """
        if self.options.get("stop_after") is not None:
            return self
        options = {name: value for name, value in self.options.items() if name != "valid"}
        return self._replace(options=options)

    def planned_runs(self) -> Iterator[tuple[str, str, int]]:
        """Yield (folder, method, seed) of every run, with runs on the same data in sequence.

        Folders are relative to that of the command; "." if there is only one run.
        """
        for seed in self.seeds:
            for name, method in self.methods.items():
                parts = []
                if len(self.methods) > 1 or self.grids:
                    parts.append(method.name)
                if self.flags.seeds > 1:
                    parts.append(f"seed-{seed}")
                yield "/".join(parts) or ".", name, seed

    @property
    def given_folder(self) -> Path | None:
        """The folder of --out, if it is given."""
        if self.flags.out is None:
            return None
        return Path(self.flags.out)

    def folder(self) -> Path:
        """Return the folder for the results: that of --out, or one in runs/, which is created here.

        Commands that start in the same second get different folders.
        """
        if self.given_folder is not None:
            return self.given_folder
        maker, first = split_spec(self.spec)
        names = [method.name for method in self.methods.values()]
        if len(names) > 1:
            names = ["compare"]
        parts = [*names, maker, Path(first).name, time.strftime("%Y%m%d-%H%M%S")]
        return make_new_folder("-".join(filter(None, parts)))


def make_new_folder(name: str) -> Path:
    """Make runs/NAME, or runs/NAME-2 and so on if it exists."""
    for number in itertools.count(1):
        folder = Path("runs") / name
        if number > 1:
            folder = Path("runs") / f"{name}-{number}"
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir(mode=0o700)
            return folder
        except FileExistsError:
            continue
        except OSError as e:
            raise write_error(e, folder) from e
    raise AssertionError("itertools.count does not end")


# ------------------------------------------------------------------------------ reading a command
def read_setup(command: str, names: list[str], argv: list[str]) -> Setup:
    """Read the methods and flags of a command.

    Args:
        command: "run", "compare" or "search".
        names: The methods.
        argv: The flags and their values.

    Raises:
        CoterieError: A method, flag or key is unknown, or a value does not fit.
    """
    is_one_method = command != "compare"  # one method, whose flags need no prefix
    has_groups = any(flag.partition("=")[0] in ("--groups", "--data.groups") for flag in argv)
    is_recommended = command == "compare" and not names
    if is_recommended and has_groups:
        names = [*RECOMMENDED, "given"]
    classes = find_methods(command, names)
    parser = make_parser(command, names, classes, is_one_method)
    data_options, argv = split_data_options(argv)
    given = read_values(parser, argv, classes)

    flags = given.make(RunFlags)
    spec, data = resolve_data(flags.data, collect_data_options(flags, given, data_options))
    if flags.model is not None:
        flags = replace(flags, model=with_full_path(flags.model))

    grids = read_grids(classes, given)
    if command == "search" and not grids:
        raise CoterieError("search needs --over, the values to try, as in --over lr=0.01,0.1,1.")
    refuse_unused_flags(classes, given, grids, is_one_method)
    methods = {
        name: make_method(cls, given, grids.get(name, {}), is_one_method)
        for name, cls in classes.items()
    }
    options = with_launched_ranks(given.fields_of(Options))
    if grids and options.get("ranks", Options.ranks) > 1:
        raise CoterieError("each run of a search is one process: remove --ranks and torchrun.")
    if grids:
        options = {"valid": VALID, **options}
    return Setup(
        methods=methods,
        flags=flags,
        options=options,
        spec=spec,
        data=data,
        grids=grids,
        random=given.make(SearchFlags).random,
        is_recommended=is_recommended,
        references=given.make(ReferenceFlags).references,
    )


def make_parser(command: str, names: list[str], classes: Classes, is_one_method: bool) -> Parser:
    """Make the parser of a command for these methods."""
    flags = [*method_flags(classes, is_one_method), *run_flags(command)]
    prog = " ".join(["coterie", command, *names])
    if not is_one_method:
        return Parser(prog, flags, epilog=DATA_HELP + COMPARE_HELP)
    (cls,) = classes.values()
    summary = re.split(r"\n(?:Args|Example):", getdoc(cls) or "")[0].rstrip()
    return Parser(prog, flags, summary, DATA_HELP)


def read_values(parser: Parser, argv: list[str], classes: Classes) -> FlagValues:
    """Read the flags and the config file of a command."""
    flags = parser.parse(argv)
    if "config" not in flags:
        return FlagValues(parser.flags, flags)
    running = {cls.name for cls in classes.values()}
    others = {name.replace("-", "_") for name in registry.methods() if name not in running}
    values = read_config(flags["config"], parser.flags, others)
    return FlagValues(parser.flags, flags, values, flags["config"])


# ------------------------------------------------------------------------------ the config file
def read_config(path: str, known: Mapping[str, Flag], other_methods: set[str]) -> dict[str, Any]:
    """Read a TOML file whose keys are those of the flags.

    Args:
        path: The file.
        known: The flags of the command by key.
        other_methods: Methods that the command does not run; their tables are ignored.

    Returns:
        The values by key: "lr", "ifca.lr", "data.angles".
    """
    values: dict[str, Any] = {}
    for key, value in flatten_toml(read_toml(path)):
        if key.partition(".")[0] in {*other_methods, *FOR_NETWORKS}:
            continue
        is_known = key in known and key not in NOT_IN_FILES
        if not is_known and not key.startswith("data."):  # `data.load` checks its own options
            shown = {name for name, flag in known.items() if flag.shown}
            raise unknown_name(f"key in {path}", key, shown - NOT_IN_FILES)
        check_plain_value(path, key, value)
        if key in values:  # to TOML, local-steps and local_steps are different keys
            raise CoterieError(f"{key} occurs twice in {path}", "remove one of them")
        values[key] = value
    return values


def flatten_toml(tables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield values by "key" and "table.key", with underscores; `spec` of [data] becomes "data"."""
    for name, value in tables.items():
        if not isinstance(value, dict):
            yield name.replace("-", "_"), value
            continue
        for inner_name, inner_value in value.items():
            key = f"{name}.{inner_name}".replace("-", "_")
            if key == "data.spec":
                key = "data"
            yield key, inner_value


def check_plain_value(path: str, key: str, value: Any) -> None:
    """Refuse tables, dates and nested lists."""
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if isinstance(part, dict | list):
            raise CoterieError(f"{key} in {path} is a table or a nested list", "give plain values")
        if isinstance(part, datetime.date | datetime.time):
            raise CoterieError(f"{key} in {path} is a date or a time", f'write "{part}"')


# ------------------------------------------------------------------------------ the data set
def collect_data_options(
    flags: DataFlags, given: FlagValues, data_options: dict[str, str]
) -> dict[str, Any]:
    """Return the options of the data set; flags override the file, --data.NAME overrides --NAME."""
    values = {name: getattr(flags, name) for name in DATA_FLAGS}
    options = {name: value for name, value in values.items() if value is not None}
    from_flags = {name: value for name, value in options.items() if name in given.flags}
    for key, value in given.file.items():
        if key.startswith("data."):
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            options[key.removeprefix("data.")] = text
    options |= {**from_flags, **data_options}
    # an option of the run and of table data: pass it to both
    shared = "min_rows_to_report"
    if given.has(shared) and shared in maker_parameters(flags.data):
        options.setdefault(shared, given.get(shared))
    return options


def split_spec(spec: str) -> tuple[str, str]:
    """Return the name of a data set and its first argument: "rotated", "digits"."""
    name, _, first = spec.partition("?")[0].partition(":")
    return name, first


def maker_parameters(spec: str) -> list[str]:
    """Return the parameters of the function that makes a data set; [] if there is no such set."""
    name, _ = split_spec(spec)
    known = makers()
    if name not in known:
        return []
    return list(signature(known[name][0]).parameters)


def resolve_data(spec: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return spec and options of a data set so that a run can be resumed from anywhere.

    Paths become absolute. A seed among the options moves into the spec, where it overrides that of
    the run.
    """
    name, first = split_spec(spec)
    if name not in makers():
        raise unknown_data_set(spec)
    head, _, query = spec.partition("?")
    if first and maker_parameters(spec)[0] == "path":
        head = f"{name}:{full_path(first)}"
    options = dict(options)
    if "path" in options:
        options["path"] = full_path(str(options["path"]))
    if str(options.get("groups", "")).lower().endswith(".csv"):
        options["groups"] = full_path(str(options["groups"]))
    queries = [query]
    if "seed" in options:
        queries.append(f"seed={options.pop('seed')}")
    query = "&".join(filter(None, queries))
    if not query:
        return head, options
    return f"{head}?{query}", options


def full_path(path: str) -> str:
    """Return an absolute path; ~ is expanded, which no shell does within folder:~/sites."""
    return os.path.abspath(os.path.expanduser(path))
