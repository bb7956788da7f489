"""The app of `coterie network new` on a stock SuperLink and stock SuperNodes, as real processes."""

from __future__ import annotations

import importlib.util
import json

import pytest
from made_network import distance, write_tables

import coterie as ct
from coterie.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs flwr"),
]
NAMES = ("ash", "birch")
CONFIG = """
method = "cgpfl"
clusters = 2
rounds = 2
seed = 1
eval_every = 2
label = "outcome"
data = "folder:sites"
model = "mlp:4"
dtype = "float64"
"""


@pytest.fixture
def flower(tmp_path):
    """A SuperLink and two SuperNodes with TLS and keys; the key of birch has no name."""
    from stock_flower import StockFlower

    write_tables(tmp_path / "sites", NAMES)
    assert main(["network", "new", str(tmp_path / "app")]) == 0
    tables = {name: tmp_path / "sites" / f"{name}.csv" for name in NAMES}
    running = StockFlower(tmp_path, tables, nameless=("birch",))
    try:
        yield running
    finally:
        running.stop()


def test_flwr_run_equals_the_loop(flower):
    """CGPFL has private states, which SuperNodes must keep from one process to the next.

    Other methods are compared in one process: see test_flower_app.py.
    """
    place = flower.place
    (place / "net.toml").write_text(CONFIG)
    printed = flower.run(
        place / "app",
        seconds=400,
        config=str(place / "net.toml"),
        sites=",".join(NAMES),
        out=str(place / "run"),
    )
    assert f"run saved in {place / 'run'}" in printed, printed
    result = ct.load(place / "run")
    assert not any(row["absent"] or row["rejected"] for row in result.history), printed
    loop = ct.run(
        ct.CGPFL(clusters=2),
        ct.data.folder(str(place / "sites"), label="outcome", seed=1),
        "mlp:4",
        rounds=2, seed=1, dtype="float64", engine="loop",
    )  # fmt: skip
    assert distance(result.trained.state, loop.state) <= 1e-5
    experiment = json.loads((place / "run/network.json").read_text())["experiment"]
    models = list((place / "states").glob(f"*/*-run-{experiment}/model/card.json"))
    assert len(models) == len(NAMES), "each site wrote its own model"
