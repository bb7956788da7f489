"""The demo and its figures, made small."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.cli import demo
from coterie.reporting import plots


@pytest.fixture
def small(monkeypatch):
    sizes = {"CLIENTS": 8, "SAMPLES": 15, "ROUNDS": 6, "SEEDS": 2, "MODEL": "softmax"}
    for name, value in sizes.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setitem(demo.LOCAL, "local_steps", 2)
    monkeypatch.setitem(demo.OWN["one-shot"], "solve_steps", 10)


@pytest.mark.slow
def test_demo_can_be_repeated_and_touches_nothing_else(coterie, small, tmp_path):
    outcome = coterie("demo --quiet")
    assert outcome.status == 0, outcome.err
    for word in ("fedavg", "local", "one-shot", "ifca", "lr 0.3", "demo/accuracy.svg", "2 seeds"):
        assert word in outcome.out
    first = (tmp_path / "demo" / "accuracy.svg").read_text()
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    assert coterie("demo --quiet").status == 2
    (tmp_path / "demo" / "notes.txt").unlink()
    assert coterie("demo --quiet --out demo").status == 0
    assert (tmp_path / "demo" / "accuracy.svg").read_text() == first


def test_every_method_takes_the_same_number_of_local_steps():
    for name, start in demo.STARTS.items():
        method = ct.registry.find(name)(**demo.LOCAL, **demo.OWN.get(name, {}))
        assert (method.lr, method.local_steps) == (demo.LOCAL["lr"], demo.LOCAL["local_steps"])
        before = {"ifca": demo.LOCAL["local_steps"], "one-shot": getattr(method, "solve_steps", 0)}
        assert before.get(name, 0) == start * method.local_steps


def test_the_result_in_a_sentence():
    run = lambda method, accuracy, ari=None: {"method": method, "accuracy": accuracy, "ari": ari}
    runs = [run("ifca", 0.9, 1), run("local", 0.5), run("one-shot", 0.6, 0.8)]
    assert demo.describe_result(runs) == (
        "ifca is best; ifca found the 4 groups exactly, with every seed."
    )
    runs = [run("fedavg", 0.9), run("fedavg", 0.8), run("local", 0.86), run("local", 0.84)]
    assert demo.describe_result(runs) == "fedavg and local are equally good."


def test_groups_take_the_names_of_true_ones():
    groups, true = np.array([[-1, -1, 2, 2], [1, 1, 0, 2]]), np.array([0, 0, 1, 1])
    matched = plots.match_groups(groups, true)
    assert matched[0, 0] == -1 and matched[1, :2].tolist() == [0, 0]
    assert len(set(matched[1])) == 3


def test_figures(tmp_path):
    fed = ct.data.rotated(clients=8, samples=10)
    ifca = ct.IFCA(clusters=4, local_steps=1)
    clustered = ct.run(ifca, fed, "softmax", rounds=2, participation=0.5)
    alone = ct.run(ct.LocalOnly(local_steps=1), fed, "softmax", rounds=2)
    curves = plots.plot_curves({"ifca": [clustered.history], "local": [alone.history]})
    assert "<svg" in plots.save(curves, tmp_path / "curves.svg").read_text()
    groups = plots.plot_groups(clustered.clusters, "groups", clustered.truth)
    assert plots.save(groups, tmp_path / "groups.png").stat().st_size > 1000


def test_colours_do_not_run_out():
    assert len(set(plots.colours_for(30))) == 30 and plots.colours_for(2) == list(plots.COLOURS[:2])
