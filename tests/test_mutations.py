"""The list of breaks in mutations.py, without running it: it fits the source, and the document holds its results."""

from __future__ import annotations

from collections import Counter

import pytest

from coterie.registry import methods
from mutations import BREAKS, DOCUMENT, ODD, ROOT, documented, row, verdict


@pytest.mark.parametrize("file", sorted({b.file for b in BREAKS}))
def test_every_line_to_break_is_there_once_and_breaks_into_python(file: str) -> None:
    text, here = (ROOT / "src" / "coterie" / file).read_text(), [b for b in BREAKS if b.file == file]
    assert [b.old for b in here if text.count(b.old) != 1] == []
    for b in here:
        compile(text.replace(b.old, b.new), b.file, "exec")


def test_every_method_has_five_breaks() -> None:
    counts = Counter(b.group for b in BREAKS)
    assert {name: counts[name] for name in methods() if counts[name] < 5} == {}
    assert max(Counter((b.file, b.old, b.new) for b in BREAKS).values()) == 1


def test_the_tests_of_every_break_exist() -> None:
    assert [t for b in BREAKS for t in b.tests.split() if not (ROOT / "tests" / t).is_file()] == []


def test_the_document_has_a_result_for_every_break_and_no_others() -> None:
    lines = DOCUMENT.read_text().splitlines()
    assert [row(b) for b in BREAKS if sum(x.startswith(row(b)) for x in lines) != 1] == []
    assert sum(x.startswith("| ") for x in lines) == len(BREAKS) + 2 * len({b.group for b in BREAKS})
    assert not any(x.endswith(" untried |") for x in lines)


def test_every_test_that_caught_a_break_is_still_there() -> None:
    text = {t: (ROOT / "tests" / t).read_text() for b in BREAKS for t in b.tests.split()}
    caught = {b: name.split("[")[0] for b, name in documented().items() if name not in ODD}
    assert [name for b, name in caught.items() if not any(f"def {name}(" in text[t] for t in b.tests.split())] == []


@pytest.mark.parametrize(
    "status, output, want",
    [
        (
            1,
            "FAILED tests/a/test_x.py::test_y[how 1] - AssertionError: 1 - 2",
            ("caught", "test_y[how 1]: AssertionError"),
        ),
        (1, "FAILED tests/a/test_x.py::test_y - assert 1 == 2", ("caught", "test_y")),
        (1, "FAILED tests/a/test_x.py::test_y - NameError: name 'z' is not defined", ("unclear", "test_y")),
        (2, "ERROR tests/a/test_x.py - ImportError: no", ("unclear", "ERROR")),
        (1, "Traceback", ("unclear", "Traceback")),
        (-9, "", ("unclear", "exit status -9")),
        (5, "no tests ran", ("unclear", "no tests ran")),
        (0, "9 passed", ("survived", "")),
    ],
)
def test_only_a_test_that_fails_by_name_catches(status: int, output: str, want: tuple[str, str]) -> None:
    kind, why = verdict(status, output)
    assert kind == want[0] and why.startswith(want[1])
