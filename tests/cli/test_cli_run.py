"""Runs, comparisons and resuming, through the command."""

from __future__ import annotations

import gc
import json
import signal
import weakref
from pathlib import Path

import pytest

import coterie as ct
from coterie.reporting.comparison import Comparison, all_columns
from coterie.reporting.text import format_bytes
from coterie.runs.run import Run


def rows_of_metrics(folder: Path) -> list[dict]:
    return [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]


def test_run_is_the_same_as_from_python(coterie, tiny):
    outcome = coterie("run ifca", tiny, "--clusters 4 --lr 0.5 --out out --json")
    assert outcome.status == 0
    run = json.loads(outcome.out)["runs"][0]
    fed = ct.data.rotated(clients=8, samples=12)
    result = ct.run(ct.IFCA(clusters=4, lr=0.5, local_steps=2), fed, "softmax", rounds=2)
    assert run["accuracy"] == pytest.approx(result.accuracy.weighted, abs=1e-12)
    assert run["accuracy_worst"] == pytest.approx(result.accuracy.worst_decile, abs=1e-12)
    assert run["sizes"] == result.final["sizes"] and run["ari"] == result.final["ari"]
    assert run["bytes_down"] == sum(row["bytes_down"] for row in result.history)
    assert (run["method"], run["seed"], run["folder"], run["rounds"]) == ("ifca", 0, "out", 2)


def test_table_and_lines(coterie, tiny):
    outcome = coterie("run ifca", tiny, "--clusters 4 --unseen 2")
    assert outcome.status == 0
    head, row, *rest = outcome.out.splitlines()
    titles = ["method", "log loss ± clients", "client mean", "worst 10 %", "accuracy"]
    titles += ["calibration", "unseen", "ARI", "group sizes", "traffic", "seconds"]
    assert [t.strip() for t in head.split("  ") if t.strip() not in ("", "balanced")] == titles
    assert row.startswith("ifca ") and "over the 6 clients" in " ".join(rest)
    groups = [line for line in rest if line.startswith("ifca group ")]
    assert [line.partition(" (")[0] for line in groups] == [
        f"ifca group {k}" for k in range(4) if f"ifca group {k} (" in outcome.out
    ]
    names = [name for line in groups for name in line.partition(": ")[2].split(", ")]
    assert sorted(names) == [f"client-00{i}" for i in range(6)], "who is with whom"
    folder = Path(
        rest[-2].removeprefix("run saved in ").removesuffix("; for a report with figures:")
    )
    assert rest[-1] == f"  coterie report {folder}"
    assert folder.parent == Path("runs") and folder.name.startswith("ifca-rotated-digits-2")
    assert (folder / "config.json").exists()
    last = outcome.err.splitlines()[-1]
    assert last.startswith("ifca  round 2/2  accuracy 0.") and last.endswith(" s/round")
    assert "groups " in last


def test_the_table_says_of_how_many_clients_its_scores_are(coterie, tiny):
    outcome = coterie("run fedavg", tiny, "--eval-clients 3 --out out")
    assert "standard deviation over the 3 clients" in " ".join(outcome.out.split())
    assert "Scores are those of 3 of the 8 clients." in outcome.out
    outcome = coterie("run fedavg", tiny, "--eval-clients 9 --out all")
    assert "over the 8 clients" in outcome.out and "Scores are those" not in outcome.out


def test_the_table_does_not_count_clients_with_too_few_rows(coterie, sites):
    rows = "\n".join(f"{n},{n % 5},{n % 2}" for n in range(100))
    (sites / "site0.csv").write_text(f"age,dose,outcome\n{rows}\n")
    outcome = coterie(
        "run fedavg --data folder:sites --label outcome --rounds 1",
        "--min-rows-to-report 10 --out out",
    )
    assert "Scores are those of 1 of the 3 clients." in outcome.out


