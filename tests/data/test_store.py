"""Stores on disk: what is read is what was written, and runs are the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from stored_images import images

import coterie as ct
from coterie.cli import main
from coterie.cli.dry_run import estimate
from coterie.core.errors import CoterieError
from coterie.data import Federation, open_store, store
from coterie.engines.clients import SimulatedClients
from coterie.runs.options import Options
from coterie.runs.start import create_job, create_task


def tables(path: Path) -> Federation:
    g = np.random.default_rng(0)
    frames = {}
    for site in "abcd":
        frame = pd.DataFrame({"age": g.integers(20, 80, 40), "sex": g.choice(["f", "m"], 40)})
        frame["dose"] = np.where(g.random(40) < 0.1, np.nan, g.normal(size=40))
        frame["y"] = (frame["age"] > 50).astype(int)
        frames[site] = frame
    frames["a"]["dose"] = 2.5
    return ct.data.from_frames(frames, "y", fill="median", unseen=1).with_valid(0.2, 0)


def mixed(path: Path) -> Federation:
    fed = ct.data.linear(clients=5, samples=20, dim=3, clusters=2)
    weights = torch.rand(5, 2)
    return replace(fed.with_valid(0.25, seed=1), truth=weights, loss_scale=torch.rand(5))


def tokens(path: Path) -> Federation:
    words = torch.arange(60).view(20, 3)
    return ct.data.from_memory([(words, torch.arange(20) % 2)] * 3)


MADE = {
    "images": lambda path: images(),
    "tables": tables,
    "mixed": mixed,
    "tokens": tokens,
    "no test rows": lambda path: ct.data.linear(clients=3, samples=9, dim=2, test_samples=0),
    "digits": lambda path: ct.data.load("rotated:digits?clients=8&unseen=2", seed=0),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MADE)
def test_what_is_read_is_what_was_written(name: str, tmp_path: Path) -> None:
    fed = MADE[name](tmp_path)
    store(fed, tmp_path / "kept")
    read = open_store(str(tmp_path / "kept"))
    assert read.source == f"store:{tmp_path / 'kept'}?check=True"
    assert read.roster.source == "store:kept?check=True"
    for field in ("names", "kind", "classes", "unseen", "labels", "schema", "site_columns"):
        assert getattr(read, field) == getattr(fed, field), field
    for field in ("truth", "planted", "loss_scale"):
        one, other = getattr(read, field), getattr(fed, field)
        assert (one is None) == (other is None) and (one is None or torch.equal(one, other)), field
    assert read.parts().keys() == fed.parts().keys()
    for one, other in zip(read.parts().values(), fed.parts().values()):
        x = one.x
        if x.dtype == torch.uint8:
            x = x.float() / read.byte_scale
        assert torch.equal(x, other.x) and torch.equal(one.y, other.y)
        assert torch.equal(one.sizes, other.sizes)
    if name != "images":
        assert read.fingerprint() == fed.fingerprint()
    assert read.fingerprint() == replace(read, stored=None).fingerprint(), "kept, not recomputed"
    assert read.roster.tokens == fed.roster.tokens


def test_images_are_kept_in_bytes(tmp_path: Path) -> None:
    fed = images()
    read = store(fed, tmp_path / "kept")
    assert read.train.x.dtype == torch.uint8 and read.byte_scale == 255
    assert (tmp_path / "kept" / "train.x.bin").stat().st_size == fed.train.x.numel()
    again = store(read, tmp_path / "again")
    assert again.train.x.dtype == torch.uint8 and again.fingerprint() == read.fingerprint()
    almost = replace(fed, test=fed.test._replace(x=fed.test.x + 1e-4))
    assert store(almost, tmp_path / "floats").train.x.dtype == torch.float32, "lossless or not"


@pytest.mark.parametrize("engine", ["loop", "vectorised", "wire"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["images", "mixed"])
def test_a_run_from_a_store_is_the_run_from_memory(
    name: str, dtype: str, engine: Any, tmp_path: Path
) -> None:
    fed = MADE[name](tmp_path)
    read = store(fed, tmp_path / "kept")
    how: Any = {"rounds": 3, "engine": engine, "dtype": dtype, "participation": 0.7}
    method = ct.IFCA(clusters=2, lr=0.01, local_steps=2, batch=4)
    memory, disk = (ct.run(method, data, **how) for data in (fed, read))
    for one, other in zip(memory.history, disk.history, strict=True):
        seconds = {"seconds", "eval_seconds"}
        assert {k: v for k, v in one.items() if k not in seconds} == {
            k: v for k, v in other.items() if k not in seconds
        }


@pytest.mark.parametrize("batch", [None, 3])
def test_products_of_rows_are_kept_as_numbers(batch: int | None, tmp_path: Path) -> None:
    """The dual form keeps XXᵀ of a client's rows from round to round: not in bytes."""
    fed = images()
    read = store(fed, tmp_path / "kept")
    method = ct.IFCA(clusters=2, lr=0.05, local_steps=4, batch=batch)
    memory, disk = (ct.run(method, data, "mlp:64", rounds=3) for data in (fed, read))
    assert memory.final["loss"] == disk.final["loss"] and memory.final["loss"] < 2


