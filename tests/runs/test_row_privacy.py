"""Runs under record-level differential privacy: engines agree, sites keep their budgets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.clustering.losses import choose_privately
from coterie.core.declarations import private_rows_obstacle, row_releases_per_round
from coterie.core.task import RowPrivacy
from coterie.methods.registry import methods
from coterie.optim import dp_sgd
from coterie.privacy.accounting import Gaussian, epsilon
from coterie.privacy.row_budget import ORDERS, RowBudget, RowPlan, noise_for, poisson_steps
from coterie.runs.row_privacy import ROW_LEDGER
from coterie.runs.start import prepare_run
from oracles import federation

PRIVATE: dict[str, Any] = {"dp": "rows", "delta": 1e-3}
RUN = {**PRIVATE, "epsilon": 8.0, "dp_seed": 3, "rounds": 2, "model": "softmax"}


def digits(clients: int = 4, **options: Any) -> ct.data.Federation:
    return ct.data.rotated("digits", clients=clients, samples=20, **options)


# ------------------------------------------------------------------------------ engines
METHODS = [
    ct.FedAvg(lr=0.3, batch=8),
    ct.MRMTL(lr=0.3, batch=8, local_epochs=1),
    ct.Ditto(lr=0.1, local_steps=2),
    ct.LocalOnly(lr=0.1, batch=8, solver="adam"),
    ct.FedProx(lr=0.1, mu=0.5, stragglers=0.5, local_steps=3),
    ct.FedPer(lr=0.1, local_steps=2),
    ct.IFCA(clusters=2, init="random", lr=0.3, batch=8, local_steps=3),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_engines_agree_and_noise_matters(method: ct.Algorithm) -> None:
    fed = digits()
    loop, *others = (
        ct.run(method, fed, engine=engine, dtype="float64", **RUN)
        for engine in ("loop", "vectorised", "wire")
    )
    for other in others:
        assert other.final["loss"] == pytest.approx(loop.final["loss"], rel=1e-9)
        assert other.final["epsilon"] == loop.final["epsilon"]
    assert 7.5 < loop.final["epsilon"] <= 8
    plain = ct.run(method, fed, rounds=2, model="softmax", dtype="float64")
    assert plain.final["loss"] != pytest.approx(loop.final["loss"], rel=1e-3)


def test_no_noise_and_a_large_clip_are_plain_training() -> None:
    fed, method = digits(), ct.FedAvg(lr=0.3, local_steps=3)
    free = ct.run(
        method, fed, model="softmax", rounds=2, noise_multiplier=0.0, dp_clip=1e9, **PRIVATE
    )
    plain = ct.run(method, fed, model="softmax", rounds=2)
    assert free.final["loss"] == pytest.approx(plain.final["loss"], rel=1e-5)
    assert free.final["epsilon"] == math.inf


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_each_function_trains_as_often_as_it_declares(
    method: ct.Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spy on the private solver: calls of one client in one round."""
    calls = []
    actual = dp_sgd.private_steps
    monkeypatch.setattr(
        "coterie.optim.solvers.private_steps", lambda *a: (calls.append(1), actual(*a))[1]
    )
    run = prepare_run(method, digits(), engine="loop", **RUN)
    next(rounds := run.rounds())
    calls.clear()
    next(rounds)
    assert len(calls) == 4 * row_releases_per_round(method)[0]


# ------------------------------------------------------------------------------ accounting
def test_epsilon_is_that_of_dp_accounting_for_the_worst_site() -> None:
    fed = digits().subset([0, 1, 2])
    result = ct.run(
        ct.FedAvg(batch=5, local_steps=4), fed, model="softmax", rounds=3, noise_multiplier=2.0,
        **PRIVATE,
    )  # fmt: skip
    fewest = int(fed.roster.rows.train.min())
    steps = [Gaussian(2.0, 5 / fewest, 12)]
    reference = epsilon(steps, 1e-3, accountant="rdp")
    assert result.final["epsilon"] == pytest.approx(reference, rel=0.02)
    assert result.final["epsilon"] >= epsilon(steps, 1e-3)  # privacy loss distributions are exact
    rows = [row["epsilon"] for row in result.history]
    assert rows[0] == 0 and rows == sorted(rows)


def test_steps_and_rates_are_those_of_the_batches() -> None:
    for rows in (1, 2, 7, 8, 9, 30):
        for how in (
            ct.Local(batch=8, local_steps=3),
            ct.Local(batch=8, local_epochs=2),
            ct.Local(local_steps=3),
            ct.Local(local_epochs=3),
        ):
            batch = ct.Batch.of(torch.zeros(rows, 1), torch.zeros(rows), torch.float32)
            data = ct.Data(
                batch, torch.tensor(0), torch.tensor(0), noise_multiplier=torch.tensor(1.0)
            )
            drawn = data.batches(how)
            rate, steps = poisson_steps(rows, how)
            assert float(drawn.rate) == pytest.approx(rate)
            assert int(drawn.own_steps) == steps <= drawn.steps
            assert float(drawn.expected) == pytest.approx(rate * rows)


