"""What a run says about its groups."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.metrics import hard_labels
from coterie.runs.trained import describe_warnings


def rows(churn: list[float], sizes: list[int]) -> list[dict]:
    return [{"sizes": sizes}, *({"sizes": sizes, "churn": c} for c in churn)]


APART = {"w": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])}


def test_soft_weights_become_the_largest_and_zeros_are_not_yet_seen() -> None:
    assert hard_labels(torch.tensor([[0.2, 0.8], [0.0, 0.0], [0.6, 0.4]])).tolist() == [1, -1, 0]


def test_nothing_is_said_of_groups_that_are_well() -> None:
    assert (
        describe_warnings(
            rows([0.5, 0.1, 0.0, 0.0, 0.0], [2, 2, 2]), APART, torch.tensor([0, 0, 1, 1, 2, 2])
        )
        == []
    )
    assert describe_warnings(rows([0.5], [3]), None, None) == []


def test_an_empty_group_is_named() -> None:
    (said,) = describe_warnings(rows([0.0] * 4, [3, 0, 1]), APART, torch.tensor([0, 0, 0, 2]))
    assert said.startswith("no client is in group 1 of 3")


def test_a_group_with_one_of_many_clients_is_not_said_to_be_empty() -> None:
    groups = torch.zeros(2000, dtype=torch.int64)
    groups[0] = 1
    centres = {"w": torch.eye(2)}
    (said,) = describe_warnings(rows([0.0] * 4, [1999, 1]), centres, groups)
    assert said.startswith("almost no client is in group 1 of 2")


def test_a_soft_group_without_weight_is_empty_but_not_one_that_is_nobodys_largest() -> None:
    weights = torch.tensor([[0.6, 0.4, 0.0], [0.7, 0.3, 0.0]])
    (said,) = describe_warnings(rows([0.0] * 4, [2, 0, 0]), APART, weights)
    assert "group 2 of 3" in said


def test_centres_that_fell_together_are_named_unless_one_is_empty() -> None:
    centres = {
        "w": torch.tensor([[1.0, 0.0], [1.0, 1e-4], [0.0, 1.0]]),
        "shared": torch.ones(1, 2),
    }
    (said,) = describe_warnings(rows([0.0] * 4, [1, 1, 1]), centres, torch.tensor([0, 1, 2]))
    assert "groups 0 and 1 are almost equal" in said
    (said,) = describe_warnings(rows([0.0] * 4, [2, 0, 1]), centres, torch.tensor([0, 0, 2]))
    assert "no client" in said


def test_groups_that_never_settle() -> None:
    """Four late rounds of sixteen: the mean churn is 0.1."""
    groups, late = torch.tensor([0, 1, 2]), [0.2, 0.0, 0.2, 0.0]
    (said,) = describe_warnings(rows([0.0] * 12 + late, [1, 1, 1]), APART, groups)
    assert "not stable: in the last 4 rounds 10 % of the clients" in said
    assert describe_warnings(rows([0.9] * 12 + [0.0] * 4, [1, 1, 1]), APART, groups) == []


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_a_run_warns(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing to learn: all uploads are one point, and one of two clusters stays empty."""
    fed = ct.data.from_memory([(np.zeros((8, 2)), np.zeros(8)) for _ in range(6)])
    with caplog.at_level(logging.WARNING, "coterie"):
        result = ct.run(ct.CGPFL(clusters=2), fed, "linear", rounds=4)
    assert [line[:17] for line in result.warnings] == ["no client is in g"]
    assert f"cgpfl: {result.warnings[0]}" in caplog.text
