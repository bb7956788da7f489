"""The groups of real sites: what is kept of them, and what the page says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_experiment import MADE

import coterie as ct
from reproduction.result_table import ResultTable
from reproduction.site_groups import (
    describe_groups,
    group_agreement,
    group_record,
    level_figure,
    number_by_size,
)
from reproduction.spec import Measured

GROUPS = {  # by seed; client c is left out of training with seed 1
    0: {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1},
    1: {"a": 1, "b": 1, "d": 0, "e": 0},
    2: {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0},
}


def results_with(tmp_path, groups) -> ResultTable:
    """Line "first" has groups in column a, by seed; line "second" has none."""
    experiment = replace(MADE, columns=MADE.columns[:1])
    results = ResultTable.open(experiment, "full", tmp_path)
    for cell in results.missing:
        extra = {}
        if cell.line.label == "first":
            sites = [(name, group, 0.5 + group) for name, group in groups[cell.seed].items()]
            extra = {"sites": sites, "label": "grade", "apart": ["Age is higher in group 0."]}
        results.add(cell, Measured({"accuracy": 0.5}, {}, extra), 1.0)
    results.save()
    return ResultTable.open(experiment, "full", tmp_path)  # as a file keeps it


def test_groups_are_numbered_by_their_size():
    assert number_by_size(np.array([3, 1, 1, -1, 1, 3, 7])).tolist() == [1, 0, 0, -1, 0, 1, 2]


def test_groups_agree_whatever_their_numbers_and_whoever_is_missing():
    assert group_agreement(GROUPS[0], GROUPS[1]) == 1.0
    # of {a,b},{c,d,e} and {a,c,e},{b,d} only ce; by hand,
    # expected 4·4/10 = 1.6, and (1 − 1.6) / (4 − 1.6) = −0.25
    assert group_agreement(GROUPS[0], GROUPS[2]) == pytest.approx(-0.25)
    assert group_agreement({"a": 0, "b": 1}, {"b": 0, "c": 1}) is None  # one site alone


def test_the_page_says_who_is_where_what_sets_them_apart_and_whether_groups_come_back(tmp_path):
    told = describe_groups("first")(results_with(tmp_path, GROUPS))
    assert told[:3] == [
        "first, seed 0, group 0, with a mean grade of 0.50: a and b.",
        "first, seed 0, group 1, with a mean grade of 1.5: c, d and e.",
        "Age is higher in group 0.",
    ]
    # seeds 1 and 2 share a, b, d, e: {a,b},{d,e} and {a,e},{b,d}; no pair is together in both,
    # expected 2·2/6, and (0 − 2/3) / (2 − 2/3) = −0.5; the mean of 1, −0.25 and −0.5 is 0.083
    assert told[3:] == ["Groups of two seeds agree by (ARI; chance 0, the same 1): first 0.08."]
    assert describe_groups("second")(results_with(tmp_path, GROUPS)) == []


def test_one_group_is_said_in_one_sentence(tmp_path):
    alone = {seed: dict.fromkeys("abc", 0) for seed in range(3)}
    told = describe_groups("first")(results_with(tmp_path, alone))
    assert told[0] == "first, seed 0: one group of all 3 sites."
    assert told[-1].endswith(": first has one group.")


def test_a_figure_has_a_panel_for_each_seed_and_a_dot_for_each_site(tmp_path):
    figure = level_figure("first")(results_with(tmp_path, GROUPS))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"Groups of first, a dot for each site, seed {seed}" for seed in range(3)
    ]
    small, large = figure.axes[0].lines
    assert small.get_xdata().tolist() == [0.5, 0.5] and large.get_xdata().tolist() == [1.5] * 3
    assert figure.axes[-1].get_xlabel() == "mean of grade at a site"
    (text,) = level_figure("second")(results_with(tmp_path, GROUPS)).texts
    assert text.get_text() == "second has no groups here"


def test_what_is_kept_of_a_run():
    fed = ct.data.rotated("digits", clients=6, samples=40, seed=0, angles=(0, 180))
    result = ct.run(ct.IFCA(clusters=2), fed, "softmax", rounds=4, seed=0)
    kept = group_record(result, fed)
    assert [site.name for site in kept["sites"]] == list(fed.roster.training_names)
    assert (
        group_agreement(
            {site.name: site.group for site in kept["sites"]},
            dict(zip(fed.roster.training_names, result.trained.hard_groups.tolist())),
        )
        == 1.0
    )
    first = fed.train.client(0)[1].double().mean()
    assert kept["sites"][0].level == pytest.approx(float(first), abs=1e-4)
    assert group_record(ct.run(ct.FedAvg(), fed, "softmax", rounds=1, seed=0), fed) == {}
