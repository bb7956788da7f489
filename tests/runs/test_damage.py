"""Damaged checkpoints: every flipped bit is noticed, by every way of opening a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.cli.table import summary_row
from coterie.runs import checkpoint
from coterie.runs.folder import RunFolder
from coterie.runs.load import load_run, load_trained
from coterie.runs.run import Run

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "truncated": lambda raw: raw[: len(raw) // 2],
    "a byte short": lambda raw: raw[:-1],
    "only zeros": lambda raw: bytes(len(raw)),
    "length of the head": lambda raw: b"\xff" * 8 + raw[8:],
    "a bit of the head": lambda raw: raw.replace(b"stopped", b"stoppee", 1),
    "a bit of a tensor": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "longer": lambda raw: raw + b"\0",
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after rounds 1 and 2, that the folder alone can open."""
    out = tmp_path_factory.mktemp("damage") / "run"
    save = Run.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "save", lambda self, always=False: save(self, always=True))
        fed = ct.data.linear(clients=4, samples=8, dim=2, clusters=2, test_samples=4)
        ct.run(ct.FedAvg(lr=0.01), fed, "linear", rounds=2, out=out)
    config = json.loads((out / "config.json").read_text())
    spec = "linear?clients=4&samples=8&dim=2&clusters=2&test_samples=4"
    config["origin"] = {"data": {"spec": spec, "seed": 0}}
    (out / "config.json").write_text(json.dumps(config))
    return out


def rounds_read(path: Path) -> dict[str, int]:
    """The round that each way of opening a run is at."""
    ct.load(path).export(path.parent / "models")
    card = json.loads((path.parent / "models" / "card.json").read_text())
    ct.report(path, path.parent / "page.html")
    return {
        "resume": load_run(path).round,
        "answers": load_trained(path).round,
        "export": card["rounds"],
        "result": ct.load(path).trained.round,
    }


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_falls_back_however_it_is_opened(
    run_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = shutil.copytree(run_folder, tmp_path / "run")
    newest, _ = RunFolder(path).checkpoints()
    newest.write_bytes(DAMAGE[damage](newest.read_bytes()))
    assert set(rounds_read(path).values()) == {1}
    warnings = [r.getMessage() for r in caplog.records if "is damaged" in r.getMessage()]
    assert len(warnings) >= 5
    assert all(w.startswith("checkpoint 000002.safetensors is damaged") for w in warnings)
    assert len(ct.resume(path).history) == 3
    assert RunFolder(path).checkpoints()[0] == newest
    assert load_trained(path).round == 2


def test_no_flipped_bit_is_read_as_something_else(run_folder: Path, tmp_path: Path) -> None:
    """One bit of every byte."""
    types = load_run(run_folder).types
    original, _ = RunFolder(run_folder).checkpoints()
    raw = original.read_bytes()
    expected = content(checkpoint.read(original, types))
    file = tmp_path / original.name
    flips = [(byte, byte % 8) for byte in range(len(raw))]
    silent = []
    for byte, bit in flips:
        file.write_bytes(raw[:byte] + bytes([raw[byte] ^ 1 << bit]) + raw[byte + 1 :])
        try:
            read = checkpoint.read(file, types)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            continue
        if content(read) != expected:
            silent.append((byte, bit))
    assert not silent


def content(read: checkpoint.Checkpoint) -> tuple[Any, ...]:
    leaves = [leaf.tolist() for leaf in tree_leaves(read.trees)]
    return list(read.trees), leaves, read.head


def test_metrics_that_lack_rounds_are_not_read_as_whole(run_folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(run_folder, tmp_path / "run")
    first, second, third = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    for lines in ([first, third], [first, second], [first, second, second, third]):
        (path / "metrics.jsonl").write_text("".join(lines))
        with pytest.raises(ct.CoterieError, match="rounds up to 2 of .*metrics.jsonl is damaged"):
            ct.load(path)


def test_what_a_kill_left_unfinished_is_removed(run_folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(run_folder, tmp_path / "run")
    left = [
        path / ".config.json.coterie-new",
        path / "metrics.jsonl.new",
        path / "checkpoints" / ".000003.safetensors.coterie-new",
        path / "checkpoints" / "000004.new",
    ]
    for file in left:
        file.write_bytes(b"half")
    result = ct.resume(path, rounds=3)
    assert len(result.history) == 4
    assert not any(file.exists() for file in left)


def test_rows_without_what_earlier_versions_did_not_write(tmp_path: Path) -> None:
    fed = ct.data.rotated("digits", clients=4, samples=20)
    ct.run(ct.FedAvg(local_steps=1), fed, "softmax", rounds=1, out=tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for row in rows:
        del row["clipped"]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert summary_row(ct.load(tmp_path / "run"))["clipped"] == 0
