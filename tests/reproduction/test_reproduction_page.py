"""The page of all experiments shows what was run, the most of it first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))

import reproduction_page  # noqa: E402
from made_experiment import MADE  # noqa: E402

from reproduction.result_table import ResultTable  # noqa: E402
from reproduction.runner import run_cells  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reproduction_page, "RESULTS", tmp_path)
    monkeypatch.setattr(reproduction_page, "BEST_FIRST", ("full", "smoke"))
    monkeypatch.setattr(reproduction_page, "all_experiments", lambda: {MADE.name: MADE})
    return tmp_path


def run(scale: str, folder: Path, seeds: int) -> None:
    results = ResultTable.open(MADE, scale, folder)
    wanted = results.first_seeds(seeds)
    run_cells(results, [cell for cell in results.missing if cell.seed in wanted], jobs=1)


def test_nothing_was_run_to_its_end(folder: Path) -> None:
    run("full", folder, seeds=1)
    assert "| not run yet |" in reproduction_page.reproduction()


def test_a_part_of_a_larger_scale_comes_first(folder: Path) -> None:
    run("full", folder, seeds=1)
    run("smoke", folder, seeds=1)
    text = reproduction_page.reproduction()
    assert "| table 1 | a part of full | 0 | 0 | 0 | 6 |\n|  |  | smoke | 0 | 0 | 0 | 4 |" in text
    assert 0 < text.index("at scale full") < text.index("at scale smoke")
    assert "--scale full --seeds 1" in text and "have not been run yet" in text


def test_smaller_scales_are_left_out_where_the_largest_is_whole(folder: Path) -> None:
    run("full", folder, seeds=3)
    run("smoke", folder, seeds=1)
    text = reproduction_page.reproduction()
    assert "| full |" in text and "at scale smoke" not in text
