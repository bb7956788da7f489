"""The guides are true.

Every block of Python and every command in them runs, in the order of the page.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

import coterie as ct
from coterie.cli import main
from coterie.reporting.live.server import LiveServer
from test_docs import ROOT, parse

PAGES = {page.stem: page for page in sorted((ROOT / "docs").glob("*.md"))}
FENCE = re.compile(r'^```(\w*)(?: title="(.+?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# sets that are not embedded
ABSENT = re.compile(r":(mnist|fashion_mnist|cifar10|unipen|har)\b|shakespeare")
Capture = pytest.CaptureFixture[str]


class Block(NamedTuple):
    language: str
    title: str  # the file that it is to be saved as
    code: str


def blocks(text: str) -> list[Block]:
    found = [Block(*fence) for fence in FENCE.findall(text)]
    assert len(found) * 2 == len(re.findall(r"^ *```", text, re.MULTILINE)), (
        "a block is not closed, or indented"
    )
    return found


def masked(text: str) -> list[str]:
    """Lines without numbers, and without how wide the columns are."""
    return [
        re.sub(r"[\s-]+", " ", re.sub(r"\d+(\.\d+)?", "0", line)).strip()
        for line in text.splitlines()
    ]


# ------------------------------------------------------------------------------ commands
def shell(line: str) -> None:
    """Run a command; those that install or train for hours are only checked to be possible."""
    words = shlex.split(line)
    if words[0] == "coterie" and ABSENT.search(line):
        parse(line)
    elif words[0] == "torchrun":  # tests/network/test_ranks_hosts.py starts it on two hosts
        parse(line.partition(" -m ")[2])
    elif words[:2] == ["coterie", "watch"]:  # which would serve until Ctrl-C
        with patch.object(LiveServer, "run", lambda server: server.socket.close()):
            assert main(words[1:]) == 0, line
    elif words[0] == "coterie":
        assert main(words[1:]) == 0, line
    else:
        assert possible(words), f"nothing checks the command {line!r}"


def possible(words: list[str]) -> bool:
    """Whether what a command names is there: a target, an extra, a file."""
    match words:
        case ["make", target]:
            return f"\n{target}:" in (ROOT / "Makefile").read_text()
        case ["pip", "install", what] | ["pip", "install", "-c", "constraints.txt", what]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
                "optional-dependencies"
            ]
            named = re.fullmatch(r"\.(?:\[([\w,]+)\])?", what)
            return (
                named is not None
                and set(filter(None, (named[1] or "").split(","))) <= extras.keys()
            )
        case ["python3", "-m", "venv", ".venv"] | [".", ".venv/bin/activate"] | ["mkdocs", "serve"]:
            return True
        case ["python", *rest]:
            return any((ROOT / word).is_file() for word in rest)
    return False


@pytest.mark.parametrize(
    "line", ["make tea", "pip install '.[tea]'", "pip install coterie", "python tea.py", "ls"]
)
def test_an_impossible_command_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError, match="nothing checks"):
        shell(line)


# ------------------------------------------------------------------------------ pages
def hospitals() -> Block:
    """What makes the files of the quickstart, which other pages use."""
    return next(
        block for block in blocks(PAGES["quickstart"].read_text()) if block.language == "python"
    )


def two_kinds(known: dict) -> None:
    """The groups are those that were planted: every other client."""
    groups = list(known["groups"].values())
    assert (
        groups[::2]
        == [groups[0]] * (len(groups) // 2)
        != groups[1::2]
        == [groups[1]] * (len(groups) // 2)
    )


def without_files(known: dict) -> None:
    """A run answers without its training files; one table of all gives the same groups."""
    two_kinds(known)
    one, each = (ct.load(run).clusters[-1].tolist() for run in ("runs/all", "runs/each"))
    assert one == each
    Path("hospitals").rename("elsewhere")
    for line in (
        "assign runs/each Mainz.csv",
        "predict runs/each tomorrow.csv --cluster 1",
        "export runs/each --out m",
    ):
        assert main(line.split()) == 0


SITES = (
    "coterie compare ifca fedavg --clients 8 --samples 30 --clusters 4 --model softmax "
    "--rounds 2 --out runs/sites"
)
BEFORE = {
    "tables": hospitals,
    "report": lambda: Block("sh", "", SITES),
    "watch": lambda: Block("sh", "", SITES),
}
AFTER = {"quickstart": two_kinds, "tables": without_files}


# The commands of these pages need several processes, other machines or Flower: `make test-network`
# tests what they do.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in PAGES if name not in ("network", "deploy", "flower")]
)
def test_the_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = [BEFORE[name]()] if name in BEFORE else []
    known = run([*before, *blocks(PAGES[name].read_text())], capsys)
    AFTER.get(name, lambda _: None)(known)


def run(page: list[Block], capsys: Capture) -> dict:
    """The names that a page's Python leaves.

    Text after something that ran must be what it printed.
    """
    known: dict = {"__name__": "page"}
    printed: list[str] = []
    for block in page:
        if block.title:
            Path(block.title).write_text(block.code)
        elif block.language == "python":
            exec(compile(block.code, "a page", "exec"), known)
            printed = masked("".join(capsys.readouterr()))
        elif block.language in ("", "sh"):
            for line in block.code.splitlines():
                shell(line)
            printed = masked("".join(capsys.readouterr()))
        else:
            assert block.language == "text"
            assert not re.search(r"^(coterie|import|from) ", block.code, re.MULTILINE), (
                "code that nothing runs"
            )
            wanted = masked(block.code) if printed else []
            assert [line for line in wanted if line not in printed] == [], "\n".join(printed)
    return known


def test_a_page_that_does_not_run_is_noticed(capsys: Capture) -> None:
    page = "```python\nprint('one 1')\n```\n\n```text\none 2\n```\n"
    run(blocks(page), capsys)
    for wrong in (
        page.replace("2", "two"),
        page.replace("print", "pint"),
        page.replace("one 2", "import os"),
    ):
        with pytest.raises((AssertionError, NameError)):
            run(blocks(wrong), capsys)
    with pytest.raises(AssertionError, match="not closed"):
        blocks(page + "```python\n")
