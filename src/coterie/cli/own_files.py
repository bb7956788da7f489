"""Flags for runs whose method or model is in a Python file of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.settings import setting
from coterie.core.user_file import DIGITS
from coterie.methods import registry
from coterie.runs.folder import RunFolder
from coterie.runs.run_list import find_runs, is_run_folder


@dataclass(frozen=True, kw_only=True)
class OwnFiles:
    """How a command that opens a run is told that a user's own Python file may be run."""

    model: str | None = setting(None, "file.py:Net, where the model is one of your own")
    trust: tuple[str, ...] = setting(
        (), "hashes of your own Python files that the run names and that may be run"
    )

    def load_model(self) -> Any:
        """The model that --model names; None where it is not given."""
        return load_model(self.model)


def load_model(name: str | None) -> Any:
    """A model by name, or the factory in a file of the user's."""
    if name is None:
        return None
    return registry.model(name)


def trust_flag(base: Path) -> str:
    """The flag by which another command may open the runs in a folder; "" where none is needed."""
    digits: dict[str, None] = {}
    for folder in filter(is_run_folder, find_runs(base)):
        for full in RunFolder(folder).config().origin.files.values():
            digits[full[:DIGITS]] = None
    if not digits:
        return ""
    return f" --trust {','.join(digits)}"
