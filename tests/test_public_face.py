"""What users import: every name is typed, listed, and loaded only when it is used."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import coterie as ct
from coterie.core.contract import Algorithm
from coterie.methods.registry import methods

PROGRAM = """
import coterie as ct

fed = ct.data.rotated("digits", clients=8)
method = ct.IFCA(clusters=2, lr=0.1)
result = ct.run(method, fed, "mlp:8", rounds=2)
reveal_type(fed)
reveal_type(method)
reveal_type(result)
reveal_type(result.accuracy.mean)
reveal_type(result.centres)
reveal_type(ct.load("models"))
reveal_type(ct.search(method, fed, over={"lr": [0.1, 1.0]}).best)
reveal_type(ct.data.from_memory({}))
reveal_type(ct.FedAvg().lr)
ct.run(method, 3)
ct.IFCA(clusters=2, learning_rate=0.1)
"""

REVEALED = [
    "coterie.data.federation.Federation",
    "coterie.methods.ifca.IFCA",
    "coterie.result.Result",
    "float",
    "dict[str, torch._tensor.Tensor] | None",
    "coterie.result.Result | coterie.serve.export.Exported",
    "dict[str, Any]",
    "coterie.data.federation.Federation",
    "float",
]


def test_a_users_program_has_real_types_under_strict_mypy(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    words = ["-m", "mypy", "--config-file", str(config), "--cache-dir", ".mypy_cache/user"]
    root = Path(ct.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path / "program.py")],
        capture_output=True,
        text=True,
        cwd=root,
        env={"MYPYPATH": str(root / "src"), "PATH": "/usr/bin:/bin"},
    )
    lines = done.stdout.splitlines()
    revealed = [line.split('"')[1] for line in lines if "Revealed type" in line]
    assert [plain(kind) for kind in revealed] == REVEALED, done.stdout + done.stderr
    errors = [line for line in lines if "error:" in line]
    assert len(errors) == 2, done.stdout
    assert 'incompatible type "int"; expected "Federation"' in errors[0]
    assert 'Unexpected keyword argument "learning_rate" for "IFCA"' in errors[1]


def plain(kind: str) -> str:
    """A type without the names of the modules that every program knows."""
    return kind.replace("builtins.", "").replace("typing.", "")


def test_every_public_name_is_listed_typed_and_there():
    tree = ast.parse(Path(ct.__file__).read_text())
    checked = next(n for n in tree.body if isinstance(n, ast.If))
    typed = {}
    for node in checked.body:
        for alias in node.names:
            typed[alias.asname] = node.module.removeprefix("coterie").lstrip(".")
    modules = {n: f"{typed[n]}.{n}".lstrip(".") for n in ct._MODULES}
    assert modules == ct._MODULES
    assert {n: m for n, m in typed.items() if n not in modules} == ct._MODULE_OF
    assert set(dir(ct)) == set(ct.__all__) >= set(typed)
    assert {cls.__name__ for cls in methods().values()} <= set(typed)
    for name in ct.__all__:
        assert getattr(ct, name) is not None, name


# ------------------------------------------------------------------------------ settings by name
@pytest.mark.parametrize(
    "word, meant",
    [("learning_rate", "lr"), ("batch_size", "batch"), ("n_clusters", "clusters"), ("Lr", "lr")],
)
def test_a_setting_of_another_name_is_refused_with_the_right_one(word: str, meant: str) -> None:
    sentence = f"unknown setting of ifca '{word}': did you mean '{meant}'?"
    with pytest.raises(ct.CoterieError, match=re.escape(sentence)):
        ct.IFCA(**{"clusters": 2, word: 1})
    with pytest.raises(ct.CoterieError, match="unknown setting of fedavg 'zzz': there are: acc"):
        replace(ct.FedAvg(), zzz=1)


def test_methods_of_ones_own_take_what_they_like() -> None:
    class Mine(Algorithm):
        def __init__(self, speed: float, **others: float) -> None:
            self.speed, self.others = speed, others

    assert Mine(speed=1.0, height=2.0).others == {"height": 2.0}
    method = ct.IFCA(clusters=2, lr=0.5)
    assert copy.deepcopy(method) == pickle.loads(pickle.dumps(method)) == replace(method)
    assert "lr" in inspect.signature(ct.IFCA).parameters
