"""The flags of `run`, `compare` and `search` that no method has. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.cli.flags import Flag, flags_of
from coterie.core.settings import setting
from coterie.runs.options import Options

VALUES = "NAME=A,B,…"  # what --over and --tune take


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The data of a command."""

    data: str = setting(
        "rotated:digits", "the data set, options after a question mark: rotated:mnist?angles=0,180"
    )
    clients: int | None = setting(None, "number of clients; none: as the data set has it", ge=1)
    samples: int | None = setting(
        None, "training rows per client; none: as the data set has it", ge=1
    )
    label: str | None = setting(None, "the column to predict, in tables")
    client_column: str | None = setting(
        None, "the column that names the client, where one table has all"
    )
    fill: str | None = setting(
        None, "what to put in tables' missing cells; none: refuse them", choices=("mean", "median")
    )
    drop_incomplete: bool | None = setting(
        None, "leave out tables' rows that have no label or no client", switch=True
    )
    min_rows: int | None = setting(
        None, "leave out clients whose tables have fewer rows; none: 1", ge=1
    )
    min_category_count: int | None = setting(
        None,
        "training rows that must have a text of tables' columns, or it counts as other; none: as "
        "the data set has it",
        ge=1,
    )
    unseen: int | None = setting(
        None, "clients kept out of training, to see how newcomers fare; none: 0", ge=0
    )


@dataclass(frozen=True, kw_only=True)
class General(DataSet):
    """Data, model and output of a command."""

    model: str | None = setting(
        None, "mlp, mlp:128,64, softmax, linear, cnn, cnn6 or file.py:Net; none: by the data"
    )
    out: str | None = setting(None, "folder of the run; none: runs/METHOD-DATA-TIME")
    seeds: int = setting(1, "repeat with this many seeds, from --seed on", ge=1)
    config: str | None = setting(
        None, "TOML file with the same keys as the flags, which count over it"
    )
    plan: str | None = setting(None, "CHUNK,WORKERS: clients at once, and threads", hidden=True)
    dry_run: bool = setting(
        False,
        "train nothing; show sizes, bytes per round, memory, plan and form of local steps",
        switch=True,
    )
    strict: bool = setting(
        False, "end with an error where a run diverged, also if only for some clients", switch=True
    )
    json: bool = setting(False, "print one JSON document instead of the table", switch=True)
    quiet: bool = setting(False, "no progress", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


@dataclass(frozen=True, kw_only=True)
class Searching:
    """What `search` tries."""

    over: tuple[str, ...] = setting(
        (), "a setting and values to try; several: all combinations", repeated=VALUES
    )
    random: int | None = setting(
        None, "try this many combinations, drawn by --seed; none: all", ge=1
    )


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What `compare` tries."""

    tune: tuple[str, ...] = setting(
        (),
        "a setting and values that each method which has it chooses among, on the valid rows of "
        "one seed",
        repeated=VALUES,
    )


def general_flags(command: str) -> list[Flag]:
    """All flags of a command that are not settings of a method."""
    flags = flags_of(General, "data, model and output") + flags_of(Options, "the run")
    if command == "search":
        return flags_of(Searching, "what is tried") + flags
    if command == "compare":
        return flags_of(Tuning, "what is tried") + flags
    return flags
