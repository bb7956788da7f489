"""The audit with canaries: the bound by hand, below the promise with noise, above 1 without."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
from scipy import stats

import coterie as ct
from coterie.aggregation.canaries import FALSE_POSITIVES, Canaries, epsilon_lower_bound
from coterie.cli import main
from coterie.core.errors import CoterieWarning


def test_the_bound_by_hand():
    """40 of 40 canaries exceed every threshold: p ≥ (0.05/10)^(1/40), at the smallest f."""
    cosines = np.full(40, 1.0)
    p = 0.005 ** (1 / 40)
    expected = math.log((p - 1e-3) / min(FALSE_POSITIVES))
    assert epsilon_lower_bound(cosines, 100, 1e-3) == pytest.approx(expected)
    assert epsilon_lower_bound(-cosines, 100, 1e-3) == 0


def test_random_directions_prove_nothing():
    """Without canaries in the sum the bound exceeds 0 in at most 5 % of the audits."""
    rng = np.random.default_rng(0)
    bounds = [epsilon_lower_bound(rng.normal(size=100) / 10, 100, 1e-5) for _ in range(200)]
    assert sum(bound > 0 for bound in bounds) <= stats.binom.ppf(0.999, 200, 0.05)


def test_cosines_by_hand():
    canaries = Canaries(4)
    sums = canaries.contribute(2, 3, taken=np.array([True, True, False, True]))
    u = canaries.directions
    assert np.linalg.norm(u, axis=1) == pytest.approx(1)
    assert sums == pytest.approx(np.stack([u[0], u[1] + u[3]]))
    assert canaries.members(2, np.array([True, True, False, True])).tolist() == [1, 2]
    canaries.follow(np.array([2 * u[0], u[1]]))
    assert canaries.cosines() == pytest.approx([1, 1, u[2] @ u[0], u[3] @ u[1]], abs=1e-6)


@pytest.mark.parametrize(
    "method", [["fedavg"], ["ifca", "--clusters", "2", "--init", "random"]], ids=["fedavg", "ifca"]
)
def test_audit_of_a_run(tmp_path, capsys, method):
    bounds = {}
    for z in ("0", "1"):
        folder = str(tmp_path / f"run-{z}")
        flags = ["--data", "rotated:digits", "--clients", "40", "--samples", "8", "--quiet"]
        flags += ["--model", "softmax", "--rounds", "4", "--participation", "0.5", "--out", folder]
        flags += ["--dp", "clients", "--delta", "1e-2", "--noise-multiplier", z]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CoterieWarning)
            assert main(["run", *method, *flags]) == 0
            capsys.readouterr()
            assert main(["audit", folder, "--json", "--canaries", "60"]) == 0
        bounds[z] = json.loads(capsys.readouterr().out)
    assert bounds["0"]["lower_bound"] > 1 and bounds["0"]["promised"] is None
    assert bounds["1"]["lower_bound"] < bounds["1"]["promised"] < 20


def test_a_run_without_a_promise_is_refused(tmp_path, capsys):
    fed = ct.data.rotated("digits", clients=6, samples=8)
    ct.run(ct.FedAvg(), fed, "softmax", rounds=1, out=tmp_path / "run")
    assert main(["audit", str(tmp_path / "run")]) == 2
    assert "there is no promise to audit" in capsys.readouterr().err
