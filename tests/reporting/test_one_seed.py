"""Every part of a page that shows one seed says so, where there are several."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import GROUPS, grouped, scored, statistics
from small_runs import HOW

import coterie as ct
from coterie.reporting import describe_unfinished
from coterie.reporting.clients import describe_client_scores, scores_by_client
from coterie.reporting.model_fit import GroupScores, describe_group_scores
from coterie.reporting.overview import describe_names
from coterie.reporting.page import name_one_seed

OF_ONE_SEED = (
    "Differences between groups",
    "Coefficients of the groups' models",
    "Find a site",
    "Scores by group",
    "Fit of each group's model to each client",
    "Predictions",
)


def page_of(folder: Path, sites: Path, seeds: int) -> str:
    results = []
    for seed in range(seeds):
        fed = ct.data.folder(str(sites), label="outcome", seed=seed)
        for method in (ct.IFCA(clusters=2, **HOW), ct.FedAvg(**HOW)):
            results.append(ct.run(method, fed, "softmax", rounds=3, seed=seed))
    page = ct.report(results, folder / f"{seeds}.html")
    return page.read_text(encoding="utf-8").replace("&#39;", "'")


def section(page: str, title: str) -> str:
    """What stands between a heading and the next one."""
    _, found, rest = page.partition(f">{title}</h")
    assert found, title
    return re.split("<h[1-5]", rest)[0]


def test_each_part_names_its_seed(tmp_path, sites):
    page = page_of(tmp_path, sites, seeds=2)
    for title in OF_ONE_SEED:
        assert "Only seed 0." in section(page, title), title
    assert "seed" in section(page, "Groups") and "Lowest seed" in section(page, "Fairness")
    assert "With seed 0, compared with fedavg" in section(page, "Each client")
    assert "Only seed" not in section(page, "Comparison") + section(page, "Scores over rounds")


def test_with_one_seed_nothing_is_said_of_it(tmp_path, sites):
    page = page_of(tmp_path, sites, seeds=1)
    for title in OF_ONE_SEED:
        assert "Only seed" not in section(page, title)


def test_seeds_that_differ_are_not_named():
    one, two = scored([0.5], seed=3), scored([0.5], seed=4)
    assert name_one_seed({"a": [one], "b": [two]}) == ""
    assert name_one_seed({"a": [one, two], "b": [one]}) == "seed 3"
    assert name_one_seed({"a": [one, two], "b": [two]}) == "the lowest seed of each method"


@pytest.mark.parametrize("seeds, start", [(1, "Compared with"), (5, "With seed 7, compared")])
def test_wins_are_those_of_one_seed(seeds, start):
    both = {"ifca": statistics([0.9] * 4, GROUPS), "fedavg": statistics([0.5] * 4)}
    result = scores_by_client(grouped(seed=7), both, seeds)
    assert describe_client_scores(result)[-1].startswith(start)


def test_boxes_are_explained_where_there_are_any():
    few = GroupScores("accuracy", list("abcd"), np.array([0, 0, 1, 1]), {"ifca": np.ones(4)})
    assert "box" not in describe_group_scores(few)
    assert "box" in describe_group_scores(few._replace(groups=np.zeros(4, dtype=int)))


def test_seeds_that_stopped_in_different_rounds_are_told_apart():
    runs = [scored([0.5] * rounds, seed) for seed, rounds in enumerate((3, 5, 10))]
    runs = [replace(run, options=replace(run.options, rounds=9)) for run in runs]
    assert describe_unfinished("m", runs) == [
        "m stopped after rounds 2 and 4 of 9 with 2 of 3 seeds: results are from those rounds."
    ]


def test_a_method_with_settings_in_its_label_is_explained():
    assert describe_names(["fedavg lr=0.1"], [], "accuracy").startswith(
        "The methods are fedavg lr=0.1, one model for all sites."
    )
