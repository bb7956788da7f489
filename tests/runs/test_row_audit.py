"""Attacks on rows, with and without record-level differential privacy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.runs.start import prepare_run
from oracles import federation, personal

UNITS = 2000


def recovered_rows(**options: Any) -> int:
    """The rows that a hostile server reads from one step of FedAvg (docs/security.md), of 20."""
    fed = ct.data.rotated("digits", clients=1, samples=20, angles=(0,))
    direction = torch.rand(64, generator=torch.Generator().manual_seed(0))
    trap = {
        "1.weight": direction.repeat(1, UNITS, 1),
        "1.bias": -torch.linspace(5, 15, UNITS)[None],
        "3.weight": torch.arange(10.0)[None, :, None].repeat(1, 1, UNITS) / UNITS,
        "3.bias": torch.zeros(1, 10),
    }
    trap = {k: v.double() for k, v in trap.items()}
    method = ct.FedAvg(local_steps=1, lr=0.1)
    run = prepare_run(method, fed, f"mlp:{UNITS}", rounds=1, dtype="float64", **options)
    run.step()
    run.state = trap
    run.step()
    weight = (run.state["1.weight"] - trap["1.weight"])[0].diff(dim=0)
    bias = (run.state["1.bias"] - trap["1.bias"])[0].diff(dim=0)
    guesses = (weight / bias[:, None])[bias.abs() > 1e-9]
    rows = fed.train.x.flatten(1).double()
    return int((torch.cdist(rows, guesses).min(1).values < 0.01).sum())


def test_a_hostile_server_recovers_rows_only_without_noise() -> None:
    assert recovered_rows() == 20
    assert recovered_rows(dp="rows", epsilon=4.0, delta=1e-3) == 0
    # clipping alone does not help
    assert recovered_rows(dp="rows", noise_multiplier=0.0, delta=1e-3) > 10


# ------------------------------------------------------------------------------ membership
SHADOWS, POOL, DIM = 64, 40, 30


def attack_auc(**options: Any) -> float:
    """Membership inference: is a row's loss, next to its mean over models, lower if it was there?

    64 models, each trained on a random half of the pool, in one vectorised run. The labels are
    random, so a low loss can only come from having seen the row.
    """
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(POOL, DIM, generator=draw, dtype=torch.float64)
    y = torch.randn(POOL, generator=draw, dtype=torch.float64)
    members = torch.rand(SHADOWS, POOL, generator=draw).argsort(1) < POOL // 2
    fed = federation(
        [(x[each], y[each]) for each in members], names=[f"m{i}" for i in range(SHADOWS)]
    )
    method = ct.LocalOnly(lr=0.02, local_steps=50)
    run = prepare_run(method, fed, "linear", rounds=4, dtype="float64", **options).train()
    slopes, biases = (
        torch.tensor(np.stack([m[name].reshape(-1) for m in personal(run)]))
        for name in ("1.weight", "1.bias")
    )
    losses = (slopes @ x.T + biases - y).square()  # [models, rows]
    score = -(losses / losses.mean(0))
    inside, outside = score[members], score[~members]
    return float((inside[:, None] > outside[None]).double().mean())


@pytest.mark.slow
def test_membership_of_rows_can_be_told_only_without_noise() -> None:
    assert attack_auc() > 0.9
    assert abs(attack_auc(dp="rows", epsilon=0.2, delta=1e-3) - 0.5) < 0.06
    # an attack on a mechanism with ε has at most the AUC e^ε/(1 + e^ε), apart from δ
    assert attack_auc(dp="rows", epsilon=1.0, delta=1e-3) < math.e / (1 + math.e)
    assert attack_auc(dp="rows", noise_multiplier=0.0, dp_clip=1e3, delta=1e-3) > 0.9
