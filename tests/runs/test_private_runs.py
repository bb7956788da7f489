"""Runs under client-level differential privacy: an oracle, engines, ledger, budget and errors."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import coterie as ct
from cases import federation
from coterie.aggregation.private_sums import NoiseSource
from coterie.core.declarations import private_obstacle
from coterie.core.errors import CoterieWarning
from coterie.privacy.accounting import Gaussian, epsilon
from coterie.privacy.ledger import LEDGER
from coterie.runs.load import load_run
from coterie.runs.start import prepare_run

PRIVATE = {
    "model": "softmax",
    "rounds": 3,
    "seed": 1,
    "participation": 0.6,
    "dp": "clients",
    "delta": 1e-2,
    "noise_multiplier": 2.0,
    "dp_clip": 0.5,
    "dp_seed": 5,
}
METHODS = {
    "fedavg": ct.FedAvg(),
    "fedavg-ft": ct.FineTuned(finetune=2),
    "fedprox": ct.FedProx(),
    "ditto": ct.Ditto(),
    "pfedme": ct.PFedMe(),
    "perfedavg": ct.PerFedAvg(),
    "fedper": ct.FedPer(),
    "apfl": ct.APFL(),
    "ifca": ct.IFCA(clusters=2, init="random"),
    "ifca-weighted": ct.IFCA(clusters=2, init="random", weighted=True),
    "ifca-gradients": ct.IFCA(clusters=2, init="random", average="gradients"),
    "cfl-mgd": ct.CFLMGD(clusters=2, init="random"),
    "fedem": ct.FedEM(clusters=2),
}


@pytest.fixture(autouse=True)
def _few_clients():
    """Small federations have a δ above 1/N."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="delta is", category=CoterieWarning)
        yield


def use(run):
    return run.method.use(run.state)[0]


def ledger_of(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / LEDGER).read_text().splitlines()]


def test_fedavg_is_dp_fedavg_in_numpy():
    """McMahan et al. 2018: clip, add, noise with z·C, divide by q·N; the same noise draws."""
    fed = ct.data.linear(clients=9, samples=12, dim=3, clusters=1, seed=4)
    options = {**PRIVATE, "model": "linear"}
    lr, steps, clip, z, q = 0.05, 4, 0.5, 2.0, 0.6
    run = prepare_run(ct.FedAvg(lr=lr, local_steps=steps, l2=0.0), fed, **options, dtype="float64")
    start = {k: v[0].double().numpy().copy() for k, v in run.state.items()}
    run.train()
    noise = NoiseSource(5)
    names = run.roster.names
    order = sorted(range(9), key=names.__getitem__)
    w = start
    for r in range(1, 4):
        drawn = noise.uniform(9, "participants", r) < q
        total = {k: np.zeros_like(v) for k, v in w.items()}
        for i in (client for client, is_in in zip(order, drawn) if is_in):
            update = train_linear(w, *rows_of(fed, i), lr, steps)
            norm = math.sqrt(sum((u**2).sum() for u in update.values()))
            for k in total:
                total[k] += update[k] * min(1, clip / norm)
        for k in total:
            drawn_noise = noise.normal(total[k].size, r, "train", 1, "model", k)
            total[k] += z * clip * drawn_noise.reshape(total[k].shape)
        w = {k: w[k] + total[k] / (q * 9) for k in w}
    for k in w:
        np.testing.assert_allclose(run.state[k][0].numpy(), w[k], atol=1e-5)


def rows_of(fed, i):
    x, y = fed.train.client(i)
    return x.double().numpy(), y.double().numpy()


def train_linear(w, x, y, lr, steps):
    """The update of full-batch gradient steps on the mean squared error."""
    weight, bias = sorted(w.values(), key=lambda v: -v.ndim)
    a, b = weight.copy(), bias.copy()
    for _ in range(steps):
        residual = x @ a[0] + b[0] - y
        a, b = a - lr * 2 * (residual @ x / len(y))[None], b - lr * 2 * residual.mean()
    return {k: (a - weight if v.ndim == 2 else b - bias) for k, v in w.items()}