def test_choices_cost_alpha_epsilon_squared_over_8() -> None:
    """Only choices: ε = min over α of α·ρ + log(1/δ)/(α − 1), up to a small correction."""
    budget = RowBudget(
        delta=1e-3, noise_multiplier=1.0, rate=0.1, steps=1, choice_epsilon=0.2, epsilon=None
    )
    rho = 50 * 0.2**2 / 8
    bound = min(a * rho + math.log(1000) / (a - 1) for a in ORDERS)
    assert 0.8 * bound < budget.loss(0, 50) <= bound
    assert budget.loss(0, 0) == 0
    assert budget.loss(10, 50) > max(budget.loss(10, 0), budget.loss(0, 50))


def test_the_noise_spends_the_budget_and_no_more() -> None:
    for rate, steps in ((0.1, 100), (1.0, 3), (0.5, 1000)):
        noise = noise_for(4.0, 1e-4, rate, steps, 0.0)
        budget = RowBudget(
            delta=1e-4, noise_multiplier=noise, rate=rate, steps=steps, choice_epsilon=0.1
        )
        assert 3.95 < budget.loss(1) <= 4.0


def test_a_large_site_needs_less_noise() -> None:
    plan = RowPlan(
        epsilon=4.0, delta=1e-4, noise_multiplier=None, choice_epsilon=0.1, trainings=20, choices=0
    )
    how = ct.Local(batch=10, local_steps=5)
    noise = [plan.budget(rows, how).noise_multiplier for rows in (10, 100, 1000)]
    assert noise[0] > noise[1] > noise[2]


# ------------------------------------------------------------------------------ budgets
def small_and_large() -> ct.data.Federation:
    """Two sites of 24 rows and two of 12, whose rates are twice as high."""
    draw = np.random.default_rng(0)
    rows = [
        (torch.tensor(draw.normal(size=(n, 3))), torch.tensor(draw.normal(size=n)))
        for n in (24, 12, 24, 12)
    ]
    return federation(rows, names=["ash", "oak", "elm", "yew"])


BUDGET = {**PRIVATE, "epsilon": 3.0, "noise_multiplier": 2.0, "rounds": 40, "model": "linear"}


@pytest.mark.parametrize("engine", ["loop", "vectorised", "wire"])
def test_a_site_stops_before_its_budget_is_exceeded(engine: str) -> None:
    method = ct.FedAvg(batch=6, local_steps=2, lr=0.01)
    run = prepare_run(method, small_and_large(), engine=engine, **BUDGET)
    for _ in run.rounds():
        pass
    assert run.row_ledger is not None
    losses = run.row_ledger.site_losses()
    assert all(2 < loss <= 3 for loss in losses)
    assert run.stopped and run.round < 40
    trained = dict(zip(run.roster.names, run.row_ledger.trainings.tolist()))
    assert trained["oak"] == trained["yew"] < trained["ash"] == trained["elm"] == run.round


def test_a_site_refuses_what_its_budget_does_not_afford() -> None:
    """A server that does not count: the sites of the engine wire refuse."""
    method = ct.FedAvg(batch=6, local_steps=2, lr=0.01)
    run = prepare_run(method, small_and_large(), engine="wire", **BUDGET)
    assert run.row_ledger is not None
    run.row_ledger.affordable = lambda ids: torch.ones(len(ids), dtype=torch.bool)  # type: ignore[method-assign]
    rounds = run.rounds()
    absent = 0
    for _ in range(25):
        absent = len(next(rounds)["rejected"])
        if absent:
            break
    sites = run.engine.sites  # type: ignore[attr-defined]
    small = sites[run.roster.names.index("oak")]
    assert absent == 2
    assert small.budget.loss(small.trainings) <= 3 < small.budget.loss(small.trainings + 1)


def test_resume_continues_the_ledger(tmp_path: Path) -> None:
    method, fed = ct.FedAvg(batch=6, local_steps=2, lr=0.01), small_and_large()
    options = {**BUDGET, "rounds": 6, "epsilon": 9.0}
    whole = ct.run(method, fed, out=tmp_path / "whole", **options)
    run = prepare_run(method, fed, out=tmp_path / "part", **options)
    for row in run.rounds():
        assert run.folder is not None
        if row["round"] == 0:
            run.row_ledger.open(run.folder.path)  # type: ignore[union-attr]
        run.folder.append(row)
        run.save(always=True)
        if row["round"] == 3:
            break
    del run
    resumed = ct.resume(tmp_path / "part", fed)
    assert resumed.final["epsilon"] == pytest.approx(whole.final["epsilon"])
    lines = (tmp_path / "part" / ROW_LEDGER).read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert entries[0]["unit"] == "rows" and entries[0]["is_private"]
    assert [e["round"] for e in entries[1:]] == [1, 2, 3, 4, 5, 6]
    assert all(e["trainings"] == 1 and len(e["sites"]) == 4 for e in entries[1:])


