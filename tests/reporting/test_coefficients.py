"""The coefficients of groups' linear models, under the names of the tables' columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.data.site_columns import SiteColumns
from coterie.reporting.coefficients import (
    coefficients_table,
    collect_coefficients,
    collect_effects,
    describe_coefficients,
    describe_effects,
)
from coterie.reporting.drawing import Dot
from coterie.reporting.figures import draw_coefficients, draw_effect


@pytest.fixture(scope="module")
def frames():
    """Six sites: y rises with dose in three of them and falls in the others; men have 2 more."""
    rng = np.random.default_rng(0)
    sites = {}
    for i in range(6):
        dose = rng.normal(5, 2, 80)
        sex = rng.choice(["f", "m"], 80)
        slope = 3 if i < 3 else -3
        y = slope * (dose - 5) + 2 * (sex == "m") + rng.normal(0, 0.1, 80)
        sites[f"site {i}"] = pd.DataFrame({"dose": dose, "sex": sex, "y": y})
    return sites


@pytest.fixture(scope="module")
def trained(frames):
    fed = ct.data.from_frames(frames, label="y")
    method = ct.IFCA(clusters=2, lr=0.1, local_steps=10)
    return ct.run(method, fed, "linear", rounds=40).trained


def test_coefficients_are_in_the_labels_unit_per_deviation_of_the_column(trained):
    groups = trained.groups.numpy()
    result = collect_coefficients(trained, groups)
    assert result.columns[0] == "dose"  # it differs most
    rising = result.groups.index(int(groups[0]))
    falling = result.groups.index(int(groups[5]))
    # a deviation of the dose is 2, and moves y by 3 for each unit
    assert result.values[0][rising] == pytest.approx(6, rel=0.1)
    assert result.values[0][falling] == pytest.approx(-6, rel=0.1)
    by_name = dict(zip(result.columns, result.values))
    assert sorted(by_name) == ["dose", "sex = f", "sex = m"]  # no place for other texts
    np.testing.assert_allclose(by_name["sex = m"], 1, atol=0.3)  # from the mean of f and m
    np.testing.assert_allclose(by_name["sex = f"], -by_name["sex = m"], atol=1e-9)
    assert "in units of y" in describe_coefficients(result)


def test_signs_are_shown_and_points_have_the_colours_of_groups(trained):
    result = collect_coefficients(trained, trained.groups.numpy())
    table = coefficients_table(result)
    assert table.head == ["column", "group 0", "group 1"]
    assert {cell[0] for cell in table.rows[0][1:]} == {"+", "−"}
    figure = draw_coefficients(result)
    assert figure.marks[0].title.startswith("dose: group 0 ")
    assert [entry.name for entry in figure.legend] == ["group 0", "group 1"]


def test_other_models_have_none(frames):
    fed = ct.data.from_frames(frames, label="y")
    deep = ct.run(ct.IFCA(clusters=2), fed, "mlp:4", rounds=1).trained
    assert collect_coefficients(deep, deep.groups.numpy()) is None
    alone = ct.run(ct.FedAvg(), fed, "linear", rounds=1).trained
    assert collect_coefficients(alone, None) is None


def test_two_classes_have_log_odds(site_results):
    ifca = site_results[0].trained
    result = collect_coefficients(ifca, ifca.groups.numpy())
    assert result.is_class and result.higher == "outcome = well"
    assert "mar<ker" in result.columns and "log-odds" in describe_coefficients(result)
    signs = np.sign(result.values[result.columns.index("mar<ker")])
    assert set(signs) == {-1, 1}


def test_columns_that_were_filled_in_a_group_have_no_coefficient_there(trained):
    groups = trained.groups.numpy()
    names = trained.roster.training_names
    other = int(groups[5])
    empty = {names[i]: 60 for i in np.flatnonzero(groups == other)}
    rows = dict.fromkeys(names, 60)
    of_sites = SiteColumns(rows, {"dose": empty, "sex": {names[0]: 60}}, [])
    result = collect_coefficients(trained, groups, of_sites)
    assert result.filled == [("dose", other)]
    values = result.values[result.columns.index("dose")]
    assert np.isnan(values[result.groups.index(other)]) and np.isfinite(values).sum() == 1
    assert result.columns[-1] == "dose"  # it has nothing to be compared with
    assert f"were filled: dose in group {other}." in describe_coefficients(result)
    cells = {row[0]: row[1:] for row in coefficients_table(result).rows}
    assert sorted(cell == "filled" for cell in cells["dose"]) == [False, True]
    marks = {mark.title.partition(":")[0]: mark for mark in draw_coefficients(result).marks}
    assert len(marks["dose"].marks) == 1 and len(marks["sex = f"].marks) == 2


# ------------------------------------------------------------------------------ curves
def test_effects_are_drawn_with_the_strongest_first():
    """score = 3 · age + dose / 10: from −2 to 2 deviations, age moves it by far more."""
    rng = np.random.default_rng(0)
    tables = {}
    for site in range(4):
        age, dose = rng.normal(size=(2, 30))
        ward = np.where(rng.random(30) < 0.5, "east", "west")
        score = 3 * age + dose / 10 + 0.1 * rng.normal(size=30)
        tables[f"s{site}"] = pd.DataFrame({"age": age, "dose": dose, "ward": ward, "score": score})
    fed = ct.data.from_frames(tables, label="score")
    result = collect_effects(ct.run(ct.Mixed(clusters=1, features="linear"), fed).trained)
    assert [effects[0].column for effects in result.columns][:1] == ["age"]
    assert len(result.columns) == 3 and result.left_out == 0 and result.has_bands
    assert "in units of score" in describe_effects(result) and "95 %" in describe_effects(result)
    (age,) = result.columns[0]
    deviation = np.concatenate([t["age"] for t in tables.values()]).std()
    assert age.mean[-1] - age.mean[0] == pytest.approx(4 * 3 * deviation, rel=0.1)
    area, line = draw_effect(result.columns[0]).marks
    assert list(line.y) == age.mean and list(area.low) == age.low
    wards = next(effects for effects in result.columns if effects[0].column == "ward")
    figure = draw_effect(wards)
    assert [text for _, text in figure.x.ticks] == ["east", "west"]
    assert sum(isinstance(mark, Dot) for mark in figure.marks) == 2


def test_data_without_columns_have_no_effects():
    fed = ct.data.linear(clients=4, samples=10, dim=2, clusters=2)
    assert collect_effects(ct.run(ct.Mixed(), fed).trained) is None
