"""Commands in this process, on tiny data, in a folder of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from coterie.cli import main

METHOD = '''
from dataclasses import dataclass
from typing import ClassVar
from coterie.baselines.fedavg import FedAvg
from coterie.contract import setting

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """A method of one's own."""

    name: ClassVar[str] = "mine"
    dropout: float = setting(0.5, "shares its name with an option of the run")
'''


class Said(NamedTuple):
    status: int
    out: str
    err: str


Coterie = Callable[..., Said]


@pytest.fixture
def coterie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Coterie:
    """Run a command in an empty folder; words may be numbers and paths."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Said:
        status = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Said(status, out, err)

    return run


@pytest.fixture
def tiny() -> list[str]:
    return [
        "--clients",
        "8",
        "--samples",
        "12",
        "--rounds",
        "2",
        "--local-steps",
        "2",
        "--model",
        "softmax",
    ]


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """A folder with three small tables."""
    folder = tmp_path / "sites"
    folder.mkdir()
    for i in range(3):
        rows = "\n".join(f"{n + i},{n * i % 5},{n % 2}" for n in range(12))
        (folder / f"site{i}.csv").write_text(f"age,dose,outcome\n{rows}\n")
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file with a method and models of one's own."""
    path = tmp_path / "own.py"
    path.write_text(
        METHOD
        + '''
from torch import nn

def net(*layers):
    return nn.Sequential(nn.Flatten(), *layers)

Net = lambda: net(nn.Linear(64, 10))
Norm = lambda: net(nn.Linear(64, 10), nn.BatchNorm1d(10))
Drop = lambda: net(nn.Dropout(0.5), nn.Linear(64, 10))
Narrow = lambda: net(nn.Linear(64, 3))

class NoMethod:
    """No method."""
'''
    )
    return path
