"""Private sums: sensitivity, noise, weights, counts and adaptive clipping."""

from __future__ import annotations

import math
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy import stats
from torch import tensor

import coterie as ct
from coterie.aggregation.aggregator import Aggregator
from coterie.aggregation.private_sums import BELOW, NoiseSource, PrivateRelease, PrivateSums
from coterie.core.call import Version
from coterie.core.contract import Declaration, OneHot, Upload, Weight
from coterie.core.trees import tree_map

CENTRES = {"w": tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 1.0]])}


def release(z=0.0, clip=1.0, adaptive=False, seed=7, expected=4.0) -> PrivateRelease:
    return PrivateRelease(
        noise_multiplier=z,
        expected_clients=expected,
        clip=clip,
        is_adaptive=adaptive,
        calls=(0, 1),
        noise=NoiseSource(seed),
    )


def step_of(updates: Upload, private: PrivateRelease, round: int = 1) -> PrivateSums:
    """The step of an exchange in which clients started from CENTRES."""
    template = tree_map(lambda v: v.new_zeros(v.shape[1:]), updates)
    columns = updates.weight.shape[1]
    declaration = Declaration(weight=OneHot(rows=True) if columns > 1 else Weight(rows=True))
    exchange = SimpleNamespace(
        template=template,
        started_from={"model": {"w": CENTRES["w"][:columns]}},
        declaration=declaration,
        call=SimpleNamespace(name="train", version=Version(round, "train", 1)),
        num_clients=len(updates.weight),
    )
    return private.begin(exchange)


def contributions(updates: Upload, private: PrivateRelease):
    """(the step, the finished sums before noise)"""
    step = step_of(updates, private)
    aggregator = Aggregator(
        "sum",
        step.exchange.template,
        len(updates.weight),
        clipping=step.clipping,
        fixed_point=step.fixed_point(0),
        extra=step,
    )
    parts = [
        aggregator.add(at, tree_map(lambda v, at=at: v[at], updates)) for at in chunks(updates)
    ]
    return step, aggregator.finish(aggregator.merge(parts))


def chunks(updates: Upload):
    n = len(updates.weight)
    return torch.arange(n).chunk(2) if n else []


def vector(step: PrivateSums, sums) -> np.ndarray:
    """What the noise is added to: sums, scaled counts and the scaled count of small norms."""
    pieces = [sums.totals["model"]["w"].double().flatten()]
    if step.counted:
        pieces.append(step.count_scale * sums.mass["model"].double())
    if step.release.is_adaptive:
        pieces.append(step.count_scale * sums.updates.report[BELOW].double())
    return torch.cat(pieces).numpy()


def uploads(values, clusters, rows, columns=2) -> Upload:
    weight = torch.zeros(len(values), columns)
    for i, (cluster, n) in enumerate(zip(clusters, rows)):
        weight[i, cluster % columns] = n
    values = torch.tensor(values, dtype=torch.float32).reshape(-1, 3)
    return Upload({"model": {"w": values}}, weight, {})


def test_sums_by_hand():
    """Clients 0 and 2 choose centre 0; the update (3, 4, 0) of client 2 is clipped to norm 1."""
    up = uploads([[1.5, 2, 3], [-1, 0, 1], [4, 6, 3]], [0, 1, 0], rows=[5, 9, 2])
    step, sums = contributions(up, release())
    assert sums.totals["model"]["w"].numpy() == pytest.approx(
        np.array([[1.1, 0.8, 0], [0, 0, 0]]), abs=2e-6
    )
    assert sums.mass["model"].tolist() == [2.0, 1.0]  # not the numbers of rows
    noised = step.server(sums)
    mean = ct.contract.Sums(noised.totals, noised.mass, {}, torch.arange(3)).mean("model", CENTRES)
    expected = np.array([[1 + 0.55, 2 + 0.4, 3], [-1, 0, 1]])
    assert mean["w"].numpy() == pytest.approx(expected, abs=2e-6)


@settings(max_examples=60, deadline=None)
@given(
    clients=st.lists(
        st.tuples(
            st.lists(st.floats(-1e4, 1e4, width=32), min_size=3, max_size=3),
            st.integers(0, 1),
            st.integers(1, 500),
        ),
        min_size=1,
        max_size=5,
    ),
    clip=st.floats(0.01, 100),
    columns=st.sampled_from([1, 2]),
    adaptive=st.booleans(),
)
def test_one_client_moves_the_sum_by_no_more_than_the_sensitivity(clients, clip, columns, adaptive):
    def sums_of(some):
        values, clusters, rows = zip(*some) if some else ((), (), ())
        return contributions(
            uploads(values, clusters, rows, columns), release(clip=clip, adaptive=adaptive)
        )

    step, whole = sums_of(clients)
    _, without = sums_of(clients[1:])
    moved = np.linalg.norm(vector(step, whole) - vector(step, without))
    assert moved <= step.sensitivity
    c = 0.2 * clip
    squares = clip**2 + (columns > 1) * c**2 + adaptive * (c / 2) ** 2
    assert step.sensitivity == pytest.approx(math.sqrt(squares))