def test_two_runs_in_one_second_get_two_folders(coterie, tiny, tmp_path):
    for _ in range(2):
        assert coterie("run local", tiny, "--quiet").status == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_regression(coterie):
    outcome = coterie("run fedavg --data linear?dim=5 --clients 8 --rounds 2 --quiet")
    assert outcome.status == 0 and outcome.err == ""
    assert "MSE ± clients" in outcome.out and " R² " in outcome.out
    assert "accuracy" not in outcome.out


def test_compare_and_seeds(coterie, tiny, tmp_path):
    outcome = coterie("compare ifca fedavg", tiny, "--clusters 2 --seeds 2 --seed 3 --out out")
    assert outcome.status == 0
    assert "log loss ± seeds" in outcome.out and outcome.out.count(" *") >= 1
    assert "runs saved in out; for" in outcome.out
    configs = tmp_path.glob("out/*/*/config.json")
    runs = {str(config.parent.relative_to(tmp_path / "out")) for config in configs}
    assert runs == {"ifca/seed-3", "ifca/seed-4", "fedavg/seed-3", "fedavg/seed-4"}
    config = json.loads((tmp_path / "out/ifca/seed-4/config.json").read_text())
    assert config["origin"]["data"]["seed"] == 4 and config["options"]["seed"] == 4

    document = json.loads(coterie("resume out --json").out)
    assert [(run["method"], run["seed"]) for run in document["runs"]] == [
        ("ifca", 3),
        ("fedavg", 3),
        ("ifca", 4),
        ("fedavg", 4),
    ]
    one, two = [run["accuracy"] for run in document["runs"] if run["method"] == "ifca"]
    accuracy = document["methods"]["ifca"]["accuracy"]
    assert accuracy["mean"] == pytest.approx((one + two) / 2)
    assert accuracy["std"] == pytest.approx(abs(one - two) / 2**0.5)


def test_resume_goes_on_to_the_same_end(coterie, tiny, tmp_path):
    run = f"run ifca {tiny} --clusters 2 --eval-every 1"
    assert coterie(run, "--rounds 4 --out full").status == 0
    assert coterie(run, "--rounds 2 --out half").status == 0
    outcome = coterie("resume half --rounds 4")
    assert outcome.status == 0 and "run saved in half" in outcome.out

    def scores(name):
        rows = rows_of_metrics(tmp_path / name)
        return [(row["round"], row["accuracy"], row["sizes"]) for row in rows]

    assert scores("half") == scores("full")
    assert "is complete after 4 rounds" in coterie("resume half --rounds 4").err


def test_resume_from_another_place(coterie, sites, own, tmp_path, monkeypatch):
    """Paths are kept absolute: of the data, of a method and of a model."""
    given = "--data folder:sites --label outcome --rounds 1 --out"
    assert coterie("run own.py:Mine", given, tmp_path / "a").status == 0
    images = "--model own.py:Net --clients 8 --rounds 1 --out"
    assert coterie("run fedavg", images, tmp_path / "b").status == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in "ab":
        assert coterie("resume", tmp_path / name, "--rounds 2").status == 0


def test_one_diverged_method_does_not_keep_others_from_running(coterie, tiny):
    outcome = coterie("compare fedprox fedavg", tiny, "--fedprox.lr 1e38 --out out")
    assert outcome.status == 2
    assert "fedavg" in outcome.out and "fedprox" not in outcome.out
    assert "coterie: fedprox, round 1" in outcome.err
    assert "The last good checkpoint is out/fedprox" in outcome.err


def test_warnings_are_one_line(coterie, sites):
    (sites / "site0.csv").write_text("age,dose,outcome\n" + "1,2,0\n" * 8)
    outcome = coterie("run fedavg --data folder:sites --label outcome --rounds 1")
    line = "warning: 1 of 3 clients have a single training row or a single class: site0\n"
    assert line in outcome.err


