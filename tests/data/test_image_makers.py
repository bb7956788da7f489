"""Mixtures, permuted labels, few classes, Dirichlet shares and fuzzy groups of base images."""

from collections import Counter

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.cli import main
from coterie.data import (
    base,
    dirichlet,
    holdouts,
    label_permuted,
    linear,
    load,
    mixture,
    pathological,
    rotated,
)
from coterie.data.shares import in_random_order, mix, rows_per_source
from coterie.errors import CoterieError

MAKERS = [mixture, label_permuted, pathological, dirichlet]


def rows(x: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(row) for row in x.flatten(1).tolist()]


@pytest.fixture(scope="module")
def digits():
    return base("digits")


@pytest.fixture(scope="module")
def known(digits) -> dict:
    """part → upright image → its label; no image of digits has two labels."""
    parts = {"train": (digits.x_train, digits.y_train), "test": (digits.x_test, digits.y_test)}
    return {name: dict(zip(rows(x), y.tolist())) for name, (x, y) in parts.items()}


def sources(fed, known, part: str, i: int, turns: int = 4) -> np.ndarray:
    """How many quarter turns bring each of client i's rows back to a known image."""
    x, y = getattr(fed, part).client(i)
    back = [rows(torch.rot90(x, -k, (-2, -1))) for k in range(turns)]
    matches = [
        [known[part].get(back[k][n]) == label for k in range(turns)]
        for n, label in enumerate(y.tolist())
    ]
    assert np.sum(matches, axis=1).tolist() == [1] * len(y), (
        "no digit looks like another one that is turned"
    )
    return np.argmax(matches, axis=1)


def upright(x: torch.Tensor, turns: np.ndarray) -> list[tuple[float, ...]]:
    return rows(torch.stack([image.rot90(-int(k), (-2, -1)) for image, k in zip(x, turns)]))


