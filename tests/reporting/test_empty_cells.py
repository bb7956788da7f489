"""Which cells were empty, as a page says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.core.errors import CoterieWarning
from coterie.reporting.overview import EmptyCells, describe_empty_cells


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run on three sites: one lacks most doses, another has no real ages."""
    rng = np.random.default_rng(0)
    frames = {}
    for name in ("Aalen", "Bern", "Celle"):
        dose = rng.normal(5, 2, 80)
        ill = np.where(dose > 5, "ill", "well")
        if name == "Bern":
            dose[2:] = np.nan
        frames[name] = pd.DataFrame({"dose": dose, "age": rng.normal(50, 9, 80), "outcome": ill})
    frames["Celle"]["age"] = -1.0
    with pytest.warns(CoterieWarning, match="age \\(always -1 at Celle"):
        fed = ct.data.from_frames(frames, label="outcome", fill="median")
    path = tmp_path_factory.mktemp("filled") / "page.html"
    result = ct.run(ct.FedAvg(), fed, "linear", rounds=1)
    return Path(ct.report(result, path)).read_text(encoding="utf-8")


def test_the_page_says_what_was_filled_and_where_nearly_all_was(page):
    assert "Empty cells were filled with the median over all clients, of 180 training rows" in page
    assert "Nearly all cells of a column were filled: dose at Bern." in page


def test_the_page_names_values_that_never_change_at_one_site(page):
    assert "varies elsewhere: age (always -1 at Celle, 60 rows). Such a value" in page


def test_a_page_without_empty_cells_says_nothing_of_them(results_page):
    assert "Empty cells" not in results_page and "never change" not in results_page


def test_empty_texts_count_as_other():
    gaps = EmptyCells("median", [], [("ward", 1200), ("sex", 3)], rows=4000, nearly_empty="")
    assert describe_empty_cells(gaps) == (
        'Empty texts count as the category "other", of 4,000 training rows: ward 1,200 and sex 3.'
    )
    assert "rows with seed 0: ward" in describe_empty_cells(gaps, "seed 0")
    both = gaps._replace(numbers=[("age", 7)])
    assert describe_empty_cells(both) == (
        "Empty cells were filled with the median over all clients, of 4,000 training rows: age 7. "
        'Empty texts count as the category "other", of 4,000 training rows: ward 1,200 and sex 3.'
    )
