"""Small runs that pages are made of, and how to look into a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct

NAMES = ("Hôpital <b>Élie", 'Klinik "Süd" & Co', "</script>", "north", "south", "west")
SITES = ("Élie", "north 1", "Süd & Co", "west", "Åre", "Łódź <b>")


def two_kinds(seed: int = 0) -> ct.data.Federation:
    """Six clients: in the first three, class 1 goes with a high first column, in the others with a low one."""
    rng, clients = np.random.default_rng(seed), {}
    for i, name in enumerate(NAMES):
        x = rng.normal(size=(40, 3)).astype("float32")
        x[:, 2] += 2 * (i < 3)
        clients[name] = (x, (x[:, 0] * (1 if i < 3 else -1) > 0).astype("int64"))
    return ct.data.from_memory(clients, test_share=0.25, seed=0)


def tables(folder: Path) -> Path:
    """Six sites in a folder: the first column goes with the label one way in three, the other way in three.

    The last has 12 rows, and the first a category that no other has.
    """
    import pandas as pd

    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for i, name in enumerate(SITES):
        n = 12 if i == 5 else 150
        x = rng.normal(5, 1, n)
        scanner = rng.choice(["A", "only here"], n) if i == 0 else rng.choice(["A", "B"], n)
        outcome = np.where((x > 5) == (i % 2 == 0), "ill", "well")
        frame = {
            "mar<ker": x,
            "scanner": scanner,
            "weight": rng.normal(70, 9, n),
            "outcome": outcome,
        }
        pd.DataFrame(frame).to_csv(folder / f"{name}.csv", index=False)
    return folder


def trained(method: ct.Algorithm, out: Any = None, **options: Any) -> ct.Result:
    return ct.run(method, two_kinds(), "softmax", **{"rounds": 3, **options}, out=out)


def figures(page: str) -> dict[str, Any]:
    """The figures of a page, by name."""
    found = re.search(
        r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL
    )
    assert found
    return json.loads(found[1])
