"""Columns of dates become numbers: the year, the season, and whether it is a weekend."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.data import Schema, folder, from_frames

DAYS = pd.date_range("2024-01-01", periods=40, freq="11D")
COLUMNS = ("day (year)", "day (January − July)", "day (April − October)", "day (weekend)")


def site(days, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame({"day": days, "v": random.normal(size=40), "y": random.normal(size=40)})


def of(days) -> ct.data.Federation:
    """A federation of two sites with these days."""
    return from_frames({"a": site(days), "b": site(days, 1)}, "y", test_share=0)


@pytest.mark.parametrize(
    "written",
    [
        DAYS.strftime("%Y-%m-%d"),
        DAYS.strftime("%Y-%m-%d 00:00"),
        DAYS.strftime("%d.%m.%Y"),
        DAYS.tz_localize("UTC"),
        pd.Series(DAYS.date, dtype=object),
    ],
)
def test_one_rule_for_all_that_are_dates(written) -> None:
    fed, same = of(DAYS), of(written)
    assert fed.schema is not None and fed.schema.columns == (*COLUMNS, "v")
    assert fed.fingerprint() == same.fingerprint()


def test_what_the_numbers_are() -> None:
    """1 January and 1 July of leap and other years, 6 April 2024, a Saturday, and 8 October."""
    fed = of(DAYS)
    assert fed.schema is not None
    days = ["2024-01-01", "2025-07-02", "2024-04-06", "2024-10-08"]
    x, _ = fed.schema.encode(pd.DataFrame({"day": days, "v": 0.0}))
    year, winter, spring, weekend = x.T[:4]
    column = fed.schema.features[0]
    assert year * column.deviation + column.mean == pytest.approx(
        [2024.0, 2025.5, 2024.26, 2024.77], abs=0.01
    )
    assert winter == pytest.approx([1, -1, 0, 0], abs=0.15)
    assert spring == pytest.approx([0, 0, 1, -1], abs=0.15)
    assert weekend.tolist() == [0, 0, 1, 0]
    assert float(fed.train.x[:, 0].mean()) == pytest.approx(0, abs=1e-6)
    assert float(fed.train.x[:, 0].std(correction=0)) == pytest.approx(1, abs=1e-6)
    every_day = pd.date_range("2026-01-01", periods=400).to_series()
    _, _, _, weekend = fed.schema.encode(pd.DataFrame({"day": every_day, "v": 0.0}))[0].T[:4]
    assert (weekend == (every_day.dt.weekday >= 5)).all()


def test_newcomers_and_files(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for i, name in enumerate("ab"):
        site(DAYS, i).to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    fed = folder(str(tmp_path / "sites"), "y")
    assert fed.schema is not None and Schema.from_json(fed.schema.to_json()) == fed.schema
    result = ct.run(ct.FedAvg(), fed, rounds=1, model="linear", out=str(tmp_path / "run"))
    again = ct.load(str(tmp_path / "run"))
    iso, german = site(DAYS.strftime("%Y-%m-%d")), site(DAYS.strftime("%d.%m.%Y"))
    predictions = result.predict(iso)
    assert torch.equal(predictions, again.predict(german)) and len(predictions) == 40
    result.export(str(tmp_path / "models"))
    exported = ct.load(str(tmp_path / "models"))
    assert torch.equal(exported.predict(german, "group-0"), predictions)
    with pytest.raises(CoterieError, match="'soon' in data row 1, which is not a date"):
        result.predict(site("soon"))
    with pytest.warns(match="day of the table has mean 2090, but training rows have 2025"):
        result.predict(site(datetime.date(2090, 1, 1)))


def test_empty_cells() -> None:
    gap = DAYS.to_series().reset_index(drop=True)
    gap[3] = pd.NaT
    with pytest.raises(CoterieError, match="column day of client 'a' has 1 missing.*fill=median"):
        of(gap)
    for fill in ("mean", "median"):
        fed = from_frames({"a": site(gap)}, "y", fill=fill, test_share=0)
        assert fed.schema is not None
        column = fed.schema.features[0]
        filling = (getattr(column, fill) - column.mean) / column.deviation
        expected = [pytest.approx(filling, abs=1e-6), 0, 0, 0]
        assert fed.train.x[3, :4].tolist() == expected, "no season and no weekend"


def test_text_that_is_sometimes_a_date_stays_text() -> None:
    words = ["2026-01-31", "never", "31.1.2026", "1/2/2026"]
    american, school_years = ["1/2/2026", "3/2/2026"] * 20, ["2010-11", "2011-12"] * 20
    for days in (words * 10, american, school_years, ["2026-02-30", "2026-02-31"] * 20):
        schema = of(days).schema
        assert schema is not None and schema.texts == ["day"]
    frames = {"a": site(DAYS.strftime("%Y-%m-%d")), "b": site(words * 10)}
    with pytest.raises(CoterieError, match="dates for client 'a' and text for client 'b'.*categ"):
        from_frames(frames, "y")
    few = site(["2026-01-31", "2026-02-28"] * 20)
    schema = from_frames({"a": few}, "y", categories=["day"]).schema
    assert schema is not None and schema.features[0].categories == ("2026-01-31", "2026-02-28")


def test_dates_are_no_label() -> None:
    with pytest.raises(CoterieError, match="label column day of client 'a' holds dates"):
        from_frames({"a": site(DAYS)}, "day")


def test_months_can_split_by_time() -> None:
    """The last quarter of the rows by a column of months, which stand in reverse order."""
    months = pd.date_range("2020-01-01", periods=40, freq="MS").strftime("%Y-%m")[::-1]
    fed = from_frames({"a": site(months)}, "y", time_column="day")
    assert fed.test.y.tolist() == site(months).y[:10].tolist()
