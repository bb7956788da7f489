"""Rows without a label or a client, and clients of few rows, are left out on request."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.data import folder, from_frames, load, table


def rows(site: str, count: int, gaps: int = 0) -> pd.DataFrame:
    """A site's rows, the first `gaps` of which have no label."""
    frame = pd.DataFrame({"site": site, "v": np.arange(count) % 7, "y": np.arange(count) / 2})
    frame.loc[: gaps - 1, "y"] = np.nan
    return frame


SITES = [rows("Aachen", 12, gaps=3), rows("Bonn", 9, gaps=1), rows("Celle", 10)]
TABLE = pd.concat([*SITES, rows("Dahme", 4, gaps=4)], ignore_index=True)


def test_rows_without_a_label(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CoterieError, match="4 missing values.*drop them with drop_incomplete"):
        from_frames(TABLE[TABLE.site == "Dahme"], "y", "site")
    caplog.set_level(logging.INFO)
    fed = from_frames(TABLE, "y", "site", drop_incomplete=True, test_share=0)
    assert fed.names == ("Aachen", "Bonn", "Celle") and fed.train.sizes.tolist() == [9, 8, 10]
    assert fed.train.client(0)[1].tolist() == [n / 2 for n in range(3, 12)]
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("dropped")]
    assert lines == [
        "dropped 8 rows whose label y is empty (Dahme 4, Aachen 3, Bonn 1); "
        "no rows remain for Dahme"
    ]
    same = from_frames(TABLE.dropna(), "y", "site", test_share=0)
    assert fed.fingerprint() == same.fingerprint()


def test_rows_without_a_client(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    frame = TABLE.dropna().reset_index(drop=True)
    frame.loc[[0, 20], "site"] = None
    with pytest.raises(CoterieError, match="client column site .*drop these rows with"):
        from_frames(frame, "y", "site")
    caplog.set_level(logging.INFO)
    frame.to_csv(tmp_path / "all.csv", index=False)
    fed = table(str(tmp_path / "all.csv"), "y", "site", drop_incomplete=True, test_share=0)
    assert fed.train.sizes.tolist() == [8, 8, 9]
    assert "2 rows whose client column site is empty" in caplog.text
    with pytest.raises(CoterieError, match="client column site is empty in every row"):
        from_frames(frame.assign(site=None), "y", "site", drop_incomplete=True)
    with pytest.raises(CoterieError, match="label column y is empty in every row"):
        from_frames(frame.assign(y=None), "y", "site", drop_incomplete=True)


def test_a_row_keeps_its_number_in_errors() -> None:
    frame = TABLE.astype({"v": object})
    frame.loc[25, "v"] = "much"
    with pytest.raises(CoterieError, match="'Celle' has 'much' in data row 26"):
        from_frames(frame, "y", "site", drop_incomplete=True)


def test_empty_cells_of_features_are_still_refused() -> None:
    frame = TABLE.astype({"v": float})
    frame.loc[25, "v"] = np.nan
    with pytest.raises(CoterieError, match="column v of client 'Celle' has 1 missing.*fill=median"):
        from_frames(frame, "y", "site", drop_incomplete=True)


def test_small_clients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    frames = {str(frame.site.iloc[0]): frame.drop(columns="site") for frame in SITES}
    fed = from_frames(frames, "y", drop_incomplete=True, min_rows=9)
    assert fed.names == ("Aachen", "Celle"), "counted without the rows that have no label"
    sentence = "dropped 1 of 3 clients with fewer than 9 rows, 8 rows in all (Bonn 8)"
    assert sentence in caplog.text
    with pytest.raises(
        CoterieError, match="no client has 11 rows or more, the largest has 10: lower"
    ):
        from_frames(frames, "y", drop_incomplete=True, min_rows=11)
    with pytest.raises(CoterieError, match="min_rows is 0, below 1"):
        from_frames(frames, "y", min_rows=0)


def test_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("all.csv", index=False)
    words = ["run", "fedavg", "--data", "table:all.csv", "--label", "y", "--client-column", "site"]
    words += ["--rounds", "1", "--model", "linear", "--out", "a"]
    assert main(words) == 2
    assert "drop them with --drop-incomplete." in capsys.readouterr().err
    assert main([*words, "--drop-incomplete", "--min-rows", "9"]) == 0
    text = "".join(capsys.readouterr())
    assert (
        "8 rows whose label y is empty" in text
        and "fewer than 9 rows, 8 rows in all (Bonn 8)" in text
    )
    assert main(["resume", "a", "--rounds", "2"]) == 0, "the options are kept with the run"


def test_arrays_have_no_incomplete_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((8, 2)), y=np.arange(8) / 3)
    assert len(folder(str(tmp_path))) == 1
    for option in ("drop_incomplete=true", "min_rows=2"):
        with pytest.raises(CoterieError, match=f"{option.split('=')[0]} applies to tables"):
            load(f"folder:{tmp_path}?{option}", 0)
