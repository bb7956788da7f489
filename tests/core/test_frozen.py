"""Frozen parameters and buffers: the same in every process, recorded, and never mixed up."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coterie as ct
from cases import federation
from coterie.core.task import Task


class RandomFeatures(nn.Module):
    """A frozen random layer and a random buffer before the trained layer."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.features = nn.Linear(64, 16).requires_grad_(False)
        self.register_buffer("shift", gain * torch.randn(16))
        self.last = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last((self.features(x.flatten(1)) + self.shift).tanh())


def louder() -> nn.Module:
    return RandomFeatures(gain=2.0)


def test_the_first_construction_is_seeded_and_leaves_torchs_generator_alone():
    example = torch.zeros(2, 64)
    torch.manual_seed(1)
    one = Task(RandomFeatures, "classification", example, 10)
    drawn = torch.rand(())
    torch.manual_seed(1)
    assert drawn == torch.rand(())
    torch.manual_seed(2)
    two = Task(RandomFeatures, "classification", example, 10)
    assert one.frozen.keys() == {"features.weight", "features.bias", "shift"}
    assert all(torch.equal(v, two.frozen[k]) for k, v in one.frozen.items())
    assert one.fingerprint() == two.fingerprint()
    other = Task(louder, "classification", example, 10)
    assert other.fingerprint() != one.fingerprint(), "the same layers with another buffer"


def test_runs_resumes_and_exports_agree_on_frozen_values(tmp_path):
    fed = federation(4)
    method = ct.IFCA(clusters=2, lr=0.5)
    run = lambda **more: ct.run(method, fed, RandomFeatures, rounds=3, **more)
    first = run(out=tmp_path / "run")
    torch.manual_seed(7)
    assert run().final["loss"] == first.final["loss"]

    half = ct.run(method, fed, RandomFeatures, rounds=1, out=tmp_path / "half")
    torch.manual_seed(8)
    again = ct.resume(half.folder, fed, RandomFeatures, rounds=3)
    assert torch.equal(again.centres["last.weight"], first.centres["last.weight"])

    exported = ct.load(first.export(tmp_path / "models"), model=RandomFeatures)
    x, _ = fed.test.client(0)
    expected = first.predict(x, cluster=1, probabilities=True)
    assert torch.equal(exported.predict(x, "group-1", probabilities=True), expected)
    # the file has the values of the run, so they are used whatever the given model draws
    shifted = ct.load(tmp_path / "models", model=louder)
    assert torch.equal(shifted.predict(x, "group-1", probabilities=True), expected)
    alone = RandomFeatures().double()
    alone.load_state_dict(load_file(tmp_path / "models" / "group-1.safetensors"))
    same = alone(x).softmax(1).float()
    torch.testing.assert_close(same, expected.float())


def test_another_frozen_value_is_refused(tmp_path):
    fed = federation(4)
    method = ct.IFCA(clusters=2, lr=0.5)
    first = ct.run(method, fed, RandomFeatures, rounds=1, out=tmp_path / "run")
    with pytest.raises(ct.CoterieError, match="its layers, its loss or its frozen values differ"):
        ct.resume(tmp_path / "run", fed, louder, rounds=2)
    with pytest.raises(ct.CoterieError, match="its layers, its loss or its frozen values differ"):
        ct.load(tmp_path / "run", model=louder)
    with pytest.raises(ct.CoterieError, match="the frozen values 'shift' of the model are not"):
        ct.run(method, fed, louder, rounds=1, start=first)
    first.export(tmp_path / "models")
    start = ct.IFCA(clusters=2, start_from=str(tmp_path / "models"))
    with pytest.raises(ct.CoterieError, match="other frozen values of 'shift'"):
        ct.run(start, fed, louder, rounds=1)
    ct.run(start, fed, RandomFeatures, rounds=1)


def test_an_export_without_frozen_values_is_refused(tmp_path):
    fed = federation(4)
    plain = ct.run(ct.IFCA(clusters=2), fed, "softmax", rounds=1)
    plain.export(tmp_path / "models")
    with pytest.raises(ct.CoterieError, match="lacks the frozen values"):
        ct.load(tmp_path / "models", model=RandomFeatures)
