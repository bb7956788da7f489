"""The list of the runs of a command, runs.json: each run's folder and config.

It is written before any run folder, so that a command that was killed while creating folders can
be resumed: missing folders are created from the list.
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
RESTART = "run the command again with another folder"


class ListedRun(msgspec.Struct):
    """A run of a command."""

    folder: str  # relative to the list, with slashes
    config: RunConfig


class RunList(msgspec.Struct):
    """The content of runs.json."""

    runs: list[ListedRun]


def create_run_list(base: Path, runs: Sequence[ListedRun]) -> None:
    """Create a folder with the list of its runs."""
    with create_folder(base):
        write_text(base / LIST, encode_readable(RunList(list(runs))))


def read_run_list(base: Path) -> list[ListedRun]:
    """Read the list in a folder; empty if there is none."""
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
    """Return the listed runs at or one level below a folder, by folder, in order."""
    planned = {}
    for file in [base / LIST, *sorted(base.glob(f"*/{LIST}"))]:
        for run in read_run_list(file.parent):
            planned[file.parent / run.folder] = run.config
    return planned


def missing_runs(base: Path) -> list[Path]:
    """Return the folders of listed runs that do not exist yet."""
    return [folder for folder in listed_runs(base) if not is_run_folder(folder)]


def folders_without_config(base: Path) -> list[Path]:
    """Return the unlisted folders one or two levels below that have metrics, but no config.json."""
    files = [file for depth in ("*", "*/*") for file in base.glob(f"{depth}/metrics.jsonl")]
    listed = listed_runs(base)
    return sorted(
        file.parent
        for file in files
        if not is_run_folder(file.parent) and file.parent not in listed
    )


def create_missing_runs(base: Path) -> list[Path]:
    """Create the missing run folders and return those of all runs, in order."""
    planned = listed_runs(base)
    for folder in missing_runs(base):
        RunFolder.create(folder, planned[folder])
    return find_runs(base)


def find_runs(base: Path) -> list[Path]:
    """Return the run folders at or below a folder, in the order of the command."""
    if is_run_folder(base):
        return [base]
    files = [file for depth in ("*", "*/*") for file in base.glob(f"{depth}/config.json")]
    files.sort(key=lambda file: (file.stat().st_mtime_ns, file))
    listed = list(listed_runs(base))
    places = [folder for folder in listed if is_run_folder(folder)]
    places += [file.parent for file in files if file.parent not in listed]
    return places or [base]


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder is that of a run."""
    return (folder / "config.json").exists()
