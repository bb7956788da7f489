"""`coterie network new` on the command line."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.network.flower_setup import END, FIRST


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def flower(monkeypatch):
    """A version of Flower that seems to be installed."""

    def pretend(version: str | None) -> None:
        def installed(name: str) -> str:
            if version is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr("importlib.metadata.version", installed)

    return pretend


def test_without_flower_no_app_is_written(place, flower, capsys):
    flower(None)
    assert main(["network", "new", "app"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.endswith("needs Flower: pip install 'coterie[flower]'.")
    assert len(error.splitlines()) == 1 and not (place / "app").exists()


@pytest.mark.parametrize("version", ["1.9.0", "1.43.0", "2.41.0"])
def test_with_another_version_of_flower_no_app_is_written(version, place, flower, capsys):
    flower(version)
    assert main(["network", "new", "app"]) == 2
    error = capsys.readouterr().err.strip()
    assert f"flwr {version} is installed" in error and "from 1.41 to before 1.43" in error
    assert len(error.splitlines()) == 1 and not (place / "app").exists()


def test_new_writes_an_app_once(place, flower, capsys):
    flower("1.42.3")
    assert main(["network", "new", "app"]) == 0
    assert "an app for `flwr run` is in app" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in Path("app").rglob("*") if path.is_file()}
    assert len(before) == 5
    for words, sentence in (
        (["app"], "app exists already: choose another folder."),
        (["app/README.md/x"], "Not a directory"),
        (["__"], "__ cannot be the name of an app"),
        ([], "wrong number of names: write coterie network new DIR"),
    ):
        assert main(["network", "new", *words]) == 2, words
        error = capsys.readouterr().err.strip()
        assert sentence in error and len(error.splitlines()) == 1
    assert {path: path.read_bytes() for path in before} == before


def test_the_supported_versions_are_those_of_the_extra():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    first, end = (".".join(map(str, version)) for version in (FIRST, END))
    assert project["optional-dependencies"]["flower"] == [f"flwr>={first},<{end}"]