def test_nothing_is_copied_or_converted_before_it_is_used(tmp_path: Path) -> None:
    for name, fed in (("bytes", images()), ("floats", mixed(tmp_path))):
        read = store(fed, tmp_path / name)
        task, _ = create_task(read.roster, None, Options(dtype="float64"))
        clients = SimulatedClients(task, read)
        assert clients.parts["train"].x is read.train.x
        batch = clients.padded("train", torch.tensor([2, 0]))
        assert batch.x.dtype == torch.float64 and float(batch.x[1, 0].abs().max()) <= 5


def test_rows_on_disk_take_no_memory(tmp_path: Path) -> None:
    fed = images()
    read = store(fed, tmp_path / "kept")
    taken = [estimate(create_job(ct.FedAvg(), data))["memory"]["data"] for data in (fed, read)]
    assert taken[0] > fed.train.x.nbytes and taken[1] == 0


def test_parts_of_a_store_are_other_data(tmp_path: Path) -> None:
    read = store(images(), tmp_path / "kept")
    some = read.subset([0, 1, 5])
    assert some.fingerprint() == images_in_bytes(images().subset([0, 1, 5])).fingerprint()
    assert some.byte_scale == 255
    split = read.with_valid(0.3, seed=0)
    assert split.fingerprint() != read.fingerprint()


def images_in_bytes(fed: Federation) -> Federation:
    parts = {
        name: part._replace(x=(part.x * 255).round().to(torch.uint8))
        for name, part in fed.parts().items()
    }
    return replace(fed, **parts, byte_scale=255.0)


