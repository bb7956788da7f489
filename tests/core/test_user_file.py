"""A user's own file: loaded under a name that replaces nothing, once per content."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import coterie as ct
from coterie.methods import registry

NET = """
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
"""

METHOD = """
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import coterie as ct


class State(NamedTuple):
    model: dict


@dataclass(frozen=True, kw_only=True)
class Mine(ct.FedAvg):
    name: ClassVar[str] = "mine"
    strength: float = ct.setting(0.5, "a setting of its own", gt=0)
"""


def test_a_file_named_like_a_standard_module_does_not_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing has imported the standard module before."""
    (tmp_path / "statistics.py").write_text("median = 'mine'\n" + NET)
    monkeypatch.delitem(sys.modules, "statistics", raising=False)
    net = registry.model(f"{tmp_path / 'statistics.py'}:Net")
    import statistics

    assert net().in_features == 3
    assert statistics.median([1, 2, 9]) == 2


def test_a_loaded_class_can_be_looked_up_in_its_module(tmp_path: Path) -> None:
    """As dataclasses, NamedTuples and checkpoints do."""
    (tmp_path / "statistics.py").write_text(METHOD)
    cls = registry.find(f"{tmp_path / 'statistics.py'}:Mine")
    assert cls(strength=2.0).strength == 2.0
    module = sys.modules[cls.__module__]
    assert module.Mine is cls and module.State.__module__ == cls.__module__
    assert module.__file__ == str(tmp_path / "statistics.py")


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder, size in (("a", 3), ("b", 4)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text(NET.replace("(3, 1)", f"({size}, 1)"))
    first = registry.model(f"{tmp_path / 'a' / 'net.py'}:Net")
    second = registry.model(f"{tmp_path / 'b' / 'net.py'}:Net")
    assert [first().in_features, second().in_features] == [3, 4]
    assert sys.modules[first.__module__].Net is first
    assert sys.modules[second.__module__].Net is second


def test_a_file_is_run_once_for_each_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.py"
    path.write_text(NET)
    first = registry.model(f"{path}:Net")
    monkeypatch.chdir(tmp_path)
    assert registry.model("net.py:Net") is first
    path.write_text(NET.replace("(3, 1)", "(4, 1)"))  # as long as before, in the same second
    changed = registry.model(f"{path}:Net")
    assert changed().in_features == 4
    path.write_text(NET)
    assert registry.model(f"{path}:Net") is first
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize(
    "source, name, sentence",
    [
        ("1 / 0", "Net", "net.py cannot be loaded: ZeroDivisionError"),
        ("class Net(", "Net", "net.py cannot be loaded: SyntaxError"),
        ("Nets = list", "Net", "unknown name in .*net.py 'Net': did you mean 'Nets'"),
        ("Net = 3", "Net", "net.py:Net is not a model"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, source: str, name: str, sentence: str) -> None:
    (tmp_path / "net.py").write_text(source)
    for _ in range(2):  # a file that failed is not taken for a loaded one
        with pytest.raises(ct.CoterieError, match=sentence):
            registry.model(f"{tmp_path / 'net.py'}:{name}")


def test_what_is_no_method_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    with pytest.raises(ct.CoterieError, match="is not a method: it must be a dataclass"):
        registry.find(f"{tmp_path / 'net.py'}:Net")
    with pytest.raises(ct.CoterieError, match=r"there is no file .*none\.py"):
        registry.find(f"{tmp_path / 'none.py'}:Net")
