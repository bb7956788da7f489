"""Clients by writer, subject or any key of the rows."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.data import (
    by_key,
    dirichlet,
    from_keys,
    holdouts,
    label_permuted,
    load,
    mixture,
    pathological,
    rotated,
)

WRITERS = [5, 30, 12, 20, 8]  # training rows of each
NAMES = tuple(f"site-{i:02}" for i in range(5))


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A small unipen, its rows in random order.

    Image i shows i in two pixels, and every writer has two test rows.
    """
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    random = np.random.default_rng(1)
    total = sum(WRITERS) + 10
    order = random.permutation(total)
    arrays = {
        "images": np.zeros((total, 28, 28), np.uint8),
        "labels": random.permutation(np.arange(total) % 3).astype(np.uint8),
        "writer": np.concatenate([np.arange(5).repeat(WRITERS), np.arange(5).repeat(2)]).astype(
            np.uint16
        )[order],
        "writer_code": np.array(NAMES),
        "is_test": (np.arange(total) >= sum(WRITERS)).astype(np.uint8)[order],
        "classes": np.array(["a", "b", "c"]),
    }
    arrays["images"][:, 0, 0] = np.arange(total)
    (tmp_path / "unipen_chars").mkdir()
    np.savez(tmp_path / "unipen_chars" / "unipen_chars.npz", **arrays)
    chain = np.arange(48).repeat(3)  # two subjects × six activities × four chains × three windows
    (tmp_path / "uci_har").mkdir()
    np.savez(
        tmp_path / "uci_har" / "uci_har.npz",
        signals=random.normal(size=(9, 48 * 256)).astype(np.float32),
        start=chain * 256 + np.tile([0, 64, 128], 48),
        y=chain // 4 % 6,
        subject=1 + chain // 24,
        chain=chain,
        activities=np.array(list("abcdef")),
    )
    return arrays


def shown(x: torch.Tensor) -> list[int]:
    return (x[:, 0, 0] * 255).round().long().tolist()


def rows_of_writer(arrays: dict[str, np.ndarray], name: str, is_test: int) -> list[int]:
    mine = (arrays["writer"] == NAMES.index(name)) & (arrays["is_test"] == is_test)
    return np.flatnonzero(mine).tolist()


def test_every_row_is_with_its_writer(sets) -> None:
    fed = by_key("unipen", least=1)
    assert (
        fed.names == NAMES
        and fed.train.sizes.tolist() == WRITERS
        and fed.test.sizes.tolist() == [2] * 5
    )
    for i, name in enumerate(NAMES):
        for part, is_test in ((fed.train, 0), (fed.test, 1)):
            x, y = part.client(i)
            assert shown(x) == rows_of_writer(sets, name, is_test)
            assert y.tolist() == sets["labels"][rows_of_writer(sets, name, is_test)].tolist()
    assert (fed.kind, fed.classes, fed.labels, fed.truth) == (
        "classification",
        3,
        ("a", "b", "c"),
        None,
    )


def test_who_has_too_few_rows_is_left_out(sets) -> None:
    assert by_key("unipen").names == ("site-01", "site-03")  # 20 rows are enough, 12 are not
    assert by_key("unipen", least=12).names == ("site-01", "site-02", "site-03")


def test_clients_and_samples_are_drawn_by_the_seed(sets) -> None:
    draws = set()
    for seed in range(12):
        fed = by_key("unipen", clients=2, samples=10, least=1, seed=seed)
        same = by_key("unipen", clients=2, samples=10, least=1, seed=seed)
        assert fed.fingerprint() == same.fingerprint()
        assert fed.train.sizes.tolist() == [
            min(10, WRITERS[NAMES.index(name)]) for name in fed.names
        ]
        assert fed.test.sizes.tolist() == [2, 2]
        for i, name in enumerate(fed.names):
            mine = shown(fed.train.client(i)[0])
            assert {*mine} <= {*rows_of_writer(sets, name, 0)} and len({*mine}) == len(mine)
        draws.add((fed.names, tuple(shown(fed.train.x))))
    assert len({names for names, _ in draws}) > 3 and len(draws) == 12


def test_the_rows_of_a_client_do_not_depend_on_who_else_is_drawn(sets) -> None:
    everyone, few = (
        by_key("unipen", samples=4, least=1),
        by_key("unipen", samples=4, least=1, clients=2),
    )
    for i, name in enumerate(few.names):
        assert few.train.client(i)[0].equal(everyone.train.client(NAMES.index(name))[0])


def test_unseen_and_source(sets) -> None:
    fed = by_key("unipen", least=1, unseen=2, seed=3)
    assert len(fed) == 3 and {*fed.names} == {*NAMES} and fed.names != NAMES
    for i, name in enumerate(fed.names):
        assert shown(fed.train.client(i)[0]) == rows_of_writer(sets, name, 0)
    assert load(fed.source, seed=9).fingerprint() == fed.fingerprint()
    assert load("by_key:unipen", 3, least="1", unseen=2).fingerprint() == fed.fingerprint()


