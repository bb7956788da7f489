"""Pages about folders whose training data are gone: a sentence names each missing part."""

from __future__ import annotations

import re

import pytest
from made_up import GROUPS, grouped, statistics
from small_runs import HOW, figures, trained

import coterie as ct
from coterie.reporting.page import collect_page, render_page

DIFFERENCES = "Differences between groups are left out because the training data are not available."
FIGURES = (
    "The fit of each group's model to each client and the map of clients are left out because the "
    "training data are not\navailable."
)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """The page about the folders of three runs whose data were in memory."""
    base = tmp_path_factory.mktemp("gone")
    for method in (ct.IFCA(clusters=2, **HOW), ct.FedAvg(**HOW), ct.LocalOnly(**HOW)):
        trained(method, base / method.name)
    return ct.report(base, base / "page.html").read_text(encoding="utf-8")


def test_what_needs_training_data_is_left_out_with_a_sentence(page):
    titles = re.findall("<h[2-6]>(.*?)</h[2-6]>", page)
    assert "Differences between groups" not in titles and page.count(DIFFERENCES) == 1
    assert not [title for title in titles if title.startswith(("Fit of each", "Map of the"))]
    assert page.count(FIGURES) == 1


def test_all_that_needs_no_training_data_stays(page, results_page):
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == re.findall("<h2>(.*?)</h2>", results_page)
    assert "Scores by group" in page and len(figures(page)) == 5
    for column in ("training rows", "test rows"):  # the run folder has the counts
        assert f'<th scope="col">{column}</th>' in page
    assert "6 sites, 1 seed)" in page  # the difference to the best, with its interval


def test_a_page_with_training_data_has_no_such_sentence(results_page):
    assert DIFFERENCES not in results_page and FIGURES not in results_page


def test_differences_are_not_missed_where_there_is_one_group():
    methods = {"ifca": [grouped(history=[GROUPS.tolist()])]}
    two = statistics([1.0, 0.5, 1.0, 0.5], GROUPS, has_data=False)
    assert DIFFERENCES in render_page(collect_page(methods, {"ifca": two}, [], None))
    one = two._replace(groups=0 * GROUPS)
    assert DIFFERENCES not in render_page(collect_page(methods, {"ifca": one}, [], None))
