"""Pages about results in memory: what stands on them, and in which order."""

from __future__ import annotations

import html
import itertools
import re
from pathlib import Path

import pytest
from markupsafe import escape
from small_runs import HOW, NAMES, figures, trained

import coterie as ct
from coterie.cli.table import summary_row
from coterie.reporting.comparison import all_columns, compare_rows
from coterie.reporting.overview import name_run
from coterie.runs.run_list import LIST


def written(runs, path, **how) -> str:
    return ct.report(runs, path, **how).read_text(encoding="utf-8")


def titles(page: str) -> list[str]:
    """What figures show on hover."""
    return re.findall("<title>(.*?)</title>", page)[1:]  # the first is that of the page


def test_a_page_holds_the_table_the_members_and_valid_figures(results, results_page):
    comparison = compare_rows([summary_row(r) for r in results])
    for _, cell in all_columns(comparison):
        for same in comparison.runs.values():
            assert f">{html.escape(cell(same))}" in results_page
    assert comparison.best == ["ifca", "local"], "local is level, on six sites"
    for best in comparison.best:
        assert f'<tr class="best"><td>{best}</td>' in results_page
    for name in NAMES:
        assert escape(name) in results_page
    # ifca's scores and losses, its guesses and how sure they were, all over rounds and bytes, then
    # ifca's map, and local's map
    assert len(figures(results_page)) == 8
    for figure in figures(results_page):
        assert "<svg" in figure and "nan" not in figure and "inf" not in figure


def test_names_are_text_and_nothing_is_fetched(results_page):
    assert "<b>Élie" not in results_page
    assert results_page.count("<script") == results_page.count("</script>") == 2
    assert not [word for word in ("src=", "@import", "url(", "http") if word in results_page]
    assert results_page.count("<style>") == 1
    rows = [title for title in titles(results_page) if ": group 0 fits " in title]
    assert sorted(row.split(": group")[0] for row in rows) == sorted(map(escape, NAMES))


def test_predictions_are_those_of_a_method_with_its_settings(tmp_path):
    runs = [trained(ct.FedAvg(lr=lr, local_steps=1), rounds=1) for lr in (0.1, 0.5)]
    page = written(runs, tmp_path / "page.html")
    assert re.search(r"Confusion matrix of fedavg lr=0\.[15] on", page)
    assert re.search(r"Calibration of fedavg lr=0\.[15]: ", page)


@pytest.mark.parametrize("method", [ct.IFCA(clusters=2, **HOW), ct.FedAvg(**HOW)])
def test_a_page_names_free_riders_once(method, tmp_path):
    result = trained(method, attack="free-ride", attackers=1)
    (rider,) = result.final["free_riders"]
    page = written(result, tmp_path / "page.html")
    start = "1 client sent back models unchanged instead of training them and was left out in "
    assert re.findall(rf"{start}\d rounds: (.*)\.<", page) == [escape(rider)]


def test_a_page_names_the_free_riders_of_every_seed(tmp_path):
    results = [trained(ct.FedAvg(**HOW), attack="free-ride", attackers=1, seed=s) for s in (1, 2)]
    page = written(results, tmp_path / "page.html")
    riders = [escape(result.final["free_riders"][0]) for result in results]
    found = re.findall(r"(Seed 2: )?1 client sent back models [^<]* rounds: ([^<]*)\.<", page)
    assert found == [("", riders[0]), ("Seed 2: ", riders[1])]


def test_the_parts_come_in_order_under_proper_headings(results_page):
    headings = re.findall(r"<h([1-6])>(.*?)</h\1>", results_page)
    levels = [int(level) for level, _ in headings]
    assert levels[0] == 1 and 1 not in levels[1:]
    # none is left out on the way down
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    assert [text for level, text in headings if level == "2"] == [
        "Find a site",  # groups that do not pay are shown under Method by method only
        "Comparison",
        "Predictions",
        "Scores over rounds",
        "Scores over traffic",
        "Fairness",
        "Cost of a target score",
        "Each client",
        "Method by method",
        "Settings",
        "Commands and versions",
    ]
    sentences = ("local and fedavg find no groups", "fedavg and local find no groups")
    assert any(sentence in results_page for sentence in sentences)
    places = results_page.count('class="plot"')
    assert places == results_page.count('role="img" aria-label="') == len(figures(results_page))


