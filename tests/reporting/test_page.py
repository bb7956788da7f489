"""Whole pages: what stands on them, what they leave alone, and what they say when something is missing."""

from __future__ import annotations

import hashlib
import html
import itertools
import json
import re
import sys

import numpy as np
import plotly.graph_objects as go
import pytest
from small_runs import NAMES, figures, tables, trained, two_kinds

import coterie as ct
from coterie.cli import main, train
from coterie.cli.table import best_of, by_method, columns, facts

HOW = {"lr": 0.5, "local_steps": 3}


def written(runs, path, **how) -> str:
    return ct.report(runs, path, **how).read_text(encoding="utf-8")


def test_a_page_holds_the_table_the_members_and_valid_figures(results, tmp_path):
    page = written(results, tmp_path / "page.html")
    rows = [facts(r) for r in results]
    methods = by_method(rows)
    for _, cell in columns("accuracy", 1, rows):
        for same in methods.values():
            assert f">{html.escape(cell(same))}" in page
    (best,) = best_of(methods, "accuracy")
    assert f'<tr class="best"><td>{best}</td>' in page
    for name in NAMES:
        assert html.escape(name) in page
    assert (
        len(figures(page)) == 6
    )  # over rounds and bytes, then ifca's scores, losses and map, and local's map
    for figure in figures(page).values():
        go.Figure(figure)  # refuses what plotly does not know


def test_names_are_text_and_nothing_is_fetched(results, tmp_path):
    page = written(results, tmp_path / "page.html")
    per_client = page[
        : page.index('<script type="application/json"')
    ]  # before the figures and plotly
    assert "<b>Élie" not in per_client and "</script>" not in per_client
    assert not [word for word in ("src=", "@import", "url(", "http") if word in per_client]
    assert page.count("<script") - page.count("<script>") == 1 and page.count("<style>") == 1
    (shown,) = [
        d["y"] for f in figures(page).values() for d in f["data"] if d["type"] == "heatmap"
    ]  # of losses
    assert sorted(shown) == sorted(html.escape(name, quote=False) for name in NAMES)


def test_a_result_writes_its_own_page_and_folders_give_the_same(tmp_path):
    result = trained(ct.IFCA(clusters=2, **HOW), tmp_path / "run")
    folder = tmp_path / "run"
    assert result.report(tmp_path / "one.html") == tmp_path / "one.html"
    before = fingerprints(folder)
    page = written(folder, tmp_path / "two.html")
    assert fingerprints(folder) == before  # a page only reads
    assert "needs its data and models: the data of the run were in memory: give them again" in page
    drawn = figures(page)
    assert drawn["figure-0"] == figures((tmp_path / "one.html").read_text())["figure-0"]
    assert (
        "The groups that ifca ended with" in page
        and "How well each" not in page
        and "Each client" not in page
    )


def fingerprints(folder) -> dict[str, str]:
    """What every file holds, and when it was written."""
    files = [f for f in folder.rglob("*") if f.is_file()]
    return {
        str(f): f"{hashlib.sha256(f.read_bytes()).hexdigest()} {f.stat().st_mtime_ns}"
        for f in files
    }