# ------------------------------------------------------------------------------ all of them
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_seed_unseen_and_source(make) -> None:
    one, same, other = (make(clients=10, unseen=2, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert (len(one), one.total, one.classes, one.kind) == (8, 10, 10, "classification")
    assert load(one.source, seed=9).fingerprint() == one.fingerprint()
    assert one.source.startswith(f"{make.__name__}:digits?clients=10")


@pytest.mark.parametrize("make", [mixture, pathological, dirichlet], ids=lambda make: make.__name__)
def test_no_image_is_with_two_clients(make, digits, known) -> None:
    fed = make(clients=12, seed=3)
    for part, x in (("train", digits.x_train), ("test", digits.x_test)):
        data = getattr(fed, part)
        dealt = rows(data.x)
        if make is mixture:
            dealt = [
                row
                for i in range(12)
                for row in upright(data.client(i)[0], sources(fed, known, part, i))
            ]
        assert Counter(dealt) <= Counter(rows(x)) and len(dealt) == len(data.y) > 0


@pytest.mark.parametrize("make", [rotated, *MAKERS], ids=lambda make: make.__name__)
def test_as_many_rows_as_asked_for(make) -> None:
    fed = make(
        clients=8, samples=20, test_samples=6, **({"sizes": "even"} if make is pathological else {})
    )
    assert fed.train.sizes.tolist() == [20] * 8 and fed.test.sizes.tolist() == [6] * 8
    assert make(clients=8, test_samples=0).test.sizes.tolist() == [0] * 8


@pytest.mark.parametrize(
    "spec",
    [
        "mixture:digits?mixture=linear",
        "label_permuted:digits?clusters=3",
        "pathological:digits?kinds=5",
        "dirichlet",
    ],
)
def test_from_the_command_line(spec, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "--data",
        spec,
        "--clients",
        "10",
        "--samples",
        "12",
        "--rounds",
        "1",
        "--model",
        "softmax",
        "--quiet",
    ]
    assert main(["run", "fedavg", *words]) == 0
    assert "fedavg" in capsys.readouterr().out


def test_the_list_names_options_and_purpose(capsys) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for make, own in zip(MAKERS, ["angles, mixture", "clusters", "classes, kinds, sizes", "alpha"]):
        line, options = out[out.index(f"  {make.__name__} ") :].splitlines()[:2]
        assert line.split(maxsplit=1)[1] == make.__doc__.splitlines()[0]
        assert options.split(": ")[1].startswith(
            f"base, clients, samples, {own}, seed, unseen, test_samples"
        )


# ------------------------------------------------------------------------------ shares
def test_counts_meet_the_shares_to_within_a_row() -> None:
    shares, sizes = mix("random", 300, 5, "angles", np.random.default_rng(0)), np.arange(300)
    counts = rows_per_source(shares, sizes)
    assert counts.min() >= 0 and (counts.sum(axis=1) == sizes).all()
    assert np.abs(counts - shares * sizes[:, None]).max() <= 1
    source = in_random_order(counts, np.random.default_rng(1))
    assert np.bincount(source[-299:], minlength=5).tolist() == counts[-1].tolist()
    assert (np.diff(source[-299:]) < 0).any(), "not one source after another"


def test_regression_draws_are_the_same_on_every_processor() -> None:
    """Pinned; sums in float32 gave other last digits where BLAS has other kernels."""
    assert linear("fedsoft", clients=6).fingerprint()[:16] == "9b9f2f6e50d3c87b"
    assert linear("fedsoft", clients=6, mixture="random").fingerprint()[:16] == "7c46f9472307cb86"
    assert linear("fedsoft", clients=6, clusters=3).fingerprint()[:16] == "cf849835129b5311"


@pytest.mark.parametrize(
    "name, first",
    [("10:90", [2, 18, 2, 18]), ("30:70", [6, 14, 6, 14]), ("linear", [2, 7, 12, 17])],
)
def test_mixture_of_two(name, first, known) -> None:
    """20 rows each; linear shares are 1/8, 3/8, 5/8, 7/8, so 2.5, 7.5, … rows, rounded down."""
    fed = mixture(clients=4, samples=20, test_samples=20, mixture=name, seed=5)
    assert torch.allclose(fed.truth, torch.tensor([[n / 20, 1 - n / 20] for n in first]))
    for part in ("train", "test"):
        per_client = [sources(fed, known, part, i) for i in range(4)]
        assert [np.bincount(s, minlength=4).tolist() for s in per_client] == [
            [n, 20 - n, 0, 0] for n in first
        ]
        assert any((np.diff(s) < 0).any() for s in per_client), "sources stand in random order"


def test_random_mixture_of_three_and_its_unseen_clients(known) -> None:
    fed = mixture(clients=9, angles=(0, 90, 270), mixture="random", unseen=3, seed=2)
    assert fed.truth.shape == (9, 3) and fed.truth.dtype == torch.float32 and len(fed) == 6
    assert len({tuple(row) for row in fed.truth.tolist()}) == 9
    assert fed.names != tuple(sorted(fed.names)), "unseen clients are drawn, not the last ones"
    for i in range(9):
        shares = np.bincount(sources(fed, known, "train", i), minlength=4) / int(fed.train.sizes[i])
        assert np.allclose(shares, [*fed.truth[i, :2].tolist(), 0, float(fed.truth[i, 2])])


def test_holdouts_are_the_whole_test_part_turned(digits) -> None:
    turned = holdouts("digits", (0, 90, 22.5))
    assert list(turned) == [0, 90, 22.5] and all(y.equal(digits.y_test) for _, y in turned.values())
    assert turned[0][0].equal(digits.x_test) and turned[90][0].equal(
        digits.x_test.rot90(1, (-2, -1))
    )
    assert turned[22.5][0].shape == digits.x_test.shape and not turned[22.5][0].equal(digits.x_test)


def test_a_cluster_model_is_best_on_its_own_source() -> None:
    fed = mixture(clients=10, mixture="10:90")
    method = ct.IFCA(clusters=2, lr=0.3)
    result = ct.run(method, fed, model="softmax", rounds=10, eval_every=10)
    outputs = [
        [
            result._run.task.outputs({k: v[j] for k, v in result.centres.items()}, x)
            for j in range(2)
        ]
        for x, _ in holdouts().values()
    ]
    right = [
        [(out.argmax(1) == y).float().mean() for out in outs]
        for outs, (_, y) in zip(outputs, holdouts().values())
    ]
    assert np.argmax(right, axis=1).tolist() in ([0, 1], [1, 0])


def test_methods_run_on_soft_truth_and_are_scored_by_the_largest_share() -> None:
    fed = mixture(clients=10, samples=40, test_samples=10, mixture="10:90", unseen=2)
    how = {"clusters": 2, "lr": 0.3, "local_steps": 3}
    for method in (ct.FedSoft(**how, join_steps=5), ct.IFCA(**how)):
        result = ct.run(method, fed, model="softmax", rounds=3, eval_every=3)
        groups = result.clusters[-1]
        assert -1 <= result.final["ari"] <= 1 and 0 <= result.final["nmi"] <= 1
        same = (np.asarray(groups) == fed.truth[:8].argmax(1).numpy()).mean()
        assert result.final["matched"] == pytest.approx(max(same, 1 - same))


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


# ------------------------------------------------------------------------------ noise
def test_without_noise_the_draws_are_those_of_before() -> None:
    assert rotated(clients=10, samples=20).fingerprint()[:16] == "753c2391d2ab7415"
    assert rotated(clients=40, seed=3).fingerprint()[:16] == "719a7037ebbf8ba7"


def test_noise_turns_a_share_of_the_training_rows_like_other_groups(known) -> None:
    clean, noisy = (rotated(clients=8, samples=50, noise=noise, seed=4) for noise in (0, 0.3))
    assert (
        noisy.truth.equal(clean.truth)
        and noisy.test.x.equal(clean.test.x)
        and noisy.test.y.equal(clean.test.y)
    )
    for i in range(8):
        turns = sources(noisy, known, "train", i)
        counts = np.bincount(turns, minlength=4)
        assert counts[i % 4] == 35 and np.delete(counts, i % 4).tolist() == [5, 5, 5]
        own = np.full(50, i % 4)
        assert upright(noisy.train.client(i)[0], turns) == upright(clean.train.client(i)[0], own), (
            "the same images"
        )


def test_noise_in_labels(known) -> None:
    fed = label_permuted(clients=6, clusters=3, samples=40, noise=0.5, seed=4)
    for i in range(6):
        x, y = fed.train.client(i)
        shift = (y.numpy() - np.array([known["train"][row] for row in rows(x)])) % 10
        assert np.bincount(shift, minlength=3).tolist() == [
            20 if g == i % 3 else 10 for g in range(3)
        ]
        x, y = fed.test.client(i)
        assert [(known["test"][row] + i % 3) % 10 for row in rows(x)] == y.tolist()


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


# ------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    "spec, words",
    [
        ("mixture?angles=0", ["angles=(0.0,)", "at least 2"]),
        ("mixture?angles=0,360", ["no two alike"]),
        ("mixture?angles=0,90,180", ["'10:90'", "2 angles, not 3", "'random'"]),
        ("mixture?angles=0,90,180&mixture=linear", ["'linear'", "2 angles"]),
        ("mixture?mixture=lineal", ["'lineal'", "'linear'"]),
        ("mixture?clients=0", ["clients=0", "at least 1"]),
        ("mixture?clients=2000", ["samples=1", "at most 0", "fewer clients"]),
        ("mixture?clients=40&samples=36", ["samples=36", "40 clients", "at most 35"]),
        ("mixture?clients=4&unseen=4", ["unseen=4"]),
        ("label_permuted?clusters=11", ["clusters=11", "10 classes"]),
        ("label_permuted?clusters=0", ["clusters=0"]),
        ("label_permuted?clients=3", ["clients=3", "4 groups"]),
        ("label_permuted?noise=1", ["noise=1"]),
        ("rotated?noise=-0.1", ["noise=-0.1"]),
        ("rotated?noise=nan", ["noise=nan"]),
        ("rotated?angles=0&noise=0.1", ["noise=0.1", "two groups"]),
        ("pathological?classes=11", ["classes=11", "10 classes"]),
        ("pathological?classes=0", ["classes=0"]),
        ("pathological?kinds=11", ["kinds=11", "1 to 10"]),
        ("pathological?kinds=2&classes=10", ["kinds=2", "1 to 1"]),
        ("pathological?kinds=0", ["kinds=0"]),
        ("pathological?kinds=5&clients=4", ["clients=4", "at least 5"]),
        ("pathological?clients=2000", ["clients=2000", "fewer clients"]),
        ("pathological?samples=1", ["samples=1", "at least 2"]),
        ("pathological?samples=100", ["samples=100", "allow"]),
        ("pathological?test_samples=-1", ["test_samples=-1"]),
        ("pathological?sizes=evn", ["'evn'", "'even'"]),
        ("dirichlet?alpha=0", ["alpha=0"]),
        ("dirichlet?alpha=-1", ["alpha=-1"]),
        ("dirichlet?alpha=nan", ["alpha=nan"]),
        ("dirichlet?clients=2000", ["samples=1", "allow 0", "fewer clients"]),
        ("dirichlet?samples=100", ["samples=100", "allow"]),
        ("dirichlet?samples=0", ["samples=0", "at least 1"]),
        ("dirichlet?test_samples=-1", ["test_samples=-1", "at least 0"]),
        ("dirichlet:digit", ["'digit'", "'digits'"]),
    ],
)
def test_errors(spec, words) -> None:
    with pytest.raises(CoterieError) as error:
        load(spec, seed=0)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value) and str(error.value)[-1] in ".?"


@pytest.mark.parametrize("make", [pathological, dirichlet], ids=lambda make: make.__name__)
def test_the_most_that_an_error_names_can_be_had(make) -> None:
    with pytest.raises(CoterieError) as error:
        make(samples=1000)
    most = int(str(error.value).partition(" allow ")[2].split(":")[0].split(",")[0])
    assert make(samples=most).train.sizes.double().mean() > 0.8 * most
