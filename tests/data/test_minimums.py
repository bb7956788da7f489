"""What few rows have, and what a client of few rows has, stands nowhere."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.cli import main
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.data import describe, folder, from_frames, load, merge

AGES = np.arange(40.0)


def site(rows: int, illness: str = "flu", rare: dict[int, str] | None = None) -> pd.DataFrame:
    """A table in which all rows have one illness, but for some rare ones by row."""
    table = pd.DataFrame({"age": AGES[:rows], "illness": illness, "y": np.arange(rows) % 2})
    for row, text in (rare or {}).items():
        table.loc[row, "illness"] = text
    return table


# ------------------------------------------------------------------------------ min_category_count
def test_a_text_of_few_rows_is_another() -> None:
    """Four rows in two sites have kuru, which is one too few by default; five have mumps."""
    mumps = dict.fromkeys(range(10, 15), "mumps")
    frames = {"a": site(20, rare={0: "kuru", 1: "kuru"} | mumps)}
    frames["b"] = site(20, rare={0: "kuru", 1: "kuru"})
    schema = from_frames(frames, "y", test_share=0).schema
    assert schema is not None and "kuru" not in schema.to_json()
    assert schema.texts == ["illness"] and schema.features[1].categories == ("flu", "mumps")
    x, _ = schema.encode(frames["a"])
    other = list(schema.columns).index("illness = (other)")
    assert np.flatnonzero(x[:, other]).tolist() == [0, 1], "as an unknown text is encoded"
    named = from_frames(frames, "y", test_share=0, min_category_count=4).schema
    assert named is not None and named.features[1].categories == ("flu", "kuru", "mumps")


def test_a_rare_text_is_in_no_log_and_no_warning(caplog, recwarn) -> None:
    with caplog.at_level(logging.INFO, "coterie"):
        from_frames({"a": site(20, rare={0: "kuru", 1: "yaws"})}, "y", test_share=0)
        from_frames({"a": site(20, illness="")}, "y", test_share=0, min_category_count=30)
    told = " ".join([*caplog.messages, *(str(warning.message) for warning in recwarn)])
    assert "kuru" not in told and "yaws" not in told
    assert (
        "2 texts of the column illness, each in fewer than 5 training rows, "
        "are encoded as other: 2 rows" in caplog.messages
    )


def test_a_column_of_rare_texts_only_is_warned_of() -> None:
    table = site(8).assign(illness=list("aabbccdd"))
    with pytest.warns(
        CoterieWarning, match="illness has no text that 5 .*min_category_count=1"
    ) as told:
        schema = from_frames({"a": table}, "y", test_share=0).schema
    assert "aabb" not in str(told[0].message)
    assert schema is not None and schema.columns == ("age", "illness = (other)")


def test_merging_counts_the_rows_of_all_clients() -> None:
    descriptions = {name: describe(site(10, rare={0: "kuru"}), "y") for name in "abcde"}
    assert merge(descriptions).features[1].categories == ("flu", "kuru")
    del descriptions["e"]
    assert merge(descriptions).features[1].categories == ("flu",)


# ------------------------------------------------------------------------------ min_rows_to_report
def test_a_client_of_few_rows_tells_nothing_of_them() -> None:
    """Its rows are encoded by what the others tell."""
    frames = {"large": site(20), "small": site(4, illness="kuru").assign(age=1e6)}
    fed = from_frames(frames, "y", test_share=0, min_rows_to_report=5, min_category_count=1)
    assert fed.schema is not None and fed.schema.rows == 20
    age, illness = fed.schema.features
    assert age.mean == AGES[:20].mean() and illness.categories == ("flu",)
    assert len(fed) == 2 and fed.train.client(1)[0][0, 0] > 1e4
    with pytest.raises(
        CoterieError, match="no client has 21 training rows or more.*min_rows_to_report"
    ):
        from_frames(frames, "y", test_share=0, min_rows_to_report=21)


def test_a_column_of_few_cells_tells_nothing_of_them() -> None:
    sparse = site(20)
    sparse.loc[3:, "age"] = np.nan
    description = describe(sparse, "y", min_rows_to_report=4)
    assert description["columns"]["age"]["count"] == 0
    assert "2.0" not in str(description), "no cell of the column"
    with pytest.raises(
        CoterieError, match="age has no value .* fewer than min_rows_to_report.*drop=age"
    ):
        from_frames({"a": sparse}, "y", test_share=0, fill="mean", min_rows_to_report=4)


@pytest.mark.parametrize(
    ("rows", "min_rows_to_report", "number"),
    [(5, 1, 21), (5, 5, 1), (14, 5, 1), (15, 5, 3), (35, 5, 7)],
)
def test_quantiles_stand_for_enough_rows(rows: int, min_rows_to_report: int, number: int) -> None:
    """21 quantiles of five rows would be the rows themselves."""
    age = describe(site(rows), "y", min_rows_to_report=min_rows_to_report)["columns"]["age"]
    assert len(age["quantiles"]) == number
    assert age["quantiles"][number // 2] == np.median(AGES[:rows])


def test_clients_count_by_their_rows_in_the_median_however_many_quantiles_they_send() -> None:
    frames = {"many": site(39), "few": site(6).assign(age=1000.0)}
    one = merge({n: describe(f, "y", min_rows_to_report=1) for n, f in frames.items()}).features[0]
    two = merge({n: describe(f, "y", min_rows_to_report=5) for n, f in frames.items()}).features[0]
    exact = float(np.median(np.concatenate([f["age"] for f in frames.values()])))
    assert abs(one.median - exact) < 2 and abs(two.median - exact) < 5
    assert (one.mean, one.deviation) == (two.mean, two.deviation)


@pytest.mark.parametrize("name", ["min_rows_to_report", "min_category_count"])
def test_minimums_are_at_least_one(name: str) -> None:
    with pytest.raises(CoterieError, match=f"{name} is 0, below 1: give {name}=5"):
        from_frames({"a": site(9)}, "y", **{name: 0})


# ------------------------------------------------------------------------------ the command line
def test_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """--min-rows-to-report is for evaluation and, in tables, for statistics."""
    monkeypatch.chdir(tmp_path)
    Path("sites").mkdir()
    for name in "abc":
        site(40, rare=dict.fromkeys(range(3), "kuru")).to_csv(f"sites/{name}.csv", index=False)
    data = ["--data", "folder:sites", "--label", "y"]
    words = ["run", "fedavg", *data, "--rounds", "1", "--quiet", "--out"]
    assert main([*words, "named", "--min-category-count", "4"]) == 0
    assert "kuru" in Path("named/config.json").read_text()
    assert main([*words, "other", "--min-category-count", "10", "--min-rows-to-report", "5"]) == 0
    config = Path("other/config.json").read_text()
    assert "kuru" not in config and config.count('"min_rows_to_report": 5') == 2
    assert main(["run", "fedavg", "--rounds", "1", "--min-rows-to-report", "2", "--quiet"]) == 0
    assert main([*words, "none", "--min-rows-to-report", "11"]) == 2
    assert "no client has 11 test rows or more" in capsys.readouterr().err


def test_the_spec_keeps_them(tmp_path: Path) -> None:
    site(30, rare={0: "kuru"}).to_csv(tmp_path / "a.csv", index=False)
    fed = folder(str(tmp_path), "y", min_category_count=1, min_rows_to_report=3)
    assert "min_category_count=1&min_rows_to_report=3" in fed.source
    again = load(fed.source, seed=9)
    assert again.schema == fed.schema
