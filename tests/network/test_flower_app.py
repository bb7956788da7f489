"""The app of `coterie network new` on a Grid in this process: equal to the loop, with failures."""

from __future__ import annotations

import ast
import json
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from made_network import NAMES, distance

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.network import flower_setup as new_app_module

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fake_grid import METHODS, Place
from flwr.app import Error
from flwr.cli.config_utils import load_and_validate

from coterie.cli.app_server import FlowerRunConfig

pytestmark = pytest.mark.network
SOURCE = Path(ct.__file__).parent


def losses(history) -> list[float]:
    return [row["loss"] for row in history if "loss" in row]


# ------------------------------------------------------------------------------ the same run
@pytest.mark.parametrize("method", METHODS)
def test_the_app_is_the_loop(method, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["flwr-serverapp", "--token", "secret"])
    place = Place(tmp_path, method)
    result = place.run()
    loop = place.loop(method)
    assert distance(result.trained.state, loop.state) <= 1e-9
    assert not any(row["rejected"] or row["absent"] for row in result.history)
    assert losses(result.history) == pytest.approx(losses(loop.history), rel=1e-9)
    models = list((tmp_path / "states").glob("*/*/model/card.json"))
    assert len(models) == len(NAMES), "each site wrote its own model"
    assert place.grid.kinds.count("query.name") == len(NAMES), "each node was asked once"
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["command"] == ["flwr", "run"], "Flower's own command has a token in it"


def test_a_run_that_was_killed_goes_on(place):
    class Killed(BaseException):
        """Stands for `flwr stop`."""

    asked = 0

    def fate(node, message):
        nonlocal asked
        asked += 1
        if asked == 40:
            raise Killed
        return

    place.grid.fate = fate
    with pytest.raises(Killed):
        place.run()
    assert distance(place.run(resume=True).trained.state, place.loop().state) <= 1e-9


# ------------------------------------------------------------------------------ faults
def is_question(message) -> bool:
    return message.metadata.message_type == "query" and "piece-own" in message.content


def test_an_app_that_fails_is_absent_at_once_and_why_is_in_the_diary(place):
    def fate(node, message):
        return Error(2, "the cell 'secret'") if node == 105 and is_question(message) else None

    place.grid.fate = fate
    result = place.run(deadline=2.0)
    diary = (place.base / "run/diary.jsonl").read_text()
    assert '"oak":"its app failed; see its log"' in diary and "secret" not in diary
    assert sum(row["absent"] for row in result.history) > 0


def test_a_node_without_a_table_says_so_once_and_the_run_does_not_begin(place, caplog):
    del place.grid.nodes[105].config["data"], place.grid.nodes[105].config["site"]
    with pytest.raises(CoterieError, match="oak did not connect"):
        place.run(wait=1.0)
    assert caplog.text.count("the node config names no table") == 1


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"config": ""}, "the run config has no config"),
        ({"sites": ""}, "the run config has no sites"),
        ({"quorum": 2.0}, "quorum is 2.0"),
        ({"deadline": "soon"}, "deadline in the run config is 'soon'"),
        ({"rouns": 3}, "'rouns'"),
        ({"resume": True, "out": ""}, "resume needs the folder of the run"),
        ({"out": "/"}, "/ exists: choose another folder"),
    ],
)
def test_a_run_config_that_makes_no_sense_is_one_sentence(wrong, sentence, place):
    with pytest.raises(CoterieError) as caught:
        place.run(**wrong)
    assert sentence in str(caught.value) and len(str(caught.value).splitlines()) == 1


# ------------------------------------------------------------------------------ the files
def test_flower_takes_the_app_for_a_valid_one_whatever_its_folder_is_called(tmp_path):
    for name in ("app", "My App_2", "münchen"):
        new_app_module.write_app(tmp_path / name)
        config, warnings = load_and_validate(tmp_path / name / "pyproject.toml", check_module=True)
        assert config["project"]["dependencies"] == [] and not warnings
    assert config["project"]["name"] == "m-nchen"


def test_the_app_lists_every_key_of_the_run_config():
    listed = tomllib.loads(new_app_module.PYPROJECT)["tool"]["flwr"]["app"]["config"]
    assert {*listed} == {f.name for f in fields(FlowerRunConfig)} - {"quiet", "debug"}


PUBLIC = {"flwr.app", "flwr.serverapp", "flwr.clientapp"}
OF_THE_APP = ("network/flower.py", "cli/app_server.py", "cli/app_site.py")


def flower_imports(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.partition(".")[0] == "flwr"}


def test_only_public_modules_of_flower_are_used():
    sources = [(SOURCE / file).read_text() for file in OF_THE_APP]
    sources += [new_app_module.SERVER, new_app_module.CLIENT]
    assert set().union(*map(flower_imports, sources)) == PUBLIC