@pytest.mark.parametrize("name", METHODS)
def test_loop_and_wire_agree_to_the_bit_and_vectorised_to_rounding(name):
    loop, wire, fast = (
        prepare_run(METHODS[name], federation(), **PRIVATE, engine=engine).train()
        for engine in ("loop", "wire", "vectorised")
    )
    for a, b, c in zip(tree_leaves(use(loop)), tree_leaves(use(wire)), tree_leaves(use(fast))):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, atol=2e-4, rtol=1e-3)
    assert loop.history[-1]["epsilon"] == fast.history[-1]["epsilon"] > 0
    assert loop.groups() is None and loop.client_scores == {}


def test_participants_are_a_poisson_sample_of_the_operating_system():
    run = prepare_run(ct.FedAvg(), federation(), **PRIVATE | {"dp_seed": None, "rounds": 1})
    sizes = [len(run.participants(r)) for r in range(400)]
    n, q = len(run.roster), 0.6
    assert np.mean(sizes) == pytest.approx(q * n, abs=5 * math.sqrt(q * (1 - q) * n / 400))
    assert np.var(sizes) == pytest.approx(q * (1 - q) * n, rel=0.4)  # 0 for a fixed number
    assert torch.equal(run.participants(400), run.participants(400))  # one draw per round


def test_an_empty_sample_releases_noise_alone():
    run = prepare_run(ct.FedAvg(), federation(), **PRIVATE | {"participation": 0.001, "rounds": 1})
    before = {k: v.clone() for k, v in run.state.items()}
    run.train()
    assert len(run.participants(1)) == 0
    assert all(not torch.equal(run.state[k], v) for k, v in before.items())


def test_the_ledger(tmp_path):
    run = prepare_run(
        ct.IFCA(clusters=2, init="random"),
        federation(),
        **PRIVATE | {"dp_clip": "auto"},
        out=tmp_path / "run",
    ).train()
    first, *rest = ledger_of(tmp_path / "run")
    assert first["unit"] == "clients" and first["adjacency"] == "one of the clients more or less"
    assert first["is_private"] is False  # because of the seed
    assert first["trusted"] == "the server, which sees updates and adds the noise"
    assert first["accountant"].startswith("dp-accounting 0.")
    assert "simulation only" in first["evaluation"]
    exchanges = [entry for entry in rest if "function" in entry]
    assert [(e["round"], e["function"], e["noise_multiplier"]) for e in exchanges] == [
        (r, "train_own", 2.0) for r in (1, 2, 3)
    ]
    expected = [0.0] + [epsilon([Gaussian(2.0, 0.6, t)], 1e-2) for t in (1, 2, 3)]
    assert [e["epsilon"] for e in rest if "epsilon" in e] == pytest.approx(expected)
    assert [row["epsilon"] for row in run.history] == pytest.approx(expected)


def test_exchanges_of_one_round_share_a_sample_and_a_budget():
    """L2SGD may ask local_steps + 1 times: each has √m times the noise, m of them cost z."""
    run = prepare_run(ct.L2SGD(local_steps=3, p=0.5), federation(), **PRIVATE).train()
    used = {}
    for line in run.ledger.lines[1:]:
        entry = json.loads(line)
        if "function" in entry:
            assert entry["noise_multiplier"] == pytest.approx(2.0 * math.sqrt(4))
            used[entry["round"]] = used.get(entry["round"], 0) + 1
    assert used
    for r, count in used.items():
        assert run.ledger.spent[0, r] == pytest.approx(count / 16)


@pytest.mark.parametrize("clip", ["auto", 0.5])
def test_a_resumed_run_is_the_whole_run_to_the_bit(tmp_path, clip):
    options = PRIVATE | {"dp_clip": clip}
    method = ct.IFCA(clusters=2, init="random")
    whole = prepare_run(method, federation(), **options).train()
    prepare_run(method, federation(), **options | {"rounds": 1}, out=tmp_path / "run").train()
    resumed = load_run(tmp_path / "run", federation(), rounds=3).train()
    for a, b in zip(tree_leaves(use(whole)), tree_leaves(use(resumed)), strict=True):
        assert torch.equal(a, b)
    assert resumed.history[-1]["epsilon"] == whole.history[-1]["epsilon"]
    assert resumed.pipeline.private.clip == whole.pipeline.private.clip


