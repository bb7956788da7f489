"""What an experiment is: a table of runs, as a paper prints it.

    Experiment       lines × columns × seeds are its cells; each cell is one run, or a few
    TableLine        a method with its hyper-parameters
    DataColumn       the data and the model, and what else differs between columns
    TableScale       how much is run; "full" is the paper's own setting
    RecordedSearch   a hyper-parameter that the paper does not print, and the values that were tried
    TableCell        one line, one column, one seed

The experiments are in catalogue/, one module per paper.
"""

from __future__ import annotations

import hashlib
import re
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


# Settings of methods when the first results were recorded; they are always part of a cell's mark.
# Later settings are part of it only if they differ from their defaults, so that recorded results
# remain those of their cells when methods get new settings.
FIRST_SETTINGS = re.findall(
    r"\w+",
    """
    adaptive alpha auto_by average batch beta clip cluster_by clusters conditions decay delta
    distance divide eps1 eps2 evaluate every finetune floor fresh gamma group_start heur_rounds
    inexact init inner inner_lr join_steps keep_solver l2 l2_in_choice lam linkage local_epochs
    local_steps lr metric mixing momentum momentum_of moves mu objective order outer own p
    patience pull quantile recheck relative replace resample restart restarts rho sample select
    share sketch_size solve_steps solver start_from start_steps stragglers threshold trial wait
    warm weighted
    """,
)


@dataclass(frozen=True, kw_only=True)
class TableLine:
    """A line of the table: a method with its hyper-parameters.

    Attributes:
        label: Name in the table.
        method: The method; None: the experiment's work recognises the line by its label.
        data_options: Options of the data, if they differ from those of other lines.
        options: Options of the runs, if they differ from those of other lines.
        tune: By hyper-parameter, values of which each run takes the best on held-out training rows.
        keep: Hyper-parameters that no column and no scale changes.
        in_paper: Whether the paper has this line.
    """

    label: str
    method: Algorithm | None = None
    data_options: Options = field(default_factory=dict)
    options: Options = field(default_factory=dict)
    tune: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    in_paper: bool = True


@dataclass(frozen=True, kw_only=True)
class DataColumn:
    """A column of the table: the data and the model.

    Attributes:
        label: Name in the table.
        data: The data set, as `coterie run --data` takes it.
        data_options: Options of the data set.
        model: Name of the model; None: the default for the data.
        options: Options of the runs.
        settings: Hyper-parameters of the methods that have them.
    """

    label: str
    data: str
    data_options: Options = field(default_factory=dict)
    model: str | None = None
    options: Options = field(default_factory=dict)
    settings: Options = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TableScale:
    """How much of an experiment is run. Its options override those of lines and columns.

    Attributes:
        seeds: Number of seeds.
        first_seed: The first seed; the others follow.
        data_options: Options of the data sets.
        options: Options of the runs.
        settings: Hyper-parameters of the methods that have them.
        settings_by_model: The same for one model, by its name.
        model: Name of the model; None: the column's.
        lines: Labels of the lines to run, in this order; (): all.
        columns: Labels of the columns to run; (): all.
        remarks: Differences from the paper that the options do not show.
        nearer: Hyper-parameters that this scale sets to the paper's value, unlike the lines.
    """

    seeds: int
    first_seed: int = 0
    data_options: Options = field(default_factory=dict)
    options: Options = field(default_factory=dict)
    settings: Options = field(default_factory=dict)
    settings_by_model: Mapping[str, Options] = field(default_factory=dict)
    model: str | None = None
    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    nearer: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordedSearch:
    """A hyper-parameter search, which `python -m reproduction NAME --search` repeats.

    It has its own seeds and uses held-out training rows only: it sees no test row and no data of a
    reported seed.

    Attributes:
        line: Label of the line.
        column: Label of the column.
        over: By hyper-parameter, the values that were tried.
        best: The best values.
        taken: What is used instead, and why; "": the best values.
    """

    line: str
    column: str
    over: Mapping[str, tuple[Any, ...]]
    best: Options
    taken: str = ""


class Quantity(NamedTuple):
    """A number of each cell, and how it is printed."""

    name: str  # key in `Measured.values`
    label: str
    digits: int = 2
    factor: float = 1.0  # 100: percent
    higher_is_better: bool = True


ACCURACY = Quantity("accuracy", "test accuracy, %", 2, 100.0)
WORST = Quantity("worst", "worst tenth of the clients, %", 2, 100.0)


@dataclass(frozen=True)
class Measured:
    """The result of a cell.

    Attributes:
        values: By name, the numbers of the table.
        curves: By metric, pairs of (round, value).
        extra: JSON data that figures and lists need.
    """

    values: dict[str, float]
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


