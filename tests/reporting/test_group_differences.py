"""Differences between groups: solved by hand, of random groups, and of federations."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from row_clients import client, side

import coterie as ct
from coterie.reporting import client_sums as sums_module
from coterie.reporting.client_sums import ClientSums, sum_clients
from coterie.reporting.group_differences import (
    NamedColumn,
    compare_groups,
    describe_difference,
    describe_differences,
    find_differences,
    most_certain,
)

SIDES = ("group 0", "group 1")
Y = [NamedColumn("y", "y", more="a higher y", less="a lower y")]


def compare_sides(features, labels, here: ClientSums, there: ClientSums):
    """The significant differences between two sides, the most certain first."""
    tests = len(features) + len(labels) + len(features) * len(labels)
    return most_certain(find_differences(features, labels, here, there, tests))


def sentences(features, here: ClientSums, there: ClientSums, sides=SIDES) -> list[str]:
    """The differences between two sides in words, the surest first."""
    differences = compare_sides(features, Y, here, there)
    return [describe_difference(difference, sides) for difference in differences]


# ------------------------------------------------------------------------------ two sides
def test_a_difference_solved_by_hand():
    # 50 rows of 1 and 3 (mean 2, variance 1) against 50 of 4 and 6 (mean 5): 3 / √(1 + 9 / 4) =
    # 1.66 of at most 2; five clients each that are alike, so that the error is that of the rows;
    # the label is 0 and moves with nothing
    age = [NamedColumn("age", "age", shift=10, scale=2)]
    low, high = (side(*[client([a, b] * 25)] * 5) for a, b in ((1.0, 3.0), (4.0, 6.0)))
    assert sentences(age, low, high) == [
        "age is higher in group 1: mean 20, compared with 14 in group 0."
    ]
    assert sentences(age, high, low, ("group 2", "the other groups")) == [
        "age is higher in group 2: mean 20, compared with 14 in the other groups."
    ]
    assert sentences(age, low, high, ("group 2", "the other groups")) == [
        "age is lower in group 2: mean 14, compared with 20 in the other groups."
    ]
    assert sentences(age, low, low) == []


def test_columns_that_never_change_within_a_group_are_named():
    ward = [NamedColumn("ward = A", "ward")]
    here, there = (side(*[client([v] * 40)] * 5) for v in (1.0, 0.0))
    assert sentences(ward, here, there) == [
        "ward = A is more common in group 0: 100 % of rows, compared with 0 % in group 1."
    ]
    two_rows = [side(client([v] * 2)) for v in (1.0, 0.0)]
    assert sentences(ward, *two_rows) == []  # they prove nothing


def test_few_rows_say_nothing():
    rng = np.random.default_rng(1)
    here, there = (side(client(rng.normal(m, 1, 6))) for m in (0, 1))
    assert sentences([NamedColumn("a", "a")], here, there) == []
    # two rows have a correlation of 1 or −1, whatever they are
    x = [0.0, 1.0]
    up, down = (side(client(x, y), client(x, y)) for y in ([0.0, 1.0], [1.0, 0.0]))
    assert up.correlation()[0][0, 0] == 1 and down.correlation()[0][0, 0] == -1
    assert sentences([NamedColumn("a", "a")], up, down) == []


def test_what_only_one_client_has_is_no_trait_of_its_group():
    no = client([0.0] * 100)
    yes = client([1.0] * 80 + [0.0] * 20)
    scanner = [NamedColumn("scanner = Z", "scanner")]
    others = side(*[no] * 5)
    assert sentences(scanner, side(yes, *[no] * 4), others) == []
    assert len(sentences(scanner, side(*[yes] * 5), others)) == 1
    assert sentences(scanner, side(yes), others) == []  # nor is what a group of one client has


def test_the_largest_difference_comes_first_and_each_column_once():
    rng = np.random.default_rng(0)

    def rows(shift: float, far: float):
        x = rng.normal([shift, far, -far], 1, (300, 3))
        return torch.tensor(x), torch.zeros(300)

    names = [
        NamedColumn("near", "near"),
        NamedColumn("far = a", "far"),
        NamedColumn("far = b", "far"),
    ]
    here = side(*(rows(0, 0) for _ in "abcd"))
    there = side(*(rows(1, 3) for _ in "abcd"))
    starts = [text.split(" is ")[0] for text in sentences(names, here, there)]
    assert starts in (["far = a", "near"], ["far = b", "near"])


def test_relations_with_the_label_are_put_into_words():
    rng = np.random.default_rng(0)

    def rows(slope: float) -> ClientSums:
        clients = []
        for _ in range(3):
            x = rng.normal(0, 1, 300)
            clients.append(client(x, slope * x + rng.normal(0, 1, 300)))
        return side(*clients)

    dose = [NamedColumn("dose", "dose")]
    up, down, flat, some = (rows(slope) for slope in (2, -2, 0, 0.5))

    def described(here: ClientSums, there: ClientSums) -> tuple[str, list[float]]:
        """The sentence with r for each correlation, and the correlations."""
        (text,) = sentences(dose, here, there)
        numbers = [float(r.replace("−", "-")) for r in re.findall(r"−?0\.\d\d", text)]
        return re.sub(r"−?0\.\d\d", "r", text), numbers

    strong = 2 / 5**0.5  # slope / √(slope² + 1)
    weak = 0.5 / 1.25**0.5
    higher = "a higher dose goes with a higher y (correlation r)"
    text, r = described(up, down)
    assert text == f"In group 0, {higher}; in group 1, with a lower y (r)."
    assert r == pytest.approx([strong, -strong], abs=0.03)  # with its sign
    text, r = described(flat, up)
    assert text == f"In group 1, {higher}; in group 0 hardly at all (r)."
    assert r == pytest.approx([strong, 0], abs=0.1)
    text, r = described(some, up)
    assert text == f"In group 1, {higher}; in group 0 less so (r)."
    assert r == pytest.approx([strong, weak], abs=0.1)
    assert sentences(dose, up, rows(2)) == []


# ------------------------------------------------------------------------------ random groups
def test_groups_at_random_hardly_ever_differ():
    # 20 columns of 12 clients that differ among themselves, in 40 random halves: 800 means, of
    # which Student's t of 10 degrees of freedom exceeds 4 in 0.25 %, or 2; more than 8 of them
    # have a chance of 0.0002
    rng = np.random.default_rng(0)
    centre = rng.normal(0, 0.5, (12, 20))
    clients = [
        (torch.tensor(rng.normal(c, 1, (60, 20))), torch.tensor(rng.integers(0, 2, 60)))
        for c in centre
    ]
    each = sum_clients(clients, 2)
    names = [NamedColumn(str(i), str(i)) for i in range(20)]
    wrong = 0
    for _ in range(40):
        half = rng.permutation(12) < 6
        wrong += len(compare_sides(names, Y, each.select(half), each.select(~half)))
    assert wrong <= 8


@pytest.mark.parametrize("sizes", [(1, 3), (2, 2), (2, 6), (3, 3), (5, 5)])
def test_groups_drawn_at_random_among_clients_that_differ_do_not_differ(sizes):
    """With few clients differences between clients look like differences between groups.

    60 reports of 10 columns.
    """
    rng = np.random.default_rng(0)
    features = [NamedColumn(c, c) for c in "abcdefghij"]
    first = np.arange(sum(sizes)) < sizes[0]
    wrong = 0
    for _ in range(60):
        clients = []
        for _ in range(sum(sizes)):
            x = rng.normal(size=(40, 10)) + rng.normal(size=10)
            y = (x - x.mean(0)) @ rng.normal(0, 0.5, 10) + rng.normal(size=40)
            clients.append((torch.tensor(x), torch.tensor(y)))
        each = sum_clients(clients, None)
        wrong += bool(compare_sides(features, Y, each.select(first), each.select(~first)))
    assert wrong <= 3


# ------------------------------------------------------------------------------ federations
@pytest.fixture(scope="module")
def site_tables(tmp_path_factory):
    """Eight sites of two kinds, in a federation.

    They have other ages, other shares of a category, and a dose that works the other way round.
    """
    import pandas as pd

    folder = tmp_path_factory.mktemp("eight")
    rng = np.random.default_rng(0)
    n = 200
    for i, name in enumerate("abcdefgh"):
        kind = i % 2
        dose = rng.normal(2, 0.5, n)
        frame = {
            "age": rng.normal((48, 61)[kind], 8, n).round(),
            "dose": dose,
            "sex": rng.choice(["female", "male"], n, p=[(0.7, 0.3), (0.3, 0.7)][kind]),
            "outcome": np.where((dose > 2) == bool(kind), "ill", "well"),
        }
        pd.DataFrame(frame).to_csv(folder / f"{name}.csv", index=False)
    return ct.data.folder(str(folder), label="outcome")


def test_tables_are_described_in_their_own_units_and_two_groups_once(site_tables):
    result = compare_groups(site_tables, np.array([0, 1] * 4))
    assert result.label_column == "outcome"
    assert all("% ill, " in text for text in result.labels.values())
    (comparison,) = result.comparisons
    assert (comparison.group, comparison.other) == (0, 1)
    ((title, texts),), _ = describe_differences(result.comparisons)
    assert title == ""
    assert "goes with outcome = well (correlation 0.8" in texts[0]
    assert "with outcome = ill (0.8" in texts[0]
    (age,) = [text for text in texts if text.startswith("age is higher in group 1")]
    numbers = [word.strip(",") for word in age.split() if word[0].isdigit() and word != "1:"]
    assert [float(number) for number in numbers[:2]] == pytest.approx([61, 48], abs=1)
    assert len([text for text in texts if text.startswith("sex")]) == 1  # not female and male


def test_several_groups_are_compared_with_all_others(site_tables):
    result = compare_groups(site_tables, np.array([0, 1, 2, -1, 0, 1, 2, -1]))
    assert [(c.group, c.other) for c in result.comparisons] == [(0, None), (1, None), (2, None)]
    assert compare_groups(site_tables, np.zeros(8, dtype=int)).comparisons == []


def test_a_few_columns_at_a_time_give_the_same_differences(site_tables, monkeypatch):
    groups = np.array([0, 1] * 4)
    at_once = compare_groups(site_tables, groups)
    monkeypatch.setattr(sums_module, "BLOCK_BYTES", 1)
    one_by_one = compare_groups(site_tables, groups)
    assert one_by_one.labels == at_once.labels
    texts = [describe_differences(result.comparisons) for result in (at_once, one_by_one)]
    assert texts[0] == texts[1] and len(texts[0][0][0][1]) >= 3


def test_images_are_compared_by_their_labels_only():
    fed = ct.data.rotated(clients=4, samples=40)
    assert compare_groups(fed, np.array([0, 1, 0, 1])).comparisons == []
    clients = {}
    for i in range(10):
        y = np.arange(60) % 2 + 2 * (i > 4)
        clients[f"c{i}"] = (np.zeros((60, 2, 2), "float32"), y)
    skewed = ct.data.from_memory(clients, test_share=0.2)
    result = compare_groups(skewed, np.array([0] * 5 + [1] * 5))
    assert result.labels[0].startswith("most often ") and result.comparisons
    ((_, texts),), _ = describe_differences(result.comparisons)
    assert all(text.startswith("label = ") for text in texts)


def test_words_and_wide_rows_are_not_taken_for_columns():
    for x in (torch.zeros(30, 4, dtype=torch.int64), torch.zeros(30, 501)):
        clients = {name: (x, torch.arange(30) % 2) for name in "ab"}
        fed = ct.data.from_memory(clients, test_share=0.2)
        assert compare_groups(fed, np.array([0, 1])).comparisons == []


def test_images_of_many_classes_have_nothing_to_compare():
    x = np.zeros((120, 2, 2), "float32")
    clients = {f"c{i}": (x, np.arange(120) % 30) for i in range(6)}
    fed = ct.data.from_memory(clients, test_share=0.2)
    result = compare_groups(fed, np.array([0, 0, 0, 1, 1, 1]))
    assert result.comparisons == [] and result.labels == {}
