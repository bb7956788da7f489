"""Commands in this process, or in a child of it, on tiny data, in a folder of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
from hospitals import OPTIONS, site, write_sites

from coterie.cli import main
from coterie.runs.run import Run

METHOD = '''
from dataclasses import dataclass
from typing import ClassVar
from coterie.methods.fedavg import FedAvg
from coterie.core.contract import setting

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """A method of one's own."""

    name: ClassVar[str] = "mine"
    dropout: float = setting(0.5, "shares its name with an option of the run")
'''
MODELS = '''
from torch import nn

def net(*layers):
    return nn.Sequential(nn.Flatten(), *layers)

Net = lambda: net(nn.Linear(64, 10))
Norm = lambda: net(nn.Linear(64, 10), nn.BatchNorm1d(10, track_running_stats=False))
Drop = lambda: net(nn.AlphaDropout(0.5), nn.Linear(64, 10))
Narrow = lambda: net(nn.Linear(64, 3))

class NoMethod:
    """No method."""
'''


class Outcome(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


Coterie = Callable[..., Outcome]


def split_words(*words: object) -> list[str]:
    """Words of a command: strings are split at spaces; lists, paths and numbers are not."""
    argv: list[str] = []
    for word in words:
        if isinstance(word, str):
            argv += word.split()
        elif isinstance(word, list):
            argv += word
        else:
            argv.append(str(word))
    return argv


@pytest.fixture
def coterie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Coterie:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        status = main(split_words(*words))
        out, err = capsys.readouterr()
        return Outcome(status, out, err)

    return run


@pytest.fixture
def coterie_with_signal(coterie: Coterie, tmp_path: Path) -> Coterie:
    """Run a command in a child process that gets a signal when `at(run)` holds after a round.

    The child is forked: importing torch again would take far longer than the command. Its status
    is that of `main`, or minus the signal that ended it.
    """

    def run(*words: object, number: int, at: Callable[[Run], bool]) -> Outcome:
        child = os.fork()
        if child == 0:
            run_child(split_words(*words), number, at)
        _, wait_status = os.waitpid(child, 0)
        status = os.waitstatus_to_exitcode(wait_status)
        out = (tmp_path / "child.out").read_text(encoding="utf-8")
        err = (tmp_path / "child.err").read_text(encoding="utf-8")
        return Outcome(status, out, err)

    return run


def run_child(argv: list[str], number: int, at: Callable[[Run], bool]) -> NoReturn:
    """Run a command that sends itself a signal, and leave without any of pytest's own exit."""
    status = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.alarm(60)  # a child that hangs is ended
        sys.stdout = open("child.out", "w", encoding="utf-8")  # noqa: SIM115  # ends with the child
        sys.stderr = open("child.err", "w", encoding="utf-8")  # noqa: SIM115
        step = Run.step

        def step_and_signal(self: Run) -> dict:
            row = step(self)
            if at(self):
                os.kill(os.getpid(), number)
            return row

        Run.step = step_and_signal  # type: ignore[method-assign]
        status = main(argv)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


@pytest.fixture
def tiny() -> str:
    return "--clients 8 --samples 12 --rounds 2 --local-steps 2 --model softmax"


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """A folder with three small tables."""
    folder = tmp_path / "sites"
    folder.mkdir()
    for i in range(3):
        rows = "\n".join(f"{n + i},{n * i % 5},{n % 2}" for n in range(12))
        (folder / f"site{i}.csv").write_text(f"age,dose,outcome\n{rows}\n")
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run of hospitals; its data are in `hospitals` beside it."""
    base = tmp_path_factory.mktemp("answers")
    write_sites(base / "hospitals")
    command = f"run ifca --data folder:{base}/hospitals --clusters 2 --rounds 8 --lr 0.3 {OPTIONS}"
    assert main([*command.split(), "--out", str(base / "run")]) == 0
    return base / "run"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """The table of a newcomer of the second kind."""
    path = tmp_path / "new.csv"
    site(7).to_csv(path, index=False)
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file with a method and models of one's own."""
    path = tmp_path / "own.py"
    path.write_text(METHOD + MODELS)
    return path