def test_several_settings_of_one_method_are_told_apart(tmp_path):
    runs = [trained(ct.IFCA(clusters=k, **HOW), seed=s, rounds=1) for k in (2, 3) for s in (0, 1)]
    page = written(runs, tmp_path / "page.html")
    assert written([*runs, runs[0]], tmp_path / "page.html") == page  # given twice, it counts once
    assert "<td>ifca clusters=2</td>" in page and "<td>ifca clusters=3</td>" in page
    assert "2 seeds" in page


def test_a_page_of_regression_and_of_soft_groups(tmp_path):
    fed = ct.data.linear("fedsoft", clients=6, samples=20, dim=3)
    methods = (ct.FedSoft(clusters=2, lr=0.01), ct.CGPFLHeur(lr=0.01))
    page = written([ct.run(method, fed, rounds=2) for method in methods], tmp_path / "page.html")
    for word in (
        "test MSE",
        "Group weights",
        "Number of groups",
        "Map of the personal models",
        "placed by the parameters of its own model",
        "105 % of the best",
    ):
        assert word in page, word
    assert len(figures(page)) > 5 and not any("nan" in figure for figure in figures(page))


def test_above_500_clients_figures_are_sampled_and_tables_are_not(tmp_path):
    fed = ct.data.linear(clients=1000, samples=4, dim=3, clusters=2, test_samples=4)
    result = ct.run(ct.IFCA(clusters=2, local_steps=1), fed, rounds=1)
    page = written(result, tmp_path / "page.html")
    assert "500 of the 1000 clients" in page and all(name in page for name in fed.names)
    assert "The table has the 100 of 1,000 clients with the worst scores under ifca." in page
    assert sum(": group 0 fits " in title for title in titles(page)) == 500
    assert len(page.encode()) < 1_000_000


def test_a_page_about_a_folder_of_tables(site_results, sites, tmp_path):
    page = written(site_results[:2], tmp_path / "page.html")
    top = page[: page.index("Method by method")]
    assert f"6 sites from the folder {sites.name}. Each site is one client." in top
    assert top.index("<h1>Predicting outcome at 6 sites</h1>") < top.index("<h2>Groups</h2>")
    assert str(sites.parent) not in page and f"folder:{sites.name}?" in page  # under the settings
    assert "† Fewer than 10 test rows: Łódź &lt;b&gt; (3)." in top
    assert re.search("In group [01], a higher mar&lt;ker goes with outcome = (ill|well) ", top)
    apart = top[
        top.index("Differences between groups") : top.index("Coefficients of the groups' models")
    ]
    assert "only here" not in apart  # a category of one site


def test_the_function_stays_the_function_after_its_package_is_loaded():
    import coterie.reporting
    import coterie.result

    assert ct.report is coterie.result.report and callable(ct.report)
    assert callable(coterie.reporting.report)


def test_three_methods_on_65_sites_take_less_than_a_megabyte(tmp_path):
    fed = ct.data.linear(clients=65, samples=8, dim=5, clusters=3, test_samples=4)
    methods = (ct.IFCA(clusters=3), ct.FedAvg(), ct.LocalOnly())
    page = written([ct.run(method, fed, rounds=12) for method in methods], tmp_path / "page.html")
    assert len(figures(page)) >= 6 and "Find a site" in page
    assert len(page.encode()) < 300_000


def test_commands_name_runs_without_the_folders_above(tmp_path: Path) -> None:
    base = tmp_path / "home" / "comparison"
    (base / "ifca" / "seed-0").mkdir(parents=True)
    (base / "local").mkdir()
    (base / LIST).touch()
    (tmp_path / "home" / "alone").mkdir()
    assert name_run(tmp_path / "home" / "alone") == "alone"
    assert name_run(base / "local") == "comparison/local"
    assert name_run(base / "ifca" / "seed-0") == "comparison/ifca/seed-0"
