"""The valid files that all cases start from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from harness import command

SETTINGS = "--clusters 2 --rounds 3 --local-steps 2 --lr 0.3 --label outcome --model softmax"


class Files(NamedTuple):
    """Valid files, all in one folder, which is the current one."""

    base: Path
    data: Path  # a folder with a table per client
    new: Path  # the table of a newcomer
    run: Path  # of ifca on these data, ended after three rounds
    export: Path  # its models


def make_files(base: Path) -> Files:
    """Write a tiny run, its data, its export, and the table of a newcomer."""
    files = Files(base, base / "data", base / "new.csv", base / "run", base / "export")
    files.data.mkdir()
    for i, name in enumerate(("Köln", "north", "south", "west")):
        client_table(i).to_csv(files.data / f"{name}.csv", index=False)
    client_table(7).to_csv(files.new, index=False)
    trained = command("run", "ifca", "--data", "folder:data", *SETTINGS.split(), "--out", "run")
    assert trained.status == 0, trained.err
    assert command("export", "run", "--out", "export").status == 0
    return files


def client_table(i: int, rows: int = 24) -> pd.DataFrame:
    """What makes people ill with odd clients keeps them well with even ones."""
    rng = np.random.default_rng(i)
    age = rng.normal(50, 10, rows).round(1)
    sex = rng.choice(["female", "male"], rows)
    dose = rng.integers(0, 9, rows)
    score = (age - 50) / 10 + (sex == "male")
    ill = (score > 0.5) == bool(i % 2)
    outcome = np.where(ill, "ill", "well")
    return pd.DataFrame({"age": age, "sex": sex, "dose": dose, "outcome": outcome})
