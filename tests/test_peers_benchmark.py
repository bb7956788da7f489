"""`make bench-peers`: the recipe of the data, the checks of what was computed, and the page."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

from contenders.answering import load_models, save_models  # noqa: E402
from contenders.problems import (  # noqa: E402
    MODELS,
    PROBLEMS,
    Problem,
    find,
    fingerprint,
    first_models,
    rows_of,
    weight_shapes,
)
from contenders.torch_models import arrays_of, build, load, tensors  # noqa: E402
from peer_checks import Judge  # noqa: E402
from peer_environments import PEERS, CannotInstall, Peer, call  # noqa: E402
from peer_race import Race  # noqa: E402
from peer_report import page, read_results, write_report, write_results  # noqa: E402

TINY = Problem("tiny", "FedAvg", "table 30-64-2", 8, 20, 0.05, batch=8, passes=2)


# ------------------------------------------------------------------------------ the recipe
def test_names_of_problems_and_peers_are_unique() -> None:
    assert len({problem.name for problem in PROBLEMS}) == len(PROBLEMS)
    assert len({peer.name for peer in PEERS}) == len(PEERS)


@pytest.mark.parametrize("name", MODELS)
def test_first_models_fit_the_modules(name: str) -> None:
    problem = Problem("any", "FedAvg", name, 8, 4, 0.1, steps=1)
    module = build(problem.shape)
    (model,) = first_models(problem)
    load(module, tensors(model))
    for array, again in zip(model, arrays_of(module), strict=True):
        np.testing.assert_array_equal(array, again)
    x, _ = rows_of(problem)
    assert module(tensors([x[0]])[0]).shape == (4, problem.shape.layers[-1])


def test_a_convolution_halves_the_image_twice() -> None:
    shapes = weight_shapes(MODELS["CNN 32-64-512 on 28×28"])
    assert shapes == [(32, 1, 5, 5), (64, 32, 5, 5), (512, 64 * 7 * 7), (10, 512)]


def test_data_come_from_the_seed_alone() -> None:
    small = find("smalltable", small=True)
    assert small.clients == 8
    assert fingerprint(small) == fingerprint(find("smalltable", small=True))
    assert fingerprint(small) != fingerprint(find("smalltable", small=False))


def test_steps_and_rows_count_the_last_smaller_batch() -> None:
    assert TINY.local_steps == 6  # two passes of 8 + 8 + 4 rows
    assert TINY.visited_rows == 40


def test_models_are_read_as_they_were_written(tmp_path: Path) -> None:
    models = first_models(find("ifca50", small=True))
    save_models(tmp_path / "models.npz", models)
    again = load_models(tmp_path / "models.npz")
    assert len(again) == 4
    for model, other in zip(models, again, strict=True):
        for array, value in zip(model, other, strict=True):
            np.testing.assert_array_equal(array, value)


# ------------------------------------------------------------------------------ the checks
def contender(loss: float, steps: int = 48, rows: int = 320, wall: float = 1.0) -> dict[str, Any]:
    turns = [
        {"threads": 1, "wall": [2 * wall, wall], "processor": [wall]},
        {"threads": 2, "wall": [3 * wall], "processor": [6 * wall]},
    ]
    return {"loss": loss, "steps": steps, "rows": rows, "turns": turns}


def test_a_contender_that_did_something_else_is_named() -> None:
    judge = Judge(TINY)
    gain = 0.1
    reached = judge.loss(first_models(TINY)) - gain
    contenders = {
        "ours": contender(reached + 0.05 * gain),
        "plain_loop": contender(reached),
        "pfl": contender(reached, steps=47),
        "fedjax": contender(reached + 0.5 * gain),
        "fedlab": contender(float("nan")),
    }
    judge.compare(contenders)
    assert contenders["ours"]["off"] == pytest.approx(0.05, rel=1e-3)
    differs = {name: told["differs"] for name, told in contenders.items()}
    assert differs["ours"] == differs["plain_loop"] == ""
    assert differs["pfl"] == "it took 47 steps of 320 rows instead of 48 of 320"
    assert differs["fedjax"] == "its loss is off by 50 % of what the round gained"
    assert differs["fedlab"].startswith("its loss is off by nan")


def test_without_the_plain_loop_the_first_contender_is_the_measure() -> None:
    contenders = {"ours": contender(0.5), "pfl": contender(0.5, rows=1)}
    Judge(TINY).compare(contenders)
    assert contenders["ours"]["differs"] == ""
    assert contenders["pfl"]["differs"] == "it took 48 steps of 1 rows instead of 48 of 320"


# ------------------------------------------------------------------------------ the page
def results() -> dict[str, Any]:
    contenders = {
        "ours": contender(0.5, wall=0.1) | {"form": "dual", "products": 2e9},
        "plain_loop": contender(0.5, wall=0.4) | {"products": 3e9},
        "pfl": contender(0.9, wall=0.2),
        "fedjax": {"reason": "ImportError: no jax"},
    }
    for name, told in contenders.items():
        if "turns" in told:
            told |= {"off": 0.0, "differs": "other steps" if name == "pfl" else ""}
    record = {
        "title": "FedAvg of something",
        "mini_batch": True,
        "contenders": contenders,
        "command": "python benchmarks/peers.py tiny",
        "load": 0.1,
        "peak": 100.0,
        "date": "2026-01-01 10:00 UTC",
    }
    missing = {"blazefl": "No matching distribution found for blazefl"}
    return {"problems": {"tiny": record}, "missing": missing, "shapes": {"Gram": 70.0}}


def test_the_page_has_ratios_and_names_what_is_missing() -> None:
    text = "\n".join(page(results()))
    assert "0.400 s (1) **4.00×**" in text
    assert "differs: other steps" in text and "**2.00×**" not in text
    assert "failed: ImportError: no jax" in text
    assert "BlazeFL is not here: No matching distribution found for blazefl" in text
    assert "| FedAvg of something | 4.00× | – | – |" in text  # processor time
    assert "`python benchmarks/peers.py tiny`, 2026-01-01 10:00 UTC" in text
    assert "| 20 % | 30 % |" in text  # 2 and 3 GFLOP in 0.1 s, at 100 GFLOPS


def test_results_are_kept_and_a_difference_is_an_error(tmp_path: Path) -> None:
    write_results(tmp_path, results())
    assert read_results(tmp_path) == results()
    assert write_report(tmp_path, results()) == 1
    assert (tmp_path / "peers.svg").read_text().startswith("<?xml")
    same = results()
    same["problems"]["tiny"]["contenders"]["pfl"]["differs"] = ""
    assert write_report(tmp_path, same) == 0


# ------------------------------------------------------------------------------ real processes
def test_an_installation_that_fails_says_why() -> None:
    with pytest.raises(CannotInstall, match="^nothing there$"):
        call([sys.executable, "-c", "import sys; sys.exit('ERROR: nothing there')"])


def test_a_contender_that_fails_is_named_with_the_reason(tmp_path: Path) -> None:
    nobody = Peer("nobody", "Nobody", ("FedAvg",), is_ours=True)
    with Race(TINY, tmp_path, small=True, threads={1}) as contest:
        contest.enter([nobody])
        contest.run(1)
        record = contest.record()
    reason = record["contenders"]["nobody"]["reason"]
    assert reason.endswith("No module named contenders.nobody")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear10", "batch20"])
def test_we_and_the_plain_loop_compute_the_same(name: str, tmp_path: Path) -> None:
    with Race(find(name, small=True), tmp_path, small=True, threads={1}) as contest:
        contest.enter([peer for peer in PEERS if peer.is_ours])
        contest.run(1)
        record = contest.record()
    assert set(record["contenders"]) == {"ours", "plain_loop"}
    for told in record["contenders"].values():
        assert told["differs"] == ""
        assert told["off"] < 1e-3  # the loop is given our batches
