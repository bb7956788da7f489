"""A run survives kill -9, damaged files, a full disk and wrong data."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as safetensors_save
from torch.utils._pytree import tree_leaves

import coterie as ct
from cases import federation
from coterie.engines.codec import BadBytes, decode, encode
from coterie.runs import checkpoint
from coterie.runs.folder import RunFolder
from coterie.runs.load import load_run
from coterie.runs.start import prepare_run

METHOD = ct.IFCA(clusters=2, local_steps=2)


def same_end(a: ct.Result, b: ct.Result) -> bool:
    bits = all(torch.equal(u, v) for u, v in zip(tree_leaves(a.state), tree_leaves(b.state)))
    told = lambda r: [{k: v for k, v in row.items() if "seconds" not in k} for row in r.history]
    return bits and json.dumps(told(a)) == json.dumps(told(b))


def trained(out: Path, rounds: int = 4, **options) -> ct.Result:
    return ct.run(METHOD, federation(), "mlp:8", rounds=rounds, out=out, **options)


SCRIPT = """
import coterie as ct
from coterie.runs.run import Run
save = Run.save
Run.save = lambda self, always=False: save(self, always=True)
fed = ct.data.rotated("digits", clients=8, samples=40, angles=(0, 180), seed=0)
ct.run(ct.IFCA(clusters=2, local_steps=2), fed, "mlp:8", rounds=ROUNDS, out=OUT, participation=0.6,
eval_every=3)
"""


@pytest.mark.slow
def test_kill_9_at_random_points_changes_nothing(tmp_path):
    rounds = 60
    fed = ct.data.rotated("digits", clients=8, samples=40, angles=(0, 180), seed=0)
    settings = {"rounds": rounds, "participation": 0.6, "eval_every": 3}
    straight = ct.run(ct.IFCA(clusters=2, local_steps=2), fed, "mlp:8", **settings)
    draw = random.Random(0)
    for trial in range(2):
        out = tmp_path / f"run-{trial}"
        code = SCRIPT.replace("ROUNDS", str(rounds)).replace("OUT", repr(str(out)))
        child = subprocess.Popen([sys.executable, "-c", code])
        until = time.monotonic() + 60
        goal = draw.randrange(2, 30)
        while time.monotonic() < until and not list(
            (out / "checkpoints").glob(f"*{goal:02d}.safetensors")
        ):
            time.sleep(0.002)
        time.sleep(draw.random() * 0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        rows = RunFolder(out).rows()
        assert goal <= rows[-1]["round"] < rounds, "killed while it ran"
        assert same_end(ct.resume(out, fed), straight)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(
        "coterie.runs.run.Run.save", lambda self, always=False: save(self, always=True)
    )
    straight = trained(tmp_path / "straight", rounds=5)
    for damage in ("truncate", "flip", "noise"):
        out = tmp_path / damage
        trained(out, rounds=3)
        newest, older = RunFolder(out).checkpoints()
        raw = bytearray(newest.read_bytes())
        if damage == "truncate":
            raw = raw[: len(raw) // 2]
        elif damage == "flip":
            raw[-10] ^= 1
        else:
            raw = bytearray(b"not a checkpoint")
        newest.write_bytes(raw)
        caplog.clear()
        result = ct.resume(out, federation(), rounds=5)
        assert f"checkpoint {newest.name} is damaged" in caplog.text
        assert older.name == "000002.safetensors"
        assert torch.equal(result.centres["1.weight"], straight.centres["1.weight"])


save = __import__("coterie.runs.run", fromlist=["Run"]).Run.save


def test_no_whole_checkpoint_is_said(tmp_path):
    trained(tmp_path / "run")
    for path in RunFolder(tmp_path / "run").checkpoints():
        path.write_bytes(b"")
    with pytest.raises(ct.CoterieError, match="every checkpoint .* is damaged"):
        ct.resume(tmp_path / "run", federation())


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    straight = trained(tmp_path / "straight", rounds=4)
    run = prepare_run(METHOD, federation(), "mlp:8", rounds=4, out=tmp_path / "run")
    steps = run.rounds()
    for _ in range(2):
        run.folder.append(next(steps))
        run.save(always=True)
    whole = checkpoint.save_file

    def full(leaves, path, metadata):
        whole(leaves, path, metadata=metadata)
        os.truncate(path, 100)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    run.folder.append(next(steps))
    with pytest.raises(ct.CoterieError, match="disk is full.*resume"):
        run.save(always=True)
    monkeypatch.setattr(checkpoint, "save_file", whole)
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoints").iterdir())] == [
        "000000.safetensors",
        "000001.safetensors",
    ]
    assert same_end(ct.resume(tmp_path / "run", federation()), straight)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_metrics_on_a_full_disk_are_an_error_in_one_sentence(tmp_path):
    folder = prepare_run(METHOD, federation(), "mlp:8", rounds=1, out=tmp_path / "run").folder
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (tmp_path / "run" / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(ct.CoterieError, match="disk is full"):
        folder.append({"round": 0})


def test_only_the_last_two_checkpoints_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "coterie.runs.run.Run.save", lambda self, always=False: save(self, always=True)
    )
    trained(tmp_path / "run", rounds=5)
    assert [p.name for p in RunFolder(tmp_path / "run").checkpoints()] == [
        "000005.safetensors",
        "000004.safetensors",
    ]


def test_saving_is_held_to_a_twentieth_of_the_time(tmp_path, monkeypatch):
    """With a clock that only saving and training move: 1 s a round, 0.2 s a save."""
    clock = [0.0]
    monkeypatch.setattr("coterie.runs.run.time.monotonic", lambda: clock[0])
    run = prepare_run(METHOD, federation(), "mlp:8", rounds=40, out=tmp_path / "run")
    saved = []

    def save_file(round, *rest):
        saved.append(round)
        clock[0] += 0.2

    monkeypatch.setattr(run.folder, "save", save_file)
    run.train(lambda row: clock.__setitem__(0, clock[0] + 1))
    assert saved[0] == 0 and saved[-1] == 40, "the start and the end are always saved"
    assert len(saved) * 0.2 <= 0.05 * clock[0] + 3 * 0.2


def test_an_existing_folder_is_not_overwritten(tmp_path):
    trained(tmp_path / "run", rounds=1)
    with pytest.raises(ct.CoterieError, match="exists: choose another folder, or resume it"):
        trained(tmp_path / "run", rounds=1)


def test_other_data_and_other_models_are_refused(tmp_path):
    trained(tmp_path / "run", rounds=2)
    other = federation()
    other.train.x[0, 0, 0] += 1e-6
    with pytest.raises(ct.CoterieError, match="the data have changed since .*: put them back"):
        ct.resume(tmp_path / "run", other)
    with pytest.raises(ct.CoterieError, match="model is not the one"):
        ct.resume(tmp_path / "run", federation(), "mlp:9")
    with pytest.raises(ct.CoterieError, match="were in memory"):
        ct.resume(tmp_path / "run")


def test_what_is_not_a_run_is_said(tmp_path):
    with pytest.raises(ct.CoterieError, match="not a run folder"):
        ct.resume(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ct.CoterieError, match="damaged"):
        ct.resume(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ct.CoterieError, match=r"damaged \(Object missing required field"):
        ct.resume(tmp_path)


def test_a_finished_run_opens_with_its_scores(tmp_path):
    first = trained(tmp_path / "run")
    again = ct.resume(tmp_path / "run", federation())
    assert same_end(first, again)
    assert again.accuracy == first.accuracy


def test_more_rounds_go_on_from_the_end(tmp_path):
    trained(tmp_path / "run", rounds=2, eval_every=1)
    longer = ct.resume(tmp_path / "run", federation(), rounds=4)
    straight = ct.run(METHOD, federation(), "mlp:8", rounds=4, eval_every=1)
    assert same_end(longer, straight)


def test_early_stop_survives_a_resume(tmp_path):
    settings = {"rounds": 30, "valid": 0.3, "stop_after": 2, "eval_every": 1}
    method = replace(METHOD, lr=2.0)
    straight = ct.run(method, federation(), "mlp:8", **settings)
    assert straight.history[-1]["round"] < 30
    run = prepare_run(method, federation(), "mlp:8", out=tmp_path / "run", **settings)
    for row in run.rounds():
        run.folder.append(row)
        run.save(always=True)
        if run.round == straight.history[-1]["round"] - 1:
            break
    assert same_end(ct.resume(tmp_path / "run", federation()), straight)


def test_a_diverged_run_says_lr_and_keeps_a_good_checkpoint(tmp_path):
    with pytest.raises(ct.Diverged, match=r"diverged.*lr.*1e\+?30|diverged.*smaller lr"):
        ct.run(
            ct.FedAvg(lr=1e30, local_steps=5), federation(), "mlp:8", rounds=5, out=tmp_path / "run"
        )
    saved = RunFolder(tmp_path / "run").latest({})
    state = tree_leaves(saved.trees["state"])
    assert state and all(v.isfinite().all() for v in state)
    assert "rejected" in (tmp_path / "run" / "log.txt").read_text()


def test_hostile_bytes_are_refused_not_executed():
    good = encode({"a": torch.ones(3)}, {})
    for raw in (b"", b"\x00" * 8, good[:20], good[:-1], b"\xff" * 64, good[:8] + b"[" + good[9:]):
        with pytest.raises(BadBytes):
            decode(raw, {})
    with pytest.raises(BadBytes, match="at most"):
        decode(good, {}, limit=10)
    deep = 0
    for _ in range(300):
        deep = {"tuple": [deep], "type": None}
    for tree in (
        7,
        "0",
        None,
        deep,
        {"tuple": [0], "type": "system"},
        {"list": []},
        {"dict": {"a": 0}},
        {"dict": [[["a"], 0]]},
    ):
        raw = safetensors_save({"0": torch.ones(3)}, metadata={"head": json.dumps({"tree": tree})})
        try:
            found, _ = decode(raw, {})
        except BadBytes:
            continue
        assert tree is deep and isinstance(found, tuple), tree


def test_shared_tensors_can_be_sent():
    zero = torch.zeros(3)
    tree = {"a": zero, "b": (zero, zero[:2]), "c": torch.zeros(0)}
    back, head = decode(encode(tree, {}, fact=3), {})
    assert head == {"fact": 3}
    assert all(torch.equal(u, v) for u, v in zip(tree_leaves(tree), tree_leaves(back)))


def test_reading_a_run_changes_nothing_in_its_folder(tmp_path):
    """Not even rows after the last checkpoint, which another process may be about to save."""
    fed = ct.data.linear(clients=4, samples=10, dim=3, clusters=2, test_samples=5)
    out = tmp_path / "run"
    ct.run(ct.FedAvg(lr=0.01), fed, "linear", rounds=3, out=out)
    newest = max((out / "checkpoints").iterdir())
    newest.unlink()
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    run = load_run(out, fed)
    assert run.round < 3 and len((out / "metrics.jsonl").read_text().splitlines()) == 4
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    run.train()
    assert [
        json.loads(line)["round"] for line in (out / "metrics.jsonl").read_text().splitlines()
    ] == [0, 1, 2, 3]


def test_a_folder_that_was_being_made_when_the_run_was_killed_is_taken(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json.new").write_text('{"coter')
    trained(folder, rounds=2)
    with pytest.raises(ct.CoterieError, match="exists"):
        trained(folder, rounds=2)
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    (tmp_path / "other" / "checkpoints" / "notes.txt").touch()
    with pytest.raises(ct.CoterieError, match="exists"):
        trained(tmp_path / "other", rounds=2)


def test_more_rounds_are_remembered(tmp_path):
    trained(tmp_path / "run", rounds=2)
    ct.resume(tmp_path / "run", federation(), rounds=3)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["options"]["rounds"] == 3
    assert len(ct.resume(tmp_path / "run", federation()).history) == 4


def test_a_damaged_line_in_the_middle_of_the_metrics_is_not_taken_for_a_kill(tmp_path):
    trained(tmp_path / "run", rounds=4)
    file = tmp_path / "run" / "metrics.jsonl"
    whole = file.read_text()
    lines = whole.splitlines()
    for wrong in ("{", "[]", "null", '{"round": 2}'):
        file.write_text("\n".join([*lines[:2], wrong, *lines[3:]]) + "\n")
        with pytest.raises(ct.CoterieError, match="line 3 of .*metrics.jsonl is damaged"):
            ct.resume(tmp_path / "run", federation(), rounds=5)
        assert wrong in file.read_text(), "nothing is written over"
    file.write_text(whole)
    assert len(ct.resume(tmp_path / "run", federation(), rounds=5).history) == 6
