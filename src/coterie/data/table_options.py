"""The options of all functions that read tables, defined once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import ParamSpec, TypedDict, TypeVar, get_type_hints

from coterie.core.errors import CoterieError, Option
from coterie.data.merging import ColumnChoice
from coterie.data.roster import Kind, TableKind
from coterie.data.schema import MIN_CATEGORY_COUNT, Fill

P = ParamSpec("P")
R = TypeVar("R")
Names = tuple[str, ...] | Sequence[str]  # of columns; one name is accepted, too


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How clients' tables become a federation.

    Attributes:
        label: The column to predict. Text, booleans and at most 20 different whole numbers are
            classes; other numbers are regression targets, which are not standardised.
        client_column: The column that names the client, in one table of all clients.
        test_share: Share of each client's rows that is held out as its test split.
        seed: Seed of the random test split and of the choice of unseen clients.
        unseen: Number of clients, drawn at random, that never train.
        kind: "classification" or "regression", if the label is not what it looks like.
        fill: What replaces missing cells: the "mean" or "median" over all clients. None: tables
            with missing cells are rejected.
        drop: Columns that are not features.
        categories: Columns that are read as text whatever they contain.
        split_column: A column that assigns each row to the train, validation or test split.
        time_column: A column of numbers or dates: the last rows become the test split.
        min_category_count: A category with fewer training rows, over all clients, is encoded as
            "other", so that no rare text appears in a schema.
        min_rows_to_report: A client with fewer training rows, or a column with fewer cells,
            contributes no statistics; its rows are encoded with the statistics of the others.
        min_rows: Clients with fewer rows are dropped.
        drop_incomplete: Drop rows without a label or a client, instead of rejecting the table.
        columns: Which columns to use if those of the clients differ: the "union", in which a column
            counts as missing at clients that lack it and gets an indicator, or the "common" ones.
            None: such tables are rejected.
        groups: A column that names the group of a client, the same in all its rows, or a CSV file
            of clients and their groups. The method `given` trains a model for each, and found
            groups are compared with them.
    """

    label: str
    client_column: str | None = None
    test_share: float = 0.25
    seed: int = 0
    unseen: int = 0
    kind: Kind | None = None
    fill: Fill | None = None
    drop: Names = ()
    categories: Names = ()
    split_column: str | None = None
    time_column: str | None = None
    min_category_count: int = MIN_CATEGORY_COUNT
    min_rows_to_report: int = 1
    min_rows: int = 1
    drop_incomplete: bool = False
    columns: ColumnChoice | None = None
    groups: str | None = None

    def __post_init__(self) -> None:
        for name in ("drop", "categories"):
            object.__setattr__(self, name, as_names(getattr(self, name)))
        for name in ("min_category_count", "min_rows_to_report", "min_rows"):
            value = getattr(self, name)
            if value < 1:
                raise CoterieError(
                    f"{name} is {value}, below 1",
                    "give {}",
                    options=[Option(name, "5", of_data=True)],
                )

    @property
    def table_kind(self) -> TableKind | None:
        """The kind of task, which must be one that a table can have."""
        if self.kind not in (None, "classification", "regression"):
            raise CoterieError(
                f"the kind of task is {self.kind}, and a table has one label per row",
                "give {}",
                options=[Option("kind", "classification", of_data=True)],
            )
        return self.kind

    @property
    def group_column(self) -> str | None:
        """The column that names the group of a client; None if a file does, or nothing."""
        if self.groups is None or self.groups.lower().endswith(".csv"):
            return None
        return self.groups

    @property
    def ignored_columns(self) -> tuple[str, ...]:
        """The columns that are neither features nor the label, each once."""
        named = (self.client_column, self.split_column, self.time_column, self.group_column)
        return tuple(dict.fromkeys([*self.drop, *filter(None, named)]))


class TableKeywords(TypedDict, total=False):
    """`TableOptions` as keyword arguments, for tables whose clients are known."""

    test_share: float
    seed: int
    unseen: int
    kind: Kind | None
    fill: Fill | None
    drop: Names
    categories: Names
    split_column: str | None
    time_column: str | None
    min_category_count: int
    min_rows_to_report: int
    min_rows: int
    drop_incomplete: bool
    columns: ColumnChoice | None
    groups: str | None


class HubKeywords(TypedDict, total=False):
    """`TableOptions` as keyword arguments, for Hugging Face data sets."""

    test_share: float
    seed: int
    unseen: int
    kind: Kind | None
    fill: Fill | None
    drop: Names
    categories: Names
    min_category_count: int
    min_rows_to_report: int
    drop_incomplete: bool


def show_table_options(keywords: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Replace `**options` in the signature of a function by these keywords, with their defaults.

    So `help`, the docs and data specs know each option of a function that passes them on.
    """
    kinds = get_type_hints(keywords)
    defaults = {field.name: field.default for field in fields(TableOptions)}
    named = inspect.Parameter.KEYWORD_ONLY
    shown = [
        inspect.Parameter(name, named, default=defaults[name], annotation=kind)
        for name, kind in kinds.items()
    ]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.name != "options"]
        changed = signature.replace(parameters=[*own, *shown])
        function.__signature__ = changed  # type: ignore[attr-defined]
        function.__annotations__ = {**function.__annotations__, **kinds}
        del function.__annotations__["options"]
        return function

    return decorate


def as_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one name, several or none as a tuple."""
    if isinstance(names, str):
        return (names,)
    return tuple(names or ())
