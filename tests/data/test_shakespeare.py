"""Shakespeare by speaking role, from a small file of its form."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import torch

import coterie as ct
from coterie.core.errors import CoterieError

SPEECHES = "KATE:\nabcabcab\nc\n\nJOHN:\nbcbcbcbcbcbc\n\nKATE:\nabcabcabc\n\nA HERALD:\nab\n"


@pytest.fixture
def plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tinyshakespeare"
    folder.mkdir()
    (folder / "input.txt.gz").write_bytes(gzip.compress(SPEECHES.encode()))
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    return folder / "input.txt.gz"


def test_rows_are_windows_and_targets_the_next_characters(plays: Path) -> None:
    fed = ct.data.shakespeare(clients=2, length=3, least=2)
    assert fed.names == ("JOHN", "KATE") and fed.kind == "tokens" and fed.classes == 4
    assert fed.labels == ("\n", "a", "b", "c")
    # Kate's 21 characters have 6 windows of 3 with a next character each; 2 of them are test rows
    x, y = fed.train.client(1)
    text = "abcabcab\nc\nabcabcabc\n"
    read = lambda row: "".join(fed.labels[i] for i in row.tolist())  # type: ignore[index]
    assert [read(row) for row in x] == ["abc", "abc", "ab\n", "c\na"]
    assert [read(row) for row in y] == ["bca", "bca", "b\nc", "\nab"]
    assert [read(row) for row in fed.test.client(1)[0]] == [text[12:15], text[15:18]]
    assert fed.train.sizes.tolist() == [3, 4] and fed.truth is None
    few = ct.data.load("shakespeare?clients=2&length=3&least=2&samples=1", seed=0)
    assert few.train.sizes.tolist() == [1, 1] and few.test.sizes.tolist() == [1, 2]


def test_every_second_role_may_run_backwards(plays: Path) -> None:
    plain = ct.data.shakespeare(clients=2, length=3, least=2)
    fed = ct.data.shakespeare(clients=2, length=3, least=2, backwards=True)
    assert fed.truth is not None and fed.truth.tolist() == [0, 1]
    assert torch.equal(fed.train.client(0)[0], plain.train.client(0)[0])
    assert "".join(fed.labels[i] for i in fed.train.client(1)[0][0]) == "\ncb"  # type: ignore[index]


def test_wrong_options_and_files(plays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CoterieError, match="3 clients are out of range: 2 of 3 roles"):
        ct.data.shakespeare(clients=3, length=3, least=2)
    with pytest.raises(CoterieError, match="out of range"):
        ct.data.shakespeare(length=0)
    with pytest.raises(CoterieError, match="test share"):
        ct.data.shakespeare(test_share=1.0)
    plays.write_bytes(b"no gzip")
    with pytest.raises(CoterieError, match="damaged"):
        ct.data.shakespeare(clients=1)
    monkeypatch.setenv("COTERIE_DATA", str(plays.parent))
    with pytest.raises(CoterieError, match="tinyshakespeare needs the file .* set COTERIE_DATA"):
        ct.data.shakespeare(clients=1)


def test_a_language_model_by_name(plays: Path) -> None:
    fed = ct.data.shakespeare(clients=2, length=3, least=2)
    assert ct.models.default(fed.roster) == "lstm"
    loop, vectorised = (
        ct.run(ct.FedAvg(lr=1.0), fed, "lstm:8", rounds=3, engine=engine, dtype="float64")
        for engine in ("loop", "vectorised")
    )
    for name, leaf in loop.state.items():
        torch.testing.assert_close(vectorised.state[name], leaf, rtol=1e-9, atol=1e-9)
    assert loop.final["perplexity"] < loop.history[0]["perplexity"]
    with pytest.raises(CoterieError, match="is not a number of units"):
        ct.models.build("lstm:x", fed.roster)
    with pytest.raises(CoterieError, match="the model lstm is for tokens"):
        ct.models.build("lstm", ct.data.rotated("digits", clients=4, samples=9).roster)
    with pytest.raises(CoterieError, match="outside 0 to 3"):
        loop.predict(torch.full((1, 3), 9), cluster=0)


def test_the_real_text() -> None:
    file = Path(os.environ.get("COTERIE_DATA", "data")) / "tinyshakespeare" / "input.txt.gz"
    if not file.is_file():
        pytest.skip("no plays: set COTERIE_DATA to a folder that holds tinyshakespeare/")
    fed = ct.data.shakespeare(clients=10)
    assert fed.classes == 65 and fed.row_shape == (40,) and (fed.train.sizes >= 30).all()