def test_a_folder_whose_data_can_be_had_again_shows_everything(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "compare ifca fedavg --clusters 2 --data rotated:digits?angles=0,180 --clients 6 --samples 12 --rounds 2"
    monkeypatch.setattr(
        "sys.argv", ["/usr/bin/coterie", *words.split(), "--model", "softmax", "--seeds", "2"]
    )
    assert main([*sys.argv[1:], "--out", "runs", "--quiet"]) == 0
    before = fingerprints(tmp_path / "runs")
    assert main(["report", "runs", "--out", "page.html", "--target", "0.1"]) == 0
    assert fingerprints(tmp_path / "runs") == before
    page = (tmp_path / "page.html").read_text()
    for word in (
        "How well each",
        "2 seeds",
        "coterie compare ifca fedavg",
        "accuracy 0.100 or better",
        "Fairness",
    ):
        assert word in page, word
    assert "without what needs its data" not in page


def test_the_same_run_opened_from_its_folder_has_the_same_portrait(tmp_path):
    from coterie.cli.train import prepared
    from coterie.reporting.portrait import portrait
    from coterie.reporting.source import of_folder

    data = {"spec": "rotated:digits", "seed": 0, "clients": 8, "samples": 10}
    run = prepared(ct.IFCA(clusters=4, **HOW), "ifca", data, "softmax", tmp_path / "run", rounds=2)
    one = portrait(ct.Result(run.go()))
    (source,) = of_folder(tmp_path / "run")
    two = portrait(source.open())
    assert one.groups.tolist() == two.groups.tolist() and one.fingerprint == two.fingerprint
    np.testing.assert_array_equal(one.losses, two.losses)
    np.testing.assert_array_equal(one.per_client["accuracy"], two.per_client["accuracy"])


def test_a_run_that_goes_on_meanwhile_is_left_alone(tmp_path):
    from coterie.cli.train import prepared

    data, folder = (
        {"spec": "rotated:digits", "seed": 0, "clients": 8, "samples": 10},
        tmp_path / "run",
    )
    prepared(
        ct.IFCA(clusters=4, **HOW), "ifca", data, "softmax", folder, rounds=4, eval_every=1
    ).go()
    old, last = sorted((folder / "checkpoints").glob("*"))
    last.unlink()  # round 4 is measured, but not saved yet
    before = fingerprints(folder)
    page = written(folder, tmp_path / "page.html")
    assert fingerprints(folder) == before
    assert f"ifca was last saved after round {int(old.stem)}" in page and "How well each" in page
    assert any(d.get("x") == [0, 1, 2, 3, 4] for f in figures(page).values() for d in f["data"])


def test_several_settings_of_one_method_are_told_apart(tmp_path):
    runs = [trained(ct.IFCA(clusters=k, **HOW), seed=s) for k in (2, 3) for s in (0, 1)]
    page = written(runs, tmp_path / "page.html")
    assert (
        written([*runs, runs[0]], tmp_path / "page.html") == page
    )  # a run given twice counts once
    assert (
        "<td>ifca clusters=2</td>" in page
        and "<td>ifca clusters=3</td>" in page
        and "2 seeds" in page
    )


def test_runs_of_the_same_settings_and_seed_are_told_apart_by_folder_or_number(tmp_path):
    for name in ("monday", "friday"):
        for seed in (0, 1):
            trained(
                ct.FedAvg(**HOW), tmp_path / "runs" / name / f"seed-{seed}", seed=seed, rounds=1
            )
    page = written(tmp_path / "runs" / "monday", tmp_path / "page.html")
    assert "<td>fedavg</td>" in page and "2 seeds" in page
    page = written(
        [tmp_path / "runs" / name for name in ("monday", "friday")], tmp_path / "page.html"
    )
    assert (
        "<td>fedavg (monday)</td>" in page
        and "<td>fedavg (friday)</td>" in page
        and "2 seeds" in page
    )
    page = written([trained(ct.FedAvg(**HOW), rounds=1) for _ in range(2)], tmp_path / "page.html")
    assert "<td>fedavg (run 1)</td>" in page and "<td>fedavg (run 2)</td>" in page


def test_runs_whose_data_are_gone_say_so_once_and_show_their_groups(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path / "sites")
    words = "compare ifca fedavg --clusters 2 --data folder:sites --label outcome --rounds 2 --model softmax --out runs"
    assert main([*words.split(), "--quiet"]) == 0
    (tmp_path / "sites").rename(tmp_path / "moved")
    train._loaded.cache_clear()  # as in a new process
    page = written("runs", tmp_path / "page.html")
    assert (
        page.count("cannot be read again") == 1
        and "ifca and fedavg are shown without what needs their" in page
    )
    with pytest.warns(UserWarning, match="cannot be read again"):
        loaded = ct.load("runs/ifca")  # answers without its data
    page = written(loaded, tmp_path / "page.html")
    assert "ifca is shown without what needs its data and models: the training data" in page
    assert "The groups that ifca ended with" in page and "Each client" not in page


def test_a_result_and_its_folder_are_one_run(tmp_path):
    result = trained(ct.IFCA(clusters=2, **HOW), tmp_path / "run")
    page = written([result, tmp_path / "run"], tmp_path / "page.html")
    assert "<td>ifca</td>" in page and "without what needs its data" not in page


def test_a_page_of_regression_and_of_soft_groups(tmp_path):
    fed = ct.data.linear("fedsoft", clients=6, samples=20, dim=3)
    runs = [
        ct.run(m, fed, rounds=2) for m in (ct.FedSoft(clusters=2, lr=0.01), ct.CGPFLHeur(lr=0.01))
    ]
    page = written(runs, tmp_path / "page.html")
    for word in (
        "test MSE",
        "Shares of the groups",
        "How many groups",
        "Map of the personal models",
        "placed by all numbers of its own model",
        "105 % of the best",
    ):
        assert word in page, word
    for figure in figures(page).values():
        go.Figure(figure)


def test_above_500_clients_figures_are_sampled_and_tables_are_not(tmp_path):
    fed = ct.data.linear(clients=1000, samples=4, dim=3, clusters=2, test_samples=4)
    page = written(
        ct.run(ct.IFCA(clusters=2, local_steps=1), fed, rounds=1), tmp_path / "page.html"
    )
    assert "500 of the 1000 clients" in page and all(name in page for name in fed.names)
    assert "Of the 1,000 clients, the 100 that do worst under ifca are shown." in page
    assert max(len(d.get("z", [])) for f in figures(page).values() for d in f["data"]) == 500
    assert len(page.encode()) < 6_000_000


def test_the_parts_come_in_order_under_proper_headings(results, tmp_path):
    page = written(results, tmp_path / "page.html")
    found = re.findall(
        r"<h([1-6])>(.*?)</h\1>", page[: page.index('<script type="application/json"')]
    )
    levels = [int(level) for level, _ in found]
    assert levels[0] == 1 and 1 not in levels[1:]
    assert all(
        b <= a + 1 for a, b in itertools.pairwise(levels)
    )  # none is left out on the way down
    assert [text for level, text in found if level == "2"] == [
        "Comparison", "Groups", "Each client", "Fairness", "Over rounds", "Over bytes", "Cost of getting there",
        "Method by method", "Settings", "How it was made",
    ]  # fmt: skip
    assert "local and fedavg find no groups" in page or "fedavg and local find no groups" in page
    assert page.count('class="plot"') == page.count('role="img" aria-label="') == len(figures(page))


def test_a_page_about_a_folder_of_tables(sites, tmp_path):
    fed = ct.data.folder(str(sites), label="outcome")
    runs = [
        ct.run(m, fed, "softmax", rounds=5) for m in (ct.IFCA(clusters=2, **HOW), ct.FedAvg(**HOW))
    ]
    page = written(runs, tmp_path / "page.html")
    top = page[: page.index("Method by method")]
    assert f"6 sites from the folder {sites.name}, label outcome. Each site is one client." in top
    assert str(sites) not in top and f"folder:{sites}" in page  # the path stands under the settings
    assert "† Fewer than 10 test rows: Łódź &lt;b&gt; (3)." in top
    assert re.search("In group [01], a higher mar&lt;ker goes with outcome = (ill|well) ", top)
    assert "only here" not in top  # a category of one site


# ---------------------------------------------------------------------------------------------- bad input
def test_bad_input_is_one_sentence_and_exit_2(tmp_path, monkeypatch, capsys, results):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    trained(ct.FedAvg(**HOW), tmp_path / "run")
    for words, why in (
        ([], "needs the folders"),
        (["nowhere"], "there is no folder nowhere"),
        (["empty"], "no run was found in empty"),
        (["other"], "lacks clients"),
        (["run", "--target", "high"], "must be a number"),
        (["run", "--out", "absent/page.html"], "cannot be written"),
        (["run", "--what"], "--what"),
    ):
        assert main(["report", *words]) == 2
        said = capsys.readouterr().err
        assert why in said and said.count("\n") == 1, said


def test_runs_on_different_data_are_refused(results, tmp_path):
    other = ct.run(ct.FedAvg(**HOW), two_kinds(seed=1), "softmax", rounds=1)
    with pytest.raises(ct.CoterieError, match="different data"):
        ct.report([results[0], other], tmp_path / "page.html")
    fewer = ct.run(ct.FedAvg(**HOW), two_kinds().subset(range(5)), "softmax", rounds=1, seed=1)
    with pytest.raises(ct.CoterieError, match="different data"):
        ct.report([results[0], fewer], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_run_that_measured_nothing_yet_is_left_out_or_refused(results, tmp_path):
    trained(ct.FedAvg(**HOW), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(ct.CoterieError, match="no test scores yet: train it"):
        ct.report(tmp_path / "run", tmp_path / "page.html")
    assert "is left out" in written([*results, tmp_path / "run"], tmp_path / "page.html")


def test_a_search_is_not_taken_for_a_run(tmp_path):
    ct.search(
        ct.FedAvg(), two_kinds(), "softmax", over={"lr": [0.1]}, rounds=1, out=tmp_path / "found"
    )
    with pytest.raises(
        ct.CoterieError, match="found is a search.*settings it found with `coterie run`, and report"
    ):
        ct.report(tmp_path / "found", tmp_path / "page.html")
    (tmp_path / "found" / "winner.toml").write_text("")
    with pytest.raises(ct.CoterieError, match="`coterie run METHOD --config .*found/winner.toml`"):
        ct.report(tmp_path / "found", tmp_path / "page.html")


def test_a_setting_that_the_method_no_longer_has(tmp_path):
    trained(ct.FedAvg(**HOW), tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["method"]["settings"]["gone"] = 1
    config["origin"] = {"data": {"spec": "rotated:digits", "seed": 0}, "method": "fedavg"}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert "another version of" in written(tmp_path / "run", tmp_path / "page.html")


def test_the_function_stays_the_function_after_its_package_is_loaded():
    import coterie.reporting

    assert ct.report is coterie.reporting.report and callable(ct.report)


def test_the_demo_writes_a_page_and_says_where(tmp_path, monkeypatch, capsys):
    from coterie.cli import demo

    for name, value in {"CLIENTS": 8, "SAMPLES": 15, "ROUNDS": 6, "SEEDS": 2}.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--quiet"]) == 0
    assert "everything on one page: demo/report.html" in capsys.readouterr().out
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "fedavg, local, one-shot and ifca on rotated:digits" in page and "(seed 0)" in page
    assert main(["demo", "--quiet"]) == 0  # over the first one


def test_a_run_that_was_stopped_is_said_to_be(tmp_path, capsys):
    trained(ct.FedAvg(**HOW), tmp_path / "run", rounds=2)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["options"]["rounds"] = 9
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    words = "fedavg is shown as it was after round 2 of 9: it was stopped, or diverged."
    assert words in written([tmp_path / "run"], tmp_path / "page.html")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "other.html")]) == 0
    out, err = capsys.readouterr()
    assert (
        f"warning: {words}" in err
        and "UserWarning" not in err
        and out == f"report in {tmp_path / 'other.html'}\n"
    )
