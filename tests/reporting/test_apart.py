"""Words for what sets groups apart, against means and correlations of the pooled rows."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.reporting.apart import Column, apart, compared, number
from coterie.reporting.sums import Sums, sums

SIDES = ("group 0", "group 1")
Y = [Column("y", "y", more="a higher y", less="a lower y")]


def client(values, y=None):
    """One client whose single column holds these values."""
    x = torch.as_tensor(values, dtype=torch.float64)[:, None]
    return x, torch.zeros(len(x)) if y is None else torch.as_tensor(y, dtype=torch.float64)


def side(*clients) -> Sums:
    return sums(clients, None)


def test_sums_of_clients_are_those_of_the_pooled_rows():
    rng = np.random.default_rng(0)
    parts = [(rng.normal(3, 2, (n, 2)), rng.normal(size=n)) for n in (5, 9, 2)]
    got = sums([(torch.tensor(x), torch.tensor(y)) for x, y in parts], None)
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    np.testing.assert_allclose(got.mean(), [*x.mean(0), y.mean()])
    np.testing.assert_allclose(got.variance(), [*x.var(0), y.var()])
    # inside the clients: the correlation of what is left when each client's means are taken off
    x, y = (np.concatenate([part - part.mean(0) for part in column]) for column in zip(*parts))
    np.testing.assert_allclose(
        got.correlation()[0][:2, 0], [np.corrcoef(x[:, j], y)[0, 1] for j in range(2)]
    )


def test_standard_errors_are_those_of_drawing_clients_anew():
    # 400 groups of 12 clients whose means and slopes differ: the spread of the groups' statistics is the error
    rng, means, slopes, errors = np.random.default_rng(0), [], [], []
    for _ in range(400):
        clients = []
        for _ in range(12):
            x = rng.normal(rng.normal(), 1, 20)
            clients.append(client(x, rng.normal(1, 1) * x + rng.normal(0, 1, 20)))
        s = side(*clients)
        r, r_error = s.correlation()
        means.append(s.mean()[0])
        slopes.append(r[0, 0])
        errors.append((s.mean_error()[0], r_error[0, 0]))
    told = np.sqrt(np.mean(errors, 0))
    np.testing.assert_allclose(told, [np.std(means), np.std(slopes)], rtol=0.12)


def test_a_difference_solved_by_hand():
    # 50 rows of 1 and 3 (mean 2, variance 1) against 50 of 4 and 6 (mean 5): 3 / √(1 + 9 / 4) = 1.66 of at most 2;
    # five clients each that are alike, so that the error is that of the rows; the label is 0 and moves with nothing
    age = [Column("age", "age", shift=10, scale=2)]
    low, high = (side(*[client([a, b] * 25)] * 5) for a, b in ((1.0, 3.0), (4.0, 6.0)))
    assert compared(age, Y, low, high, SIDES) == [
        "age is higher in group 1: mean 20, against 14 in group 0."
    ]
    assert compared(age, Y, high, low, ("group 2", "the other groups")) == [
        "age is higher in group 2: mean 20, against 14 in the other groups."
    ]
    assert compared(age, Y, low, low, SIDES) == []


def test_columns_that_never_change_within_a_group_are_told():
    ward = [Column("ward = A", "ward")]
    here, there = (side(*[client([v] * 40)] * 5) for v in (1.0, 0.0))
    assert compared(ward, Y, here, there, SIDES) == [
        "ward = A is more common in group 0: 100 % of rows, against 0 % in group 1."
    ]
    assert (
        compared(ward, Y, *(side(client([v] * 2)) for v in (1.0, 0.0)), SIDES) == []
    )  # two rows prove nothing


def test_few_rows_say_nothing():
    rng = np.random.default_rng(1)
    here, there = (side(client(rng.normal(m, 1, 6))) for m in (0, 1))
    assert compared([Column("a", "a")], Y, here, there, SIDES) == []
    # two rows have a correlation of 1 or −1, whatever they are
    up, down = (
        side(client([0.0, 1.0], y), client([0.0, 1.0], y)) for y in ([0.0, 1.0], [1.0, 0.0])
    )
    assert up.correlation()[0][0, 0] == 1 and down.correlation()[0][0, 0] == -1
    assert compared([Column("a", "a")], Y, up, down, SIDES) == []


def test_what_only_one_client_has_is_no_trait_of_its_group():
    no, yes = client([0.0] * 100), client([1.0] * 80 + [0.0] * 20)
    scanner, others = [Column("scanner = Z", "scanner")], side(*[no] * 5)
    assert compared(scanner, Y, side(yes, *[no] * 4), others, SIDES) == []
    assert len(compared(scanner, Y, side(*[yes] * 5), others, SIDES)) == 1
    assert (
        compared(scanner, Y, side(yes), others, SIDES) == []
    )  # nor is what a group of one client has


def test_the_largest_difference_comes_first_and_each_column_once():
    rng = np.random.default_rng(0)

    def rows(shift: float, far: float):
        x = rng.normal([shift, far, -far], 1, (300, 3))
        return torch.tensor(x), torch.zeros(300)

    names = [Column("near", "near"), Column("far = a", "far"), Column("far = b", "far")]
    told = compared(
        names, Y, side(*(rows(0, 0) for _ in "abcd")), side(*(rows(1, 3) for _ in "abcd")), SIDES
    )
    assert [text.split(" is ")[0] for text in told] in (["far = a", "near"], ["far = b", "near"])


def test_relations_with_the_label_are_told_in_words():
    rng = np.random.default_rng(0)

    def rows(slope: float):
        clients = []
        for _ in range(3):
            x = rng.normal(0, 1, 300)
            clients.append(client(x, slope * x + rng.normal(0, 1, 300)))
        return side(*clients)

    dose, up, down, flat, some = [Column("dose", "dose")], rows(2), rows(-2), rows(0), rows(0.5)

    def told(here: Sums, there: Sums) -> tuple[str, list[float]]:
        """The sentence with r for each correlation, and the correlations."""
        (text,) = compared(dose, Y, here, there, SIDES)
        return re.sub(r"0\.\d\d", "r", text), [float(r) for r in re.findall(r"0\.\d\d", text)]

    strong, weak = 2 / 5**0.5, 0.5 / 1.25**0.5  # slope / √(slope² + 1)
    text, r = told(up, down)
    assert (
        text
        == "In group 0, a higher dose goes with a higher y (correlation r); in group 1, with a lower y (r)."
    )
    assert r == pytest.approx([strong, strong], abs=0.03)
    text, r = told(flat, up)
    assert (
        text
        == "In group 1, a higher dose goes with a higher y (correlation r); in group 0 it hardly matters (r)."
    )
    assert r == pytest.approx([strong, 0], abs=0.1)
    text, r = told(some, up)
    assert (
        text
        == "In group 1, a higher dose goes with a higher y (correlation r); in group 0 less so (r)."
    )
    assert r == pytest.approx([strong, weak], abs=0.1)
    assert compared(dose, Y, up, rows(2), SIDES) == []


def test_groups_at_random_are_hardly_ever_told_apart():
    # 20 columns of 12 clients that differ among themselves, in 40 random halves: 800 means, of which Student's t of 10
    # degrees of freedom exceeds 4 in 0.25 %, or 2; more than 8 of them have a chance of 0.0002
    rng, wrong = np.random.default_rng(0), 0
    centre = rng.normal(0, 0.5, (12, 20))
    clients = [
        (torch.tensor(rng.normal(c, 1, (60, 20))), torch.tensor(rng.integers(0, 2, 60)))
        for c in centre
    ]
    each, names = sums(clients, 2), [Column(str(i), str(i)) for i in range(20)]
    for _ in range(40):
        half = rng.permutation(12) < 6
        wrong += len(compared(names, Y, each.of(half), each.of(~half), SIDES))
    assert wrong <= 8


# ---------------------------------------------------------------------------------------------- federations
@pytest.fixture
def sites(tmp_path):
    """Eight sites in two kinds: other ages, other shares of a category, and a dose that works the other way round."""
    import pandas as pd

    rng = np.random.default_rng(0)
    for i, name in enumerate("abcdefgh"):
        kind, n = i % 2, 200
        dose = rng.normal(2, 0.5, n)
        frame = {
            "age": rng.normal((48, 61)[kind], 8, n).round(),
            "dose": dose,
            "sex": rng.choice(["female", "male"], n, p=[(0.7, 0.3), (0.3, 0.7)][kind]),
            "outcome": np.where((dose > 2) == bool(kind), "ill", "well"),
        }
        pd.DataFrame(frame).to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def test_tables_are_told_in_their_own_units_and_two_groups_once(sites):
    told = apart(ct.data.folder(str(sites), label="outcome"), np.array([0, 1] * 4))
    assert told.label == "outcome" and all("% ill, " in text for text in told.labels.values())
    ((title, found),) = told.found.items()
    assert title == "Group 0 against group 1"
    assert (
        "goes with outcome = well (correlation 0.8" in found[0]
        and "with outcome = ill (0.8" in found[0]
    )
    (age,) = [text for text in found if text.startswith("age is higher in group 1")]
    ages = [float(word.strip(",")) for word in age.split() if word[0].isdigit() and word != "1:"][
        :2
    ]
    assert ages == pytest.approx([61, 48], abs=1)
    assert len([text for text in found if text.startswith("sex")]) == 1  # not female and male


def test_several_groups_are_told_against_all_others(sites):
    told = apart(ct.data.folder(str(sites), label="outcome"), np.array([0, 1, 2, -1, 0, 1, 2, -1]))
    assert list(told.found) == [f"Group {k} against the other groups" for k in range(3)]
    assert apart(ct.data.folder(str(sites), label="outcome"), np.zeros(8, dtype=int)).found == {}


def test_images_are_compared_by_their_labels_only():
    fed = ct.data.rotated(clients=4, samples=40)
    assert apart(fed, np.array([0, 1, 0, 1])).found == {}
    skewed = ct.data.from_memory(
        {
            f"c{i}": (np.zeros((60, 2, 2), "float32"), np.arange(60) % 2 + 2 * (i > 4))
            for i in range(10)
        },
        test_share=0.2,
    )
    told = apart(skewed, np.array([0] * 5 + [1] * 5))
    assert told.labels[0].startswith("most often ") and told.found
    assert all(text.startswith("label = ") for texts in told.found.values() for text in texts)


def test_words_and_wide_rows_are_not_taken_for_columns():
    for x in (torch.zeros(30, 4, dtype=torch.int64), torch.zeros(30, 501)):
        fed = ct.data.from_memory(
            {name: (x, torch.arange(30) % 2) for name in "ab"}, test_share=0.2
        )
        assert apart(fed, np.array([0, 1])).found == {}


def test_numbers_are_short():
    assert [number(v) for v in (12345.6, 61.234, -0.001, -0.5, 0.25)] == [
        "12,346",
        "61.2",
        "0.00",
        "−0.50",
        "0.25",
    ]


@pytest.mark.parametrize("sizes", [(1, 3), (2, 2), (2, 6), (3, 3), (5, 5)])
def test_groups_drawn_at_random_among_clients_that_differ_have_nothing_to_tell(sizes):
    """With few clients what sets clients apart looks like what sets groups apart: 60 reports of 10 columns."""
    rng, told = np.random.default_rng(0), 0
    for _ in range(60):
        clients = []
        for _ in range(sum(sizes)):
            x = rng.normal(size=(40, 10)) + rng.normal(size=10)
            clients.append(
                (
                    torch.tensor(x),
                    torch.tensor((x - x.mean(0)) @ rng.normal(0, 0.5, 10) + rng.normal(size=40)),
                )
            )
        each, first = sums(clients, None), np.arange(sum(sizes)) < sizes[0]
        told += bool(
            compared(
                [Column(c, c) for c in "abcdefghij"], Y, each.of(first), each.of(~first), SIDES
            )
        )
    assert told <= 3


def test_small_units_change_nothing():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    y = x + 0.1 * rng.normal(size=50)
    r = [side(client(x * unit, y * unit)).correlation()[0][0, 0] for unit in (1, 1e-6, 1e-12)]
    np.testing.assert_allclose(r, r[0])
    assert side(client([1e-9] * 5, [1.0] * 5)).correlation()[0][0, 0] == 0
