"""Rotated digits: four groups of three clients with 60 rows each, softmax regression.

IFCA, CGPFL, FedSoft and FedEM have tests of their own; every method's own file plants regression
lines. Settings that are not defaults (CFL's ε, PFL-TC's option) were chosen on the first four
seeds.
"""

from __future__ import annotations

import pytest

import coterie as ct

METHODS = {  # the method, and the rounds in each of which the groups must be exact
    "cfl-mgd": (ct.CFLMGD(clusters=4, lr=0.1, beta=0.5), [3]),
    "one-shot": (ct.OneShot(clusters=4, lr=0.3), [1]),
    "pfl-tc": (ct.PFLTC(clusters=4, lr=0.3, average="models"), [1, 2]),
    "flhc": (ct.FLHC(lr=0.3, warm=3), [5]),
    "cfl": (ct.CFL(lr=0.3, eps1=0.4, eps2=0.5), [7]),
}


@pytest.mark.parametrize("name", METHODS)
def test_rotated_digits_are_found(name: str) -> None:
    """ARI 1.0 for nine of ten seeds."""
    method, rounds = METHODS[name]
    found = []
    for seed in range(10):
        fed = ct.data.rotated("digits", clients=12, samples=60, seed=seed, test_samples=10)
        history = ct.run(
            method, fed, "softmax", rounds=max(rounds), seed=seed, eval_every=99
        ).history
        found.append(min(history[r]["ari"] for r in rounds))
    assert sum(ari == 1.0 for ari in found) >= 9, found
