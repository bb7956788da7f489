"""Base sets that say whom each row comes from."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import base, bases
from coterie.data.federation import rank_in_group


def unipen_arrays() -> dict[str, np.ndarray]:
    """Twelve images of three writers, every third for tests; image i has i in its first corner."""
    images = np.zeros((12, 28, 28), np.uint8)
    images[:, 0, 0] = np.arange(12)
    return {
        "images": images,
        "labels": (np.arange(12) % 2).astype(np.uint8),
        "writer": np.array([2, 0, 0, 1, 1, 1, 0, 0, 0, 2, 1, 1], np.uint16),
        "writer_code": np.array(["abc-01", "abc-02", "xyz-01"]),
        "is_test": (np.arange(12) % 3 == 2).astype(np.uint8),
        "classes": np.array(["a", "b"]),
    }


def har_arrays() -> dict[str, np.ndarray]:
    """Three subjects × two activities × four chains × three windows.

    The value of step t is t, plus 10,000 a signal.
    """
    chain = np.arange(24).repeat(3)
    return {
        "signals": (np.arange(24 * 256) + 10_000 * np.arange(9)[:, None]).astype(np.float32),
        "start": (chain * 256 + np.tile([0, 64, 128], 24)).astype(np.int32),
        "y": (chain // 4 % 2).astype(np.uint8),
        "subject": np.array([1, 4, 30], np.uint8)[chain // 8],
        "chain": chain.astype(np.uint16),
        "activities": np.array(["walk", "sit"]),
    }


ARRAYS = {"unipen": ("unipen_chars", unipen_arrays), "har": ("uci_har", har_arrays)}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that writes the file of a set, some arrays of it changed (None: left out)."""
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))

    def written(name: str, **changes: np.ndarray | None) -> Path:
        folder, make = ARRAYS[name]
        arrays = {key: value for key, value in (make() | changes).items() if value is not None}
        (tmp_path / folder).mkdir(exist_ok=True)
        np.savez(tmp_path / folder / f"{folder}.npz", **arrays)
        return tmp_path / folder / f"{folder}.npz"

    return written


def test_unipen_has_writers(write) -> None:
    write("unipen")
    unipen = base("unipen")
    corner = lambda x: (x[:, 0, 0] * 255).round().long().tolist()
    assert corner(unipen.x_train) == [0, 1, 3, 4, 6, 7, 9, 10] and corner(unipen.x_test) == [
        2,
        5,
        8,
        11,
    ]
    assert unipen.x_train.dtype == torch.float32 and unipen.x_train.shape == (8, 28, 28)
    assert unipen.y_train.tolist() == [0, 1, 1, 0, 0, 1, 1, 0] and unipen.y_test.tolist() == [
        0,
        1,
        0,
        1,
    ]
    assert unipen.keys == ("abc-01", "abc-02", "xyz-01")
    assert unipen.key_train.tolist() == [2, 0, 1, 1, 0, 0, 2, 1] and unipen.key_test.tolist() == [
        0,
        1,
        0,
        1,
    ]
    assert (unipen.name, unipen.classes, unipen.labels) == ("unipen", 2, ("a", "b"))


