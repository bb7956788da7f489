"""The valid files that all cases start from, made once, and the number of cases that ran."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PROFILE, cases, limit_memory, passed_over
from hypothesis import settings
from valid_files import Files, make_files

settings.register_profile(PROFILE)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    """Valid files in a folder of their own, which is the current one."""
    base = tmp_path_factory.mktemp("fuzz")
    before = Path.cwd()
    os.chdir(base)
    made = make_files(base)
    limit_memory()
    yield made
    os.chdir(before)
    shutil.rmtree(base)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many cases ran."""
    if not cases:
        return
    listed = ", ".join(f"{kind} {number}" for kind, number in sorted(cases.items()))
    terminalreporter.write_line(f"fuzz: {cases.total()} cases ran: {listed}")
    if passed_over:
        terminalreporter.write_line(f"fuzz: the time was over for {passed_over.total()} more")
