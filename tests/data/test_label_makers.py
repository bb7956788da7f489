"""Permuted labels, few classes and Dirichlet shares of base images."""

from collections import Counter

import numpy as np
import pytest
import torch
from image_rows import rows

from coterie.core.errors import CoterieError
from coterie.data import (
    dirichlet,
    label_permuted,
    pathological,
)


# ------------------------------------------------------------------------------ permuted labels
def test_labels_are_shifted_by_group(digits, known) -> None:
    fed = label_permuted(clients=8, clusters=4, samples=100, seed=1)
    assert fed.truth.tolist() == [0, 1, 2, 3] * 2 and fed.labels is None
    for part in ("train", "test"):
        for group in range(4):
            dealt = []
            for i in (group, group + 4):
                x, y = getattr(fed, part).client(i)
                assert [(known[part][row] + group) % 10 for row in rows(x)] == y.tolist()
                dealt += rows(x)
            assert Counter(dealt) <= Counter(known[part].keys()), "slices of a group are disjoint"
    assert rows(fed.train.client(0)[0]) != rows(fed.train.client(1)[0]), "each group shuffles anew"


# ------------------------------------------------------------------------------ few classes
def classes_of(fed, part: str) -> list[dict[int, int]]:
    """Each client's number of rows by class."""
    return [Counter(getattr(fed, part).client(i)[1].tolist()) for i in range(fed.total)]


@pytest.mark.parametrize(
    "options", [{}, {"kinds": 5}, {"kinds": 10}, {"classes": 3, "samples": 15, "clients": 20}]
)
def test_a_client_has_its_classes_in_training_and_test(options, known) -> None:
    fed, classes = pathological(seed=2, **options), options.get("classes", 2)
    train, test = classes_of(fed, "train"), classes_of(fed, "test")
    for mine, held in zip(train, test):
        assert len(mine) == classes and mine.keys() == held.keys()
        assert len(set(mine.values())) == len(set(held.values())) == 1, (
            "equally many rows of each class"
        )
    for part in ("train", "test"):
        data = getattr(fed, part)
        assert [known[part][row] for row in rows(data.x)] == data.y.tolist()


def test_random_classes_are_used_evenly_and_differ() -> None:
    fed = pathological(clients=40, seed=1)
    sets = [frozenset(mine) for mine in classes_of(fed, "train")]
    assert fed.truth is None and len(set(sets)) > 15
    assert Counter(c for mine in sets for c in mine) == dict.fromkeys(range(10), 8)


@pytest.mark.parametrize(
    "kinds, classes, disjoint", [(5, 2, True), (3, 3, True), (2, 5, True), (10, 2, False)]
)
def test_kinds_are_planted(kinds, classes, disjoint) -> None:
    fed = pathological(clients=20, kinds=kinds, classes=classes)
    assert fed.truth.tolist() == [i % kinds for i in range(20)]
    sets = [frozenset(mine) for mine in classes_of(fed, "train")]
    assert all(mine == sets[i % kinds] for i, mine in enumerate(sets)) and len(set(sets)) == kinds
    assert (len(frozenset.union(*sets)) == kinds * classes) is disjoint
    seeds = [
        pathological(clients=20, kinds=kinds, classes=classes, seed=seed) for seed in range(1, 4)
    ]
    assert any(frozenset(classes_of(fed, "train")[0]) != sets[0] for fed in seeds), (
        "the seed says which classes"
    )


def test_sizes_keep_the_ratios_that_were_drawn() -> None:
    """Uniform on 400..5,000: mean 2,700, standard deviation 4,600 / √12, half of the mean."""
    fed = pathological(clients=40, samples=24, seed=3)
    sizes = fed.train.sizes.double()
    assert 22 < sizes.mean() <= 24 and 0.35 < sizes.std() / sizes.mean() < 0.65
    assert sizes.min() < 12 and sizes.max() > 36 and sizes.max() / sizes.min() <= 12.5


def test_as_many_rows_as_the_scarcest_class_has(digits) -> None:
    for options in ({}, {"sizes": "even"}):
        fed = pathological(clients=10, **options)
        left = torch.bincount(digits.y_train, minlength=10) - torch.bincount(
            fed.train.y, minlength=10
        )
        assert 0 <= left.min() <= 2, (
            "each of the two clients of a class may lose a part of a row to rounding"
        )
    even = pathological(clients=10, sizes="even", samples=30)
    for samples in (12, 14, 23):  # which scaling misses by a rounding error
        assert set(
            pathological(clients=10, sizes="even", classes=1, samples=samples).train.sizes.tolist()
        ) == {samples}
    assert even.train.sizes.tolist() == [30] * 10 and even.test.sizes.tolist() == [10] * 10, (
        "75 : 25"
    )


def test_which_images_a_client_gets_is_random() -> None:
    one, other = (
        pathological(clients=2, classes=10, sizes="even", samples=50, seed=seed) for seed in (0, 1)
    )
    assert (
        len(set(rows(one.train.x)) & set(rows(other.train.x))) < 50
        and (one.train.y.diff() < 0).any()
    )


@pytest.mark.usefixtures("real_data")
def test_cgpfl_sizes_on_mnist() -> None:
    fed = pathological("mnist", clients=40, seed=0)
    assert 40_000 < len(fed.train.y) <= 60_000 and fed.train.sizes.max() > 8 * fed.train.sizes.min()
    few = pathological("mnist", clients=4, kinds=2)
    assert 400 <= few.train.sizes.min() <= few.train.sizes.max() <= 5000, (
        "nothing is scaled where all fits"
    )


# ------------------------------------------------------------------------------ Dirichlet
def test_dirichlet_shares_are_the_same_in_training_and_test(known) -> None:
    fed = dirichlet(clients=10, samples=50, test_samples=10, alpha=0.5, seed=1)
    assert fed.truth is None and fed.train.sizes.tolist() == [50] * 10
    for i in range(10):
        shares = [
            np.bincount(part.client(i)[1].numpy(), minlength=10) for part in (fed.train, fed.test)
        ]
        assert np.abs(shares[0] / 50 - shares[1] / 10).max() <= 1 / 50 + 1 / 10
    assert [known["train"][row] for row in rows(fed.train.x)] == fed.train.y.tolist()


def test_alpha_sets_how_unlike_the_clients_are() -> None:
    """A share of Dir(α) over 10 classes has the variance 0.09 / (10 α + 1)."""

    def variance(alpha: float) -> float:
        fed = dirichlet(clients=20, samples=30, alpha=alpha, seed=2)
        return float(
            np.var([np.bincount(fed.train.client(i)[1], minlength=10) / 30 for i in range(20)])
        )

    assert variance(0.1) == pytest.approx(0.045, rel=0.35)
    assert variance(1) == pytest.approx(0.09 / 11, rel=0.35)
    assert variance(1e6) < 0.001


def test_dirichlet_gives_as_many_rows_as_fit() -> None:
    for seed in range(5):
        fed = dirichlet(clients=12, seed=seed)
        for option, part in (("samples", fed.train), ("test_samples", fed.test)):
            with pytest.raises(CoterieError, match=f"allow {part.sizes[0]}"):
                dirichlet(clients=12, seed=seed, **{option: int(part.sizes[0]) + 1})


@pytest.mark.parametrize("alpha", [1e-300, 0.01, 100])
def test_every_client_has_rows_whatever_alpha_is(alpha) -> None:
    fed = dirichlet(clients=30, alpha=alpha)
    assert fed.train.sizes.min() >= 1 and fed.test.sizes.min() >= 1
