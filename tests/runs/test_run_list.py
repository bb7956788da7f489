"""Folders that a kill left half made, lists of runs, and files that are not ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import coterie as ct
from coterie.cli.setup import make_new_folder
from coterie.core.errors import MAX_VALUE
from coterie.runs.files import FolderBusy, lock_for_writing, temporary_path, write_text
from coterie.runs.folder import RunFolder, is_incomplete
from coterie.runs.run import Run
from coterie.runs.run_list import create_missing_runs, find_runs, missing_runs, read_run_list


@pytest.fixture
def fed() -> ct.data.Federation:
    return ct.data.linear(clients=4, samples=8, dim=2, clusters=2, test_samples=4)


# ------------------------------------------------------------------------------ half made
@pytest.mark.parametrize("left", [[], [".lock"], [".lock", ".config.json.coterie-new"]])
def test_a_folder_that_was_being_made_is_taken(tmp_path: Path, fed, left: list[str]) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    for name in ["metrics.jsonl", *left]:
        (out / name).touch()
    with pytest.raises(ct.CoterieError, match="not a run folder.*run it again with --out"):
        ct.resume(out, fed)
    assert len(ct.run(ct.FedAvg(), fed, "linear", rounds=1, out=out).history) == 2


@pytest.mark.parametrize("name", ["notes.txt", "checkpoints/notes.txt", "metrics.jsonl"])
def test_a_folder_of_someone_else_is_not_taken(tmp_path: Path, fed, name: str) -> None:
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(ct.CoterieError, match="exists: choose another folder"):
        ct.run(ct.FedAvg(), fed, "linear", rounds=1, out=tmp_path / "run")
    assert [p for p in (tmp_path / "run").rglob("*") if p.is_file()] == [file]


def test_a_given_start_is_saved_before_the_folder_is_a_run(
    tmp_path: Path, fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a kill between the two would let it go on from another start."""
    first = ct.run(ct.FedAvg(), fed, "linear", rounds=1)
    save = Run.save

    def save_before_config(run: Run, always: bool = False) -> None:
        assert not (tmp_path / "run" / "config.json").exists()
        save(run, always)
        assert is_incomplete(tmp_path / "run")
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save", save_before_config)
    with pytest.raises(KeyboardInterrupt):
        ct.run(ct.FedAvg(), fed, "linear", rounds=1, start=first.state, out=tmp_path / "run")
    monkeypatch.setattr(Run, "save", save)
    result = ct.run(ct.FedAvg(), fed, "linear", rounds=1, start=first.state, out=tmp_path / "run")
    assert len(result.history) == 2


def test_a_mistake_in_a_method_leaves_no_folder(tmp_path: Path, fed) -> None:
    class Wrong(ct.FedAvg):
        def start(self, task, clients, seed):
            raise ct.CoterieError("no start.")

    with pytest.raises(ct.CoterieError, match="no start"):
        ct.run(Wrong(), fed, "linear", rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_new_names_never_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [make_new_folder("fedavg").name for _ in range(3)]
    assert names == ["fedavg", "fedavg-2", "fedavg-3"]
    assert all((tmp_path / "runs" / name).is_dir() for name in names)


# ------------------------------------------------------------------------------ lists
@pytest.fixture
def comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from coterie.cli import main

    monkeypatch.chdir(tmp_path)
    tiny = "--data linear?dim=2 --clients 4 --samples 8 --rounds 1 --model linear --quiet"
    assert main(f"compare fedavg local {tiny} --seeds 2 --out out".split()) == 0
    return tmp_path / "out"


def test_missing_runs_are_made_from_the_list(comparison: Path, capsys) -> None:
    from coterie.cli import main

    order = [run.folder for run in read_run_list(comparison)]
    assert order == ["fedavg/seed-0", "local/seed-0", "fedavg/seed-1", "local/seed-1"]
    before = RunFolder(comparison / "local/seed-1").config()
    shutil.rmtree(comparison / "local")
    (comparison / "fedavg/seed-1/config.json").unlink()
    (comparison / "fedavg/seed-1/metrics.jsonl").write_text("")
    (comparison / "fedavg/seed-1/clients.csv").unlink()
    for file in (comparison / "fedavg/seed-1/checkpoints").iterdir():
        file.unlink()
    missing = [comparison / name for name in order[1:]]
    assert missing_runs(comparison) == missing_runs(comparison.parent) == missing
    assert main(["report", "out"]) == 0
    assert "out/local/seed-1 has not been trained yet" in capsys.readouterr().err
    assert main(["resume", "out", "--quiet"]) == 0
    assert not missing_runs(comparison)
    assert RunFolder(comparison / "local/seed-1").config() == before
    assert find_runs(comparison) == [comparison / name for name in order]
    assert all((comparison / name / "checkpoints/000001.safetensors").exists() for name in order)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda runs: runs[0].update(folder="../elsewhere"), "names a folder outside"),
        (lambda runs: runs[0].update(folder="/tmp/elsewhere"), "names a folder outside"),
        (lambda runs: runs[0].update(folder=3), "Expected `str`"),
        (lambda runs: runs[0]["config"].pop("method"), "missing required field `method`"),
    ],
)
def test_a_damaged_list_is_one_sentence(comparison: Path, change, words: str) -> None:
    document = json.loads((comparison / "runs.json").read_text())
    change(document["runs"])
    (comparison / "runs.json").write_text(json.dumps(document))
    with pytest.raises(ct.CoterieError, match=words):
        create_missing_runs(comparison)
    assert not (comparison.parent / "elsewhere").exists()


# ------------------------------------------------------------------------------ files
def test_a_file_of_the_user_beside_ours_stays(tmp_path: Path, fed) -> None:
    result = ct.run(ct.FedAvg(), fed, "linear", rounds=1)
    (tmp_path / "models.new").mkdir()
    (tmp_path / "models.new" / "thesis.txt").write_text("mine")
    (tmp_path / "page.html.new").write_text("mine")
    result.export(tmp_path / "models")
    result.report(tmp_path / "page.html")
    assert (tmp_path / "models.new" / "thesis.txt").read_text() == "mine"
    assert (tmp_path / "page.html.new").read_text() == "mine"
    assert (tmp_path / "models" / "card.json").exists()


def test_what_a_kill_left_of_an_export_is_not_in_the_way(tmp_path: Path, fed) -> None:
    left = temporary_path(tmp_path / "models")
    left.mkdir()
    (left / "group-9.safetensors").write_bytes(b"half")
    ct.run(ct.FedAvg(), fed, "linear", rounds=1).export(tmp_path / "models")
    names = sorted(path.name for path in (tmp_path / "models").iterdir())
    assert names == ["card.json", "group-0.safetensors"] and not left.exists()


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_text(page, "whole")
    with (
        lock_for_writing(page),
        pytest.raises(FolderBusy, match="another process is writing"),
    ):
        write_text(page, "other")
    assert page.read_text() == "whole"
    write_text(page, "newer")
    assert page.read_text() == "newer" and [path.name for path in tmp_path.iterdir()] == [
        "page.html"
    ]


def test_long_values_are_shortened_in_every_error() -> None:
    long = "a" * 5000
    for what in (f"unknown method {long!r}", f"there is no folder {long}"):
        sentence = str(ct.CoterieError(what, "choose another"))
        assert sentence.startswith(what[:60]) and sentence.endswith(
            f"{what[-10:]}: choose another."
        )
        assert len(sentence) < 40 + MAX_VALUE
    path = "/tmp/" + "folder/" * 30 + "x"
    assert path in str(ct.CoterieError(f"there is no folder {path}")), "paths can be copied"
