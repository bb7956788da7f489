"""What an experiment is: a table of runs, as a paper prints it.

    Experiment   its lines × columns × seeds are the cells; each cell is one run, or a few
    Line         a method with its settings
    Column       the data and the model, and what else changes from column to column
    Scale        how much of it is run: "full" is the paper's own setting
    Tuned        a setting that the paper does not print, and what was tried to find it
    Cell         one of them, with everything decided

The experiments themselves stand in catalogue/, a file for each paper.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.core.contract import Algorithm
from coterie.core.errors import unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from reproduction.claims import Claim
    from reproduction.result_table import ResultTable

Options = Mapping[str, Any]
Printed = Mapping[str, Mapping[str, str]]  # by line, by column
OURS = "Ours, beyond the papers"  # in place of a paper
SCALES = ("smoke", "medium", "full")


@dataclass(frozen=True, kw_only=True)
class TableLine:
    """A line of the table: a method with its settings."""

    label: str
    method: Algorithm | None = None  # None: the work knows the line by its label
    data_options: Options = field(default_factory=dict)  # where its data differ from others'
    options: Options = field(default_factory=dict)  # where its runs differ from others'
    tune: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """By setting, the values of which each run takes the best on held-out training rows."""
    keep: tuple[str, ...] = ()  # settings that no column and no scale changes
    in_paper: bool = True


@dataclass(frozen=True, kw_only=True)
class DataColumn:
    """A column of the table: the data, the model, and what else changes from column to column."""

    label: str
    data: str  # as `--data` takes it
    data_options: Options = field(default_factory=dict)
    model: str | None = None
    options: Options = field(default_factory=dict)  # of the runs
    settings: Options = field(default_factory=dict)  # of those methods that have them


@dataclass(frozen=True, kw_only=True)
class TableScale:
    """How much of an experiment is run; what is given here counts over lines and columns."""

    seeds: int
    first_seed: int = 0
    data_options: Options = field(default_factory=dict)
    options: Options = field(default_factory=dict)
    settings: Options = field(default_factory=dict)
    settings_by_model: Mapping[str, Options] = field(default_factory=dict)
    model: str | None = None  # none: the column's
    lines: tuple[str, ...] = ()  # the labels of those that are run; none: all
    columns: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()  # differences from the paper that the options do not show
    nearer: tuple[str, ...] = ()  # settings that are the paper's here, where the lines' own are not


@dataclass(frozen=True, kw_only=True)
class RecordedSearch:
    """A setting that was found by a search, which `python -m reproduction NAME --search` repeats.

    The search has seeds of its own and looks at held-out training rows: no reported test row, and
    no data of a reported seed, has a part in it.
    """

    line: str
    column: str
    over: Mapping[str, tuple[Any, ...]]  # the values that were tried, by setting
    best: Options  # what was found
    taken: str = ""  # what is taken instead, and why; nothing: the best


class Quantity(NamedTuple):
    """What is read off a cell, and how it is printed."""

    name: str  # among a cell's values
    label: str
    digits: int = 2
    factor: float = 1.0  # 100: as percent
    higher_is_better: bool = True


ACCURACY = Quantity("accuracy", "test accuracy, %", 2, 100.0)
WORST = Quantity("worst", "worst tenth of the clients, %", 2, 100.0)
MSE = Quantity("mse", "test MSE", 3, 1.0, higher_is_better=False)


@dataclass(frozen=True)
class Measured:
    """What a cell came to."""

    values: dict[str, float]
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # (round, value)
    extra: dict[str, Any] = field(default_factory=dict)  # what a figure needs beside that


Work = Callable[["TableCell", Path], Measured]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or a figure of a paper, and what it takes to make it again."""

    name: str
    title: str
    paper: str  # whose: authors and year
    where: str  # such as "table 1"
    lines: tuple[TableLine, ...]
    columns: tuple[DataColumn, ...]
    scales: Mapping[str, TableScale]
    work: Work
    quantities: tuple[Quantity, ...]
    printed: Printed = field(default_factory=dict)  # the paper's numbers of the first quantity
    printed_also: Mapping[str, Printed] = field(default_factory=dict)  # of others, by their names
    claims: tuple[Claim, ...] = ()
    open_points: tuple[str, ...] = ()  # what the paper does not say, and what is taken here
    findings: tuple[str, ...] = ()  # what was found out where ours differs
    tuned: tuple[RecordedSearch, ...] = ()  # searches, all of them at one scale
    tuned_at: str = "medium"
    tune_by: str = "loss"  # what the runs of lines with `tune` choose by, on held-out rows
    sections: Mapping[str, Callable[[ResultTable], list[str]]] = field(default_factory=dict)
    """By title, lists that the page makes from the results."""
    figures: Mapping[str, Callable[[ResultTable], Figure]] = field(
        default_factory=dict
    )  # by suffix

    @property
    def is_from_a_paper(self) -> bool:
        """Whether there is a paper to compare with."""
        return self.paper != OURS

    def scale(self, name: str) -> TableScale:
        """The scale of a name."""
        if name not in self.scales:
            raise unknown_name(f"scale of {self.name}", name, self.scales)
        return self.scales[name]

    def quantity(self, name: str = "") -> Quantity:
        """Return the quantity with this name, or the first one."""
        return next(each for each in self.quantities if not name or each.name == name)

    def printed_of(self, quantity: Quantity) -> Printed:
        """The paper's numbers of a quantity."""
        if quantity == self.quantities[0]:
            return self.printed
        return self.printed_also.get(quantity.name, {})

    def line(self, label: str) -> TableLine:
        """The line of a label."""
        return next(line for line in self.lines if line.label == label)

    def column(self, label: str) -> DataColumn:
        """The column of a label."""
        return next(column for column in self.columns if column.label == label)

    def cells(self, scale: str) -> Iterator[TableCell]:
        """Every cell of a scale; seed by seed, so that a stopped table has whole columns first.

        Where the scale names its lines, they are run in that order.
        """
        chosen = self.scale(scale)
        lines = [self.line(label) for label in chosen.lines] or self.lines
        columns = [c for c in self.columns if c.label in (chosen.columns or (c.label,))]
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            for column in columns:
                for line in lines:
                    yield TableCell(self, scale, line, column, seed)


