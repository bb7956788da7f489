"""Small runs that pages are made of, and how to look into a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct
from coterie.reporting.client_statistics import ClientStatistics, collect_statistics
from coterie.reporting.run_records import record_of_run

NAMES = ("Hôpital <b>Élie", 'Klinik "Süd" & Co', "</script>", "north", "south", "west")
SITES = ("Élie", "north 1", "Süd & Co", "west", "Åre", "Łódź <b>")
HOW: dict[str, Any] = {"lr": 0.5, "local_steps": 3}


def two_kinds(seed: int = 0) -> ct.data.Federation:
    """Make six clients of two kinds.

    In the first three, class 1 goes with a high first column, in the others with a low one.
    """
    rng = np.random.default_rng(seed)
    clients = {}
    for i, name in enumerate(NAMES):
        is_first_kind = i < 3
        x = rng.normal(size=(40, 3)).astype("float32")
        x[:, 2] += 2 * is_first_kind
        y = (x[:, 0] > 0) if is_first_kind else (x[:, 0] < 0)
        clients[name] = (x, y.astype("int64"))
    return ct.data.from_memory(clients, test_share=0.25, seed=0)


def tables(folder: Path) -> Path:
    """Write six sites to a folder.

    The first column goes with the label one way in three sites, the other way in the others. The
    last site has 12 rows, and the first a category that no other has.
    """
    import pandas as pd

    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for i, name in enumerate(SITES):
        n = 12 if i == 5 else 150
        x = rng.normal(5, 1, n)
        scanner = rng.choice(["A", "only here"], n) if i == 0 else rng.choice(["A", "B"], n)
        frame = {
            "mar<ker": x,
            "scanner": scanner,
            "weight": rng.normal(70, 9, n),
            "outcome": np.where((x > 5) == (i % 2 == 0), "ill", "well"),
        }
        pd.DataFrame(frame).to_csv(folder / f"{name}.csv", index=False)
    return folder


def trained(method: ct.Algorithm, out: Any = None, **options: Any) -> ct.Result:
    """Train a method on two kinds of clients, for three rounds by default."""
    return ct.run(method, two_kinds(), "softmax", **{"rounds": 3, **options}, out=out)


def figures(page: str) -> list[str]:
    """Return the figures of a page, as markup."""
    return [part.partition("</div></div>")[0] for part in page.split('<div class="plot">')[1:]]


def statistics_of(result: ct.Result) -> ClientStatistics:
    """The client statistics of a run with its data."""
    run = result._run
    return collect_statistics(result.trained, run, record_of_run(run).fingerprint.data)
