"""Words for what sets groups apart, against sums and correlations of the pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.page.apart import Column, compared, number, sentences, sums, total


def test_sums_of_clients_are_those_of_the_pooled_rows():
    rng = np.random.default_rng(0)
    parts = [(rng.normal(3, 2, (n, 2)), rng.normal(size=n)) for n in (5, 9, 1)]
    got = total([sums(torch.tensor(x), torch.tensor(y), None) for x, y in parts])
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    np.testing.assert_allclose(got.mean, [*x.mean(0), y.mean()])
    np.testing.assert_allclose(got.variance, [*x.var(0), y.var()])
    np.testing.assert_allclose(got.correlation(), [np.corrcoef(x[:, j], y)[0, 1] for j in range(2)])


def test_a_difference_solved_by_hand():
    # 50 rows of 1 and 3 (mean 2, variance 1) against 50 rows of 4 and 6 (mean 5, variance 1): apart by 3 deviations;
    # the target is 0 everywhere, so that nothing moves with it
    def client(*values: float):
        return sums(torch.tensor(values * 25)[:, None], torch.zeros(50), None)

    names = [Column("age", "age", shift=10, scale=2), Column("risk", "risk")]
    assert compared(names, client(1.0, 3.0), client(4.0, 6.0)) == ["age is lower (mean 14 against 20 elsewhere)"]
    assert compared(names, client(1.0, 3.0), client(1.0, 3.0)) == []


def test_columns_that_never_change_within_a_group_are_told():
    here, there = (sums(torch.full((40, 1), v), torch.zeros(40), None) for v in (1.0, 0.0))
    names = [Column("ward = A", "ward"), Column("y", "y")]
    assert compared(names, here, there) == ["ward = A is more common (100 % of rows against 0 % elsewhere)"]


def test_few_rows_say_nothing():
    rng = np.random.default_rng(1)
    here, there = (sums(torch.tensor(rng.normal(m, 1, (6, 1))), torch.zeros(6), None) for m in (0, 1))
    assert compared([Column("a", "a"), Column("y", "y")], here, there) == []  # below three standard errors


@pytest.fixture
def sites(tmp_path):
    """Four sites in two kinds: other ages, other shares of a category, and a dose that works the other way round."""
    import pandas as pd

    rng = np.random.default_rng(0)
    for i, name in enumerate(("a", "b", "c", "d")):
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


def test_tables_are_told_in_their_own_units(sites):
    fed = ct.data.folder(str(sites), label="outcome")
    found = sentences(fed, np.array([0, 1, 0, 1]))
    assert sorted(found) == [0, 1]
    first = {text.split(" (")[0]: text for text in found[1]}
    assert {"age is higher", "outcome = well falls with dose"} <= set(first)
    ages = [float(word) for word in first["age is higher"].split() if word[0].isdigit()]
    assert ages == pytest.approx([61, 48], abs=1)
    assert ("sex = male is more common" in first) != ("sex = female is less common" in first)  # not both


def test_images_are_compared_by_their_labels_only():
    fed = ct.data.rotated(clients=4, samples=40)
    assert sentences(fed, np.array([0, 1, 0, 1])) == {}
    skewed = ct.data.pathological(clients=4, classes=2)
    words = [text for texts in sentences(skewed, np.array([0, 0, 1, 1])).values() for text in texts]
    assert words and all(text.startswith("the label = ") for text in words)


def test_numbers_are_short():
    assert [number(v) for v in (12345.6, 61.234, -0.001, -0.5, 0.25)] == ["12,346", "61.2", "0.00", "−0.50", "0.25"]
