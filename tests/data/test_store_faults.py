"""Stores that are damaged, and disks that are full: one sentence each, nothing half-written."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from stored_images import images

from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.data import load, open_store, store
from coterie.data.store_files import StoreWriter


def edit(path: Path, **changes: Any) -> None:
    header = json.loads((path / "store.json").read_text())
    (path / "store.json").write_text(json.dumps(header | changes))


def cut(file: str) -> Any:
    def change(path: Path) -> None:
        raw = (path / file).read_bytes()
        (path / file).write_bytes(raw[:-3])

    return change


def flip(file: str) -> Any:
    def change(path: Path) -> None:
        raw = bytearray((path / file).read_bytes())
        raw[len(raw) // 2] ^= 1
        (path / file).write_bytes(bytes(raw))

    return change


def other_shape(path: Path) -> None:
    header = json.loads((path / "store.json").read_text())
    header["arrays"]["train.x"]["shape"] = [header["arrays"]["train.x"]["shape"][0] * 16]
    (path / "store.json").write_text(json.dumps(header))


FAULTS = {
    "no store": (lambda path: path.rename(path.with_name("gone")), ["there is no store"]),
    "no header": (lambda path: (path / "store.json").unlink(), ["is no store", "store.json"]),
    "later version": (lambda path: edit(path, version=2), ["version 2", "reads 1"]),
    "half a header": (cut("store.json"), ["damaged", "store.json"]),
    "another format": (lambda path: edit(path, format="zip"), ["damaged", "zip"]),
    "unknown field": (lambda path: edit(path, color=1), ["damaged", "color"]),
    "rows cut short": (cut("train.x.bin"), ["cut short", "train.x.bin"]),
    "labels cut short": (cut("test.y.bin"), ["cut short", "test.y.bin"]),
    "no file": (lambda path: (path / "train.y.bin").unlink(), ["cut short", "0 of"]),
    "sizes cut short": (cut("train.sizes.bin"), ["cut short", "train.sizes.bin"]),
    "too long": (
        lambda path: (path / "test.x.bin").open("ab").write(b"1"),
        ["damaged", "test.x.bin"],
    ),
    "another size": (flip("train.sizes.bin"), ["damaged", "checksum of train.sizes.bin"]),
    "another pixel": (flip("train.x.bin"), ["damaged", "rows"]),
    "another label": (flip("test.y.bin"), ["damaged", "rows"]),
    "another name": (flip("clients.json"), ["damaged", "checksum of clients.json"]),
    "no names": (lambda path: (path / "clients.json").unlink(), ["cut short", "clients.json"]),
    "no such array": (lambda path: edit(path, arrays={}), ["damaged", "train"]),
    "a path": (
        lambda path: edit(path, arrays={"../x": {"dtype": "uint8", "shape": [1]}}),
        ["damaged", "'../x'"],
    ),
    "negative shape": (
        lambda path: edit(path, arrays={"x": {"dtype": "uint8", "shape": [-1]}}),
        ["damaged"],
    ),
    "other rows": (other_shape, ["damaged", "they must agree"]),
    "nobody trains": (lambda path: edit(path, unseen=6), ["damaged", "unseen=6"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = FAULTS[fault]
    store(images(), tmp_path / "kept")
    change(tmp_path / "kept")
    command = ["run", "fedavg", "--data", f"store:{tmp_path / 'kept'}", "--out"]
    assert main([*command, str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0 and all(word in said for word in words), said
    assert not (tmp_path / "run").exists()


def test_rows_are_not_read_twice_if_the_owner_says_so(tmp_path: Path) -> None:
    store(images(), tmp_path / "kept")
    flip("train.x.bin")(tmp_path / "kept")
    assert load(f"store:{tmp_path / 'kept'}?check=false", 0).total == 6


def test_rows_of_version_02_are_checked(tmp_path: Path) -> None:
    fixture = Path(__file__).parents[1] / "fixtures" / "v02" / "store"
    kept = shutil.copytree(fixture, tmp_path / "kept")
    assert open_store(str(kept)).total
    flip("train.x.bin")(kept)
    with pytest.raises(CoterieError, match="damaged"):
        open_store(str(kept))


def test_a_path_that_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("kept")
    assert main(["store", str(tmp_path / "mine"), "--data", "linear"]) == 2
    assert "exists: choose another path" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "kept"
    (tmp_path / "file").write_text("")
    assert main(["store", str(tmp_path / "file" / "below"), "--data", "linear"]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("at", ["append", "small", "finish"])
def test_a_full_disk_leaves_nothing(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StoreWriter, at, full)
    assert main(["store", str(tmp_path / "kept"), "--data", "linear?clients=4", "--quiet"]) == 2
    said = capsys.readouterr().err.strip()
    assert "the disk is full" in said and said.count("\n") == 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_is_written_over(tmp_path: Path) -> None:
    left = tmp_path / ".kept.coterie-new"
    left.mkdir()
    (left / "train.x.bin").write_bytes(b"half")
    (left / "valid.x.bin").write_bytes(b"half")
    assert store(images(), tmp_path / "kept").valid is None
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert not (tmp_path / "kept" / "valid.x.bin").exists()


def test_two_at_once(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "kept"):
        with pytest.raises(CoterieError, match="another process is writing"):
            store(images(), tmp_path / "kept")
        assert (tmp_path / ".kept.coterie-new").exists(), "that of the other is left alone"