@dataclass(frozen=True)
class TableCell:
    """One line, one column, one seed."""

    experiment: Experiment
    scale_name: str
    line: TableLine
    column: DataColumn
    seed: int

    @property
    def scale(self) -> TableScale:
        """How much is run."""
        return self.experiment.scale(self.scale_name)

    @property
    def data_options(self) -> dict[str, Any]:
        """Options of the data set."""
        return {**self.column.data_options, **self.line.data_options, **self.scale.data_options}

    @property
    def options(self) -> dict[str, Any]:
        """Options of the run: of all lines, of this line, of the scale."""
        return {**self.column.options, **self.line.options, **self.scale.options}

    @property
    def model(self) -> str | None:
        """The model's name; none: the data decide."""
        return self.scale.model or self.column.model

    @property
    def settings_of_scale(self) -> dict[str, Any]:
        """Settings that the scale gives, to all models or to this one."""
        for_model = self.scale.settings_by_model.get(self.model or "", {})
        return {**self.scale.settings, **for_model}

    @property
    def method(self) -> Algorithm:
        """The method, with the settings of the column and the scale that it has."""
        assert self.line.method is not None, f"{self.line.label} is no method"
        asked = {**self.column.settings, **self.settings_of_scale}
        changed = {name: value for name, value in asked.items() if name not in self.line.keep}
        return with_settings(self.line.method, changed)

    @cached_property
    def mark(self) -> str:
        """A hash of all that was decided: a cell that was run under another one is run again."""
        return _hash((self.line.label, self._described_method(), self.column.label, *self._rest()))

    @cached_property
    def work_mark(self) -> str:
        """A hash of what the work depends on.

        Cells of a line that differ in nothing but their column's label have the same one: a method
        without λ is run once for all columns of λ.
        """
        return _hash((self.line.label, self._described_method(), *self._rest()))

    def _rest(self) -> tuple[Any, ...]:
        """What was decided beside the method and the labels."""
        return (
            self.column.data,
            sorted(self.data_options.items()),
            self.model,
            sorted(self.options.items()),
            self.seed,
        )

    def _described_method(self) -> tuple[Any, ...]:
        """The method's name and settings; nothing where the line has none."""
        if self.line.method is None:
            return ()
        settings = asdict(self.method)  # type: ignore[call-overload]
        described = (self.method.name, sorted(settings.items(), key=lambda item: item[0]))
        if not self.line.tune:
            return described
        chosen_by = self.experiment.tune_by
        by = () if chosen_by == "loss" else (chosen_by,)  # only what is not the default
        return (*described, sorted(self.line.tune.items()), *by)

    @property
    def title(self) -> str:
        """How progress calls it."""
        return f"{self.line.label}, {self.column.label}, seed {self.seed}"

    def run(self, folder: Path) -> Measured:
        """Do the work; a run that is stopped goes on in this folder."""
        return self.experiment.work(self, folder)


def with_settings(method: Algorithm, settings: Options) -> Algorithm:
    """The method with those of the settings that it has."""
    known = {f.name for f in fields(method)}  # type: ignore[arg-type]
    own = {name: value for name, value in settings.items() if name in known}
    return replace(method, **own)  # type: ignore[type-var]


def _hash(decided: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr(decided).encode()).hexdigest()[:16]
