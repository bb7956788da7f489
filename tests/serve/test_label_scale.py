"""A regression target is learnt in deviations and answered in its own unit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct


def schools(shift: float = 0.0, unit: float = 1.0) -> dict[str, pd.DataFrame]:
    """Six schools whose points depend on two columns."""
    rng = np.random.default_rng(0)
    frames = {}
    for i in range(6):
        x = rng.normal(size=(40, 2))
        points = x @ [3.0, -2.0] + rng.normal(size=40)
        frames[f"school {i}"] = pd.DataFrame(
            {"a": x[:, 0], "b": x[:, 1], "points": points * unit + shift}
        )
    return frames


def trained(frames: dict[str, pd.DataFrame]) -> ct.Result:
    fed = ct.data.from_frames(frames, label="points", kind="regression")
    return ct.run(ct.FedAvg(lr=0.1), fed, "linear", rounds=20, eval_every=20, dtype="float64")


def test_moments_of_the_label_stand_in_the_schema():
    frames = schools(shift=900.0, unit=50.0)
    fed = ct.data.from_frames(frames, label="points", kind="regression", test_share=0.25)
    rows = fed.train.y.numpy()
    assert fed.schema.label_mean == pytest.approx(rows.mean(), rel=1e-12)
    assert fed.schema.label_deviation == pytest.approx(rows.std(), rel=1e-12)
    again = ct.data.Schema.from_json(fed.schema.to_json())
    assert again == fed.schema


def test_the_unit_of_the_target_changes_nothing_but_the_unit():
    """Pounds instead of tons, counted from elsewhere: the same model, its error in pounds²."""
    plain, other = trained(schools()), trained(schools(shift=1e4, unit=2000.0))
    for k, w in plain.state.items():
        assert torch.allclose(other.state[k], w, rtol=1e-6, atol=1e-8)
    assert other.final["mse"] == pytest.approx(plain.final["mse"] * 2000**2, rel=1e-6)
    assert other.final["mse"] < 2.0 * 2000**2  # it has learnt, whatever the unit


def test_answers_and_exports_are_in_the_targets_unit(tmp_path):
    frames = schools(shift=900.0, unit=50.0)
    result = trained(frames)
    rows = frames["school 0"].drop(columns="points")
    answers = result.predict(rows, cluster=0)
    error = answers.numpy() - frames["school 0"]["points"].to_numpy()
    assert np.abs(error).mean() < 75
    result.export(tmp_path / "models")
    exported = ct.load(tmp_path / "models")
    assert torch.allclose(exported.predict(rows, "group-0"), answers)
    loss = exported.assign(frames["school 0"]).losses[0]
    assert loss == pytest.approx(float((error**2).mean()), rel=1e-6)


def test_the_target_can_be_left_as_it_is(tmp_path):
    fed = ct.data.from_frames(schools(shift=10.0), label="points", kind="regression")
    options = {"rounds": 3, "eval_every": 3, "dtype": "float64", "label_scale": "none"}
    result = ct.run(ct.FedAvg(lr=0.05), fed, "linear", out=tmp_path / "run", **options)
    assert result.trained.task.scale is None
    assert ct.load(tmp_path / "run").trained.task.scale is None
    resumed = ct.resume(tmp_path / "run", fed, rounds=4)
    assert resumed.history[-1]["round"] == 4
