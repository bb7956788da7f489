"""Uploads whose first layer is a `LowRankUpdate` fold as if it were written out."""

from __future__ import annotations

import pytest
import torch
from torch import tensor
from torch.utils._pytree import tree_leaves

import coterie as ct
from cases import federation
from coterie.aggregation import aggregator as aggregator_module
from coterie.aggregation.aggregator import Aggregator, RobustRule
from coterie.aggregation.clipping import Clipping, NormLimit
from coterie.core.contract import Upload
from coterie.optim.low_rank import LowRankUpdate
from coterie.runs.start import prepare_run

CENTRES = {"model": {"w": torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))}}
LIKE = Upload({"model": {"w": torch.zeros(3, 5)}}, torch.zeros(2), {})
WEIGHTS = tensor([[1.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.0, 1.0]])


def answers(*, long: int | None = None, spoilt: int | None = None) -> tuple[Upload, Upload]:
    """Four clients' answers, once as moves and once written out."""
    g = torch.Generator().manual_seed(1)
    sums, rows = torch.randn(4, 6, 3, generator=g), torch.randn(4, 6, 5, generator=g)
    if long is not None:
        sums[long] *= 8
    if spoilt is not None:
        sums[spoilt, 0, 0] = torch.nan
    moves = sums.mT @ rows
    move = LowRankUpdate(sums, rows, moves.square().sum((1, 2)))
    starts = CENTRES["model"]["w"][WEIGHTS.argmax(1)]
    of = lambda w: Upload({"model": {"w": w}}, WEIGHTS, {})
    return of(move), of(starts - moves)


def folded(up: Upload, limits: dict[str, NormLimit] | None = None):
    aggregator = Aggregator("sum", LIKE, 4, clipping=Clipping(CENTRES, limits))
    return aggregator.finish(aggregator.add(torch.arange(4), up))


@pytest.mark.parametrize("change", [{}, {"long": 1}, {"spoilt": 2}, {"long": 3, "spoilt": 0}])
def test_a_fold_of_moves_is_that_of_models(change):
    limits = {"model": NormLimit(typical=15.0, factor=3.0)}
    moves, models = (folded(up, limits) for up in answers(**change))
    torch.testing.assert_close(moves.totals, models.totals, rtol=1e-5, atol=1e-4)
    assert moves.accepted.tolist() == models.accepted.tolist()
    assert moves.rejected == models.rejected
    assert moves.clipped == models.clipped
    assert moves.bytes_up == models.bytes_up
    torch.testing.assert_close(moves.norms, models.norms, rtol=1e-4, atol=1e-4)
    assert len(moves.clipped) == ("long" in change)
    assert len(moves.rejected) == ("spoilt" in change)


def test_a_move_of_another_shape_is_refused():
    up, _ = answers()
    move = up.values["model"]["w"]
    wrong = up._replace(values={"model": {"w": move._replace(rows=move.rows[..., :4])}})
    assert len(folded(wrong).rejected) == 4


@pytest.mark.parametrize(
    "aggregator, takes",
    [
        (Aggregator("sum", LIKE, 4, clipping=Clipping(CENTRES)), True),
        (Aggregator("sum", LIKE, 4), False),  # nobody knows where the models began
        (Aggregator("stack", LIKE, 4, clipping=Clipping(CENTRES)), False),
        (
            Aggregator(
                "sum", LIKE, 4, clipping=Clipping(CENTRES), robust=RobustRule("median", 0.2)
            ),
            False,
        ),
    ],
)
def test_who_takes_moves(aggregator, takes):
    assert aggregator.accepts_low_rank is takes


@pytest.mark.parametrize(
    "method",
    [
        ct.FedAvg(lr=0.1),
        ct.FedAvg(lr=0.1, local_epochs=2, batch=5),
        ct.FedProx(lr=0.1, mu=0.3, stragglers=0.5),
        ct.Ditto(lr=0.1),
        ct.FedEM(clusters=2, lr=0.1),
        ct.IFCA(clusters=2, lr=0.1, init="random"),
        ct.IFCA(clusters=2, lr=0.1, init="random", weighted=True, share=("1",)),
    ],
)
def test_runs_take_moves_and_equal_the_loop(method, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(1)
        return sum_low_rank(*arguments)

    sum_low_rank = aggregator_module.sum_low_rank
    monkeypatch.setattr(aggregator_module, "sum_low_rank", counted)

    def go(**options):
        run = prepare_run(
            method, federation(), "mlp:40", rounds=3, seed=1, dtype="float64", eval_every=3,
            **options,
        )  # fmt: skip
        for _ in run.rounds():
            pass
        return run

    fast = go(plan=ct.Plan(True, 4, 2))
    assert calls
    calls.clear()
    loop = go(engine="loop")
    assert not calls
    pairs = zip(tree_leaves(fast.state), tree_leaves(loop.state), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
