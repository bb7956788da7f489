"""The valid files that all cases start from, made once, and the number of cases that ran."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import PROFILE, cases, passed_over
from hypothesis import settings
from valid_files import Files, make_files

settings.register_profile(PROFILE)


@pytest.fixture(scope="session")
def all_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    """Valid files in a folder of their own."""
    base = tmp_path_factory.mktemp("fuzz")
    with inside(base):
        made = make_files(base)
    yield made
    shutil.rmtree(base)


@pytest.fixture
def files(all_files: Files) -> Iterator[Files]:
    """The valid files, whose folder is the current one."""
    with inside(all_files.base):
        yield all_files


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder; tests of other files must not find themselves there."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many cases ran."""
    if not cases:
        return
    listed = ", ".join(f"{kind} {number}" for kind, number in sorted(cases.items()))
    terminalreporter.write_line(f"fuzz: {cases.total()} cases ran: {listed}")
    if passed_over:
        terminalreporter.write_line(f"fuzz: the time was over for {passed_over.total()} more")
