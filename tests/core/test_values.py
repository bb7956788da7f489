"""One converter for flags, config files and data specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from coterie.core.errors import CoterieError
from coterie.core.values import convert_value


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("3", int, 3),
        (" 007 ", int, 7),
        (".5", float, 0.5),
        (2, float, 2.0),
        ("True", bool, True),
        ("0", bool, False),
        ("a b", str, "a b"),
        (2019, str, "2019"),
        (Path("sites"), str, "sites"),
        ("0, 90,", tuple[float, ...], (0.0, 90.0)),
        ([0, 90], tuple[float, ...], (0.0, 90.0)),
        ((1, "x"), tuple[str, ...], ("1", "x")),
        (7, tuple[int, ...], (7,)),
        (np.int64(7), int, 7),
        (np.float32(0.5), float, 0.5),
        ("None", int | None, None),
        (None, float | None, None),
        ("4", int | None, 4),
        ("b", Literal["a", "b"], "b"),
    ],
)
def test_values_become_their_type(value: Any, kind: Any, expected: Any) -> None:
    converted = convert_value(value, kind, "x")
    assert converted == expected and type(converted) is type(expected)


def test_literals_are_kept() -> None:
    assert convert_value("auto", int | str, "clusters", literals=("auto",)) == "auto"
    assert convert_value("3", int | str, "clusters", literals=("auto",)) == 3


@pytest.mark.parametrize(
    ("value", "kind", "sentence"),
    [
        ("2.5", int, "x is '2.5': it must be a whole number."),
        (True, int, "x is true: it must be a whole number."),
        ("nan", float, "x is 'nan': it must be a number."),
        ("1,inf", tuple[float, ...], "x is '1,inf': it must be a number, or several with commas "
         "between."),
        ("none", int, "x is 'none': it must be a whole number."),
        ("many", int | None, "x is 'many': it must be a whole number or none."),
        (1.5, str, "x is 1.5: it must be text in quotes."),
        ("yes", bool, "x is 'yes': it must be true or false."),
        ("c", Literal["a", "b"], "x is 'c': it must be one of a, b."),
        ([1, 2], int, "x is [1, 2]: it must be a whole number."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(value: Any, kind: Any, sentence: str) -> None:
    with pytest.raises(CoterieError) as error:
        convert_value(value, kind, "x")
    assert str(error.value) == sentence
