"""Hugging Face data sets on disk: files, splits, and what is refused."""

import json
import pickle
import shutil
import socket
import sys
from pathlib import Path

import pytest
from hub_samples import arrays, datasets, people

from coterie.core.errors import CoterieError
from coterie.data import hub
from coterie.data.hub_rows import offline


def test_tables_in_files(tmp_path) -> None:
    people().save_to_disk(tmp_path / "people")
    expected = hub(str(tmp_path / "people"), "ill", "ward")
    people().to_csv(tmp_path / "people.csv")
    people().to_parquet(tmp_path / "people.parquet")
    for name in ("people.csv", "people.parquet"):
        assert hub(str(tmp_path / name), "ill", "ward").fingerprint() == expected.fingerprint()


def test_a_folder_of_parquet_files_has_splits(tmp_path, both) -> None:
    files = tmp_path / "files"
    files.mkdir()
    arrays(0, 40).to_parquet(files / "train-00000-of-00002.parquet")
    arrays(40, 20).to_parquet(files / "train-00001-of-00002.parquet")
    arrays(100, 8).to_parquet(files / "test-00000-of-00001.parquet")
    (files / "README.md").write_text("about")
    fed = hub(str(files), "y", "site", drop=("age",))
    assert fed.labels == ("cat", "dog", "eel"), "what a ClassLabel says is kept"
    assert fed.fingerprint() == hub(both, "y", "site", drop=("age",)).fingerprint()


def test_nothing_is_fetched_unpickled_or_written(saved, both, monkeypatch) -> None:
    def forbidden(*args, **kwargs):
        raise AssertionError("not allowed")

    for module, name in (
        (socket, "socket"),
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
    ):
        monkeypatch.setattr(module, name, forbidden)
    before = {
        file: file.read_bytes() for file in sorted(Path(saved).parent.rglob("*")) if file.is_file()
    }
    hub(both, "y", "site", drop=("age",))
    hub(saved, "y", partitioner="shard", clients=3, shards=2, drop=("site", "age"))
    after = {
        file: file.read_bytes() for file in sorted(Path(saved).parent.rglob("*")) if file.is_file()
    }
    assert before == after


def test_libraries_are_offline_meanwhile(saved, monkeypatch) -> None:
    from datasets import config
    from huggingface_hub import constants

    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    states = []
    real = datasets.load_from_disk
    look = lambda *args, **options: (
        states.append((config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)),
        real(*args),
    )[1]
    monkeypatch.setattr(datasets, "load_from_disk", look)
    before = constants.HF_HUB_OFFLINE
    hub(saved, "y", "site", drop=("age",))
    assert states == [(True, True)] and (False, before) == (
        config.HF_HUB_OFFLINE,
        constants.HF_HUB_OFFLINE,
    )
    with pytest.raises(KeyError), offline():
        raise KeyError
    assert not config.HF_HUB_OFFLINE


def test_without_the_extra(saved, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CoterieError, match=r"pip install 'coterie\[data\]'"):
        hub(saved, "y", "site")


@pytest.mark.parametrize("damage", ["arrow", "state", "features", "split"])
def test_damaged_folders(both, damage) -> None:
    path = Path(both)
    if damage == "arrow":
        (file,) = (path / "train").glob("*.arrow")
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "state":
        (path / "train" / "state.json").write_text("{")
    elif damage == "features":
        file = path / "train" / "dataset_info.json"
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"features": {"x": {"_type": "Popen"}}})
        )
    else:
        shutil.rmtree(path / "test")
    with pytest.raises(CoterieError) as error:
        hub(both, "y", "site")
    assert "is no Hugging Face data set" in str(error.value) and "\n" not in str(error.value)
