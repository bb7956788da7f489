"""Odd words and flags: an error of one sentence, or an answer that every flag has a part in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import case, command, fuzz, said, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from test_fuzz_toml import as_number_or_text, values_in
from valid_files import Files

from coterie.cli.setup import read_setup
from coterie.core.errors import CoterieError

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
KIND = "flags"
TRAIN = (
    "--data folder:data --label outcome --clusters 2 --rounds 2 --local-steps 2 --lr 0.3 "
    "--model softmax --seed 1 --quiet --out made"
)
LINES = (
    f"run ifca {TRAIN}",
    f"run ifca {TRAIN} --dry-run --json",
    f"run fedavg {TRAIN} --dry-run --engine wire --batch 4 --dtype float64".replace(
        "--clusters 2 ", ""
    ),
    f"compare ifca fedavg {TRAIN} --ifca.lr 0.1 --seeds 1",
    f"search ifca {TRAIN} --over lr=0.1,0.3 --random 1".replace("--lr 0.3 ", ""),
    "resume run --rounds 4 --quiet",
    "assign run new.csv --json",
    "predict run new.csv --cluster 1 --keep sex,age --out made",
    "predict run new.csv --client north --fill median",
    "predict export new.csv --support new.csv",
    "export run --per cluster --out made",
    "report run --out made --target 0.5",
    "list",
    "run ifca --help",
    "help compare",
    "--version",
)
ODD_WORDS = (
    "",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "2",
    "1e3",
    "1e999",
    "nan",
    "inf",
    "9" * 25,
    "1.5",
    "none",
    "auto",
    "true",
    "é",
    "\x00",
    "\udcff",
    "../..",
    "/",
    ".",
    "run",
    "data",
    "new.csv",
    "export",
    "missing",
    "x" * 5000,
    "ifca",
    "fedavg",
    "nothing.py:Net",
    "--help",
    "-h",
    "--json",
    "--dry-run",
    "--no-weighted",
    "--weighted",
    "--lr",
    "--lr=",
    "--lr=0.2",
    "--local_steps=3",
    "--ifca.lr",
    "--ifca.lr=../..",
    "--over",
    "--over=lr=1,2",
    "--tune=lr=0.1",
    "--data.drop",
    "--data.drop=dose",
    "--data.=1",
    "--data=rotated:digits?clients=4&samples=10",
    "--data=linear",
    "--data=folder:nowhere",
    "--data=table:new.csv",
    "--clients=1000000000",
    "--seed=-1",
    "--seed=99999999999999999999",
    "--rounds=-1",
    "--participation=0",
    "--plan=0,0",
    "--plan=1,1",
    "--device=tpu",
    "--engine=wire",
    "--model=cnn",
    "--model=mlp:0",
    "--model=mlp:999999999999",
    "--model=mlp:,",
    "--unseen=99",
    "--clusters=99999999",
    "--batch=0",
    "--eval-clients=99",
    "--valid=0.999",
    "--stop-after=1",
    "--out=",
    "--config=",
    "--config=new.csv",
    "--colour",
    "-x",
)
KEYS = (
    "lr",
    "ifca.lr",
    "local_steps",
    "batch",
    "decay",
    "clip",
    "solver",
    "clusters",
    "ifca.clusters",
    "average",
    "share",
    "rounds",
    "seed",
    "participation",
    "engine",
    "eval_every",
    "stop_after",
    "dtype",
    "device",
    "samples",
    "label",
    "fill",
    "model",
    "seeds",
    "data.drop",
    "data.test_share",
    "data.kind",
)
flag_values = st.one_of(
    st.sampled_from(
        ("", "1", "0.5", "none", "None", "auto", "sgd", "wire", "float64", "mean", "a,b")
    ),
    st.sampled_from(
        (" 3 ", "1e0", "1e2", "007", "1_0", "+2", ".5", "True", "é", "linear", "gradients")
    ),
    st.integers(-2, 9).map(str),
    st.text(max_size=6),
    st.floats().map(repr),
)
odd_words = st.one_of(
    st.sampled_from(ODD_WORDS),
    st.text(max_size=8),
    st.integers().map(str),
    st.floats().map(repr),
)


def damage(data: st.DataObject, argv: list[str]) -> list[str]:
    """The words of a command with some dropped, doubled, changed, moved or added."""
    argv = list(argv)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, max(0, len(argv) - 1)))
        change = data.draw(
            st.sampled_from(("add", "add", "replace", "replace", "drop", "double", "move"))
        )
        if change == "add":
            argv.insert(place + 1, data.draw(odd_words))
        elif change == "replace":
            argv[place : place + 1] = [data.draw(odd_words)]
        elif change == "drop":
            del argv[place : place + 1]
        elif change == "double":
            argv[place:place] = argv[place : place + 2]
        else:
            argv[place:place] = [argv.pop()] if argv else []
    return argv


def trains_long(argv: list[str]) -> bool:
    """Whether a case would do what takes minutes by design: the demo, or the default data."""
    return argv[:1] == ["demo"] and "--help" not in argv


def remove_made(files: Files) -> None:
    """Remove what cases wrote, wherever a damaged --out put it."""
    kept = {"data", "new.csv", "run", "export", "kept"}
    for path in files.base.iterdir():
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name in ("run", "export", "data", "new.csv"):
        restore(files.base / "kept" / name, files.base / name)


def restore(source: Path, target: Path) -> None:
    """Make a target equal to its source again."""
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


@pytest.fixture(scope="module", autouse=True)
def kept(all_files: Files) -> Iterator[None]:
    """A copy of all files, as a case may write over them."""
    (all_files.base / "kept").mkdir()
    for name in ("run", "export", "data", "new.csv"):
        restore(all_files.base / name, all_files.base / "kept" / name)
    yield
    shutil.rmtree(all_files.base / "kept")


@fuzz(350)
@given(st.sampled_from(LINES), st.data())
def test_damaged_line(files: Files, line: str, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    argv = damage(data, line.split())
    if trains_long(argv):
        return
    remove_made(files)
    with case(KIND):
        command(*argv)


@fuzz(150)
@given(st.sampled_from(("run", "search")), st.data())
def test_every_flag_counts(files: Files, name: str, data: st.DataObject) -> None:
    """A value that is accepted is the one that the run goes by."""
    if time_is_over(KIND):
        return
    keys = data.draw(st.lists(st.sampled_from(KEYS), unique=True, min_size=1, max_size=4))
    values = {key: data.draw(flag_values) for key in keys}
    flags = [f"--{key}={value}" for key, value in values.items()]
    if name == "search":
        flags.append("--over=sketch_size=64,128")
    with case(KIND):
        asked = said(lambda: read_setup(name, ["ifca"], flags))
        if isinstance(asked, CoterieError):
            return
        found = values_in(asked)
        for key, value in values.items():
            plain_key = key.removeprefix("ifca.")
            if plain_key == key and f"ifca.{key}" in values:
                continue  # the more special flag counts
            assert as_number_or_text(found[plain_key]) == as_number_or_text(value), key
