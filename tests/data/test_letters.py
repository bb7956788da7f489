"""Clients that mix lower-case and upper-case letters, from a small file of UNIPEN's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import letter_holdouts, letters, load

CHARACTERS = "0Aa" + "".join(c for c in map(chr, range(66, 91))) + "bcdefghijklmnopqrstuvwxyz"
EACH = 12  # images of each character, every third for tests


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Image i of all has i in the two pixels of its first corner, base 256."""
    labels = np.repeat(np.arange(len(CHARACTERS)), EACH)
    number = np.arange(len(labels))
    images = np.zeros((len(labels), 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = number // 256, number % 256
    (tmp_path / "unipen_chars").mkdir()
    np.savez(
        tmp_path / "unipen_chars" / "unipen_chars.npz",
        images=images,
        labels=labels.astype(np.uint8),
        writer=np.zeros(len(labels), np.uint16),
        writer_code=np.array(["abc-01"]),
        is_test=(number % 3 == 2).astype(np.uint8),
        classes=np.array(list(CHARACTERS)),
    )
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    return tmp_path


def numbers(x: torch.Tensor) -> np.ndarray:
    """Which image of the file each row is; rows that were turned by 90° included."""
    upright = x.clone()
    is_turned = (x[:, 27, 0] > 0) | (x[:, 26, 0] > 0)
    upright[is_turned] = torch.rot90(x[is_turned], -1, (-2, -1))
    corner = (upright[:, 0, :2] * 255).round().long()
    return (corner[:, 0] * 256 + corner[:, 1]).numpy()


def characters(x: torch.Tensor) -> list[str]:
    return [CHARACTERS[number // EACH] for number in numbers(x)]


def test_a_client_has_both_cases_in_its_shares(file) -> None:
    fed = letters(clients=10, samples=20, test_samples=10, mixture="10:90", seed=3)
    assert (fed.classes, fed.kind) == (26, "classification")
    assert fed.labels == tuple("abcdefghijklmnopqrstuvwxyz")
    assert fed.truth.allclose(torch.tensor([[0.1, 0.9], [0.9, 0.1]] * 5))
    for part, size in ((fed.train, 20), (fed.test, 10)):
        for i in range(10):
            x, y = part.client(i)
            seen = characters(x)
            assert [c.lower() for c in seen] == [fed.labels[label] for label in y]
            assert sum(c.islower() for c in seen) == round(size * (0.9 if i % 2 else 0.1))


def test_no_letter_is_with_two_clients_and_test_letters_are_others(file) -> None:
    fed = letters(clients=8, samples=20, test_samples=8, angles=(0, 90), mixture="random", seed=1)
    train, test = numbers(fed.train.x), numbers(fed.test.x)
    assert len(set(train)) == len(train) == 160 and len(set(test)) == len(test) == 64
    assert (train % 3 != 2).all() and (test % 3 == 2).all()
    assert fed.truth.shape == (8, 4) and fed.truth.sum(1).allclose(torch.ones(8))


def test_sources_are_turned(file) -> None:
    held = letter_holdouts(angles=(0, 90))
    assert list(held) == ["lower", "lower, 90°", "upper", "upper, 90°"]
    for name, (x, y) in held.items():
        assert len(y) == 26 * EACH // 3 == 104
        assert all(c.isupper() == name.startswith("upper") for c in characters(x))
        assert y.bincount().tolist() == [EACH // 3] * 26
    upright, turned = held["lower"][0], held["lower, 90°"][0]
    assert torch.equal(torch.rot90(upright, 1, (-2, -1)), turned)


def test_sizes_seeds_and_spec(file) -> None:
    one, same, other = (letters(clients=2, unseen=1, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert all(100 <= size <= 200 for size in one.train.sizes.tolist())
    assert one.test.sizes.tolist() == [50, 50] and (len(one), one.total) == (1, 2)
    assert load(one.source, seed=9).fingerprint() == one.fingerprint()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "samples=0"),
        ({"test_samples": -1}, "test_samples=-1"),
        ({"clients": 0}, "clients=0"),
        ({"clients": 20, "samples": 50}, "500 lower-case letters, but the train split has 208"),
        ({"angles": (0, 90)}, "mixture='10:90' requires 2 sources, not 4"),
        ({"angles": (0, 360)}, "all different"),
        ({"base": "digits"}, "digits has no class 'a'"),
    ],
)
def test_what_cannot_be_made(file, options, words) -> None:
    with pytest.raises(CoterieError, match=words):
        letters(**{"clients": 4, "samples": 10, "test_samples": 4, **options})
