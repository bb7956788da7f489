"""Clients whose columns differ: refused, or used as their union or as the common columns."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.data import Schema, describe, from_frames, merge

NORTH = pd.DataFrame({"age": [20.0, 30, 40, 50], "dose": [1.0, 2, 3, 6], "y": [0, 1, 0, 1]})
SOUTH = pd.DataFrame({"age": [25.0, 35, 45, 55], "ward": list("aabb"), "y": [1, 0, 1, 0]})
SITES = {"north": NORTH, "south": SOUTH}


def union(**options) -> ct.data.Federation:
    return from_frames(SITES, "y", columns="union", min_category_count=1, test_share=0, **options)


def test_union_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    """A column that a site lacks has the mean there (0, standardised), and the indicator 1."""
    with caplog.at_level(logging.INFO, "coterie"):
        fed = union()
    assert fed.schema is not None and fed.schema.columns == (
        "age", "dose", "dose (missing)", "ward = a", "ward = b", "ward = (other)", "ward (missing)"
    )  # fmt: skip
    dose = (np.array([1.0, 2, 3, 6]) - 3) / np.sqrt(3.5)  # moments of the site that has it
    north, south = fed.train.client(0)[0].numpy(), fed.train.client(1)[0].numpy()
    np.testing.assert_allclose(north[:, 1], dose, rtol=1e-6)
    assert north[:, 2:].tolist() == [[0, 0, 0, 1, 1]] * 4
    assert south[:, 1:].tolist() == [[0, 1, 1, 0, 0, 0]] * 2 + [[0, 1, 0, 1, 0, 0]] * 2
    assert fed.site_columns is not None
    assert fed.site_columns.lacking == {"dose": ("south",), "ward": ("north",)}
    assert "some clients lack columns, they count as missing there: dose at south" in caplog.text


def test_common_columns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "coterie"):
        fed = from_frames(SITES, "y", columns="common", test_share=0)
    alone = from_frames({n: f[["age", "y"]] for n, f in SITES.items()}, "y", test_share=0)
    assert fed.schema is not None and fed.schema.columns == ("age",)
    assert fed.fingerprint() == alone.fingerprint()
    assert "some clients lack columns, they are left out: dose at south; ward at" in caplog.text


def test_gaps_in_a_column_that_is_left_out_do_not_matter() -> None:
    gap = NORTH.assign(dose=[1, None, 2, 3])
    fed = from_frames({"north": gap, "south": SOUTH}, "y", columns="common")
    assert fed.schema is not None and fed.schema.columns == ("age",)
    with pytest.raises(CoterieError, match="column dose of client 'north' has 1 missing"):
        from_frames({"north": gap, "south": SOUTH}, "y", columns="union")


def test_equal_columns_need_no_choice() -> None:
    same = {"a": NORTH, "b": NORTH}
    plain = from_frames(same, "y")
    for choice in ("union", "common"):
        fed = from_frames(same, "y", columns=choice)
        assert fed.schema == plain.schema and fed.fingerprint() == plain.fingerprint()


def test_the_three_steps_with_a_union() -> None:
    """Describe, merge and encode, as on a network: no site needs the columns of the others."""
    described = {name: describe(frame, "y") for name, frame in SITES.items()}
    schema = merge(described, min_category_count=1, columns="union")
    assert Schema.from_json(schema.to_json()) == schema
    fed = union()
    for i, frame in enumerate(SITES.values()):
        x, _ = schema.encode(frame)
        assert (x == fed.train.client(i)[0].numpy()).all()
    both = pd.DataFrame({"age": [20.0], "dose": [3.0], "ward": ["b"]})
    assert schema.encode(both)[0][0, 1:].tolist() == [0, 0, 0, 1, 0, 0]


def test_what_is_refused() -> None:
    with pytest.raises(CoterieError, match="lacks dose and adds ward.* columns=union .*=common"):
        from_frames(SITES, "y")
    more = {**SITES, "west": NORTH}
    with pytest.raises(CoterieError, match="drop=dose,ward, or .* columns=union .*columns=common"):
        from_frames({**more, "east": SOUTH, "far": NORTH.drop(columns="dose")}, "y")
    with pytest.raises(CoterieError, match="unknown label column of client 'south': 'y'"):
        from_frames({"north": NORTH, "south": SOUTH.drop(columns="y")}, "y", columns="union")
    apart = {"a": NORTH[["age", "y"]], "b": NORTH[["dose", "y"]]}
    with pytest.raises(CoterieError, match="no column in common but the label.*columns=union"):
        from_frames(apart, "y", columns="common")
    with pytest.raises(CoterieError, match="dose holds numbers for client 'a' and text for"):
        from_frames(
            {"a": NORTH, "b": NORTH.assign(dose=list("abab")), "c": SOUTH}, "y", columns="union"
        )
    with pytest.raises(CoterieError, match="'beds'.*categories|categories.*'beds'"):
        union(categories=["beds"])
    assert union(categories=["dose"]).schema is not None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sites").mkdir()
    for name, frame in SITES.items():
        pd.concat([frame] * 5).to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    data = ["--data", f"folder:{tmp_path / 'sites'}", "--label", "y"]
    assert main(["run", "fedavg", *data, "--out", str(tmp_path / "no")]) == 2
    assert "--columns union" in capsys.readouterr().err
    out = str(tmp_path / "run")
    assert main(["run", "fedavg", *data, "--rounds", "1", "--columns", "union", "--out", out]) == 0
    assert "dose at south" in capsys.readouterr().err
    NORTH.to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", out, str(tmp_path / "new.csv")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
