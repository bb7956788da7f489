"""The files of twelve sites, and how groups are compared with those that were planted."""

from __future__ import annotations

import pandas as pd
import pytest
from sklearn.datasets import load_diabetes

from reproduction.catalogue.natural import agreement_with_planted, write_sites
from reproduction.site_groups import SiteRecord
from reproduction.spec import Measured


def test_every_patient_is_at_one_site_and_odd_sites_score_in_reverse(tmp_path):
    write_sites(tmp_path, seed=1)
    tables = {file.stem: pd.read_csv(file) for file in sorted(tmp_path.iterdir())}
    assert list(tables) == [f"site-{number:02d}" for number in range(12)]
    patients = load_diabetes(as_frame=True, scaled=False).frame
    total = patients["target"].max() + patients["target"].min()
    back = pd.concat(
        table.assign(score=total - table["score"] if int(name[-2:]) % 2 else table["score"])
        for name, table in tables.items()
    )
    columns = list(patients.columns[:-1])
    expected = patients.rename(columns={"target": "score"}).sort_values([*columns, "score"])
    found = back.sort_values([*columns, "score"])
    pd.testing.assert_frame_equal(
        found.reset_index(drop=True), expected.reset_index(drop=True), check_dtype=False
    )
    write_sites(tmp_path / "other", seed=2)
    assert not pd.read_csv(tmp_path / "other" / "site-00.csv").equals(tables["site-00"])


@pytest.mark.parametrize("groups, ari", [((0, 1, 0, 1), 1.0), ((0, 0, 1, 1), -0.5)])
def test_groups_are_compared_with_the_planted_ones(groups, ari):
    sites = [SiteRecord(f"site-{number:02d}", group, 0.0) for number, group in enumerate(groups)]
    assert agreement_with_planted(Measured({}, extra={"sites": sites})) == pytest.approx(ari)
