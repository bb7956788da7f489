"""The results of an experiment: a JSON file that a stopped table goes on from."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.version import __version__
from coterie.runs.config import decode, encode
from coterie.runs.files import write_text
from reproduction.spec import Experiment, Measured, TableCell

FORMAT = 1
DIRTY = "-dirty"  # ends a commit with uncommitted changes to the source
SOURCES = ("src/coterie", "reproduction/*.py")  # git pathspecs, from the top of the repository


class CellResult(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One cell that was run."""

    line: str
    column: str
    seed: int
    mark: str  # of all that was decided
    values: dict[str, float | None]  # None: not finite
    curves: dict[str, list[tuple[int, float | None]]]
    extra: dict[str, Any]
    seconds: float
    commit: str
    error: str = ""  # why there are no values


class ResultsFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All cells of an experiment at one scale."""

    format: int
    experiment: str
    scale: str
    cells: list[CellResult]


@dataclass(frozen=True)
class ResultTable:
    """An experiment with what its cells came to so far."""

    experiment: Experiment
    scale: str
    cells: dict[str, CellResult]  # by mark
    path: Path

    @staticmethod
    def open(experiment: Experiment, scale: str, folder: Path) -> ResultTable:
        """What stands in a folder of results; cells that were decided otherwise are left out."""
        path = folder / f"{experiment.name}-{scale}.json"
        wanted = {cell.mark for cell in experiment.cells(scale)}
        found = [] if not path.exists() else read(path, experiment, scale).cells
        return ResultTable(experiment, scale, {c.mark: c for c in found if c.mark in wanted}, path)

    @property
    def missing(self) -> list[TableCell]:
        """The cells that are still to be run."""
        every = self.experiment.cells(self.scale)
        return [cell for cell in every if cell.mark not in self.cells]

    def first_seeds(self, count: int) -> range:
        """So many of the scale's seeds, the first ones."""
        scale = self.experiment.scale(self.scale)
        return range(scale.first_seed, scale.first_seed + min(count, scale.seeds))

    def add(self, cell: TableCell, measured: Measured, seconds: float, error: str = "") -> None:
        """Take in the result of a cell."""
        self.cells[cell.mark] = CellResult(
            line=cell.line.label,
            column=cell.column.label,
            seed=cell.seed,
            mark=cell.mark,
            values={name: finite(value) for name, value in measured.values.items()},
            curves={
                name: [(round, finite(value)) for round, value in points]
                for name, points in measured.curves.items()
            },
            extra=measured.extra,
            seconds=round(seconds, 1),
            commit=commit(),
            error=error,
        )

    def save(self) -> None:
        """Write the file of results."""
        order = [cell.mark for cell in self.experiment.cells(self.scale)]
        done = [self.cells[mark] for mark in order if mark in self.cells]
        head = {"format": FORMAT, "experiment": self.experiment.name, "scale": self.scale}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, one_cell_per_line(head, done))

    # -- reading
    def of(self, line: str, column: str) -> list[CellResult]:
        """The cells of a line and a column, by seed."""
        found = [c for c in self.cells.values() if (c.line, c.column) == (line, column)]
        return sorted(found, key=lambda c: c.seed)

    def values(self, line: str, column: str, quantity: str) -> dict[int, float]:
        """By seed, the value of a quantity; infinite where the run diverged."""
        found = {}
        for cell in self.of(line, column):
            if cell.error or quantity in cell.values:
                value = cell.values.get(quantity)
                found[cell.seed] = np.inf if value is None else value
        return found

    @property
    def lines(self) -> list[str]:
        """The labels of the lines that have a cell, in order."""
        known = {cell.line for cell in self.cells.values()}
        return [line.label for line in self.experiment.lines if line.label in known]

    @property
    def columns(self) -> list[str]:
        """The labels of the columns that have a cell, in order."""
        known = {cell.column for cell in self.cells.values()}
        return [column.label for column in self.experiment.columns if column.label in known]

    @property
    def seeds(self) -> list[int]:
        """The seeds that have a cell."""
        return sorted({cell.seed for cell in self.cells.values()})

    @property
    def seconds(self) -> float:
        """The time of all cells, one after another."""
        return sum(cell.seconds for cell in self.cells.values())

    @property
    def commits(self) -> list[str]:
        """The versions of the source that the cells were run with."""
        return sorted({cell.commit for cell in self.cells.values()})


def one_cell_per_line(head: dict[str, Any], cells: list[CellResult]) -> str:
    """JSON of a `ResultsFile` in which each cell is one line, so that a change shows as such."""
    begin = encode(head).decode().removesuffix("}")
    lines = ",\n".join(encode(cell).decode() for cell in cells)
    return f'{begin},"cells":[\n{lines}\n]}}\n'


def read(path: Path, experiment: Experiment, scale: str) -> ResultsFile:
    """A file of results, checked."""
    remedy = "move it away to run the experiment anew"
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise CoterieError(f"{path} cannot be read ({e.strerror})", remedy) from e
    head = decode(raw, dict[str, msgspec.Raw], str(path), remedy)
    version = decode(head.get("format", msgspec.Raw(b"0")), int, str(path), remedy)
    if version != FORMAT:
        raise CoterieError(f"{path} is of another version of coterie", remedy)
    content = decode(raw, ResultsFile, str(path), remedy)
    if (content.experiment, content.scale) != (experiment.name, scale):
        raise CoterieError(f"{path} holds {content.experiment} at scale {content.scale}", remedy)
    return content


def finite(value: float) -> float | None:
    """The value; None where it is not finite, which JSON cannot hold."""
    return float(value) if np.isfinite(value) else None


@functools.cache
def commit() -> str:
    """Return the commit of the source code, or the version of coterie outside a repository.

    It ends in "-dirty" if tracked source files differ from the commit; results do not count.
    """
    top = Path(__file__).parents[1]
    found = ask_git(top, "rev-parse", "--short", "HEAD")
    changed = ask_git(top, "status", "--porcelain", "--untracked-files=no", *SOURCES)
    if found is None or changed is None:
        return __version__
    return f"{found}{DIRTY}" if changed else found


def ask_git(folder: Path, *words: str) -> str | None:
    """What git says in a folder; None where it has nothing to say."""
    try:
        told = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if told.returncode else told.stdout.strip()


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation over seeds; None with one seed."""
    every = np.array(list(values))
    if len(every) < 2:
        return float(every.mean()), None
    return float(every.mean()), float(every.std(ddof=1))