def test_a_damaged_ledger_is_refused(tmp_path: Path) -> None:
    method, fed = ct.FedAvg(batch=6, local_steps=2, lr=0.01), small_and_large()
    ct.run(method, fed, out=tmp_path / "run", **{**BUDGET, "rounds": 2})
    (tmp_path / "run" / ROW_LEDGER).write_text("{}\n")
    with pytest.raises(ct.CoterieError, match="the privacy loss so far is not known"):
        ct.resume(tmp_path / "run", fed, rounds=4)


# ------------------------------------------------------------------------------ choices
def test_choices_are_an_exponential_mechanism_on_error_rates() -> None:
    """P(j) ∝ exp(−ε_s·m_j/(2Δ)), by 4,000 choices among three centres."""
    x = torch.eye(2).repeat(10, 1)  # 20 rows
    task = ct.Task(lambda: torch.nn.Linear(2, 2, bias=False), "classification", x, 2)
    y = torch.tensor([0, 1] * 10)
    y[:3] = 1 - y[:3]  # errors: 3 of 20 with the identity, 17 with its opposite
    right, wrong = torch.eye(2), -torch.eye(2)
    centres = [{"weight": w} for w in (right, wrong, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))]
    privacy = RowPrivacy(1.0, torch.ones(1), seed=None, choice_epsilon=0.3)
    task = task.with_row_privacy(privacy)
    batch = ct.Batch.of(x, y, torch.float32)
    n = 4000
    ones = torch.ones(n)
    keys = torch.arange(n)
    data = ct.Data(
        batch.map_rows(lambda v: v.expand(n, *v.shape)), keys, keys, noise_multiplier=ones
    )
    chosen = torch.func.vmap(lambda d: choose_privately(task, centres, d).centre)(data)
    shares = torch.bincount(chosen, minlength=3) / n
    errors = torch.tensor([3 / 20, 17 / 20, float((y == 1).sum()) / 20])
    expected = torch.softmax(-0.3 * errors * 19 / 2, 0)
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.035)


# ------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    "method, options, message",
    [
        (ct.FineTuned(), {}, r"fedavg-ft cannot run with dp=rows, because model\(\) trains"),
        (ct.IFCA(clusters=2), {}, r"ifca cannot run with dp=rows, because first_update\(\)"),
        (ct.PFedMe(), {}, r"pfedme cannot run with dp=rows, because train\(\) uses rows"),
        (ct.FedAvg(clip=1.0), {}, "leave out clip and accumulate"),
        (ct.FedAvg(), {"delta": None}, "dp=rows needs delta"),
        (ct.FedAvg(), {"epsilon": None}, "and epsilon or noise_multiplier"),
        (ct.FedAvg(), {"epsilon": 0.0}, "epsilon is 0.0: it must be > 0"),
        (ct.FedAvg(), {"delta": 1.0}, "delta is 1.0: it must be < 1"),
        (ct.FedAvg(), {"dp": "people"}, "dp is 'people': it must be one of"),
        (ct.FedAvg(), {"noise_multiplier": -1.0}, "noise_multiplier is -1.0: it must be ≥ 0"),
        (ct.FedAvg(), {"dp_clip": 0.0}, "dp_clip is 0.0: it must be > 0"),
        (ct.FedAvg(), {"choose_on": "test"}, "choose_on=test uses test rows"),
        (
            ct.IFCA(clusters=2, init="random"),
            {"dp_choice_epsilon": 5.0},
            "its choices of clusters alone exceed it",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    method: ct.Algorithm, options: dict[str, Any], message: str
) -> None:
    given = {**PRIVATE, "epsilon": 4.0, "rounds": 3, **options}
    with pytest.raises(ct.CoterieError, match=message) as caught:
        ct.run(method, digits(), "softmax", **given)
    assert "\n" not in str(caught.value)


def test_a_choice_by_error_rate_needs_classes() -> None:
    with pytest.raises(ct.CoterieError, match="numbers have none"):
        ct.run(
            ct.IFCA(clusters=2, init="random"),
            small_and_large(),
            "linear",
            rounds=1,
            epsilon=4.0,
            **PRIVATE,
        )


def test_unseen_clients_and_a_start_are_refused() -> None:
    with pytest.raises(ct.CoterieError, match="leave out unseen"):
        ct.run(ct.FedAvg(), digits(unseen=1), **RUN)
    fed = digits()
    first = ct.run(ct.FedAvg(), fed, "softmax", rounds=1)
    with pytest.raises(ct.CoterieError, match="leave out start with dp"):
        ct.run(ct.FedAvg(), fed, start=first, **RUN)


def test_every_other_method_is_refused_or_private() -> None:
    """A method without declarations never runs without noise."""
    private = {name for name, cls in methods().items() if _is_private(cls)}
    assert private == {"fedavg", "fedprox", "ditto", "mr-mtl", "local", "fedper", "fedbn"}


def _is_private(cls: Any) -> bool:
    try:
        method = cls()
    except TypeError:  # a required setting
        return False
    return private_rows_obstacle(method) is None