@pytest.mark.parametrize(
    "spec, words",
    [
        ("by_key:digits", ["digits", "unipen or har", "dirichlet:digits"]),
        ("by_key", ["by_key", "base"]),
        ("by_key:unipen?clients=3", ["3 clients", "2 of 5", "at least 20"]),
        ("by_key:unipen?clients=0", ["0 clients", "1 to that many"]),
        ("by_key:unipen?least=31", ["0 of 5", "at least 31", "another least"]),
        ("by_key:unipen?samples=0", ["samples=0", "at least 1"]),
        ("by_key:unipen?unseen=2", ["unseen=2"]),
        ("rotated:har", ["har", "9×128", "cannot be rotated", "by_key"]),
        ("mixture:har", ["har", "cannot be rotated"]),
    ],
)
@pytest.mark.usefixtures("sets")
def test_errors(spec: str, words: list[str]) -> None:
    with pytest.raises(CoterieError) as error:
        load(spec, 0)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("sets")
def test_other_makers_take_the_new_sets() -> None:
    with pytest.raises(CoterieError, match="cannot be rotated"):
        holdouts("har")
    for make in (rotated, mixture, label_permuted, pathological, dirichlet):
        options = {"clusters": 2} if make is label_permuted else {}
        fed = make("unipen", clients=4, **options)
        assert fed.total == 4 and fed.train.x.shape[1:] == (28, 28) and fed.classes == 3
    for make in (label_permuted, pathological, dirichlet):
        fed = make("har", clients=4)
        assert fed.total == 4 and fed.train.x.shape[1:] == (9, 128) and fed.classes == 6


@pytest.mark.usefixtures("sets")
def test_it_trains(tmp_path, monkeypatch, capsys) -> None:
    result = ct.run(ct.IFCA(clusters=2), by_key("har"), model="softmax", rounds=2)
    assert result.names == ("subject-01", "subject-02") and result.clusters.shape == (3, 2)
    assert "ari" not in result.final
    monkeypatch.chdir(tmp_path)
    command = (
        "run ifca --data by_key:unipen --data.least 1 --samples 10 --clusters 2 --dry-run --json"
    )
    assert main(command.split()) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert (summary["clients"], summary["train_rows"], summary["test_rows"]) == (
        5,
        5 + 10 + 10 + 10 + 8,
        10,
    )
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "307 writers" in out and "30 subjects" in out and "by_key" in out


# ------------------------------------------------------------------------------ arrays in memory
def test_keys_of_rows_in_memory() -> None:
    x, y = np.arange(6.0)[:, None], np.array([0, 1, 0, 1, 0, 1])
    fed = from_keys(
        x, y, list(np.array([10, 2, 10, 2, 2, 10])), test=(x[:3], y[:3], np.array([2, 2, 10]))
    )
    assert fed.names == ("2", "10"), "whole numbers in their order"
    assert [fed.train.client(i)[0].flatten().tolist() for i in (0, 1)] == [[1, 3, 4], [0, 2, 5]]
    assert [fed.train.client(i)[1].tolist() for i in (0, 1)] == [[1, 1, 0], [0, 0, 1]]
    assert [fed.test.client(i)[0].flatten().tolist() for i in (0, 1)] == [[0, 1], [2]]
    assert fed.source == "memory" and fed.classes == 2


def test_keys_give_what_from_memory_gives() -> None:
    random = np.random.default_rng(0)
    x, y, key = (
        random.random((40, 3)),
        random.integers(0, 2, 40),
        random.choice(["north", "south"], 40),
    )
    expected = ct.data.from_memory(
        {name: (x[key == name], y[key == name]) for name in ("north", "south")}, seed=5
    )
    for values in (key, key.tolist(), tuple(key), key.astype(object), pd.Series(key)):
        assert from_keys(x, y, values, seed=5).fingerprint() == expected.fingerprint()
    tensors = from_keys(
        torch.tensor(x), torch.tensor(y), torch.tensor(key == "south").long(), seed=5
    )
    assert tensors.names == ("0", "1") and tensors.train.sizes.equal(expected.train.sizes)
    fed = from_keys(x, random.random(40), np.arange(40) // 10, unseen=1, labels=None)
    assert (len(fed), fed.total, fed.kind) == (3, 4, "regression")


@pytest.mark.parametrize(
    "key, words",
    [
        ([0, 1, 0], ["4 rows", "key 3"]),
        ([0.0, 1.5, 0, 1], ["one integer or one string"]),
        (["a", None, "a", "b"], ["one integer or one string"]),
        (["a", np.nan, "a", "b"], ["one integer or one string"]),
        ([[0], [1], [0], [1]], ["one integer or one string"]),
        (3, ["key 0"]),
    ],
)
def test_keys_that_are_none(key, words) -> None:
    with pytest.raises(CoterieError) as error:
        from_keys(np.ones((4, 2)), [0, 1, 0, 1], key)
    assert all(word in str(error.value) for word in words), error.value


def test_test_rows_of_somebody_else_are_refused() -> None:
    x = np.ones((2, 2))
    with pytest.raises(CoterieError, match="client in the test split 'c'"):
        from_keys(x, [0, 1], ["a", "b"], test=(x, [0, 1], ["a", "c"]))
