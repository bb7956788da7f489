"""A folder of npz files, one per client."""

from pathlib import Path

import numpy as np
import pytest

from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.data import folder


def save(path: Path, rows: int, **more: object) -> None:
    x = np.arange(rows * 2.0).reshape(rows, 2)
    np.savez(path, **{"x": x, "y": np.arange(rows) % 2} | more)


def test_arrays(tmp_path: Path) -> None:
    save(tmp_path / "a b.npz", 8)
    save(tmp_path / "c.npz", 4)
    fed = folder(str(tmp_path))
    assert fed.names == ("a b", "c") and fed.classes == 2 and fed.schema is None
    assert fed.train.sizes.tolist() == [6, 3] and fed.test.sizes.tolist() == [2, 1]
    assert sorted(fed.train.x[:, 0].tolist() + fed.test.x[:, 0].tolist()) == [
        0,
        0,
        2,
        2,
        4,
        4,
        6,
        6,
        8,
        10,
        12,
        14,
    ]
    test = {"x_test": np.ones((2, 2)), "y_test": np.array([1, 1])}
    save(tmp_path / "c.npz", 4, **test)
    with pytest.raises(CoterieError, match=r"c.npz has test rows and .*a b.npz has none"):
        folder(str(tmp_path))
    save(tmp_path / "a b.npz", 8, **test)
    own = folder(str(tmp_path), kind="regression")
    assert own.train.sizes.tolist() == [8, 4] and own.test.y.tolist() == [1.0] * 4


def test_wrong_arrays(tmp_path: Path) -> None:
    def refused(match: str, **options: object) -> None:
        with pytest.raises(CoterieError, match=match):
            folder(str(tmp_path), **options)

    save(tmp_path / "a.npz", 4)
    refused("fill applies to tables, but .* npz", fill="median")
    refused("label applies to tables", label="y")
    save(tmp_path / "a.npz", 4, x_test=np.ones((1, 2)))
    refused("a.npz has no array y_test, only x, y, x_test")
    np.savez(tmp_path / "a.npz", x=np.ones((2, 2)))
    save(tmp_path / "b.npz", 4)
    refused(r"a.npz has no array y, and .*b.npz has")
    (tmp_path / "b.npz").unlink()
    assert folder(str(tmp_path)).kind == "self-supervised"
    np.savez(tmp_path / "a.npz", y=np.ones(2))
    refused("a.npz has no array x, only y")
    np.savez(tmp_path / "a.npz", x=np.array([{}]), y=np.ones(1))
    refused("a.npz cannot be read as npz")
    (tmp_path / "a.npz").write_bytes(b"PK broken")
    refused("a.npz cannot be read as npz")
    (tmp_path / "a.npz").write_bytes(b"")
    refused("a.npz cannot be read as npz")


@pytest.mark.parametrize("command", ["run", "store"])
def test_a_label_too_large_for_a_class(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sites").mkdir()
    save(tmp_path / "sites" / "a.npz", 8, y=np.array([0, 1] * 3 + [1, 2**62]))
    save(tmp_path / "sites" / "b.npz", 8)
    argv = {"run": ["run", "fedavg", "--out"], "store": ["store"]}[command]
    assert main([*argv, str(tmp_path / "out"), "--data", f"folder:{tmp_path / 'sites'}"]) == 2
    said = capsys.readouterr().err.strip()
    assert "label 4611686018427387904" in said and said.count("\n") == 0


def test_damaged_bytes(tmp_path: Path) -> None:
    """One bit of every tenth byte: the file is refused in a sentence, or is read."""
    save(tmp_path / "a.npz", 8)
    raw = (tmp_path / "a.npz").read_bytes()
    said = []
    for at in range(0, len(raw), 10):
        (tmp_path / "a.npz").write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        try:
            folder(str(tmp_path))
        except CoterieError as error:
            said.append(str(error))
    assert len(said) > 10 and "\n" not in "".join(said)