Work = Callable[["TableCell", Path], Measured]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper and everything that is needed to reproduce it.

    Attributes:
        name: Name on the command line.
        title: Title of the page.
        paper: Authors and year, or `OURS`.
        where: Place in the paper, for example "table 1".
        lines: The lines.
        columns: The columns.
        scales: By name, the scales.
        work: Runs one cell.
        quantities: The quantities, one table each; the first is the main one.
        printed: The paper's numbers of the first quantity.
        printed_also: By name of the quantity, the paper's numbers of others.
        claims: What should hold.
        open_points: What the paper does not say, and what we chose.
        findings: What our results show.
        tuned: Hyper-parameter searches, all at the scale `tuned_at`.
        tuned_at: Scale of the searches.
        tune_by: Metric by which lines with `tune` choose, on held-out training rows.
        sections: By title, functions that return the items of a list for the page.
        figures: By suffix of the file name, functions that draw a figure.
    """

    name: str
    title: str
    paper: str
    where: str
    lines: tuple[TableLine, ...]
    columns: tuple[DataColumn, ...]
    scales: Mapping[str, TableScale]
    work: Work
    quantities: tuple[Quantity, ...]
    printed: Printed = field(default_factory=dict)
    printed_also: Mapping[str, Printed] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    open_points: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    tuned: tuple[RecordedSearch, ...] = ()
    tuned_at: str = "medium"
    tune_by: str = "loss"
    sections: Mapping[str, Callable[[ResultTable], list[str]]] = field(default_factory=dict)
    figures: Mapping[str, Callable[[ResultTable], Figure]] = field(default_factory=dict)

    def scale(self, name: str) -> TableScale:
        """Return the scale with this name."""
        if name not in self.scales:
            raise unknown_name(f"scale of {self.name}", name, self.scales)
        return self.scales[name]

    def quantity(self, name: str = "") -> Quantity:
        """Return the quantity with this name, or the first one."""
        return next(each for each in self.quantities if not name or each.name == name)

    def printed_of(self, quantity: Quantity) -> Printed:
        """Return the paper's numbers of a quantity."""
        if quantity == self.quantities[0]:
            return self.printed
        return self.printed_also.get(quantity.name, {})

    def line(self, label: str) -> TableLine:
        """Return the line with this label."""
        return next(line for line in self.lines if line.label == label)

    def column(self, label: str) -> DataColumn:
        """Return the column with this label."""
        return next(column for column in self.columns if column.label == label)

    def cells(self, scale: str) -> Iterator[TableCell]:
        """Iterate over the cells of a scale, seed by seed: a stopped table has whole seeds."""
        chosen = self.scale(scale)
        lines = [self.line(label) for label in chosen.lines] or self.lines
        columns = [c for c in self.columns if c.label in (chosen.columns or (c.label,))]
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            for column in columns:
                for line in lines:
                    yield TableCell(self, scale, line, column, seed)


@dataclass(frozen=True)
class TableCell:
    """One line, one column, one seed of an experiment at one scale."""

    experiment: Experiment
    scale_name: str
    line: TableLine
    column: DataColumn
    seed: int

    @property
    def scale(self) -> TableScale:
        """The scale."""
        return self.experiment.scale(self.scale_name)

    @property
    def data_options(self) -> dict[str, Any]:
        """Options of the data set."""
        return {**self.column.data_options, **self.line.data_options, **self.scale.data_options}

    @property
    def options(self) -> dict[str, Any]:
        """Options of the run."""
        return {**self.column.options, **self.line.options, **self.scale.options}

    @property
    def model(self) -> str | None:
        """Name of the model; None: the default for the data."""
        return self.scale.model or self.column.model

    @property
    def settings_of_scale(self) -> dict[str, Any]:
        """Hyper-parameters that the scale sets, for all models or for this one."""
        for_model = self.scale.settings_by_model.get(self.model or "", {})
        return {**self.scale.settings, **for_model}

    @property
    def method(self) -> Algorithm:
        """The method with the hyper-parameters of the column and the scale."""
        assert self.line.method is not None, f"{self.line.label} is no method"
        given = {**self.column.settings, **self.settings_of_scale}
        changed = {name: value for name, value in given.items() if name not in self.line.keep}
        return with_settings(self.line.method, changed)

    @cached_property
    def mark(self) -> str:
        """Hash of the complete configuration; it identifies the cell in files of results."""
        return _hash((self.line.label, self._describe_method(), self.column.label, *self._rest()))

    @cached_property
    def work_mark(self) -> str:
        """Hash of what the work depends on.

        Cells that differ only in the label of their column have the same one: a method without λ is
        run once for all columns of λ.
        """
        return _hash((self.line.label, self._describe_method(), *self._rest()))

    def _rest(self) -> tuple[Any, ...]:
        return (
            self.column.data,
            sorted(self.data_options.items()),
            self.model,
            sorted(self.options.items()),
            self.seed,
        )

    def _describe_method(self) -> tuple[Any, ...]:
        if self.line.method is None:
            return ()
        settings = asdict(self.method)  # type: ignore[call-overload]
        for f in fields(self.method):  # type: ignore[arg-type]
            if f.name not in FIRST_SETTINGS and settings[f.name] == f.default:
                del settings[f.name]
        described = (self.method.name, sorted(settings.items(), key=lambda item: item[0]))
        if not self.line.tune:
            return described
        metric = self.experiment.tune_by
        by = () if metric == "loss" else (metric,)  # the default is not part of older marks
        return (*described, sorted(self.line.tune.items()), *by)

    @property
    def title(self) -> str:
        """Name in progress messages."""
        return f"{self.line.label}, {self.column.label}, seed {self.seed}"

    def run(self, folder: Path) -> Measured:
        """Run the cell; a stopped run continues from its checkpoints in this folder."""
        return self.experiment.work(self, folder)


def with_settings(method: Algorithm, settings: Options) -> Algorithm:
    """Return the method with those of the hyper-parameters that it has."""
    known = {f.name for f in fields(method)}  # type: ignore[arg-type]
    own = {name: value for name, value in settings.items() if name in known}
    return replace(method, **own)  # type: ignore[type-var]


def _hash(configuration: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr(configuration).encode()).hexdigest()[:16]
