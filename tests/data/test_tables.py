"""Parquet files, and what the command makes of tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_tables import hospitals, joined, written
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.data import folder, table


# ------------------------------------------------------------------------------ Parquet
def test_parquet(tmp_path: Path) -> None:
    frames, _ = hospitals()
    joined(frames).to_parquet(tmp_path / "all.parquet")
    joined(frames).to_csv(tmp_path / "all.csv", index=False)
    one = table(str(tmp_path / "all.csv"), "outcome", "site", fill="mean")
    other = table(str(tmp_path / "all.parquet"), "outcome", "site", fill="mean")
    assert one.fingerprint() == other.fingerprint()
    (tmp_path / "sites").mkdir()
    for name, frame in frames.items():
        frame.rename_axis("n").to_parquet(tmp_path / "sites" / f"{name}.parquet")
    fed = folder(str(tmp_path / "sites"), "outcome", fill="mean", drop=("n",))
    assert fed.fingerprint() == other.fingerprint(), "a named index is a column"
    (tmp_path / "sites" / "Nîmes.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(CoterieError, match="Nîmes.parquet cannot be read as Parquet"):
        folder(str(tmp_path / "sites"), "outcome")
    frames["Nîmes"][:0].to_parquet(tmp_path / "sites" / "Nîmes.parquet")
    with pytest.raises(CoterieError, match="Nîmes.parquet has no rows below its header"):
        folder(str(tmp_path / "sites"), "outcome")


# ------------------------------------------------------------------------------ hospitals
def test_ifca_finds_the_groups_of_hospitals(tmp_path: Path) -> None:
    frames, groups = hospitals()
    fed = folder(written(tmp_path / "sites", frames), "outcome", fill="median")
    result = ct.run(ct.IFCA(clusters=2, lr=0.5), fed, model="softmax", rounds=20)
    groups_found = [int(result.clusters[-1][fed.names.index(name)]) for name in list(frames)[:12]]
    assert adjusted_rand_score(groups, groups_found) == 1.0
    assert result.accuracy.weighted > 0.85


def say(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["run", "ifca", "--clusters", "2", "--rounds", "2", "--model", "softmax", *words])
    out, err = capsys.readouterr()
    return status, out + err


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frames, _ = hospitals()
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "my sites", frames)
    joined(frames).to_csv("all.csv", index=False)
    sites = ("--data", "folder:my sites", "--label", "outcome")
    one = ("--data", "table:all.csv", "--label", "outcome")
    status, text = say(capsys, *sites, "--fill", "median", "--out", "a")
    assert status == 0 and "run saved in a" in text
    by_site = (*one, "--client-column", "site")
    status, text = say(
        capsys, *by_site, *("--data.fill", "mean", "--data.drop", "age"), "--out", "b"
    )
    assert status == 0 and "run saved in b" in text
    monkeypatch.chdir(tmp_path / "a")
    assert main(["resume", str(tmp_path / "b"), "--rounds", "3"]) == 0, "from another place"
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    for words, needed in (
        (sites, "with --data.drop 'dosé mg'."),
        ((*sites, "--fill", "zero"), "fill is 'zero': it must be one of mean, median."),
        (one, "the data set table needs the column that names the client"),
        (one, "give --client-column COLUMN."),
        (("--data", "folder:all.csv", "--label", "outcome"), "all.csv is a file: write table:"),
        ((*one, "--client-column", "sites"), "'sites': did you mean 'site'?"),
        (
            (*sites, "--client-column", "site"),
            "unknown option of the data set folder 'client_column'",
        ),
        (("--fill", "median"), "unknown option of the data set rotated 'fill'"),
        (("--data", "folder:my sites"), "needs a label"),
        ((*sites, "--fill", "mean", "--data.kind", "regression"), "which is not a number"),
    ):
        status, text = say(capsys, *words, "--out", "c")
        assert status == 2 and needed in text and text.count("\n") == 1, text