@pytest.mark.parametrize(
    "method", ["ifca --clusters 3", "fedavg", "local", "one-shot --clusters 2"]
)
def test_dry_run_counts_what_a_run_sends(coterie, tiny, tmp_path, method):
    command = f"run {method} {tiny} --participation 0.5 --unseen 1"
    estimate = json.loads(coterie(command, "--dry-run --json").out)[0]
    assert not list(tmp_path.iterdir())
    assert coterie(command, "--out out").status == 0
    sent = [[row["bytes_down"], row["bytes_up"]] for row in rows_of_metrics(tmp_path / "out")]
    assert [estimate["bytes_start"], estimate["bytes_round"]] == sent[:2]
    assert (estimate["clients"], estimate["unseen"], estimate["parameters"]) == (7, 1, 650)


@pytest.mark.parametrize(
    "settings, form",
    [
        ("--model mlp:200 --local-epochs 5 --batch 10", "dual, all 12 samples of a client in one"),
        ("--model mlp:200 --clip 1", "plain: clipping needs the whole gradient"),
        ("--model cnn", "plain: the model does not begin with a linear layer"),
    ],
)
def test_dry_run_says_which_form_local_steps_take(coterie, tiny, settings, form):
    out = coterie("run fedavg", tiny, settings, "--dry-run").out
    assert f"local steps  {form}" in out


def test_dry_run_of_several_methods(coterie, tiny):
    out = coterie("compare fedavg local", tiny, "--dry-run").out
    assert "fedavg on rotated:digits?" in out and "local on rotated:digits?" in out
    assert "650 parameters" in out and "8 train, 0 unseen" in out


def test_plan_is_kept(coterie, tiny, tmp_path):
    assert coterie("run fedavg", tiny, "--plan 3,1 --out out").status == 0
    plan = json.loads((tmp_path / "out" / "config.json").read_text())["plan"]
    assert (plan["chunk"], plan["workers"]) == (3, 1)


def test_list_names_everything(coterie):
    outcome = coterie("list")
    assert outcome.status == 0
    for name in ("ifca", "fedavg", "one-shot", "rotated", "folder", "digits", "softmax"):
        assert f"\n  {name} " in outcome.out


def best_of(methods: dict, metric: str) -> list[str]:
    return Comparison(metric, methods).best


def test_best_and_level():
    """Without scores by site, only what looks equal is level; the best comes first."""
    run = lambda accuracy, std=0.1: {"accuracy": accuracy, "accuracy_std": std}
    assert best_of({"a": [run(0.9)], "b": [run(0.8)]}, "accuracy") == ["a"]
    assert best_of({"a": [run(0.9001)], "b": [run(0.9002)]}, "accuracy") == ["b", "a"]
    assert best_of({"a": [{"mse": 0.3}], "b": [{"mse": 0.2}], "c": [{}]}, "mse") == ["b"]
    assert best_of({"a": [{}]}, "mse") == []


def test_the_conclusion_is_printed_under_the_table_and_is_in_the_json(coterie, tiny):
    """Methods with one seed have the same test rows, so that each site can be paired."""
    command = "compare ifca fedavg local", tiny, "--clusters 2 --seeds 2"
    text = " ".join(coterie(*command).out.split())
    assert " scores best, with a test log loss of " in text
    assert "8 sites, 2 seeds)" in text and "roups" in text
    document = json.loads(coterie(*command, "--json").out)
    groups, best, *_ = document["conclusions"]
    assert best in text and groups in text
    assert not any("by_site" in run or "group_of" in run for run in document["runs"])


def test_one_run_beside_several_seeds_has_no_spread() -> None:
    """The column is of the spread over seeds; that over clients must not stand in it."""
    one = [{"accuracy": 0.9, "accuracy_std": 0.3}]
    two = [{"accuracy": 0.8, "accuracy_std": 0.3}, {"accuracy": 0.6, "accuracy_std": 0.3}]
    _, cell = all_columns(Comparison("accuracy", {"a": one, "b": two}))[0]
    assert cell(one) == "0.900" and cell(two) == f"0.700 ± {0.1 * 2**0.5:.3f}"
    _, cell = all_columns(Comparison("accuracy", {"a": one}, None))[0]
    assert cell(one) == "0.900 ± 0.300"


