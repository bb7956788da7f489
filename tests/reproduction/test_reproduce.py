"""Experiments: their cells, what is kept of them, what they claim, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from made_experiment import CALLS, MADE, TRAINED

import coterie as ct
from reproduction import all_experiments
from reproduction import command as command_module
from reproduction import result_table as table_module
from reproduction import runner as runner_module
from reproduction import work as work_module
from reproduction.catalogue import read_notes
from reproduction.command import main
from reproduction.page import describe_changes, judge_all, make_page
from reproduction.result_table import ResultTable
from reproduction.runner import run_cells
from reproduction.spec import Measured, RecordedSearch, TableCell
from reproduction.work import load_federation, measure_scores, train, tuned_settings

ROOT = Path(__file__).parents[2]


def ran(experiment, scale, folder) -> ResultTable:
    results = ResultTable.open(experiment, scale, folder)
    run_cells(results, results.missing, jobs=1)
    return results


# ------------------------------------------------------------------------------ cells
def test_a_scale_changes_data_and_those_settings_that_a_method_has():
    (cell, other) = MADE.cells("smoke")
    assert cell.data_options == {"clients": 4} and cell.method.lr == 0.2
    assert list(describe_changes(cell)) == [
        "clients is 4 instead of 8.",
        "lr is 0.2 instead of 0.1.",
    ]
    nearer = replace(MADE.scale("smoke"), nearer=("lr",))
    (cell, _) = replace(MADE, scales={**MADE.scales, "smoke": nearer}).cells("smoke")
    assert cell.method.lr == 0.2 and list(describe_changes(cell)) == ["clients is 4 instead of 8."]
    kept = replace(MADE.lines[0], keep=("lr",))
    (cell, _) = replace(MADE, lines=(kept, MADE.lines[1])).cells("smoke")
    assert cell.method.lr == 0.1 and list(describe_changes(cell)) == ["clients is 4 instead of 8."]
    assert cell.mark != other.mark
    assert len(list(MADE.cells("full"))) == 2 * 2 * 3


def test_a_scale_may_change_a_setting_for_one_model_alone():
    by_model = replace(MADE.scale("full"), settings_by_model={"softmax": {"lr": 0.3}})
    columns = (replace(MADE.columns[0], model="softmax"), MADE.columns[1])
    made = replace(MADE, columns=columns, scales={**MADE.scales, "full": by_model})
    for cell in made.cells("full"):
        if cell.model == "softmax":
            assert cell.method.lr == 0.3 and list(describe_changes(cell)) == [
                "lr is 0.3 instead of 0.1."
            ]
        else:
            assert cell.method.lr == 0.1 and list(describe_changes(cell)) == []


def test_a_stopped_table_goes_on_and_done_cells_are_not_run_again(tmp_path, monkeypatch):
    CALLS.clear()
    run_cell = runner_module.run_cell

    def stopping(cell, folder):
        if len(CALLS) == 5:
            raise KeyboardInterrupt
        return run_cell(cell, folder)

    monkeypatch.setattr(runner_module, "run_cell", stopping)
    with pytest.raises(KeyboardInterrupt):
        ran(MADE, "full", tmp_path)
    monkeypatch.undo()
    assert len(ResultTable.open(MADE, "full", tmp_path).cells) == 5
    results = ran(MADE, "full", tmp_path)
    assert len(CALLS) == len(set(CALLS)) == 12 and not results.missing


def test_the_time_before_an_interruption_counts(tmp_path):
    file = tmp_path / "cell.seconds"
    with suppress(KeyboardInterrupt), runner_module.stopwatch(file):
        time.sleep(0.2)
        raise KeyboardInterrupt
    with runner_module.stopwatch(file) as seconds:
        assert 0.2 <= seconds() < 5
        time.sleep(0.1)
        assert seconds() >= 0.3


def test_the_time_of_a_killed_process_counts(tmp_path):
    file = tmp_path / "cell.seconds"
    code = (
        "import os, pathlib, time; from reproduction.runner import stopwatch\n"
        f"with stopwatch(pathlib.Path({str(file)!r}), every=0.05): time.sleep(0.5); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 9
    with runner_module.stopwatch(file) as seconds:
        assert seconds() >= 0.3


def test_a_resumed_cell_records_the_seconds_of_both_attempts(tmp_path):
    def slow(cell, folder):
        time.sleep(0.2)
        if not CALLS:
            CALLS.append(cell.title)
            raise KeyboardInterrupt
        return Measured({"accuracy": 0.5})

    CALLS.clear()
    experiment = replace(MADE, work=slow)
    with pytest.raises(KeyboardInterrupt):
        ran(experiment, "smoke", tmp_path)
    results = ran(experiment, "smoke", tmp_path)
    assert [cell.seconds >= 0.4 for cell in results.cells.values()] == [True, False]


def test_the_page_says_which_cells_were_run_with_uncommitted_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(table_module, "commit", lambda: "abc1234-dirty")
    results = ran(MADE, "full", tmp_path)
    assert "12 of 12 cells were run with uncommitted changes" in make_page(results)
    monkeypatch.setattr(table_module, "commit", lambda: "abc1234")
    assert "uncommitted" not in make_page(ran(MADE, "smoke", tmp_path))


def test_the_first_seeds_alone_and_then_the_others(tmp_path, monkeypatch, capsys):
    CALLS.clear()
    monkeypatch.setattr(command_module, "find", lambda name: MADE)
    argv = ["made.table", "--scale", "full", "--out", str(tmp_path), "--jobs", "1"]
    assert main([*argv, "--seeds", "1", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "python -m reproduction made.table --scale full --seeds 1\n" in told
    assert "Seeds: 1 instead of 3." in told and "8 cells have not been run yet" in told
    assert len(CALLS) == 4 and all("seed 0" in call for call in CALLS)

    assert main([*argv, "--seeds", "9", "--quiet"]) == 0  # no more than there are
    told = capsys.readouterr().out
    assert "--seeds" not in told and "not been run" not in told
    assert len(CALLS) == len(set(CALLS)) == 12


def test_one_line_and_one_column_alone(tmp_path, monkeypatch, capsys):
    CALLS.clear()
    monkeypatch.setattr(command_module, "find", lambda name: MADE)
    argv = ["made.table", "--scale", "full", "--out", str(tmp_path), "--quiet"]
    assert main([*argv, "--jobs", "1", "--line", "second", "--column", "b"]) == 0
    assert [f"second, b, seed {seed}" for seed in range(3)] == CALLS
    told = capsys.readouterr().out
    assert "python -m reproduction made.table --scale full --line second --column b\n" in told
    assert "Not run: a." in told and "| first |" not in told
    assert main([*argv, "--jobs", "1", "--line", "first", "--line", "second"]) == 0
    assert len(CALLS) == len(set(CALLS)) == 12
    assert "--line" not in capsys.readouterr().out
    assert main([*argv, "--column", "c"]) == 2
    assert "unknown column 'c'" in capsys.readouterr().err


def test_a_stopped_part_of_a_table_names_the_command_that_goes_on_with_it(
    tmp_path, monkeypatch, capsys
):
    def stopping(cell, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner_module, "run_cell", stopping)
    monkeypatch.setattr(command_module, "find", lambda name: MADE)
    argv = ["made.table", "--scale", "full", "--out", str(tmp_path), "--jobs", "1"]
    assert main([*argv, "--line", "first", "--column", "a", "--seeds", "2", "--quiet"]) == 130
    again = "python -m reproduction made.table --scale full --line first --column a --seeds 2"
    assert f"continue with: {again}" in capsys.readouterr().err


def test_a_line_of_the_paper_that_was_not_run_shows_the_papers_number(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command_module, "find", lambda name: MADE)
    argv = ["made.table", "--scale", "full", "--out", str(tmp_path), "--quiet"]
    assert main([*argv, "--jobs", "1", "--line", "second", "--seeds", "1"]) == 0
    assert "| first | – | 51.00 ± .10 |" in capsys.readouterr().out


def test_a_cell_that_was_decided_otherwise_is_run_again(tmp_path):
    ran(MADE, "smoke", tmp_path)
    file = tmp_path / "made.table-smoke.json"
    content = json.loads(file.read_text())
    content["cells"][0]["mark"] = "0" * 16
    file.write_text(json.dumps(content))
    assert [cell.title for cell in ResultTable.open(MADE, "smoke", tmp_path).missing] == [
        "first, a, seed 0"
    ]


def test_cells_that_differ_in_their_columns_label_alone_are_run_once(tmp_path):
    first, second = MADE.columns
    twin = replace(first, label="twin")
    CALLS.clear()
    results = ran(replace(MADE, columns=(first, second, twin)), "full", tmp_path)
    assert results.values("first", "twin", "worst") == results.values("first", "a", "worst")
    assert len(CALLS) == 12 and not any("twin" in title for title in CALLS)
    other = replace(twin, settings={"lr": 0.5})
    cells = replace(MADE, columns=(first, other)).cells("full")
    assert len({cell.work_mark for cell in cells}) == 2 * 2 * 3


def test_a_run_is_trained_and_one_that_diverges_has_no_values(tmp_path):
    results = ran(TRAINED, "full", tmp_path)
    fed = ct.data.rotated("digits", clients=4, samples=20, seed=0)
    same = ct.run(ct.FedAvg(lr=0.1, local_steps=2), fed, "softmax", rounds=2, seed=0, paper=True)
    assert results.values("global", "digits", "accuracy") == {0: same.accuracy.weighted}
    (wild,) = results.of("wild", "digits")
    assert "training diverged" in wild.error and not wild.values
    assert "| wild | diverged |" in make_page(results)
    assert not (tmp_path / "made.digits-full.runs").exists()


def test_a_line_that_is_tuned_takes_the_best_value_on_held_out_rows(tmp_path):
    given = replace(TRAINED, lines=(TRAINED.line("global"),))
    line = replace(given.lines[0], method=ct.FedAvg(lr=9.0, local_steps=2))
    line = replace(line, tune={"lr": (1e-6, 0.1)})
    tuned = replace(given, lines=(line,), work=with_what_was_tuned)
    untuned = replace(given, lines=(replace(line, tune={}),))
    by_accuracy = replace(tuned, tune_by="accuracy")
    every = (given, tuned, untuned, by_accuracy)
    assert len({next(e.cells("full")).mark for e in every}) == 4

    results = ran(tuned, "full", tmp_path / "tuned")
    same = ran(given, "full", tmp_path / "given")
    asked = ("global", "digits", "accuracy")
    assert results.values(*asked) == same.values(*asked)  # lr 0.1, and all training rows
    assert "* global: lr of 1e-06, 0.1; chosen by seed: 0.1." in make_page(results)
    assert "held-out" not in make_page(same)


def test_a_line_is_tuned_by_what_its_table_shows(tmp_path, monkeypatch):
    asked = []

    def search(*words, metric, **options):
        asked.append(metric)
        return ct.search(*words, metric=metric, **options)

    monkeypatch.setattr(work_module, "search", search)
    line = replace(TRAINED.line("global"), tune={"lr": (0.1,)})
    for by in ("loss", "accuracy"):
        ran(replace(TRAINED, lines=(line,), tune_by=by), "full", tmp_path / by)
    assert asked == ["loss", "accuracy"]


def with_what_was_tuned(cell: TableCell, folder: Path) -> Measured:
    fed = load_federation(cell)
    result = train(cell, fed, folder)
    measured = measure_scores(result, fed)
    return replace(measured, extra={"tuned": tuned_settings(cell, result)})


def test_results_name_the_commit_and_whether_the_package_itself_was_changed(tmp_path, monkeypatch):
    def git(*words: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    result = tmp_path / "reproduction" / "results" / "table.json"
    results = tmp_path / "reproduction" / "outcome.py"
    method = tmp_path / "src" / "coterie" / "method.py"
    for file in (result, results, method):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    monkeypatch.setattr(table_module, "__file__", str(results))
    commit = table_module.commit.__wrapped__  # without its cache
    assert commit() == ct.__version__  # no repository
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    result.write_text("2")
    found = commit()
    assert len(found) >= 7 and set(found) <= set("0123456789abcdef")
    for source in (results, method):
        source.write_text("2")
        assert commit() == f"{found}-dirty"
        source.write_text("1")


# ------------------------------------------------------------------------------ claims
def test_claims_are_judged(tmp_path):
    found = judge_all(ran(MADE, "full", tmp_path))
    assert [verdict.mark for verdict in found] == ["✓", "✓", "✗", "✗", "≈", "✓"]
    assert found[0].sentence == (
        "a: second is better than first by 4 or more; "
        "measured 10 (95 % interval 10 to 10, 3 seeds)."
    )
    assert found[4].sentence == (
        "a: first is within 0.5 of 51; measured 51 (95 % interval 48.52 to 53.48, 3 seeds)."
    )


# ------------------------------------------------------------------------------ the page
def test_the_page_has_ours_beside_the_papers(tmp_path):
    text = make_page(ran(MADE, "smoke", tmp_path))
    assert "| first | 50.00 | 51.00 ± .10 |" in text and "| second (ours) | 60.00 | – |" in text
    assert "python -m reproduction made.table --scale smoke" in text
    assert "* clients is 4 instead of 8." in text and "* Not run: b." in text
    assert "![A made table](made.table-smoke.svg)" in text


# ------------------------------------------------------------------------------ files and flags
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"format": 9}', "by another version"),
        ("{", "made.table-smoke.json is damaged"),
        ('{"format":1,"experiment":"x","scale":"smoke","cells":[]}', "holds x at scale smoke"),
    ],
)
def test_a_file_of_other_results_is_refused(tmp_path, content, words):
    (tmp_path / "made.table-smoke.json").write_text(content)
    with pytest.raises(ct.CoterieError, match=words):
        ResultTable.open(MADE, "smoke", tmp_path)


def test_numbers_that_are_not_finite_are_kept_as_none(tmp_path):
    results = ResultTable.open(MADE, "smoke", tmp_path)
    cell = results.missing[0]
    results.add(cell, Measured({"accuracy": float("inf")}), 1.0)
    results.save()
    again = ResultTable.open(MADE, "smoke", tmp_path)
    assert again.values("first", "a", "accuracy") == {0: float("inf")}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "the name of an experiment is missing"),
        (["ifca.tabel1-mnist"], "did you mean 'ifca.table1-mnist'?"),
        (["threshold.figure1", "--scale", "huge"], "huge"),
        (["threshold.figure1", "--show", "--out", "nothing"], "omit --show"),
        (["natural.heart", "--search"], "omit --search"),
    ],
)
def test_mistakes_are_one_sentence(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("ifca.table1-mnist", "train-images-idx3-ubyte.gz"),
        ("fedsoft.table2", "unipen_chars.npz"),
        ("natural.har", "uci_har.npz"),
        ("natural.exam", "sites/exam.csv"),
        ("ifca.table1-cifar", "cifar10"),
    ],
)
def test_missing_data_are_named(name, file, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    argv = [name, "--scale", "smoke", "--out", str(tmp_path / "out")]
    assert main([*argv, "--jobs", "1", "--quiet"]) == 2
    told = capsys.readouterr().err
    assert file in told and "COTERIE_DATA" in told and told.count("\n") == 1


def test_results_of_another_version_are_one_sentence(capsys, tmp_path):
    (tmp_path / "threshold.theorem1-smoke.json").write_text('{"format": 9}')
    argv = ["threshold.theorem1", "--scale", "smoke", "--out", str(tmp_path)]
    assert main(argv) == 2
    told = capsys.readouterr().err
    assert "another version of coterie" in told and told.count("\n") == 1


def test_every_experiment_is_listed_and_its_specs_agree(capsys):
    assert main(["--list"]) == 0
    told = capsys.readouterr().out
    for name, experiment in all_experiments().items():
        assert name in told and experiment.title in told
        assert set(experiment.scales) == {"smoke", "medium", "full"}
        lines = {line.label for line in experiment.lines}
        columns = {column.label for column in experiment.columns}
        assert len(lines) == len(experiment.lines) and len(columns) == len(experiment.columns)
        for printed in (experiment.printed, *experiment.printed_also.values()):
            assert set(printed) <= lines
            assert all(set(of) <= columns for of in printed.values())
        assert set(experiment.printed_also) <= {quantity.name for quantity in experiment.quantities}
        for tuned in experiment.tuned:
            assert tuned.line in lines and tuned.column in columns
            assert all(value in tuned.over[name] for name, value in tuned.best.items())
        for scale in experiment.scales.values():
            assert set(scale.lines) <= lines and set(scale.columns) <= columns
        marks = [cell.mark for cell in experiment.cells("full")]
        assert len(set(marks)) == len(marks)


def test_only_the_lines_that_papers_ran_so_choose_on_test_rows():
    for experiment in all_experiments().values():
        for line in experiment.lines:
            if line.options.get("choose_on") == "test":
                assert type(line.method) in (ct.IFCA, ct.CFLMGD)
            if "our start" in line.label:
                assert line.options == {"paper": False} and not line.in_paper


def test_the_command_writes_a_page_and_figures(capsys, tmp_path):
    argv = ["threshold.theorem1", "--scale", "smoke", "--out", str(tmp_path)]
    assert main([*argv, "--jobs", "1", "--quiet"]) == 0
    told = capsys.readouterr().out
    stem = "threshold.theorem1-smoke"
    assert "| half, M=50 |" in told
    names = sorted(file.name for file in tmp_path.iterdir() if file.suffix != ".lock")
    assert names == [f"{stem}.json", f"{stem}.md", f"{stem}.svg"]


# ------------------------------------------------------------------------------ searches
def test_a_search_has_seeds_and_rows_of_its_own(monkeypatch, capsys):
    over = {"lr": (1e-6, 0.3)}
    tuned = RecordedSearch(
        line="global", column="digits", over=over, best={"lr": 0.3}, taken="0.1 is taken"
    )
    experiment = replace(TRAINED, tuned=(tuned,), tuned_at="full")
    seeds = []
    load = work_module.load_federation
    monkeypatch.setattr(
        work_module, "load_federation", lambda cell: seeds.append(cell.seed) or load(cell)
    )
    found = work_module.repeat_search(experiment, tuned, "full")
    assert set(seeds) == {101, 102} and found.best == {"lr": 0.3}
    assert all(not len(trial.fed.test.y) for trial in found.trials())
    (told,) = work_module.repeat_searches(experiment, "full")
    assert told.startswith("recorded: global, digits: lr of 1e-06, 0.3: best is lr 0.3; 0.1 is ta")
    assert told.splitlines()[1].startswith("  lr 0.3: accuracy 0.")


def test_the_page_names_what_was_searched_for(tmp_path):
    tuned = RecordedSearch(line="first", column="a", over={"lr": (0.1, 0.3)}, best={"lr": 0.1})
    results = ran(replace(MADE, tuned=(tuned,)), "smoke", tmp_path)
    text = make_page(results)
    assert "by `python -m reproduction made.table --scale medium --search`**" in text
    assert "* first, a: lr of 0.1, 0.3: best is lr 0.1." in text


def test_a_paper_may_print_several_quantities(tmp_path):
    also = {"worst": {"second": {"a": "33.3"}}}
    text = make_page(ran(replace(MADE, printed_also=also), "smoke", tmp_path))
    assert "| second (ours) | 60.00 | – |" in text and "| second (ours) | 30.00 | 33.3 |" in text


def test_a_scale_may_take_another_model():
    small = replace(TRAINED, scales={"full": replace(TRAINED.scales["full"], model="mlp:8")})
    cell, same = next(small.cells("full")), next(TRAINED.cells("full"))
    assert (cell.model, same.model) == ("mlp:8", "softmax") and cell.mark != same.mark
    assert list(describe_changes(cell)) == ["The model is mlp:8 instead of softmax."]


def test_settings_that_a_method_lacks_are_no_difference():
    scale = replace(MADE.scales["smoke"], settings={"clusters": 3})
    cell = next(replace(MADE, scales={**MADE.scales, "smoke": scale}).cells("smoke"))
    assert list(describe_changes(cell)) == ["clients is 4 instead of 8."]


def test_committed_results_are_cells_of_the_experiments_that_they_name():
    """After a hyper-parameter is renamed, convert the marks in the files or rerun the cells."""
    for path in sorted((ROOT / "reproduction" / "results").glob("*.json")):
        content = json.loads(path.read_text())
        experiment = all_experiments()[content["experiment"]]
        known = {cell.mark for cell in experiment.cells(content["scale"])}
        assert {cell["mark"] for cell in content["cells"]} <= known, path.name


def test_notes_name_experiments_that_exist():
    folder = ROOT / "reproduction" / "catalogue"
    for path in folder.glob("*.md"):
        notes = read_notes(path)
        assert notes and set(notes) <= set(all_experiments())


def test_notes_of_several_experiments_are_joined(tmp_path):
    file = tmp_path / "notes.md"
    file.write_text(
        "## a, b\n\n### Findings\n\n* one\n  line\n* two\n\n## b\n\n### Findings\n\n* three\n"
        "\n### Open points\n\n* four\n"
    )
    assert read_notes(file) == {
        "a": {"findings": ("one line", "two")},
        "b": {"findings": ("one line", "two", "three"), "open_points": ("four",)},
    }
