"""Uploads that move too far are shortened or refused; slow learners are left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import tensor
from torch.utils._pytree import tree_leaves, tree_map

import coterie as ct
from cases import federation
from coterie.aggregation.clipping import Clipping, NormLimit, third_quartile
from coterie.aggregation.norm_screening import NormScreening
from coterie.aggregation.pipeline import Pipeline
from coterie.core.contract import Upload
from coterie.engines.codec import decode, encode
from coterie.runs.start import prepare_run


def test_a_long_move_is_shortened_by_hand():
    """From (1, 0) the first moves by 2, the second by 30 along the second axis: the usual is 2."""
    start = {"model": {"w": tensor([[1.0, 0.0]])}}
    clipping = Clipping(start, {"model": NormLimit(typical=2.0, factor=10.0)})
    up = Upload({"model": {"w": tensor([[3.0, 0.0], [1.0, 30.0]])}}, torch.ones(2, 1), {})
    moved = clipping.update_norms(up)
    assert moved["model"].tolist() == [2.0, 30.0]
    shorter, rows = clipping.clip(up, moved)
    assert rows == {1}
    assert shorter.values["model"]["w"].tolist() == [[3.0, 0.0], [1.0, 2.0]]


@pytest.mark.parametrize(
    "lengths, usual",
    [
        ([0.0, 0, 0, 5, 5, 5], 5.0),  # half of the honest need not move
        ([1.0, 1, 1, 1000], 1.0),  # one of four is hostile
        ([1.0, 1, 1, 1, 1, 1, 900, 1000], 1.0),  # two of eight
        ([1.0, 2, 1000], 2.0),
    ],
)
def test_what_is_usual_is_the_third_quartile(lengths, usual):
    assert third_quartile(tensor(lengths)) == usual


def test_moves_are_measured_from_the_centre_that_was_chosen():
    centres = {"model": {"w": tensor([[0.0], [100.0]])}}
    up = Upload({"model": {"w": tensor([[101.0], [1.0]])}}, tensor([[0.0, 1.0], [1.0, 0.0]]), {})
    assert Clipping(centres).update_norms(up)["model"].tolist() == [1.0, 1.0]


def slow_minority() -> ct.data.Federation:
    """Ten clients of linear regression; three have small inputs, so that they learn slowly."""
    rng = np.random.default_rng(0)
    clients = {}
    for i in range(10):
        size = 1.0 if i < 7 else 0.15
        w = np.array([2.0, -1.0, 0.5]) * (1 if i < 7 else -20)
        x = rng.normal(size=(40, 3)) * size
        clients[f"c{i}"] = (x, x @ w)
    return ct.data.from_memory(clients)


@pytest.mark.parametrize("method", [ct.IFCA(clusters=2, lr=0.1), ct.FedAvg(lr=0.1)])
def test_slower_clients_are_never_shut_out(method):
    fed = slow_minority()
    options = {"model": "linear", "rounds": 60, "eval_every": 60, "dtype": "float64"}
    screened = ct.run(method, fed, **options)
    free = ct.run(method, fed, clip_factor=0, **options)
    assert not any(row["rejected"] or row["clipped"] for row in screened.history)
    pairs = zip(tree_leaves(screened.state), tree_leaves(free.state), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_first_upload_is_screened_too():
    """One of ten sends a thousand times its move in round 1: nobody else notices."""

    def go(change):
        run = prepare_run(
            ct.FedAvg(), federation(), "mlp:12", rounds=2, seed=1, engine="wire", eval_every=50
        )

        def tamper(i, reply):
            return reply if i != 4 or run.round != 0 else change(reply, run)

        run.engine.tamper = tamper
        for _ in run.rounds():
            pass
        return run

    def scaled(reply, run):
        up, _ = decode(reply, run.types)
        values = tree_map(lambda v: v * 1000, up.values)
        return encode(up._replace(values=values), run.types)

    attacked, silent = go(scaled), go(lambda reply, run: b"noise")
    assert attacked.history[1]["rejected"] == [attacked.roster.names[4]]
    pairs = zip(tree_leaves(attacked.state), tree_leaves(silent.state), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_far_client_counts_as_one_ordinary_client():
    """Its move is 30 times the usual: the mean moves as if it were of the usual length."""
    run = prepare_run(
        ct.FedAvg(weighted=False), federation(), "linear", rounds=1, engine="wire", dtype="float64"
    )
    next(run.rounds())
    before = run.state

    def far(i, reply):
        up, _ = decode(reply, run.types)
        if i != 4 or not up.values:
            return reply
        moved = {k: before[k][0] + 30 * (v - before[k][0]) for k, v in up.values["model"].items()}
        return encode(up._replace(values={"model": moved}), run.types)

    run.engine.tamper = far
    row = run.step()
    assert row["clipped"] == [run.roster.names[4]] and row["rejected"] == []
    (usual,) = run.pipeline.screening.typical_norms.values()
    longest = sum(float(((a - b) ** 2).sum()) for a, b in zip(run.state.values(), before.values()))
    assert longest**0.5 < 2 * usual  # ten ordinary moves on average, not four


@pytest.mark.slow
@pytest.mark.parametrize("method", [ct.PFLTC(clusters=4), ct.PDLTC(clusters=4)])
def test_threshold_methods_lose_no_upload(method):
    fed = ct.data.linear("threshold", seed=0)
    result = ct.run(method, fed, rounds=60, eval_every=60)
    assert not any(row["rejected"] or row["clipped"] for row in result.history)


def test_many_clients_are_screened_by_the_first_few():
    """With more clients than are held at first, vectorised, loop and wire still agree."""
    rng = np.random.default_rng(1)
    clients = {}
    for i in range(50):
        x = rng.normal(size=(8, 3))
        clients[f"c{i:02}"] = (x, x @ np.ones(3) * (1000 if i == 7 else 1))
    fed = ct.data.from_memory(clients)
    options = {"model": "linear", "rounds": 3, "dtype": "float64", "eval_every": 3}
    runs = [
        ct.run(ct.FedAvg(), fed, engine=engine, **options)
        for engine in ("vectorised", "loop", "wire")
    ]
    assert all(row["rejected"] == ["c07"] for row in runs[0].history[1:])
    for other in runs[1:]:
        assert [r["rejected"] for r in other.history] == [r["rejected"] for r in runs[0].history]
        for a, b in zip(tree_leaves(other.state), tree_leaves(runs[0].state), strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_what_is_usual_cannot_be_driven_up_by_one_client():
    """One client of ten is heard in each round, and always sends ninety times its move."""
    run = prepare_run(
        ct.FedAvg(),
        federation(),
        "linear",
        rounds=20,
        participation=0.1,
        engine="wire",
        eval_every=50,
    )

    def far(i, reply):
        up, _ = decode(reply, run.types)
        values = tree_map(lambda v: v * 90, up.values)
        return encode(up._replace(values=values), run.types) if i == 4 else reply

    run.engine.tamper = far
    for _ in run.rounds():
        pass
    assert run.pipeline.screening.typical_norms == {}  # of one answer nothing is learnt


def test_what_is_usual_grows_by_steps():
    screening = NormScreening(10.0)
    run = prepare_run(ct.FedAvg(), federation(), "linear", rounds=1)
    ask = run.round_context(1)
    ask.pipeline = Pipeline(screening)
    stack = lambda: ask(run.method.train, shared=run.state, reduce="stack", stream="train")
    stack()
    (kind,) = screening.typical_norms
    usual = screening.typical_norms[kind]
    screening.typical_norms[kind] = usual / 50  # so that every update is 50 times the typical norm
    stack()
    assert screening.typical_norms[kind] == pytest.approx(usual / 5)
    stack()
    assert screening.typical_norms[kind] == pytest.approx(usual)


def test_a_screen_that_would_lengthen_uploads_is_refused():
    with pytest.raises(ct.CoterieError, match="larger than 1"):
        prepare_run(ct.FedAvg(), federation(), "linear", clip_factor=0.5)
