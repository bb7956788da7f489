"""Intervals of predictions on the command line, and flags that do not fit the data."""

from __future__ import annotations

import numpy as np
import pandas as pd


def write_scores(folder, sites: int = 4) -> None:
    """A file per site: score = age + site + noise."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i in range(sites):
        age = draw.uniform(20, 80, 40)
        frame = pd.DataFrame({"age": age, "score": age + i + draw.normal(size=40)})
        frame.to_csv(folder / f"s{i}.csv", index=False)


def test_intervals_are_printed_for_clients_and_new_sites(coterie, tmp_path) -> None:
    write_scores(tmp_path / "sites")
    run = "run mixed --data folder:sites --label score --clusters 1 --out run"
    assert coterie(run).status == 0
    for whose in ("--client s1", "--support sites/s2.csv"):
        outcome = coterie("predict run sites/s1.csv", whose, "--interval 0.9")
        assert outcome.status == 0
        lines = [line.split(",") for line in outcome.out.splitlines()]
        assert lines[0] == ["row", "prediction", "low", "high"]
        values = np.array(lines[1:], dtype=float)
        assert (values[:, 2] < values[:, 1]).all() and (values[:, 1] < values[:, 3]).all()
    for level, why in (("1.5", "between 0 and 1"), ("0", "between 0 and 1"), ("x", "a number")):
        outcome = coterie("predict run sites/s1.csv --client s1 --interval", level)
        assert outcome.status == 2 and why in outcome.err and outcome.err.count("\n") == 1
    assert coterie("export run --out models").status == 0
    outcome = coterie("predict models sites/s1.csv --interval 0.9")
    assert outcome.status == 2 and "exported models have no intervals" in outcome.err


def test_curves_of_images_are_refused(coterie) -> None:
    outcome = coterie("run mixed --features smooth --data rotated:digits --out run")
    assert outcome.status == 2 and "smooth features need a table" in outcome.err
    assert outcome.err.count("\n") == 1
