"""Which rows of tables are for training and for tests."""

from __future__ import annotations

import pandas as pd
import pytest
from sample_tables import ROWS

import coterie as ct
from coterie.data import from_frames


def values(fed: ct.data.Federation, part: str, client: int = 0) -> list[float]:
    """The targets, which tell the rows apart."""
    return getattr(fed, part).client(client)[1].tolist()


def test_by_share() -> None:
    frames = {"a": ROWS, "b": ROWS, "c": ROWS[:1]}
    with pytest.warns(UserWarning, match="single training row"):
        fed = from_frames(frames, "y", seed=1)
    assert fed.train.sizes.tolist() == [6, 6, 1] and fed.test.sizes.tolist() == [2, 2, 0]
    assert values(fed, "test", 0) != values(fed, "test", 1), "another draw for each name"
    again = from_frames({"b": ROWS, "a": ROWS}, "y", seed=1)
    assert values(again, "test", 1) == values(fed, "test", 0), (
        "the draw depends on the name, not on the place"
    )
    memory = ct.data.from_memory({"a": (ROWS[["v"]].to_numpy(), ROWS.y.to_numpy())}, seed=1)
    assert values(memory, "test") == values(fed, "test"), "and is the draw of from_memory"


def test_by_column() -> None:
    frame = ROWS.assign(part=["train", "valid", "test", "train", "train", "test", "valid", "train"])
    fed = from_frames({"a": frame, "b": frame.assign(part="train")}, "y", split_column="part")
    assert [values(fed, part) for part in ("train", "valid", "test")] == [
        [0.5, 3, 4, 7],
        [1, 6],
        [2, 5],
    ]
    assert (
        fed.valid is not None
        and fed.valid.x.dtype == fed.train.x.dtype
        and fed.valid.sizes.tolist() == [2, 0]
    )
    assert fed.schema is not None and fed.schema.columns == ("c = a", "c = b", "c = (other)", "v")
    assert from_frames({"a": frame.assign(part="train")}, "y", split_column="part").valid is None


def days(form: str) -> list[str]:
    return [form.format(day) for day in (2, 7, 3, 4, 6)]


@pytest.mark.parametrize(
    "when",
    [
        [5, 1, 8, 2, 7, 3, 4, 6],
        ["2026-01-05", "2025-12-31", "2026-01-08T10:00", *days("2026-01-0{}")],
        ["5.1.2026", "31.12.2025", "8.01.2026", *days("0{}.1.2026")],
        pd.to_datetime(["2026-01-05", "2026-01-01", "2026-01-08", *days("2026-01-0{}")]),
    ],
)
def test_by_time(when) -> None:
    fed = from_frames(
        {"a": ROWS.assign(when=when), "b": ROWS[:1].assign(when="2026-01-01")},
        "y",
        time_column="when",
    )
    assert values(fed, "test") == [2, 4] and values(fed, "train") == [0.5, 1, 3, 5, 6, 7]
    assert values(fed, "train", 1) == [0.5], "the last row is for training"
    assert fed.schema is not None and "when" not in fed.schema.columns