def test_windows_of_a_chain_are_never_on_both_sides(write) -> None:
    write("har")
    har = base("har")
    assert har.x_train.shape == (54, 9, 128) and har.x_test.shape == (
        18,
        9,
        128,
    )  # three and one of four chains
    first = torch.arange(128) + 10_000 * torch.arange(9)[:, None]
    steps = {}
    for part, x, y, key in (
        ("train", har.x_train, har.y_train, har.key_train),
        ("test", har.x_test, har.y_test, har.key_test),
    ):
        start = x[:, 0, 0].long()
        assert x.equal((start[:, None, None] + first).float())
        chain = start // 256
        assert y.equal(chain // 4 % 2) and key.equal(chain // 8)
        assert torch.bincount(chain, minlength=24).unique().tolist() == [0, 3], (
            "a chain is here as a whole or not"
        )
        chains = torch.bincount(
            chain.unique() // 4, minlength=6
        ).tolist()  # of each subject and activity
        assert chains == [3 if part == "train" else 1] * 6
        steps[part] = {t for s in start.tolist() for t in range(s, s + 128)}
    assert not steps["train"] & steps["test"] and len(steps["train"] | steps["test"]) == 24 * 256
    assert har.keys == ("subject-01", "subject-04", "subject-30") and har.labels == ("walk", "sit")
    assert base("har").x_test.equal(har.x_test)


def test_which_chain_is_for_tests_does_not_depend_on_the_order_of_windows(write) -> None:
    write("har")
    starts = {*base("har").x_test[:, 0, 0].tolist()}
    shuffled = np.random.default_rng(0).permutation(72)
    write(
        "har", **{name: har_arrays()[name][shuffled] for name in ("start", "y", "subject", "chain")}
    )
    assert {*base("har").x_test[:, 0, 0].tolist()} == starts


def test_places_in_groups() -> None:
    group = np.array([3, 1, 3, 3, 1])
    place = rank_in_group(group, np.random.default_rng(0))
    assert sorted(place[group == 3]) == [0, 1, 2] and sorted(place[group == 1]) == [0, 1]
    orders = {
        tuple(rank_in_group(group, np.random.default_rng(seed))[[0, 2, 3]]) for seed in range(60)
    }
    assert len(orders) == 6, "every order comes up"


def changed(name: str, array: str, at: int, value: float) -> dict[str, np.ndarray]:
    values = ARRAYS[name][1]()[array]
    values = values.astype(np.int64) if values.dtype.kind == "u" else values
    values.flat[at] = value
    return {array: values}


@pytest.mark.parametrize(
    "name, changes, words",
    [
        ("unipen", {"images": np.zeros((12, 28, 28))}, ["images", "float64"]),
        ("unipen", {"images": np.zeros((12, 28, 28), np.uint16)}, ["images", "uint16"]),
        ("unipen", {"images": np.zeros((12, 784), np.uint8)}, ["images", "(12, 784)"]),
        ("unipen", {"images": np.zeros((12, 8, 8), np.uint8)}, ["images", "(12, 8, 8)"]),
        ("unipen", {"labels": np.zeros(11, np.uint8)}, ["length"]),
        ("unipen", {"classes": np.array(["a"])}, ["label", "1 classes"]),
        ("unipen", changed("unipen", "labels", 0, -1), ["label"]),
        ("unipen", changed("unipen", "writer", 0, 3), ["writer", "one of 3"]),
        ("unipen", {"writer_code": np.array(["a", "b", "a"])}, ["same code"]),
        ("unipen", {"writer_code": np.array([b"a", b"b", b"c"])}, ["writer_code"]),
        ("unipen", changed("unipen", "is_test", 0, 2), ["is_test"]),
        ("unipen", {"is_test": np.zeros(12, np.uint8)}, ["is_test"]),
        ("unipen", {"is_test": None}, ["is_test"]),
        ("unipen", {"writer": np.array([{}] * 12)}, ["pickle"]),
        ("har", {"signals": np.zeros((9, 6144), np.int16)}, ["signals", "int16"]),
        ("har", {"signals": np.zeros((8, 6144), np.float32)}, ["signals", "9 rows"]),
        ("har", changed("har", "signals", 5, np.nan), ["signals", "finite"]),
        ("har", changed("har", "start", 0, -1), ["outside"]),
        ("har", changed("har", "start", 71, 6144 - 127), ["outside"]),
        ("har", {"start": np.zeros(0, np.int32)}, ["length"]),
        ("har", changed("har", "y", 0, 2), ["one of 2 activities"]),
        ("har", changed("har", "y", 0, 1), ["chain", "several"]),
        ("har", changed("har", "subject", 0, 4), ["chain", "several"]),
        ("har", changed("har", "subject", 0, 1000), ["subject"]),
        ("har", {"chain": np.arange(72)}, ["different chains overlap"]),
        ("har", {"chain": np.zeros((72, 1), np.int64)}, ["chain", "(72, 1)"]),
        ("har", {"activities": np.array([0, 1])}, ["activities"]),
    ],
)
def test_damaged_sets_with_keys(write, name: str, changes: dict, words: list[str]) -> None:
    path = write(name, **changes)
    with pytest.raises(CoterieError) as error:
        base(name)
    assert all(
        word in str(error.value) for word in [str(path), "damaged", "fetch it again", *words]
    ), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ARRAYS)
def test_files_that_are_no_archives(write, name: str) -> None:
    path = write(name)
    whole = path.read_bytes()
    array = path.with_suffix(".npy")
    np.save(array, np.zeros(3))
    for content in (b"", b"no archive", whole[: len(whole) // 2], array.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(CoterieError, match="damaged.*fetch it again"):
            base(name)
    path.unlink()
    with pytest.raises(CoterieError, match=f"{path.name}, which is not there: set COTERIE_DATA"):
        base(name)


@pytest.mark.usefixtures("real_data")
def test_the_real_sets_with_keys() -> None:
    for name, train, test, classes, keys in (
        ("unipen", 85_884, 17_027, 62, 307),
        ("har", 7_977, 2_322, 6, 30),
    ):
        if not (Path(os.environ["COTERIE_DATA"]) / ARRAYS[name][0]).is_dir():
            pytest.skip(f"no {name}: set COTERIE_DATA to a folder that holds {ARRAYS[name][0]}/")
        real = base(name)
        assert (len(real.y_train), len(real.y_test), real.classes, len(real.keys)) == (
            train,
            test,
            classes,
            keys,
        )
        counts = torch.bincount(real.key_train, minlength=keys) + torch.bincount(
            real.key_test, minlength=keys
        )
        assert (counts.min(), counts.max()) == ((20, 4_882) if name == "unipen" else (281, 409))
        assert f"{train:,} train" in bases()[name]
