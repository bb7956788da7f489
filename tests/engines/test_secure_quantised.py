"""Under secure sums the server gets the sums of the clients' quantised updates, to the bit.

Every update that a client hands to the fixed-point step is recorded, and summed again by NumPy as
whole numbers without a limit; what the server decodes must be these, in every engine and for every
method that runs under secure sums.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from test_secure_runs import METHODS

import coterie as ct
from cases import federation
from coterie.aggregation.clipping import weights_by_value
from coterie.aggregation.fixed_point import FixedPoint, Integers
from coterie.core.contract import Upload
from coterie.core.declarations import secure_obstacle
from coterie.methods.registry import methods
from coterie.runs.start import prepare_run

OPTIONS = {"rounds": 1, "seed": 1, "secure": True}
ABLE = METHODS | {"fedbn": ct.FedBN()}
MODELS = {"fedbn": "mlp_bn:4"}
FAST = [("fedavg", "vectorised"), ("ifca", "loop"), ("ifca", "wire"), ("fedsoft", "vectorised")]
CASES = [
    pytest.param(name, engine, marks=[] if (name, engine) in FAST else pytest.mark.slow)
    for name in ABLE
    for engine in ("loop", "vectorised", "wire")
]
# mixed has models of its own (test_secure_runs.py), and local sums nothing
NOT_HERE = {"mixed", "local"}


def whole(numbers: np.ndarray) -> np.ndarray:
    """Float64 as Python's integers, rounded to even as torch rounds."""
    return np.array([int(v) for v in np.rint(numbers).ravel()], dtype=object).reshape(numbers.shape)


def quantise(value: np.ndarray, is_sum: bool) -> np.ndarray:
    """One client's numbers as integers: with 24 binary places, or whole part and 32 places."""
    if not is_sum:
        return whole(value * 2.0**24)
    floor = np.floor(value)
    return np.stack([whole(floor), whole((value - floor) * 2.0**32)])


def numpy_sums(step: FixedPoint, uploads: list[Upload]) -> Integers:
    """The sums of uploads, leaves [n, ...], client by client."""
    totals: dict[str, dict[str, Any]] = {}
    mass: dict[str, Any] = {}
    members: dict[str, Any] = {}
    report: dict[str, Any] = {}
    is_sum = step.declaration.sums
    for upload in uploads:
        for name, weight in weights_by_value(upload).items():
            for i, w in enumerate(weight.double().cpu().numpy()):
                mass[name] = mass.get(name, 0) + whole(w * 2.0**24)
                members[name] = members.get(name, 0) + (w > 0).astype(object)
                for leaf, v in upload.values[name].items():
                    own = v[i].double().cpu().numpy()
                    per_cluster = [quantise(own * wk, is_sum) for wk in w]
                    block = np.stack(per_cluster, axis=int(is_sum))
                    into = totals.setdefault(name, {})
                    into[leaf] = into.get(leaf, 0) + block
        for name in step.summed:
            for v in upload.report[name].double().cpu().numpy():
                report[name] = report.get(name, 0) + quantise(v, True)
    return Integers(totals, mass, members, report)


def same(found: torch.Tensor, expected: Any) -> bool:
    return bool((found.cpu().numpy().astype(object) == expected).all())


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_what_the_server_decodes_are_the_sums_of_quantised_updates(name, engine, monkeypatch):
    uploads: list[Upload] = []
    checked = 0
    encode, decode = FixedPoint.encode, FixedPoint.decode

    def record(self: FixedPoint, updates: Upload) -> Integers:
        uploads.append(updates)
        return encode(self, updates)

    def compare(self: FixedPoint, sums: Integers) -> Any:
        nonlocal checked
        given = [
            u for u in uploads if len(next(iter(weights_by_value(u).values()), ())) or u.report
        ]
        expected = numpy_sums(self, given)
        uploads.clear()
        hidden = self.hidden(sums.members)
        for value, of_clusters in hidden.items():
            assert same(sums.members[value], expected.members[value])
            shown = ~of_clusters.numpy()
            for leaf, v in sums.values[value].items():
                blocks = expected.values[value][leaf]
                axis = int(self.declaration.sums)
                assert same(
                    torch.from_numpy(np.compress(shown, v.numpy(), axis=axis)),
                    np.compress(shown, blocks, axis=axis),
                )
            assert same(sums.mass[value][torch.from_numpy(shown)], expected.mass[value][shown])
        for report, v in sums.report.items():
            assert same(v, expected.report[report])
        checked += 1
        return decode(self, sums)

    monkeypatch.setattr(FixedPoint, "encode", record)
    monkeypatch.setattr(FixedPoint, "decode", compare)
    run = prepare_run(
        ABLE[name], federation(clients=5), MODELS.get(name, "mlp:4"), **OPTIONS, engine=engine
    )
    for _ in run.rounds():
        pass
    assert checked >= 2  # training and evaluation


def test_every_method_that_can_is_checked():
    able = set()
    for name, cls in methods().items():
        has_clusters = "clusters" in {f.name for f in fields(cls)}
        method = cls(**{"clusters": 2} if has_clusters else {})
        if secure_obstacle(method) is None:
            able.add(name)
    assert able - NOT_HERE == {method.name for method in ABLE.values()}