@pytest.mark.parametrize("damage", ["delete", "shorten", "change", "loosen"])
def test_a_tampered_ledger_is_refused(tmp_path, damage):
    folder = tmp_path / "run"
    prepare_run(ct.FedAvg(), federation(), **PRIVATE, out=folder).train()
    file = folder / LEDGER
    lines = file.read_text().splitlines(keepends=True)
    if damage == "delete":
        file.unlink()
    elif damage == "shorten":
        file.write_text("".join(lines[:-2]))
    elif damage == "change":
        file.write_text(
            "".join(lines).replace('"noise_multiplier": 2.0', '"noise_multiplier": 9.0')
        )
    else:
        file.write_text("".join(lines).replace('"epsilon": null', '"epsilon": 99.0', 1))
    with pytest.raises(ct.CoterieError, match=r"privacy.jsonl is missing or was changed"):
        load_run(folder, federation(), rounds=4)


def test_a_repeated_round_counts_again(tmp_path):
    """A process that is killed in a round has written down its exchange; so does the next."""
    folder = tmp_path / "run"
    run = prepare_run(ct.FedAvg(), federation(), **PRIVATE | {"rounds": 1}, out=folder).train()
    run.ledger.record(2, "train", 2.0)  # then the process is killed
    with open(folder / LEDGER, "a") as f:
        f.write('{"round": 2, "att')
    resumed = load_run(folder, federation(), rounds=2).train()
    expected = epsilon([Gaussian(2.0, 0.6, 3)], 1e-2)
    assert resumed.history[-1]["epsilon"] == pytest.approx(expected)


def test_training_stops_before_the_budget_is_exceeded_and_cannot_go_on(tmp_path):
    after_two = epsilon([Gaussian(2.0, 0.6, 2)], 1e-2)
    options = PRIVATE | {"epsilon": after_two * 1.01, "rounds": 9}
    run = prepare_run(ct.FedAvg(), federation(), **options, out=tmp_path / "run").train()
    assert run.round == 2 and run.stopped
    assert run.history[-1]["epsilon"] <= options["epsilon"]
    with pytest.raises(ct.CoterieError, match="is spent after round 2"):
        load_run(tmp_path / "run", federation(), rounds=12)


def test_two_of_three_give_the_third():
    some = {k: v for k, v in PRIVATE.items() if k not in ("delta", "noise_multiplier")}

    def promise(**given):
        return prepare_run(ct.FedAvg(), federation(), **some, **given).ledger.promise

    z = promise(epsilon=3.0, delta=1e-2).noise_multiplier
    assert epsilon([Gaussian(z, 0.6, 3)], 1e-2) == pytest.approx(3.0, abs=0.01)
    assert promise(epsilon=3.0, noise_multiplier=z).delta == pytest.approx(1e-2, rel=0.02)
    assert promise(delta=1e-2, noise_multiplier=z).epsilon is None


def test_without_noise_nothing_is_promised():
    run = prepare_run(ct.FedAvg(), federation(), **PRIVATE | {"noise_multiplier": 0.0}).train()
    assert run.history[-1]["epsilon"] == math.inf


def refused(match, method=None, **options):
    with pytest.raises(ct.CoterieError, match=match):
        prepare_run(method or ct.FedAvg(), federation(), **PRIVATE | options)


def test_what_is_refused():
    refused("epsilon is -1", epsilon=-1.0)
    refused("delta is 1.5", delta=1.5)
    refused("needs two of epsilon, delta and noise_multiplier", noise_multiplier=None)
    refused("robust needs the update", robust="median")
    refused("stop_after would choose", stop_after=2, valid=0.2)
    refused("dp runs without ranks", ranks=2)
    refused("epsilon does nothing without dp", dp=None, epsilon=1.0)
    refused(r"cfl cannot run .* from place\(\)", ct.CFL())
    refused(r"the start of ifca takes \d+ exchanges", ct.IFCA(clusters=2))
    refused(r"fedsoft cannot run .*\(\)", ct.FedSoft(clusters=2))
    refused("a given start comes from data", start={})
    with pytest.raises(ct.CoterieError, match="a search compares scores that have no noise"):
        ct.Search(ct.FedAvg(), federation(), over={"lr": [0.1]}, dp="clients")


def test_unbounded_sums_are_refused():
    assert "that count_values() uploads have no bound" in private_obstacle(ct.Mixed())


def test_a_large_delta_is_warned_of():
    with pytest.warns(CoterieWarning, match="allows to publish one of them whole"):
        prepare_run(ct.FedAvg(), federation(), **PRIVATE | {"delta": 0.5})
