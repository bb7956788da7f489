"""The results of an experiment: a JSON file from which a stopped table continues."""

from __future__ import annotations

import functools
import subprocess
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
    """The result of one cell, as the file has it."""

    line: str
    column: str
    seed: int
    mark: str  # `TableCell.mark`
    values: dict[str, float | None]  # None: not finite
    curves: dict[str, list[tuple[int, float | None]]]
    extra: dict[str, Any]
    seconds: float
    commit: str
    error: str = ""  # why there are no values


class ResultsFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The results of an experiment at one scale, as the file has them."""

    format: int
    experiment: str
    scale: str
    cells: list[CellResult]


@dataclass(frozen=True)
class ResultTable:
    """An experiment at one scale with the results of its finished cells.

    Attributes:
        experiment: The experiment.
        scale: Name of the scale.
        cells: By mark, the results.
        path: The JSON file.
    """

    experiment: Experiment
    scale: str
    cells: dict[str, CellResult]
    path: Path

    @staticmethod
    def open(experiment: Experiment, scale: str, folder: Path) -> ResultTable:
        """Read the results in a folder; cells with another configuration are ignored."""
        path = folder / f"{experiment.name}-{scale}.json"
        marks = {cell.mark for cell in experiment.cells(scale)}
        found = _read(path, experiment, scale).cells if path.exists() else []
        return ResultTable(experiment, scale, {c.mark: c for c in found if c.mark in marks}, path)

    @property
    def missing(self) -> list[TableCell]:
        """The cells that have no result yet."""
        every = self.experiment.cells(self.scale)
        return [cell for cell in every if cell.mark not in self.cells]

    def first_seeds(self, count: int) -> range:
        """Return the first seeds of the scale, at most as many as it has."""
        scale = self.experiment.scale(self.scale)
        return range(scale.first_seed, scale.first_seed + min(count, scale.seeds))

    def add(self, cell: TableCell, measured: Measured, seconds: float, error: str = "") -> None:
        """Add the result of a cell."""
        self.cells[cell.mark] = CellResult(
            line=cell.line.label,
            column=cell.column.label,
            seed=cell.seed,
            mark=cell.mark,
            values={name: _finite(value) for name, value in measured.values.items()},
            curves={
                name: [(round, _finite(value)) for round, value in points]
                for name, points in measured.curves.items()
            },
            extra=measured.extra,
            seconds=round(seconds, 1),
            commit=commit(),
            error=error,
        )

    def save(self) -> None:
        """Write the file, one cell per line, so that a diff shows the changed cells."""
        order = [cell.mark for cell in self.experiment.cells(self.scale)]
        done = [encode(self.cells[mark]).decode() for mark in order if mark in self.cells]
        head = {"format": FORMAT, "experiment": self.experiment.name, "scale": self.scale}
        begin = encode(head).decode().removesuffix("}")
        lines = ",\n".join(done)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, f'{begin},"cells":[\n{lines}\n]}}\n')

    def of(self, line: str, column: str) -> list[CellResult]:
        """Return the results of a line and a column, by seed."""
        found = [c for c in self.cells.values() if (c.line, c.column) == (line, column)]
        return sorted(found, key=lambda c: c.seed)

    def values(self, line: str, column: str, quantity: str) -> dict[int, float]:
        """Return, by seed, the value of a quantity; ∞ if the run diverged."""
        found = {}
        for cell in self.of(line, column):
            if cell.error or quantity in cell.values:
                value = cell.values.get(quantity)
                found[cell.seed] = np.inf if value is None else value
        return found

    @property
    def lines(self) -> list[str]:
        """Labels of the lines that have a result, in the order of the table."""
        known = {cell.line for cell in self.cells.values()}
        return [line.label for line in self.experiment.lines if line.label in known]

    @property
    def columns(self) -> list[str]:
        """Labels of the columns that have a result, in the order of the table."""
        known = {cell.column for cell in self.cells.values()}
        return [column.label for column in self.experiment.columns if column.label in known]

    @property
    def seeds(self) -> list[int]:
        """The seeds that have a result."""
        return sorted({cell.seed for cell in self.cells.values()})


def _read(path: Path, experiment: Experiment, scale: str) -> ResultsFile:
    """Read and check a file of results."""
    remedy = "move it away to run the experiment from the start"
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise CoterieError(f"{path} cannot be read ({e.strerror})", remedy) from e
    head = decode(raw, dict[str, msgspec.Raw], str(path), remedy)
    version = decode(head.get("format", msgspec.Raw(b"0")), int, str(path), remedy)
    if version != FORMAT:
        raise CoterieError(f"{path} was written by another version of coterie", remedy)
    content = decode(raw, ResultsFile, str(path), remedy)
    if (content.experiment, content.scale) != (experiment.name, scale):
        raise CoterieError(f"{path} holds {content.experiment} at scale {content.scale}", remedy)
    return content


def _finite(value: float) -> float | None:
    """Return the value, or None if it is not finite, which JSON cannot represent."""
    return float(value) if np.isfinite(value) else None


@functools.cache
def commit() -> str:
    """Return the commit of the source code, or the version of coterie outside a repository.

    It ends in "-dirty" if tracked source files differ from the commit; results do not count.
    """
    top = Path(__file__).parents[1]
    found = _ask_git(top, "rev-parse", "--short", "HEAD")
    changed = _ask_git(top, "status", "--porcelain", "--untracked-files=no", *SOURCES)
    if found is None or changed is None:
        return __version__
    return f"{found}{DIRTY}" if changed else found


def _ask_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git in a folder; None if it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()
