"""What the terminal warns of: models that are of no use, and columns that are odd at a site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

COMMAND = "--label outcome --rounds 5 --seeds 2 --model linear --out o"


def rows_of(rng: np.random.Generator, rows: int, sick: float | None) -> pd.DataFrame:
    """Patients who are ill by their dose; with `sick`, a share of them by chance alone."""
    dose = rng.normal(0, 1, rows)
    ill = dose > 0
    if sick is not None:
        ill = rng.permutation(rows) < sick * rows
    return pd.DataFrame(
        {"dose": dose, "age": rng.normal(50, 9, rows), "outcome": np.where(ill, "ill", "well")}
    )


@pytest.fixture
def odd_sites(tmp_path: Path) -> Path:
    """Four hospitals; in Davos nearly all are ill, whatever the dose."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, sick in (("Aalen", None), ("Bern", None), ("Celle", None), ("Davos", 0.95)):
        rows_of(rng, 160, sick).to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_sites_whose_model_is_of_no_use_are_named(coterie, odd_sites):
    outcome = coterie("compare fedavg local --data", f"folder:{odd_sites}", COMMAND)
    assert outcome.status == 0, outcome.err
    text = " ".join(outcome.out.split())
    words = "No better than always predicting the shares of the site's own classes: "
    assert text.count(words) == 1
    named = text.partition(words)[2].partition(". ")[0]
    assert "fedavg" in named and "at Davos" in named
    assert not any(site in named for site in ("Aalen", "Bern", "Celle"))
    table = pd.read_csv("o/fedavg/seed-0/clients.csv").set_index("client")
    assert table.loc["Davos", "commonest"] >= 0.9 > table.loc["Aalen", "commonest"]
    assert coterie("report o --out page.html").status == 0
    assert words in Path("page.html").read_text(encoding="utf-8").replace("&#39;", "'")


def test_a_column_that_never_changes_at_one_site_is_named_once(coterie, odd_sites):
    bern = pd.read_csv(odd_sites / "Bern.csv")
    bern.assign(age=0).to_csv(odd_sites / "Bern.csv", index=False)
    outcome = coterie("compare fedavg local --data", f"folder:{odd_sites}", COMMAND)
    words = "varies elsewhere: age (always 0 at Bern, 120 rows)"
    assert outcome.err.count(words) == 1  # though each seed reads the tables anew
    assert "--data.drop age" in outcome.err
    assert "dose" not in outcome.err.partition("warning:")[2].partition("\n")[0]


def test_columns_that_are_nearly_empty_at_a_site_are_named(coterie, odd_sites):
    celle = pd.read_csv(odd_sites / "Celle.csv")
    celle.assign(age=np.nan).to_csv(odd_sites / "Celle.csv", index=False)
    outcome = coterie("run fedavg --fill mean --data", f"folder:{odd_sites}", "--label outcome")
    assert "nearly all of these cells are empty: age at Celle\n" in outcome.err
