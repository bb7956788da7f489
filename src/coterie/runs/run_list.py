"""The runs of a folder: of several, a list is written before any of them is made.

runs.json    every run with its folder and its config

So a command that was killed while it made the folders can go on: those that are missing are made
from the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from coterie.core.errors import CoterieError
from coterie.runs.config import RunConfig, decode_config, encode_readable
from coterie.runs.files import write_text
from coterie.runs.folder import RunFolder, create_folder

LIST = "runs.json"
RESTART = "give the command that began it again, with another folder"


class ListedRun(msgspec.Struct):
    """A run that a command was asked for."""

    folder: str  # below that of the list, with slashes
    config: RunConfig


class RunList(msgspec.Struct):
    """The content of runs.json."""

    runs: list[ListedRun]


def create_run_list(base: Path, runs: Sequence[ListedRun]) -> None:
    """Make a folder with the list of the runs that belong into it."""
    with create_folder(base):
        write_text(base / LIST, encode_readable(RunList(list(runs))))


def read_run_list(base: Path) -> list[ListedRun]:
    """The runs that belong into a folder; none where there is no list."""
    file = base / LIST
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    runs = decode_config(raw, RunList, str(file), RESTART).runs
    for run in runs:
        path = PurePosixPath(run.folder)
        if path.is_absolute() or ".." in path.parts:
            raise CoterieError(f"{file} is damaged (it names a folder outside)", RESTART)
    return runs


def listed_runs(base: Path) -> dict[Path, RunConfig]:
    """By folder, the runs on the lists at or one below a folder, in the order of the lists."""
    planned = {}
    for file in [base / LIST, *sorted(base.glob(f"*/{LIST}"))]:
        for run in read_run_list(file.parent):
            planned[file.parent / run.folder] = run.config
    return planned


def missing_runs(base: Path) -> list[Path]:
    """The folders of runs that are on a list and have not been made."""
    return [folder for folder in listed_runs(base) if not is_run_folder(folder)]


def create_missing_runs(base: Path) -> list[Path]:
    """Make the folders that are still missing; gives those of all runs, in the list's order."""
    planned = listed_runs(base)
    for folder in missing_runs(base):
        RunFolder.create(folder, planned[folder])
    return find_runs(base)


def find_runs(base: Path) -> list[Path]:
    """The run folders at or below a folder, in the order in which they were asked for."""
    if is_run_folder(base):
        return [base]
    files = [file for depth in ("*", "*/*") for file in base.glob(f"{depth}/config.json")]
    files.sort(key=lambda file: (file.stat().st_mtime_ns, file))
    listed = list(listed_runs(base))
    places = [folder for folder in listed if is_run_folder(folder)]
    places += [file.parent for file in files if file.parent not in listed]
    return places or [base]


def is_run_folder(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / "config.json").exists()
