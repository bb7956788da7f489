"""Every method has a page, and what the pages say is true of the code.

Parts, examples, commands, links, tests.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from inspect import signature
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.cli.commands import COMMANDS
from coterie.cli.setup import read_setup
from coterie.core.contract import Algorithm, check_settings
from coterie.data import makers
from coterie.methods.registry import methods

ROOT = Path(__file__).parent.parent
METHODS = sorted(methods())

sys.path.insert(0, str(ROOT / "docs"))
import pages  # noqa: E402


def page(name: str) -> str:
    return (ROOT / "docs" / "methods" / f"{name}.md").read_text()


# ---------------------------------------------------------------------- complete, up to date
def test_every_page_is_complete_and_up_to_date() -> None:
    assert pages.problems() == []


def cut(text: str, heading: str) -> str:
    """The page without a section."""
    return re.sub(rf"^## {heading}\n.*?(?=^## |\Z)", "", text, flags=re.MULTILINE | re.DOTALL)


BREAKS = {
    "no heading": (lambda t: cut(t, "Idea"), "fedavg.md, Idea: the heading is missing."),
    "an empty section": (
        lambda t: cut(t, "Idea").replace("## Eq", "## Idea\n\n## Eq"),
        "fedavg.md, Idea: there is not",
    ),
    "another order": (
        lambda t: cut(t, "Idea") + "\n## Idea\n\nA word.\n",
        "fedavg.md: the headings must be, in this",
    ),
    "a heading too many": (
        lambda t: t + "\n## More\n\nA word.\n",
        "fedavg.md: the headings must be, in this order",
    ),
    "another default": (
        lambda t: t.replace("| 0.1 | step size", "| 0.2 | step size"),
        "fedavg.md, settings: out of",
    ),
    "another count": (
        lambda t: t.replace("| 1 model |", "| 2 models |"),
        "fedavg.md, bytes: out of date",
    ),
    "no part": (
        lambda t: t.replace("made: symbols", "not made"),
        "fedavg.md, symbols: the part is missing",
    ),
    "an unknown part": (
        lambda t: t.replace("made: symbols", "made: sums"),
        "fedavg.md, sums: nothing makes this part",
    ),
    "an empty part": (
        lambda t: pages.PART.sub(r"<!-- made: \1 -->\n<!-- end -->", t),
        "fedavg.md, results: out of",
    ),
    "a moved part": (
        lambda t: t.replace("made: symbols", "made: x").replace("made: settings", "made: symbols"),
        "fedavg.md, symbols: the part belongs under 'Symbols'",
    ),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "docs", tmp_path / "docs"))


@pytest.mark.parametrize("case", BREAKS)
def test_a_broken_page_is_named(case: str, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, says = BREAKS[case]
    path = copy / "methods" / "fedavg.md"
    before = broken(path.read_text())
    assert before != path.read_text()
    path.write_text(before)
    assert pages.main(["--check"], copy) == 1
    assert says in capsys.readouterr().out
    assert path.read_text() == before  # --check writes nothing


def test_missing_and_strange_pages_are_named(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "methods" / "fedavg.md").rename(copy / "methods" / "fedavrg.md")
    (copy / "methods" / "README.md").unlink()
    assert pages.main(["--check"], copy) == 1
    said = capsys.readouterr().out
    assert "fedavg.md: there is no such page" in said
    assert "README.md: there is no such page" in said
    assert "fedavrg.md: no method has this name" in said


def test_pages_are_filled_in_place(copy: Path) -> None:
    path = copy / "methods" / "fedavg.md"
    want = path.read_text()
    path.write_text(pages.PART.sub(r"<!-- made: \1 -->\n<!-- end -->", want))
    assert pages.main([], copy) == 0
    assert path.read_text() == want


def test_recorded_runs_stand_under_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "situation": "four kinds",
        "method": "fedavg",
        "lr": 0.3,
        "seeds": 3,
        "accuracy": 0.8384,
        "std": 0.0091,
    }
    row |= {"ari": None, "bytes": 23_100_000, "command": "coterie run fedavg --lr 0.3"}
    (tmp_path / "choosing.json").write_text(json.dumps([row]))
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "choosing.json")
    made = pages.results(methods()["fedavg"]).splitlines()[2:]
    assert made[:2] == [
        "| four kinds | 0.3 | 3 | 0.838 ± 0.009 | – | 23.1 MB | `coterie run fedavg --lr 0.3` |",
        "",
    ]
    assert "[`natural.heart`](../reproduction/README.md#natural.heart)" in made[-1]
    assert pages.results(methods()["ifca"]).startswith("No run recorded yet.")
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "none.json")
    assert pages.results(methods()["fedavg"]).startswith("No run recorded yet.")


# ---------------------------------------------------------------------- examples, commands
@pytest.mark.parametrize("name", METHODS)
def test_the_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(
        r"^```python\n(.*?)^```", pages.sections(page(name))["Example"], re.MULTILINE | re.DOTALL
    )
    assert len(code) == 1
    known: dict = {}
    exec(code[0], known)
    assert known["result"].method.name == name
    assert capsys.readouterr().out


def commands(text: str) -> list[str]:
    """Lines and inline code that begin with `coterie`."""
    return re.findall(r"^coterie .+$|(?<=`)coterie [^`\n]+(?=`)", text, re.MULTILINE)


def parse(command: str) -> None:
    """As the command line would, without running."""
    _, name, *rest = shlex.split(command)
    assert name in COMMANDS, command
    rest = shlex.split(re.split(r" {2,}", command)[0])[
        2:
    ]  # what follows wide space is said about it
    if not rest or re.search(r"\.toml\b|\.py:| --help$", command):
        return  # the name of a command, the reader's own files, or nothing to run
    if name in ("run", "compare", "search"):
        flags = next((i for i, word in enumerate(rest) if word.startswith("-")), len(rest))
        asked = read_setup(name, rest[:flags], rest[flags:])
        for method in asked.methods.values():
            check_settings(method)
        data, _, options = asked.spec.partition("?")
        given = {
            *asked.data,
            *(option.partition("=")[0] for option in options.split("&") if option),
        }
        assert given <= signature(makers()[data.partition(":")[0]][0]).parameters.keys(), command


@pytest.mark.parametrize("name", METHODS)
def test_commands_parse(name: str) -> None:
    example = commands(pages.sections(page(name))["Example"])
    assert any(re.match(rf"coterie (run|compare) .*\b{name}\b", command) for command in example)
    for command in commands(page(name)):
        parse(command)


GUIDES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/decisions").glob("*.md")]
)


@pytest.mark.parametrize("path", GUIDES)
def test_other_documents_commands_parse(path: Path) -> None:
    by_hand = pages.PART.sub("", path.read_text())
    for command in commands(by_hand):
        parse(command)


WRONG = [
    "ifca --clusters 0",
    "fedavg --lrr 1",
    "fedavg --lr -1",
    "fedavg --data folder:a --clients 3",
    "fedavg --data linear?dims=3",
]


@pytest.mark.parametrize("command", [f"coterie run {words}" for words in WRONG])
def test_a_wrong_command_does_not_parse(command: str) -> None:
    assert commands(f"Say `{command}`, or\n\n{command}\n") == [command] * 2
    with pytest.raises(Exception, match=r"clusters|--lrr|lr of fedavg|--clients|dims"):
        parse(command)


# ---------------------------------------------------------------------- where a method stands
def test_the_list_names_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = re.findall(r"^  (\S+)", capsys.readouterr().out.partition("\n\n")[0], re.MULTILINE)
    assert listed == METHODS


@pytest.mark.parametrize("name", METHODS)
def test_the_readme_names_the_method(name: str) -> None:
    table = re.search(
        r"^## Methods\n(.*?)^## ", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert table is not None
    names = [row.split("|")[1] for row in table[1].splitlines() if row.startswith("|")]
    assert f"`{name}`" in " ".join(names)


def lacking(cls: type[Algorithm], source: str) -> list[str]:
    """The kinds of test that a method's test file lacks."""
    wanted = {"by_hand": "by_hand", "numpy": "numpy|plain_pytorch"}
    if cls.groups is not Algorithm.groups:
        wanted["planted or found"] = "planted|found"
    return [
        kind
        for kind, words in wanted.items()
        if not re.search(rf"^def test_\w*({words})", source, re.MULTILINE)
    ]