def test_the_variance_of_the_noise():
    z, clip = 1.7, 0.5
    deviation = z * math.sqrt(clip**2 + (0.2 * clip) ** 2)
    up = uploads([[1, 2, 3]], [0], rows=[1])
    values, counts = [], []
    private = release(z, clip, seed=None)
    for _ in range(600):
        step, sums = contributions(up, private)
        noise = step.server(sums)
        values += (step._noised(sums.totals["model"]["w"], "w")).flatten().tolist()
        counts.append(float(step._noised(sums.mass["model"][1] * step.count_scale)))
        assert noise.updates.report == {}
    assert stats.kstest(np.array(values) / deviation, "norm").pvalue > 1e-4
    assert stats.kstest(np.array(counts) / deviation, "norm").pvalue > 1e-4
    assert np.std(values) == pytest.approx(deviation, rel=0.06)


def test_noise_differs_between_rounds_leaves_and_seeds_and_never_repeats_without_a_seed():
    noise = NoiseSource(1)
    assert (noise.normal(5, 1, "w") == noise.normal(5, 1, "w")).all()
    for other in ((2, "w"), (1, "b")):
        assert not (noise.normal(5, 1, "w") == noise.normal(5, *other)).any()
    assert not (noise.normal(5, 1, "w") == NoiseSource(2).normal(5, 1, "w")).any()
    fresh = NoiseSource()
    assert not (fresh.normal(5, 1) == fresh.normal(5, 1)).any()


def test_a_cluster_with_too_small_a_noised_count_keeps_its_model():
    up = uploads([[1.5, 2, 3]], [0], rows=[1])
    for seed in range(20):
        step, sums = contributions(up, release(z=1.0, seed=seed))
        noised = step.server(sums)
        floor = step.deviation / step.count_scale  # about 5 clients
        count = noised.mass["model"]
        assert ((count == 0) | (count >= floor)).all()
        mean = ct.contract.Sums(noised.totals, noised.mass, {}, torch.arange(1)).mean(
            "model", CENTRES
        )["w"]
        for k in range(2):
            assert torch.equal(mean[k], CENTRES["w"][k]) == (float(count[k]) == 0)


def test_a_single_cluster_is_divided_by_the_expected_number():
    up = uploads([[1.5, 2, 3], [1, 2.5, 3]], [0, 0], rows=[1, 7], columns=1)
    step, sums = contributions(up, release(expected=5.0))
    assert step.counted == [] and step.sensitivity == 1.0
    noised = step.server(sums)
    assert noised.mass["model"].tolist() == [5.0]
    assert (noised.totals["model"]["w"][0] / 5).tolist() == pytest.approx([1.1, 2.1, 3], abs=1e-6)


def test_adaptive_clipping_by_hand():
    """Two of three norms are at most C = 1, of four expected clients: b̃ = ½ + (½ + ½ − ½)/4."""
    up = uploads([[1.5, 2, 3], [-1, 0, 1], [4, 6, 3]], [0, 1, 0], rows=[1, 1, 1])
    private = release(adaptive=True)
    step, sums = contributions(up, private)
    step.server(sums)
    assert private.clip == pytest.approx(math.exp(-0.2 * 0.125))


def test_adaptive_clipping_finds_the_median_norm():
    """400 clients with norms spread evenly from 0 to 8, noise as in a run."""
    norms = np.linspace(0.01, 8, 400)
    values = np.array([[1, 2, 3]]) + norms[:, None] * np.array([[0, 1, 0]])
    up = uploads(values.tolist(), [0] * 400, [1] * 400)
    private = release(z=1.0, adaptive=True, expected=400)
    for _ in range(60):
        step, sums = contributions(up, private)
        step.server(sums)
    assert private.clip == pytest.approx(4, rel=0.25)


def test_a_client_counts_for_one_cluster():
    up = uploads([[1.5, 2, 3]], [0], rows=[1])
    step = step_of(up, release())
    step.exchange.declaration = Declaration(weight=Weight())
    with pytest.raises(ct.CoterieError, match=r"train\(\) divides a client among clusters"):
        PrivateSums(step.exchange, release(), 1.0)
