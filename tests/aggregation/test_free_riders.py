"""Free riders are found by hand-solved norms, and named in runs; honest clients never are."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import tensor
from torch.utils._pytree import tree_leaves

import coterie as ct
from cases import federation
from coterie.aggregation.aggregator import Aggregator
from coterie.aggregation.clipping import Clipping
from coterie.aggregation.exchange import Exchange
from coterie.aggregation.free_riders import SENT_BACK, FreeRiderWatch, find_unchanged
from coterie.aggregation.norm_screening import NormScreening, value_key
from coterie.core.contract import Upload
from coterie.runs.start import prepare_run

CENTRES = {"model": {"w": tensor([[0.0, 0.0], [3.0, 4.0]])}}  # 5 apart
SMALL = {"model": "mlp:12", "dtype": "float64", "seed": 1, "eval_every": 4, "rounds": 4}
RIDERS = {"attack": "free-ride", "attackers": 2}


# ------------------------------------------------------------------------------ by hand
@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([1.0, 1.0, 1.0, 0.0], [False, False, False, True]),
        ([1.0, 1.0, 1.0, 0.0009], [False, False, False, True]),  # with a little noise
        ([1.0, 1.0, 1.0, 0.002], [False] * 4),
        ([1.0, 1.0, 1.0, 5.0], [False, False, False, True]),  # the distance of the other centre
        ([1.0, 1.0, 1.0, 5.001], [False] * 4),
        ([0.0, 0.0, 0.0, 0.0], [False] * 4),  # all have converged
        ([0.0, 0.0, 0.0, 1.0], [False] * 4),  # the third quartile has: nothing is typical
        ([1.0, 1.0, 0.0, 0.0], [False, False, True, True]),  # half of the cluster
        ([1.0, 0.0], [False] * 2),  # too few for a typical norm
    ],
)
def test_unchanged_uploads_by_hand(norms, expected):
    cluster = torch.zeros(len(norms), dtype=torch.long)
    assert find_unchanged(tensor(norms).double(), cluster, CENTRES).tolist() == expected


def test_a_converged_cluster_beside_one_that_learns_names_nobody():
    norms = tensor([1.0, 1.0, 1.0, 1e-9, 2e-9, 1e-9], dtype=torch.float64)
    cluster = tensor([0, 0, 0, 1, 1, 1])
    assert not find_unchanged(norms, cluster, CENTRES).any()


def test_steps_that_rounding_can_hide_name_nobody():
    """In float32, an update of 1e-8 of a model of norm 5 may vanish: some clients show none."""
    norms = tensor([1e-6, 1e-6, 1e-6, 0.0], dtype=torch.float64)
    cluster = torch.ones(4, dtype=torch.long)
    assert not find_unchanged(norms, cluster, CENTRES).any()
    exact = {"model": {"w": CENTRES["model"]["w"].double()}}
    assert find_unchanged(norms, cluster, exact).tolist() == [False, False, False, True]


def collect(rows: list[list[float]], chosen: list[int]):
    """The stacked aggregate of these uploads."""
    updates = Upload({"model": {"w": tensor(rows)}}, torch.eye(2)[chosen], {})
    template = Upload({"model": {"w": torch.zeros(2)}}, torch.zeros(2), {})
    aggregator = Aggregator("stack", template, len(rows), clipping=Clipping(CENTRES))
    return aggregator.finish(aggregator.add(torch.arange(len(rows)), updates))


def exchange_with(ids: torch.Tensor) -> Exchange:
    """An exchange with these clients, who were sent CENTRES."""
    call: Any = SimpleNamespace(ids=ids, path="method", name="train", static={})
    template = Upload({"model": {"w": torch.zeros(2)}}, torch.zeros(2), {})
    return Exchange(call, None, template, "sum", CENTRES, rng=None, num_clients=len(ids))


def test_a_client_is_rejected_from_its_second_unchanged_upload_until_it_trains():
    exchange = exchange_with(tensor([10, 11, 12, 13]))
    train = [[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    watch = FreeRiderWatch(NormScreening(10.0, {value_key(exchange.call, "model"): 1.0}))

    def reject(stacked):
        return watch.together(exchange, watch.needs(exchange), stacked)

    sends_other_centre = collect([*train, [3.0, 4.0]], [0, 0, 0, 0])
    assert reject(sends_other_centre) is sends_other_centre
    watch.after(exchange, sends_other_centre)
    assert watch.suspects.tolist() == [13]

    result = reject(sends_other_centre)
    assert result.rejected == [(3, SENT_BACK)] and result.accepted.tolist() == [0, 1, 2]
    assert torch.equal(result.updates.values["model"]["w"], tensor(train))
    watch.after(exchange, result)
    assert watch.suspects.tolist() == [13]  # rejected, so nothing new is known

    same_norm = collect([*train, [-5.0, 0.0]], [0, 0, 0, 0])  # as far, elsewhere
    assert reject(same_norm).rejected == []
    watch.after(exchange, reject(collect([*train, [-1.0, 0.0]], [0, 0, 0, 0])))
    assert watch.suspects.tolist() == []


def test_an_exchange_in_which_only_free_riders_answer_changes_nothing():
    """Their buffered uploads are all rejected; reports without a row must not break the checks."""
    run = prepare_run(ct.IFCA(clusters=2), federation(), **SMALL, **RIDERS)
    run.step()
    before = run.state.centres
    ask = run.round_context(1)
    sums = run.method.train_all(before, ask, run.pipeline.free_riders.suspects)
    assert len(sums.ids) == 0 and len(ask.free_riders) == 2
    assert equal(run.method.update_centres(before, sums, 10), before)


# ------------------------------------------------------------------------------ in runs
def equal(a, b) -> bool:
    return all(torch.equal(u, v) for u, v in zip(tree_leaves(a), tree_leaves(b), strict=True))


@pytest.mark.parametrize("rule", ["mean", "trimmed"])
def test_free_riders_are_named_and_left_out_on_every_engine(rule):
    options = {**SMALL, **RIDERS, "robust": rule, "dropout": 0.1}
    method = ct.IFCA(clusters=2)
    runs = {
        e: ct.run(method, federation(), engine=e, **options) for e in ("loop", "wire", "vectorised")
    }
    loop = runs["loop"]
    assert equal(loop.state, runs["wire"].state)
    torch.testing.assert_close(loop.state.centres, runs["vectorised"].state.centres)
    named = [row["free_riders"] for row in loop.history]
    for run in runs.values():
        assert [row["free_riders"] for row in run.history] == named
    (warning,) = [w for w in loop.warnings if "unchanged" in w]
    attackers = prepare_run(method, federation(), **options).pipeline.attack.attackers
    names = sorted(loop.names[i] for i in attackers)
    assert sorted({name for row in named for name in row}) == names
    assert (
        warning.startswith("2 clients sent back models unchanged") and ", ".join(names) in warning
    )


@pytest.mark.parametrize("method", [ct.IFCA(clusters=2), ct.FedAvg(), ct.FedAvg(lr=1e-12)])
def test_in_honest_runs_nobody_is_suspect(method):
    """Only suspects are buffered, so nothing else changes."""
    run = prepare_run(method, federation(), **{**SMALL, "dtype": "float32"})
    for row in run.rounds():
        assert row["free_riders"] == [] and len(run.pipeline.free_riders.suspects) == 0


def test_resume_with_free_riders_is_exact(tmp_path):
    options = {**SMALL, **RIDERS}
    straight = ct.run(ct.IFCA(clusters=2), federation(), **options)
    run = prepare_run(ct.IFCA(clusters=2), federation(), **options, out=tmp_path / "run")
    run.step()
    assert len(run.pipeline.free_riders.suspects) == 2
    with run.folder.log_file():
        run.folder.rewind(run.history, 4)
        run.save(always=True)
    resumed = ct.resume(tmp_path / "run", federation(), "mlp:12")
    assert equal(resumed.state, straight.state)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(json.loads(lines[-1])["free_riders"]) == 2


def test_eight_free_riders_of_forty_cost_ifca_little():
    """Without the check, accuracy falls by more than ten points after five rounds."""
    fed = ct.data.rotated("digits", clients=40, seed=0)
    options = {"rounds": 5, "eval_every": 5}
    accuracy = {
        clip_factor: ct.run(
            ct.IFCA(clusters=4),
            fed,
            clip_factor=clip_factor,
            attack="free-ride",
            attackers=8,
            **options,
        ).final["accuracy"]
        for clip_factor in (0.0, 10.0)
    }
    clean = ct.run(ct.IFCA(clusters=4), fed, **options).final["accuracy"]
    assert accuracy[10.0] > clean - 0.03
    assert accuracy[0.0] < clean - 0.05