def test_the_score_of_the_commonest_class_is_shown(coterie):
    outcome = coterie("run fedavg --clients 8 --samples 12 --rounds 1 --model softmax --out o")
    fed = ct.data.rotated(clients=8, samples=12)
    share = fed.test.y.bincount().max() / len(fed.test.y)
    assert f"always predicting the most frequent class: accuracy {share:.3f}, the" in " ".join(
        outcome.out.split()
    )


def test_groups_of_the_first_seed_and_who_never_trains_are_named(coterie, tiny):
    outcome = coterie("compare ifca fedavg", tiny, "--clusters 2 --seeds 2 --unseen 2 --out o")
    lines = outcome.out.splitlines()
    groups = [line for line in lines if line.startswith("ifca") and "): client-" in line]
    groups = [line for line in groups if "uncertain" not in line]
    assert groups and all(line.startswith("ifca (seed 0) group ") for line in groups)
    several = "o contains several runs: give one of o/fedavg/seed-0, o/fedavg/seed-1"
    assert several in coterie("assign o x.csv").err
    left_out = ct.load("o/ifca/seed-0").trained.roster.names[-2:]
    assert len(set(left_out)) == 2
    assert f", without {', '.join(left_out)}" in outcome.err


def test_a_run_that_has_ended_is_only_read(coterie, tiny, tmp_path):
    assert coterie("run fedavg", tiny, "--out o").status == 0

    def state():
        files = [path for path in (tmp_path / "o").rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    for rounds in ("", "--rounds 1"):
        outcome = coterie("resume o", rounds)
        assert outcome.status == 0 and "run saved in o" in outcome.out
        assert "fedavg is complete after 2 rounds" in outcome.err
        assert "rounds with" not in outcome.err
        assert state() == before


def test_bytes_are_written_with_their_unit():
    sizes = [format_bytes(n) for n in (0, 999, 1500, 2.5e6, 3e9, 4e12)]
    assert sizes == ["0 B", "999 B", "1.5 kB", "2.5 MB", "3.0 GB", "4.0 TB"]


def test_ctrl_c_in_the_last_round_of_one_method_stops_the_comparison(
    coterie, coterie_with_signal, tiny
):
    """The method that was training is done; the next one is not begun."""
    outcome = coterie_with_signal(
        "compare fedavg local", tiny, "--out out",
        number=signal.SIGINT, at=lambda run: run.method.name == "fedavg" and run.round == 2,
    )  # fmt: skip
    assert outcome.status == 130 and "saved; continue with: coterie resume out" in outcome.err
    assert "stopped" not in outcome.err
    assert Path("out/fedavg/metrics.jsonl").read_text().count("\n") == 3
    assert not Path("out/local/metrics.jsonl").read_text()
    assert coterie("resume out --quiet").status == 0
    outcome = coterie_with_signal(
        "run fedavg", tiny, "--out one", number=signal.SIGINT, at=lambda run: run.round == 2
    )
    assert outcome.status == 0 and "run saved in one" in outcome.out, "alone, it has its table"


def test_a_run_that_stopped_early_is_not_told_to_go_on(coterie, tiny):
    stop = "--valid 0.3 --stop-after 1 --eval-every 1 --rounds 60 --lr 5 --out o --quiet"
    assert coterie("run fedavg", tiny, stop).status == 0
    outcome = coterie("resume o --rounds 90")
    assert outcome.status == 0
    assert "fedavg stopped early after " in outcome.err and "(--stop-after)" in outcome.err
    assert "--rounds N trains for more" not in outcome.err


def test_one_run_is_in_memory_at_a_time(coterie, tiny, monkeypatch):
    """Its engine has the clients' rows and states."""
    alive: weakref.WeakSet[Run] = weakref.WeakSet()
    start = Run.__init__
    counts = []

    def count(self, *given, **named):
        gc.collect()
        counts.append(len(alive))
        start(self, *given, **named)
        alive.add(self)

    monkeypatch.setattr(Run, "__init__", count)
    assert coterie("compare fedavg local fedprox", tiny, "--out o").status == 0
    assert counts == [0, 0, 0]
