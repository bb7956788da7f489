"""Numbers, names and paths as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coterie.reporting.text import (
    capitalise,
    format_bytes,
    format_gain,
    format_number,
    format_score,
    join_names,
    natural_order,
    replace_path,
)


def test_lists_of_names_read_like_a_sentence():
    assert [join_names(list("abcd")[:n], most=3) for n in (1, 2, 3, 4)] == [
        "a",
        "a and b",
        "a, b and c",
        "a, b, c and 1 more",
    ]


def test_numbers_in_names_are_sorted_by_size():
    names = ["school 10", "school 2", "12", "9", "School 3", "", "école"]  # and accents as letters
    assert [names[i] for i in natural_order(names)] == [
        "",
        "9",
        "12",
        "école",
        "school 2",
        "School 3",
        "school 10",
    ]


def test_numbers_are_short():
    values = (12345.6, 61.234, -0.001, -0.5, 0.25)
    assert [format_number(v) for v in values] == ["12,346", "61.2", "0.00", "−0.50", "0.25"]


def test_scores_have_three_decimals_and_errors_four_digits():
    assert format_score(0.75, "accuracy") == "0.750"
    assert format_score(1234.56, "mse") == "1235"
    assert format_score(np.nan, "accuracy") == "–"
    gains = [format_gain(v, "accuracy") for v in (0.1, -0.1, 0.0001, np.nan)]
    assert gains == ["+0.100", "−0.100", "0.000", "–"]


def test_sizes_have_a_unit():
    sizes = (999, 1000, 12_345_678, 5e9, 2.5e12, 1e16)
    assert [format_bytes(size) for size in sizes] == [
        "999 B",
        "1.0 kB",
        "12.3 MB",
        "5.0 GB",
        "2.5 TB",
        "10000.0 TB",
    ]


def test_only_the_first_letter_becomes_large():
    assert capitalise("a group of IFCA.") == "A group of IFCA."
    assert capitalise("") == ""


def test_a_path_is_replaced_where_it_stands_whole():
    def replaced(text: str, path: str = "/runs/e") -> str:
        return replace_path(text, Path(path), "the run")

    assert replaced("the data of /runs/e were in memory.") == "the data of the run were in memory."
    assert replaced("/runs/e/config.json is damaged") == "the run/config.json is damaged"
    assert replaced("it is no run: /runs/e.") == "it is no run: the run."
    for other in ("/runs/ever", "/runs/e-2", "/runs/e.old", "/x/runs/e", "./runs/e"):
        assert replaced(f"the data of {other} are gone") == f"the data of {other} are gone"
    assert replaced("a (b) \\d", "/a (b) \\d") == "a (b) \\d"
    assert replaced("in /a (b) \\d: gone", "/a (b) \\d") == "in the run: gone"
