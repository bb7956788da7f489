"""Tables of six hospitals of two kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

SITES = ("Zürich Nord", "Köln", "São Paulo", "north", "south", "été")
OPTIONS = "--label outcome --model softmax --quiet"


def site(i: int, rows: int = 60) -> pd.DataFrame:
    """What makes people ill in odd sites keeps them well in even ones."""
    rng = np.random.default_rng(i)
    age, sex = rng.normal(50 + 5 * (i % 2), 10, rows), rng.choice(["female", "male"], rows)
    sign = 1 if i % 2 else -1
    ill = sign * ((age - 52) / 10 + (sex == "male")) + rng.normal(0, 0.3, rows) > 0
    return pd.DataFrame({"age": age.round(1), "sex": sex, "outcome": np.where(ill, "ill", "well")})


def write_sites(folder: Path) -> None:
    """Write a table per hospital."""
    folder.mkdir(exist_ok=True)
    for i, name in enumerate(SITES):
        site(i).to_csv(folder / f"{name}.csv", index=False)
