"""Runs, comparisons and resuming, through the command."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import coterie as ct
from coterie.reporting.comparison import Comparison
from coterie.reporting.comparison_table import all_columns
from coterie.reporting.text import format_bytes
from coterie.runs.run import Run


def test_run_is_the_same_as_from_python(coterie, tiny):
    said = coterie("run", "ifca", *tiny, "--clusters", 4, "--lr", 0.5, "--out", "out", "--json")
    assert said.status == 0
    found = json.loads(said.out)["runs"][0]
    fed = ct.data.rotated(clients=8, samples=12)
    result = ct.run(ct.IFCA(clusters=4, lr=0.5, local_steps=2), fed, "softmax", rounds=2)
    assert found["accuracy"] == pytest.approx(result.accuracy.weighted, abs=1e-12)
    assert found["accuracy_worst"] == pytest.approx(result.accuracy.worst_decile, abs=1e-12)
    assert found["sizes"] == result.final["sizes"] and found["ari"] == result.final["ari"]
    assert found["bytes_down"] == sum(row["bytes_down"] for row in result.history)
    assert (found["method"], found["seed"], found["folder"], found["rounds"]) == (
        "ifca",
        0,
        "out",
        2,
    )


def test_table_and_lines(coterie, tiny):
    said = coterie("run", "ifca", *tiny, "--clusters", 4, "--unseen", 2)
    assert said.status == 0
    head, row, *rest = said.out.splitlines()
    titles = ["method", "accuracy ± clients", "client mean", "worst 10 %", "F1", "unseen", "ARI"]
    titles += ["group sizes", "traffic", "seconds"]
    assert [t.strip() for t in head.split("  ") if t.strip() not in ("", "balanced")] == titles
    assert row.startswith("ifca ") and "over the 6 clients" in " ".join(rest)
    assert [line.partition(":")[0] for line in rest if " group " in line] == [
        f"ifca group {k}" for k in range(4) if f"ifca group {k}: " in said.out
    ]
    named = [
        name for line in rest if " group " in line for name in line.partition(": ")[2].split(", ")
    ]
    assert sorted(named) == [f"client-00{i}" for i in range(6)], "who is with whom"
    folder = Path(rest[-2].removeprefix("run kept in ").removesuffix("; for figures:"))
    assert rest[-1] == f"  coterie report {folder}"
    assert folder.parent == Path("runs") and folder.name.startswith("ifca-rotated-digits-2")
    assert (folder / "config.json").exists()
    last = said.err.splitlines()[-1]
    assert (
        last.startswith("ifca  round 2/2  accuracy 0.")
        and "groups " in last
        and last.endswith(" s/round")
    )


def test_two_runs_in_one_second_get_two_folders(coterie, tiny, tmp_path):
    for _ in range(2):
        assert coterie("run", "local", *tiny, "--quiet").status == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_regression(coterie):
    said = coterie(
        "run", "fedavg", "--data", "linear?dim=5", "--clients", 8, "--rounds", 2, "--quiet"
    )
    assert said.status == 0 and said.err == ""
    assert "MSE ± clients" in said.out and " R² " in said.out and "accuracy" not in said.out


def test_compare_and_seeds(coterie, tiny, tmp_path):
    said = coterie(
        "compare",
        "ifca",
        "fedavg",
        *tiny,
        "--clusters",
        2,
        "--seeds",
        2,
        "--seed",
        3,
        "--out",
        "out",
    )
    assert said.status == 0
    assert (
        "accuracy ± seeds" in said.out
        and said.out.count(" *") >= 1
        and "runs kept in out; for" in said.out
    )
    runs = {
        str(p.parent.relative_to(tmp_path / "out")) for p in tmp_path.glob("out/*/*/config.json")
    }
    assert runs == {"ifca/seed-3", "ifca/seed-4", "fedavg/seed-3", "fedavg/seed-4"}
    config = json.loads((tmp_path / "out/ifca/seed-4/config.json").read_text())
    assert config["origin"]["data"]["seed"] == 4 and config["options"]["seed"] == 4

    said = coterie("resume", "out", "--json")
    found = json.loads(said.out)
    assert [(r["method"], r["seed"]) for r in found["runs"]] == [
        ("ifca", 3),
        ("fedavg", 3),
        ("ifca", 4),
        ("fedavg", 4),
    ]
    one = [r["accuracy"] for r in found["runs"] if r["method"] == "ifca"]
    assert found["methods"]["ifca"]["accuracy"]["mean"] == pytest.approx(sum(one) / 2)
    assert found["methods"]["ifca"]["accuracy"]["std"] == pytest.approx(
        abs(one[0] - one[1]) / 2**0.5
    )


def test_resume_goes_on_to_the_same_end(coterie, tiny, tmp_path):
    assert (
        coterie(
            "run",
            "ifca",
            *tiny,
            "--clusters",
            2,
            "--rounds",
            4,
            "--eval-every",
            1,
            "--out",
            "whole",
        ).status
        == 0
    )
    assert (
        coterie(
            "run", "ifca", *tiny, "--clusters", 2, "--rounds", 2, "--eval-every", 1, "--out", "half"
        ).status
        == 0
    )
    said = coterie("resume", "half", "--rounds", 4)
    assert said.status == 0 and "run kept in half" in said.out

    def scores(name):
        rows = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [(row["round"], row["accuracy"], row["sizes"]) for row in rows]

    assert scores("half") == scores("whole")
    assert "has ended after 4 rounds" in coterie("resume", "half", "--rounds", 4).err


def test_resume_from_another_place(coterie, sites, own, tmp_path, monkeypatch):
    """Paths are kept absolute: of the data, of a method and of a model."""
    given = ["--data", "folder:sites", "--label", "outcome", "--rounds", 1, "--out", tmp_path / "a"]
    assert coterie("run", "own.py:Mine", *given).status == 0
    rotated = ["--model", "own.py:Net", "--clients", 8, "--rounds", 1, "--out", tmp_path / "b"]
    assert coterie("run", "fedavg", *rotated).status == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in "ab":
        assert coterie("resume", tmp_path / name, "--rounds", 2).status == 0


def test_one_diverged_method_does_not_keep_others_from_running(coterie, tiny):
    said = coterie("compare", "fedprox", "fedavg", *tiny, "--fedprox.lr", "1e38", "--out", "out")
    assert said.status == 2
    assert "fedavg" in said.out and "fedprox" not in said.out
    assert (
        "coterie: fedprox, round 1" in said.err
        and "The last good checkpoint is out/fedprox" in said.err
    )


def test_warnings_are_one_line(coterie, sites):
    (sites / "site0.csv").write_text("age,dose,outcome\n" + "1,2,0\n" * 8)
    said = coterie("run", "fedavg", "--data", "folder:sites", "--label", "outcome", "--rounds", 1)
    assert (
        "warning: 1 of 3 clients have a single training row or a single class: site0\n" in said.err
    )


def test_dry_run_counts_what_a_run_sends(coterie, tiny, tmp_path):
    for method, more in (
        ("ifca", ["--clusters", 3]),
        ("fedavg", []),
        ("local", []),
        ("one-shot", ["--clusters", 2]),
    ):
        given = [method, *tiny, *more, "--participation", 0.5, "--unseen", 1]
        found = json.loads(coterie("run", *given, "--dry-run", "--json").out)[0]
        assert not (tmp_path / "runs").exists()
        assert coterie("run", *given, "--out", method).status == 0
        rows = [
            json.loads(row)
            for row in (tmp_path / method / "metrics.jsonl").read_text().splitlines()
        ]
        sent = [[row["bytes_down"], row["bytes_up"]] for row in rows]
        assert [found["bytes_start"], found["bytes_round"]] == sent[:2], method
        assert (found["clients"], found["unseen"], found["parameters"]) == (7, 1, 650)
    told = coterie("compare", "fedavg", "local", *tiny, "--dry-run").out
    assert (
        "fedavg on rotated:digits?" in told
        and "650 parameters" in told
        and "8 train, 0 unseen" in told
    )


def test_plan_is_kept(coterie, tiny, tmp_path):
    assert coterie("run", "fedavg", *tiny, "--plan", "3,1", "--out", "out").status == 0
    plan = json.loads((tmp_path / "out" / "config.json").read_text())["plan"]
    assert (plan["chunk"], plan["workers"]) == (3, 1)


def test_list_names_everything(coterie):
    said = coterie("list")
    assert said.status == 0
    for name in ("ifca", "fedavg", "one-shot", "rotated", "folder", "digits", "softmax"):
        assert f"\n  {name} " in said.out


def best_of(methods: dict, metric: str) -> list[str]:
    return Comparison(metric, methods, None).best


def test_best_and_level():
    run = lambda accuracy, std=0.1: {"accuracy": accuracy, "accuracy_std": std}
    assert best_of({"a": [run(0.9)], "b": [run(0.8)]}, "accuracy") == ["a"]
    assert best_of({"a": [run(0.9001)], "b": [run(0.9002)]}, "accuracy") == ["a", "b"]
    assert best_of({"a": [run(0.90), run(0.94)], "b": [run(0.9), run(0.9)]}, "accuracy") == [
        "a",
        "b",
    ]
    assert best_of({"a": [{"mse": 0.3}], "b": [{"mse": 0.2}], "c": [{}]}, "mse") == ["b"]
    assert best_of({"a": [{}]}, "mse") == []
    assert best_of({"a": [run(0.91)], "b": [run(0.88), run(0.92)]}, "accuracy") == ["a", "b"], (
        "by the spread of b"
    )
    assert best_of({"a": [run(0.95)], "b": [run(0.88), run(0.92)]}, "accuracy") == ["a"]


def test_one_run_beside_several_seeds_has_no_spread() -> None:
    """The column is of the spread over seeds; that over clients must not stand in it."""
    one = [{"accuracy": 0.9, "accuracy_std": 0.3}]
    two = [{"accuracy": 0.8, "accuracy_std": 0.3}, {"accuracy": 0.6, "accuracy_std": 0.3}]
    _, cell = all_columns(Comparison("accuracy", {"a": one, "b": two}, None))[0]
    assert cell(one) == "0.900" and cell(two) == f"0.700 ± {0.1 * 2**0.5:.3f}"
    _, cell = all_columns(Comparison("accuracy", {"a": one}, None))[0]
    assert cell(one) == "0.900 ± 0.300"


def test_what_the_commonest_class_would_score_is_said(coterie):
    said = coterie(
        "run",
        "fedavg",
        "--clients",
        8,
        "--samples",
        12,
        "--rounds",
        1,
        "--model",
        "softmax",
        "--out",
        "o",
    )
    fed = ct.data.rotated(clients=8, samples=12)
    share = fed.test.y.bincount().max() / len(fed.test.y)
    assert f"always the commonest class: {share:.3f}" in " ".join(said.out.split())


def test_groups_of_the_first_seed_and_who_never_trains_are_named(coterie, tiny):
    said = coterie(
        "compare",
        "ifca",
        "fedavg",
        *tiny,
        "--clusters",
        2,
        "--seeds",
        2,
        "--unseen",
        2,
        "--out",
        "o",
    )
    groups = [
        line for line in said.out.splitlines() if line.startswith("ifca") and ": client-" in line
    ]
    assert groups and all(line.startswith("ifca (seed 0) group ") for line in groups)
    assert (
        "o holds several runs: give one of o/fedavg/seed-0, o/fedavg/seed-1"
        in coterie("assign", "o", "x.csv").err
    )
    left_out = set(ct.load("o/ifca/seed-0").trained.roster.names[-2:])
    assert (
        f", without {', '.join(ct.load('o/ifca/seed-0').trained.roster.names[-2:])}" in said.err
        and len(left_out) == 2
    )


def test_a_run_that_has_ended_says_only_that(coterie, tiny):
    assert coterie("run", "fedavg", *tiny, "--out", "o").status == 0
    said = coterie("resume", "o")
    assert "fedavg has ended after 2 rounds" in said.err and "rounds with" not in said.err


def test_bytes_are_written_with_their_unit():
    assert [format_bytes(n) for n in (0, 999, 1500, 2.5e6, 3e9, 4e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "3.0 GB",
        "4.0 TB",
    ]


def test_ctrl_c_in_the_last_round_of_one_method_stops_the_comparison(coterie, tiny, monkeypatch):
    """The method that was training is done; the next one is not begun."""
    step = Run.step

    def interrupted(self):
        row = step(self)
        if self.method.name == "fedavg" and self.round == self.options.rounds:
            signal.raise_signal(signal.SIGINT)
        return row

    monkeypatch.setattr(Run, "step", interrupted)
    said = coterie("compare", "fedavg", "local", *tiny, "--out", "out")
    assert (
        said.status == 130
        and "saved; go on with: coterie resume out" in said.err
        and "stopped" not in said.err
    )
    assert (
        Path("out/fedavg/metrics.jsonl").read_text()
        and not Path("out/local/metrics.jsonl").read_text()
    )
    assert coterie("resume", "out", "--quiet").status == 0
    assert coterie("run", "fedavg", *tiny, "--out", "one").status == 0, "alone, it has its table"
