"""Pages of runs whose training rows are gone: what needs them is left out, with a sentence."""

from __future__ import annotations

import re

import pytest
from made_up import GROUPS, grouped
from made_up import portrait as made_up_portrait
from small_runs import figures

import coterie as ct
from coterie import reporting
from coterie.reporting.page import collect_page
from coterie.reporting.portrait import Portrait, portrait
from coterie.reporting.render import render_page
from coterie.reporting.rows import count_test_rows
from coterie.runs.run import Run
from coterie.runs.trained import TrainedRun

GROUPS_APART = "What sets the groups apart is left out: it needs the training rows"
FIGURES = (
    "Left out, as the training rows are not at hand: how well each group&#39;s model fits each "
    "client and the map of the clients."
)
COUNTS = "Training rows are not counted, as they are not at hand."


def without_rows(trained: TrainedRun, run: Run | None, fingerprint: str) -> Portrait:
    """What is known of a run of which not even the row counts are known."""
    return portrait(trained, None, fingerprint)._replace(
        train_rows=None, test_rows=None, truth=None
    )


@pytest.fixture
def page(results, tmp_path, monkeypatch) -> str:
    """The page about three runs without their rows."""
    monkeypatch.setattr(reporting, "portrait", without_rows)
    return ct.report(results, tmp_path / "page.html").read_text()


def test_what_needs_training_rows_is_left_out_with_a_sentence(page):
    titles = re.findall("<h[2-6]>(.*?)</h[2-6]>", page)
    assert "What sets the groups apart" not in titles and page.count(GROUPS_APART) == 1
    assert not [title for title in titles if title.startswith(("How well each", "Map of the"))]
    assert page.count(FIGURES) == 1 and page.count(COUNTS) == 1
    assert '<th scope="col">training rows</th>' not in page


def test_all_that_needs_no_training_rows_stays(page, results_page):
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == re.findall("<h2>(.*?)</h2>", results_page)
    assert "Scores by group" in page and len(figures(page)) == 5
    assert '<th scope="col">test rows</th>' in page  # counted when the scores were measured
    assert "6 sites, 1 seed)" in page  # the difference to the best, with its interval


def test_a_page_with_training_rows_has_no_such_sentence(results_page):
    assert GROUPS_APART not in results_page
    assert FIGURES not in results_page
    assert COUNTS not in results_page


def test_test_rows_may_be_unknown_too():
    scores = made_up_portrait([1.0, 0.5, 1.0, 0.5], GROUPS)
    assert count_test_rows(scores._replace(test_rows=None)).tolist() == [40, 40, 40, 3]
    nothing = scores._replace(train_rows=None, test_rows=None, per_client={})
    assert count_test_rows(nothing) is None
    methods = {"ifca": [grouped(history=[GROUPS.tolist()])]}
    collected = collect_page(methods, {"ifca": nothing}, [], None)
    assert collected.clients is None and collected.fairness is None
    assert GROUPS_APART in render_page(collected)
    one_group = nothing._replace(groups=0 * GROUPS)
    collected = collect_page(methods, {"ifca": one_group}, [], None)
    assert GROUPS_APART not in render_page(collected)  # there is nothing to compare anyway
