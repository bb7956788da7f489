"""What each method was asked for, and what the runs and the page were made with."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from coterie.core.version import __version__
from coterie.data.paths import shorten_word
from coterie.reporting.comparison import Methods
from coterie.reporting.notes import format_value
from coterie.reporting.source import Source
from coterie.reporting.text import NOTHING, TextTable


class Settings(NamedTuple):
    """Everything that one method was asked for."""

    label: str
    values: list[tuple[str, str]]  # (setting, value), as text


class Provenance(NamedTuple):
    """How runs and page were made."""

    commands: list[str]  # as they were typed; empty where all runs were started from Python
    versions: list[tuple[str, str]]  # (part, version)


def settings(label: str, runs: Sequence[Source]) -> Settings:
    """Collect what the runs of one method were asked for."""
    config = runs[0].config
    values = [
        ("data", str(config["data"])),
        ("model", str(config["model"])),
        ("seeds", ", ".join(str(run.seed) for run in runs)),
    ]
    for name, value in {**config["method"]["settings"], **config["options"]}.items():
        if name == "seed":
            continue
        text = NOTHING
        if value is not None:
            text = format_value(value)
        values.append((name.replace("_", " "), text))
    return Settings(label, values)


def provenance(methods: Methods) -> Provenance:
    """Collect the commands behind the runs, and the versions in use."""
    configs = [run.config for runs in methods.values() for run in runs]
    commands = {format_command(c["command"]) for c in configs if c.get("command")}
    versions = {c.get("coterie", "unknown") for c in configs}
    return Provenance(
        sorted(commands),
        [
            ("coterie, of the runs", ", ".join(sorted(versions))),
            ("coterie, of this page", __version__),
            ("Python", platform.python_version()),
            *((name, version(name)) for name in ("torch", "numpy")),
        ],
    )


def format_command(words: Sequence[str]) -> str:
    """Write a command as it was typed, without the folders of the program and of its files."""
    program = Path(words[0]).name
    start = ["python", program]
    if program in ("coterie", "__main__.py"):
        start = ["coterie"]
    return shlex.join([*start, *map(shorten_word, words[1:])])


def settings_table(result: Settings) -> TextTable:
    """Lay out one row per setting."""
    return TextTable(["setting", "value"], [list(pair) for pair in result.values])


def versions_table(result: Provenance) -> TextTable:
    """Lay out one row for each part that the page was made with."""
    return TextTable(["part", "version"], [list(pair) for pair in result.versions])