@pytest.mark.parametrize("name", METHODS)
def test_the_method_has_its_tests(name: str) -> None:
    cls = methods()[name]
    folder, stem = cls.__module__.split(".")[1:]
    assert lacking(cls, (ROOT / "tests" / folder / f"test_{stem}.py").read_text()) == []


def test_lacking_tests_are_noticed() -> None:
    ifca, fedavg = methods()["ifca"], methods()["fedavg"]
    assert lacking(ifca, "") == ["by_hand", "numpy", "planted or found"]
    assert lacking(fedavg, "def test_one_round_by_hand() -> None:\n") == ["numpy"]
    assert lacking(
        ifca, "def helper_by_hand():\ndef test_in_numpy():\ndef test_lines_are_found():\n"
    ) == ["by_hand"]


# ---------------------------------------------------------------------- links
def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def dead_links(root: Path) -> list[str]:
    """Links of the documents to files or headings that do not exist."""
    found = []
    for path in [
        root / "README.md",
        root / "CONTRIBUTING.md",
        *sorted((root / "docs").glob("**/*.md")),
    ]:
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            file, _, heading = link.partition("#")
            target = path.parent / file if file else path
            text = target.read_text() if target.suffix == ".md" and target.is_file() else ""
            heads = [slug(h) for h in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
            heads += re.findall(r'<a id="([^"]+)">', text)
            if "://" not in link and (not target.exists() or (heading and heading not in heads)):
                found.append(f"{path.relative_to(root)}: {link}")
    return found


def test_links_lead_somewhere() -> None:
    assert dead_links(ROOT) == []


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "CONTRIBUTING.md").write_text("# How\n\n[readme](README.md#what-it-is)\n")
    (tmp_path / "README.md").write_text(
        "# What it is\n\n[page](docs/page.md) [web](https://example.org)\n"
    )
    (tmp_path / "docs" / "page.md").write_text(
        "[up](../README.md#what-it-was) [none](other.md#x)\n"
    )
    assert dead_links(tmp_path) == [
        "docs/page.md: ../README.md#what-it-was",
        "docs/page.md: other.md#x",
    ]
