"""A hostile client's weights and reports are refused by every method, and change nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import coterie as ct
from cases import federation
from coterie.core.contract import (
    Direction,
    Finite,
    Fraction,
    Index,
    Losses,
    MixtureShares,
    OneHot,
    RowCount,
    SentWeight,
    Upload,
    UploadContext,
    Weight,
)
from coterie.engines.codec import decode, encode
from coterie.runs.run import Run
from coterie.runs.start import prepare_run

HOSTILE = 4
Change = Callable[[Upload], Upload | None]  # None: this upload stays as it is


# ------------------------------------------------------------------------------ hostile clients
def with_weight(factor: float) -> Change:
    def change(up: Upload) -> Upload | None:
        if not up.values:
            return None
        return up._replace(weight=tree_map(lambda v: v * factor, up.weight))

    return change


def with_report(name: str, number: float) -> Change:
    def change(up: Upload) -> Upload | None:
        if name not in up.report:
            return None
        return up._replace(report={**up.report, name: torch.full_like(up.report[name], number)})

    return change


def for_the_other_group(up: Upload) -> Upload | None:
    if isinstance(up.weight, dict) or up.weight.numel() != 2:
        return None
    return up._replace(weight=up.weight.flip(-1))


def go(method, change: Change, readable: bool, **options) -> Run:
    """A run in which one client changes its uploads; or sends noise in the same exchanges."""
    options = {"rounds": 2, "seed": 1, "dtype": "float64", "engine": "wire", **options}
    run = prepare_run(method, federation(), "mlp:12", eval_every=50, **options)

    def tamper(i: int, reply: bytes) -> bytes:
        if i != HOSTILE:
            return reply
        changed = change(decode(reply, run.types)[0])
        if changed is None:
            return reply
        return encode(changed, run.types) if readable else b"noise"

    run.engine.tamper = tamper
    for _ in run.rounds():
        pass
    return run


CASES = {
    "a weight of a million": (ct.FedAvg(), with_weight(1e6)),
    "a negative weight": (ct.FedAvg(), with_weight(-1)),
    "rows that it does not have": (ct.FedAvg(), with_weight(1.5)),
    "a million votes": (ct.IFCA(clusters=2), with_weight(1e6)),
    "a negative vote": (ct.IFCA(clusters=2), with_weight(-1)),
    "a centre that does not exist": (ct.IFCA(clusters=2), with_report("cluster", 10**12)),
    "a centre below 0": (ct.IFCA(clusters=2), with_report("cluster", -3)),
    "negative losses": (ct.IFCA(clusters=2), with_report("losses", -1.0)),
    "an infinite sketch": (ct.IFCA(clusters=2), with_report("sketch", torch.inf)),
    "a huge sketch": (ct.IFCA(clusters=2), with_report("sketch", 1e30)),
    "momentum with a huge weight": (ct.CFLMGD(clusters=2), with_weight(1e6)),
    "shares of 1 of every centre": (ct.FedSoft(clusters=2), with_report("u", 1.0)),
    "a billion rows": (ct.FedSoft(clusters=2), with_report("size", 1e9)),
    "another weight than was sent": (ct.FedSoft(clusters=2), with_weight(100.0)),
    "a share above 1": (ct.FedEM(clusters=2), with_report("share", 5.0)),
    "rows for the choice of K": (ct.CGPFL(clusters=2), with_report("rows", 1e9)),
    "another group than its own": (ct.OneShot(clusters=2), for_the_other_group),
    "an own share beyond 1": (ct.APFL(), with_report("alpha", 3.0)),
}


ALWAYS = ("a weight of a million", "a negative vote", "a huge sketch", "a billion rows")
SOME_SLOW = [c if c in ALWAYS else pytest.param(c, marks=pytest.mark.slow) for c in CASES]


@pytest.mark.parametrize("case", SOME_SLOW)
def test_a_false_weight_or_report_is_as_good_as_silence(case):
    method, change = CASES[case]
    run = go(method, change, readable=True)
    hostile = run.roster.names[HOSTILE]
    assert any(hostile in row["rejected"] for row in run.history)
    assert all(set(row["rejected"]) <= {hostile} for row in run.history)
    silent = go(method, change, readable=False)
    same = zip(tree_leaves(run.state), tree_leaves(silent.state), strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def test_a_group_that_does_not_exist_is_refused():
    """A client that missed the clustering is placed later, and names a group of its own making."""
    run = prepare_run(
        ct.OneShot(clusters=2), federation(), "mlp:12", rounds=2, engine="wire", eval_every=50
    )

    def tamper(i: int, reply: bytes) -> bytes:
        up, _ = decode(reply, run.types)
        if i == HOSTILE and "group" in up.report:
            up.report["group"].fill_(99)
            return encode(up, run.types)
        if i == HOSTILE and run.round < 0:
            return b"lost"
        return reply

    run.engine.tamper = tamper
    rows = list(run.rounds())
    assert rows[1]["rejected"] == [run.roster.names[HOSTILE]]
    assert int(run.state.group[HOSTILE]) == -1


def test_a_false_loss_cannot_stop_a_run_early():
    run = prepare_run(
        ct.FedAvg(),
        federation(),
        "mlp:12",
        rounds=4,
        eval_every=1,
        valid=0.3,
        stop_after=1,
        engine="wire",
    )

    def tamper(i: int, reply: bytes) -> bytes:
        up, _ = decode(reply, run.types)
        if i == HOSTILE and "loss" in up.report:
            up.report["loss"].fill_(-torch.inf)
            return encode(up, run.types)
        return reply

    run.engine.tamper = tamper
    rows = list(run.rounds())
    assert run.round == 4 and all(0 <= row["valid_loss"] < 1e3 for row in rows)


# ------------------------------------------------------------------------------ kinds by hand
def known(**more) -> UploadContext:
    sent = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    rows = torch.tensor([4.0, 10.0], dtype=torch.float64)
    return UploadContext(rows=rows, centres=2, sent=lambda place: sent, method=more.get("method"))


class Settings:
    weighted = True
    floor = 0.1


@pytest.mark.parametrize(
    "kind, first, second, holds",
    [
        (Weight(), [1.0], [1.1], [True, False]),
        (Weight(rows=True), [4.0], [4.0], [True, False]),
        (Weight(rows="weighted"), [4.0], [10.0], [True, True]),
        (OneHot(), [0.0, 1.0], [0.5, 0.5], [True, False]),
        (OneHot(), [2.0, -1.0], [1.0, 0.0], [False, True]),
        (SentWeight(place=0), [0.0, 1.0], [0.0, 1.0], [True, False]),
        (SentWeight(place=0, rows=True), [0.0, 4.0], [10.0, 0.0], [True, True]),
        (SentWeight(place=0), [1.0], [2.0], [True, False]),
        (Index(), [1], [2], [True, False]),
        (Index(), [-1], [0], [False, True]),
        (Losses(), [0.0, torch.inf], [-0.1, 1.0], [True, False]),
        (Finite(minimum=0), [0.0], [torch.inf], [True, False]),
        (Fraction(), [0.5], [-0.1], [True, False]),
        (MixtureShares(), [0.3, 0.7], [0.9, 0.9], [True, False]),
        (MixtureShares(floor="floor"), [0.1, 1.0], [1.0, 0.4], [True, False]),
        (Direction(), [0.6, 0.8], [1.0, 1.0], [True, False]),
        (RowCount(), [1.0, 3.0], [10.0, 1.0], [True, False]),
    ],
)
def test_what_may_be_sent_by_hand(kind, first, second, holds):
    values = torch.tensor([first, second])
    assert kind.is_valid(values, known(method=Settings())).tolist() == holds
