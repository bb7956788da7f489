"""Tables from databases."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie import cli
from coterie.core.errors import CoterieError

QUERY = "SELECT clinic, age, city, outcome FROM visits ORDER BY id"


def visits(rows: int = 60) -> pd.DataFrame:
    """Visits of three clinics, with a missing cell and a column that is a number or text."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": range(rows),
            "clinic": [f"c{i % 3}" for i in range(rows)],
            "age": rng.normal(50, 10, rows).round(1),
            "city": rng.choice(["Köln", "Zürich"], rows),
            "outcome": rng.choice(["ill", "well"], rows),
        }
    )
    frame.loc[4, "age"] = np.nan
    return frame


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    file = tmp_path / "clinics.db"
    with sqlite3.connect(file) as database:
        visits().to_sql("visits", database, index=False)
    return f"sqlite:///{file}"


@pytest.fixture
def duckdb(tmp_path: Path) -> str:
    module = pytest.importorskip("duckdb")
    file = tmp_path / "clinics.duckdb"
    frame = visits()
    with module.connect(str(file)) as database:
        database.register("frame", frame)
        database.execute(
            "CREATE TABLE visits AS SELECT * REPLACE (age::DECIMAL(5,1) AS age) FROM frame"
        )
    return f"duckdb:///{file}"


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_query_gives_the_rows_of_a_data_frame(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(kind)
    fed = ct.data.sql(url, QUERY, "outcome", "clinic", fill="median")
    same = ct.data.from_frames(visits().drop(columns="id"), "outcome", "clinic", fill="median")
    assert fed.schema == same.schema and fed.names == same.names
    assert torch.equal(fed.train.x, same.train.x) and torch.equal(fed.test.y, same.test.y)
    assert fed.source.startswith(f"sql:{kind}:///")


def test_files_are_queried_without_a_database(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    visits().to_parquet(tmp_path / "visits.parquet")
    query = f"SELECT clinic, coalesce(age, 50) AS age, outcome FROM '{tmp_path / 'visits.parquet'}'"
    assert ct.data.sql("duckdb://", query, "outcome", "clinic").names == ("c0", "c1", "c2")


def test_the_command_takes_a_query_from_a_file(
    sqlite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "query.sql").write_text(QUERY)
    words = [
        "run",
        "fedavg",
        "--data",
        f"sql:{sqlite}",
        "--data.query",
        str(tmp_path / "query.sql"),
    ]
    words += ["--label", "outcome", "--client-column", "clinic", "--fill", "median"]
    words += ["--rounds", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    assert cli.main(["resume", str(tmp_path / "run"), "--rounds", "2", "--quiet"]) == 0
    assert "fedavg" in capsys.readouterr().out


@pytest.mark.parametrize(
    "query, label, sentence",
    [
        (
            "SELECT clinic, age FROM visits",
            "outcome",
            "the query has no column outcome, only clinic, age",
        ),
        ("SELECT age, outcome FROM visits", "outcome", "the query has no column clinic"),
        ("SELECT * FROM visitors", "outcome", "the query fails: .*visitors"),
        ("SELEC * FROM visits", "outcome", "the query fails: .*syntax error"),
        ("SELECT * FROM visits WHERE id < 0", "outcome", "the query returns no rows"),
        ("missing.sql", "outcome", "the query file missing.sql cannot be read"),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_bad_query_is_one_sentence(
    kind: str, query: str, label: str, sentence: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(CoterieError, match=f"(?is){sentence}") as error:
        ct.data.sql(request.getfixturevalue(kind), query, label, "clinic")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "url, sentence",
    [
        ("clinics", "'clinics' is not the URL of a database"),
        ("nonsense://host/clinics", "is not the URL of a database"),
        ("sqlite:///nowhere.db", "there is no database nowhere.db"),
        ("duckdb:///nowhere.duckdb", "there is no database nowhere.duckdb"),
        ("postgresql://me:secret@host/clinics", "contains a password"),
    ],
)
def test_a_bad_database_is_one_sentence(
    url: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CoterieError, match=sentence) as error:
        ct.data.sql(url, QUERY, "outcome", "clinic")
    assert "secret" not in str(error.value)
    assert not any(tmp_path.iterdir()), "nothing is created"
