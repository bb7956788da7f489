"""Flags that several commands share: data, model, output, the run, and the user's own code.

The options of a run are those of `coterie.runs.options`; each method adds its hyper-parameters
(`coterie.cli.method_flags`). Nothing here loads torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.cli.flags import Flag, flags_of
from coterie.core.settings import setting
from coterie.runs.options import Options

# the methods of `compare` without names
RECOMMENDED = ("mixed", "fedavg", "fedavg-ft", "local", "ifca")
ONLY_IF_APPLICABLE = ("mixed",)  # left out, with a log line, on data that they cannot use
# `compare` without names trains its baselines, one model for all or for each given group, until
# they stop improving. At 1e-3 the error of fedavg is within 0.1 % of
# that after 400 rounds on five tables.
TRAINED_UNTIL_SETTLED = ("fedavg", "fedavg-ft", "given")
SETTLED_OPTIONS = {"rounds": 200, "stop_when_settled": 1e-3}
VALUES = "NAME=A,B,…"  # metavar of --over and --tune


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """Flags of commands that open a run whose method or model is in a Python file of the user."""

    model: str | None = setting(None, "file.py:Net, if the model is in a file of your own")
    trust: tuple[str, ...] = setting(
        (), "hashes of your own Python files that the run names and may execute"
    )

    def load_model(self) -> Any:
        """Return the model of --model, or None."""
        return load_model(self.model)


def load_model(name: str | None) -> Any:
    """Return a model by name, or the factory in a file of the user; None for None."""
    if name is None:
        return None
    from coterie.methods import registry

    return registry.model(name)


# ------------------------------------------------------------------------------ run and others
@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """The data set of a command."""

    data: str = setting(
        "rotated:digits",
        "the data set, options after a question mark: rotated:mnist?angles=0,180",
    )
    clients: int | None = setting(None, "number of clients; none: depends on the data set", ge=1)
    samples: int | None = setting(
        None, "training rows per client; none: depends on the data set", ge=1
    )
    label: str | None = setting(None, "the column of tables to predict")
    client_column: str | None = setting(
        None, "the column that names the client, if one table has all clients"
    )
    fill: str | None = setting(
        None, "fill missing cells of tables; none: refuse them", choices=("mean", "median")
    )
    columns: str | None = setting(
        None,
        "if the columns of tables differ: take the union, or the common ones; none: refuse them",
        choices=("union", "common"),
    )
    groups: str | None = setting(
        None,
        "groups of clients, for the method given and to compare found groups with: a column of the "
        "tables, or a CSV file of clients and groups",
    )
    drop_incomplete: bool | None = setting(
        None, "drop rows of tables that have no label or no client", switch=True
    )
    min_rows: int | None = setting(None, "drop clients whose tables have fewer rows; none: 1", ge=1)
    min_category_count: int | None = setting(
        None,
        "a category of a table with fewer training rows becomes 'other'; none: depends on the "
        "data set",
        ge=1,
    )
    unseen: int | None = setting(
        None, "number of clients kept out of training, to measure new clients; none: 0", ge=0
    )


@dataclass(frozen=True, kw_only=True)
class RunFlags(DataFlags):
    """Data, model and output of `run`, `compare` and `search`."""

    model: str | None = setting(
        None,
        "mlp, mlp:128,64, softmax, linear, cnn, cnn6 or file.py:Net; none: by the kind of data",
    )
    out: str | None = setting(None, "folder for the results; none: runs/METHOD-DATA-TIME")
    seeds: int = setting(1, "number of seeds, starting at --seed", ge=1)
    config: str | None = setting(
        None, "TOML file with the same keys as the flags; flags override it"
    )
    plan: str | None = setting(None, "CHUNK,WORKERS: clients per batch, and threads", hidden=True)
    dry_run: bool = setting(
        False,
        "do not train; show sizes, bytes per round, memory, plan and kind of local steps",
        switch=True,
    )
    strict: bool = setting(False, "fail if a run diverges, even for some clients only", switch=True)
    json: bool = setting(False, "print one JSON document instead of the table", switch=True)
    quiet: bool = setting(False, "no progress", switch=True)


@dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """The hyper-parameters that `search` tries."""

    over: tuple[str, ...] = setting(
        (), "a hyper-parameter and values to try; several: all combinations", repeated=VALUES
    )
    random: int | None = setting(None, "try this many random combinations; none: all", ge=1)


@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    """The hyper-parameters that `compare` tries."""

    tune: tuple[str, ...] = setting(
        (),
        "a hyper-parameter and values; each method that has it uses the best on a validation "
        "split, with one seed",
        repeated=VALUES,
    )


@dataclass(frozen=True, kw_only=True)
class ReferenceFlags:
    """The models that `compare` shows beside its methods."""

    references: bool | None = setting(
        None,
        "fit reference models with all rows in one place: ridge or logistic regression, gradient "
        "boosting, a linear mixed model; none: for tables, if no methods are named",
    )


def run_flags(command: str) -> list[Flag]:
    """Return the flags of `run`, `compare` or `search` without the methods' hyper-parameters."""
    flags = flags_of(RunFlags, "data, model and output") + flags_of(Options, "the run")
    if command == "search":
        return flags_of(SearchFlags, "values to try") + flags
    if command == "compare":
        flags += flags_of(ReferenceFlags, "the comparison")
        return flags_of(TuneFlags, "values to try") + flags
    return flags