# ------------------------------------------------------------------------------ one by one
def pairs(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    g = np.random.default_rng(seed)
    return {f"s{i}": (g.normal(size=(9 + i, 4)), g.integers(0, 3, 9 + i)) for i in range(5)}


def test_clients_one_by_one(tmp_path: Path) -> None:
    seen: list[str] = []

    def clients() -> Iterator[tuple[Any, ...]]:
        for name, pair in pairs().items():
            seen.append(name)
            yield name, pair

    read = store(clients(), tmp_path / "kept", seed=3, unseen=1, labels=("u", "v", "w"))
    fed = ct.data.from_memory(pairs(), seed=3, unseen=1, labels=("u", "v", "w"))
    assert read.fingerprint() == fed.fingerprint() and read.labels == fed.labels
    assert seen == list(pairs())
    with_tests = [(name, pair, pairs(1)[name]) for name, pair in pairs().items()]
    read = store(iter(with_tests), tmp_path / "tests")
    assert read.fingerprint() == ct.data.from_memory(pairs(), test=pairs(1)).fingerprint()


def test_a_folder_of_arrays_is_read_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sites").mkdir()
    for name, (x, y) in pairs().items():
        np.savez(tmp_path / "sites" / name, x=x, y=y)
    fed = ct.data.folder(str(tmp_path / "sites"), test_share=0.4, seed=2)
    with monkeypatch.context() as patch:
        patch.setattr(
            sys.modules["coterie.data.folder"], "from_npz", lambda *_: pytest.fail("all in memory")
        )
        read = store(f"folder:{tmp_path / 'sites'}", tmp_path / "kept", seed=2, test_share=0.4)
    assert read.fingerprint() == fed.fingerprint()
    hidden = store(f"folder:{tmp_path / 'sites'}?unseen=2&seed=2", tmp_path / "unseen")
    assert hidden.unseen == 2


def test_bytes_one_by_one(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (8, 5), dtype=np.uint8)
    read = store([("a", (x, np.arange(8) % 2))], tmp_path / "kept", byte_scale=255, test_share=0)
    assert read.train.x.dtype == torch.uint8 and read.byte_scale == 255
    plain = store([("a", (torch.tensor(x), np.arange(8) % 2))], tmp_path / "plain", test_share=0)
    memory = ct.data.from_memory([(x, np.arange(8) % 2)], ["a"], test_share=0)
    assert torch.equal(plain.train.x.float() / plain.byte_scale, memory.train.x)


@pytest.mark.parametrize(
    "clients, words",
    [
        ([], ["at least one client"]),
        ([("a", ([[1.0]], [0])), ("b", ([[1.0, 2.0]], [0]))], ["'a'", "'b'", "(1,)", "(2,)"]),
        ([("a", ([[1.0]], [0])), ("b", ([[1]], [0]))], ["'a'", "'b'", "float", "int64"]),
        ([("a", ([[1.0]], [0])), ("b", ([[1.0]], [0.5]))], ["labels", "'a'", "'b'"]),
        ([("a", ([[1.0]], [0])), ("b", ([[np.nan]], [0]))], ["'b'", "NaN"]),
        ([("a", ([[1.0]], [0])), ("b", (np.empty((0, 1)), []))], ["'b' is empty"]),
        ([("a", ([[1.0]], [0])), ("a", ([[1.0]], [0]))], ["'a' occurs more than once"]),
        ([("a", ([[1.0]], [-1]))], ["'a'", "label -1"]),
        ([("a", 3)], ["'a' is not a pair"]),
        (["ab", 5], ["(name, (x, y))"]),
    ],
)
def test_wrong_clients_leave_nothing(clients: Any, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(CoterieError) as error:
        store(iter(clients), tmp_path / "kept")
    assert all(word in str(error.value) for word in words), str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_options_that_mean_nothing(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="option of a store of a federation 'unseen'"):
        store(images(), tmp_path / "kept", unseen=1)
    with pytest.raises(CoterieError, match="option of a store of clients one by one 'truth'"):
        store(iter(pairs().items()), tmp_path / "kept", truth=1)
    with pytest.raises(CoterieError, match="valid is for a federation"):
        store(iter(pairs().items()), tmp_path / "kept", valid=0.2)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------ the command
def test_from_a_table_to_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = np.random.default_rng(1)
    frame = pd.DataFrame({"u": g.normal(size=120), "site": np.repeat(list("abcd"), 30)})
    frame["y"] = (frame["u"] > 0).astype(int)
    frame.to_csv(tmp_path / "all.csv", index=False)
    kept, run = str(tmp_path / "kept"), str(tmp_path / "run")
    words = ["--label", "y", "--client-column", "site", "--valid", "0.2", "--unseen", "1"]
    assert main(["store", kept, "--data", f"table:{tmp_path / 'all.csv'}", *words]) == 0
    said = capsys.readouterr().out
    assert "4 clients, 120 rows of 1 numbers as float32" in said
    assert open_store(kept).valid is not None and open_store(kept).unseen == 1
    train = ["run", "ifca", "--clusters", "2", "--rounds", "3", "--quiet", "--out", run]
    assert main([*train, "--data", f"store:{kept}"]) == 0
    frame.iloc[:30].drop(columns="site").to_csv(tmp_path / "new.csv", index=False)
    assert main(["assign", run, str(tmp_path / "new.csv")]) == 0
    assert main(["predict", run, str(tmp_path / "new.csv"), "--client", "b"]) == 0
    assert main(["export", run, "--out", str(tmp_path / "models")]) == 0
    assert main(["report", run, "--out", str(tmp_path / "page.html")]) == 0
    assert main(["resume", run, "--rounds", "4", "--quiet"]) == 0
    assert main(["run", "fedavg", "--data", f"store:{kept}", "--clients", "3"]) == 2
    assert "option of the data set store" in capsys.readouterr().err
