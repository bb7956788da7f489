"""The demo and its figures, made small."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie import plots
from coterie.cli import demo


@pytest.fixture
def small(monkeypatch):
    for name, value in {"CLIENTS": 8, "SAMPLES": 15, "ROUNDS": 6, "SEEDS": 2}.items():
        monkeypatch.setattr(demo, name, value)


def test_demo_can_be_repeated_and_touches_nothing_else(coterie, small, tmp_path):
    said = coterie("demo", "--quiet")
    assert said.status == 0, said.err
    for word in ("fedavg", "local", "one-shot", "ifca", "lr 0.3", "demo/accuracy.svg", "2 seeds"):
        assert word in said.out
    first = (tmp_path / "demo" / "accuracy.svg").read_text()
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    assert coterie("demo", "--quiet").status == 2
    (tmp_path / "demo" / "notes.txt").unlink()
    assert coterie("demo", "--quiet", "--out", "demo").status == 0
    assert (tmp_path / "demo" / "accuracy.svg").read_text() == first


def test_every_method_takes_the_same_number_of_local_steps():
    for name, start in demo.STARTS.items():
        method = ct.registry.find(name)(**demo.LOCAL, **demo.OWN.get(name, {}))
        assert (method.lr, method.local_steps) == (demo.LOCAL["lr"], demo.LOCAL["local_steps"])
        before = getattr(method, "solve_steps", demo.LOCAL["local_steps"] if name == "ifca" else 0)
        assert before == start * method.local_steps


def test_found_groups_take_the_names_of_true_ones():
    found, true = np.array([[-1, -1, 2, 2], [1, 1, 0, 2]]), np.array([0, 0, 1, 1])
    matched = plots._matched(found, true)
    assert matched[0, 0] == -1 and matched[1, :2].tolist() == [0, 0]
    assert len(set(matched[1])) == 3


def test_figures(tmp_path):
    fed = ct.data.rotated(clients=8, samples=10)
    clustered = ct.run(
        ct.IFCA(clusters=4, local_steps=1), fed, "softmax", rounds=2, participation=0.5
    )
    alone = ct.run(ct.LocalOnly(local_steps=1), fed, "softmax", rounds=2)
    svg = plots.save(
        plots.curves({"ifca": [clustered], "local": [alone]}), tmp_path / "curves.svg"
    ).read_text()
    assert "<svg" in svg
    assert plots.save(plots.groups(clustered), tmp_path / "groups.png").stat().st_size > 1000
    with pytest.raises(ct.CoterieError, match="no groups"):
        plots.groups(alone)


def test_colours_do_not_run_out():
    assert len(set(plots._colours(30))) == 30 and plots._colours(2) == list(plots.COLOURS[:2])
