"""The app of `coterie network new` on a stock SuperLink and stock SuperNodes, as real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_network import distance, write_tables

import coterie as ct

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs flwr"),
]
NAMES = ("ash", "birch", "cedar", "elm")
METHODS = {"ifca": ct.IFCA, "fedsoft": ct.FedSoft, "cgpfl": ct.CGPFL}
CONFIG = """
method = "{method}"
clusters = 2
rounds = 3
seed = 1
participation = 0.75
eval_every = 3
label = "outcome"
data = "folder:sites"
model = "mlp:4"
dtype = "float64"
"""


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """A SuperLink and four SuperNodes for all tests, with TLS and keys; elm's key has no name."""
    from stock_flower import StockFlower

    place = tmp_path_factory.mktemp("stock")
    write_tables(place / "sites", NAMES)
    running = StockFlower(
        place, {name: place / "sites" / f"{name}.csv" for name in NAMES}, nameless=("elm",)
    )
    try:
        assert command(place, "new", "app") == 0
        yield running
    finally:
        running.stop()


def command(place: Path, *words: str) -> int:
    """`coterie network …`; its exit status."""
    source = str(Path(ct.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-m", "coterie", "network", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        timeout=400,
    ).returncode


@pytest.mark.parametrize("method", METHODS)
def test_flwr_run_is_the_loop_and_our_own_server_and_nodes(method, flower):
    place = flower.place
    (place / f"{method}.toml").write_text(CONFIG.format(method=method))
    printed = flower.run(
        place / "app",
        seconds=900,
        config=str(place / f"{method}.toml"),
        sites=",".join(NAMES),
        out=str(place / method),
    )
    assert f"run saved in {place / method}" in printed, printed
    result = ct.load(place / method)
    assert not any(row["absent"] or row["rejected"] for row in result.history), printed
    loop = ct.run(
        METHODS[method](clusters=2),
        ct.data.folder(str(place / "sites"), label="outcome", seed=1),
        "mlp:4",
        rounds=3, seed=1, participation=0.75, dtype="float64", engine="loop",
    )  # fmt: skip
    assert distance(result.trained.state, loop.state) <= 1e-5
    assert command(place, "simulate", f"{method}.toml", "--out", f"{method}-own", "--quiet") == 0
    own = ct.load(place / f"{method}-own/run")
    assert distance(result.trained.state, own.trained.state) <= 1e-5
    experiment = json.loads((place / method / "network.json").read_text())["experiment"]
    models = list((place / "states").glob(f"*/*-run-{experiment}/model/card.json"))
    assert len(models) == len(NAMES), "each site wrote its own model"
