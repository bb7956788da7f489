"""Runs on a GPU, with a fake one: no tensors of two devices meet, and the result is the CPU's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import coterie as ct
import fake_gpu
from cases import federation, model_for, rows_for, variants
from coterie.aggregation.attacks import ATTACKS
from coterie.aggregation.robust import RULES
from coterie.core.task import Task
from coterie.engines.plan import plan_for, training_bytes
from oracles import private_states

fake_gpu.install()
slow = pytest.mark.slow
ONE_CHUNK = ct.Plan(vectorise=True, chunk=100, workers=1)


def with_two_clusters(method):
    """The same method with a given number of clusters, since finding it takes many exchanges."""
    return replace(method, clusters=2) if "clusters" in vars(method) else method


EVERY = variants()
METHODS = {name: with_two_clusters(m) for name, m in EVERY.items() if " " not in name}
METHODS |= {name: m for name, m in EVERY.items() if " " in name}
METHODS["ifca auto"] = EVERY["ifca"]
SOME_SLOW = [name if " " not in name else pytest.param(name, marks=slow) for name in METHODS]
every_method = pytest.mark.parametrize("name", SOME_SLOW)


def go(method, fed=None, **options):
    """The result of a short run."""
    options = {"rounds": 2, "dtype": "float64", "seed": 1, "device": "gpu", **options}
    model = options.pop("model", model_for(method))
    fed = fed or rows_for(method, federation(clients=10, unseen=2))
    return ct.run(method, fed, model, **options)


def whole(result) -> list[torch.Tensor]:
    """The server's state and the clients' private states, on the CPU."""
    return [v.cpu() for v in tree_leaves((result.state, private_states(result._run)))]


def distance(a, b) -> float:
    assert [v.shape for v in a] == [v.shape for v in b]
    gap = lambda u, v: float((u.double() - v.double()).norm() / (v.double().norm() + 1e-12))
    return max([gap(u, v) for u, v in zip(a, b)], default=0.0)


@cache
def on_cpu(name: str):
    return whole(go(METHODS[name], device="cpu", engine="loop"))


# ------------------------------------------------------------------------------ every method
def vmap_without_reads(function, **arguments):
    """`vmap`, with an error if the function makes the CPU wait for the GPU."""
    mapped = torch.func.vmap(function, **arguments)

    def run(*rows):
        before = len(fake_gpu.READS)
        out = mapped(*rows)
        assert fake_gpu.READS[before:] == [], "a client function reads values of the GPU"
        return out

    return run


@pytest.fixture
def no_reads(monkeypatch):
    monkeypatch.setattr("coterie.engines.vectorised.vmap", vmap_without_reads)


@every_method
def test_both_engines_give_the_result_of_the_cpu(name, no_reads):
    if name.startswith("fedbn"):
        pytest.xfail("running statistics of batch norms are still on the CPU in evaluation")
    for engine in ("loop", "vectorised"):
        result = go(METHODS[name], engine=engine)
        assert all(v.device.type == "gpu" for v in result._run.task.module.parameters())
        assert distance(whole(result), on_cpu(name)) < 1e-9


@pytest.mark.parametrize("name", ["fedavg", "ifca", "ditto"])
def test_reads_do_not_grow_with_the_clients(name):
    reads = []
    for clients in (14, 28):
        fake_gpu.READS.clear()
        go(METHODS[name], federation(clients), plan=ONE_CHUNK, rounds=1)
        reads.append(len(fake_gpu.READS))
    assert reads[0] == reads[1] > 0


# ------------------------------------------------------------------------------ on purpose
def train_without_shortcuts(**options):
    """Train a model whose gradients torch computes."""
    net = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10))
    go(ct.FedAvg(local_steps=2), model=net, rounds=1, plan=ONE_CHUNK, **options)


def test_a_cpu_tensor_in_local_training_is_found(monkeypatch):
    loss = Task.losses
    shifted = lambda task, params, batch: loss(task, params, batch) + torch.zeros(len(batch.y))
    monkeypatch.setattr(Task, "losses", shifted)
    for engine in ("loop", "vectorised"):  # in training, or already in the dry run
        with pytest.raises(
            (RuntimeError, ct.CoterieError), match="same device|no rule to vectorise"
        ):
            train_without_shortcuts(engine=engine)


def test_a_copy_to_the_cpu_in_local_training_is_found(monkeypatch, no_reads):
    loss = Task.losses
    copied = lambda task, params, batch: loss(task, params, batch).cpu().to("gpu")
    train_without_shortcuts()
    monkeypatch.setattr(Task, "losses", copied)
    with pytest.raises(AssertionError, match="reads values"):
        train_without_shortcuts()


@pytest.mark.parametrize(
    "mix",
    [
        lambda g, c: g + c,
        lambda g, c: c.add_(g),
        lambda g, c: torch.cat([g, c]),
        lambda g, c: g @ c,
        lambda g, c: torch.where(c > 0, g, g),
        lambda g, c: g.index_select(0, c[0].long()),
        lambda g, c: c[g[0].long()],
        lambda g, c: g.numpy(),
    ],
)
def test_the_fake_gpu_refuses_what_a_gpu_refuses(mix):
    with pytest.raises(RuntimeError):
        mix(torch.ones(2, 2, device="gpu"), torch.ones(2, 2))
    assert (torch.ones(2, device="gpu") * torch.tensor(2.0)).tolist() == [2, 2]  # a scalar may mix
    assert torch.ones(2, 2, device="gpu")[torch.tensor([1])].shape == (1, 2)  # an index may, too


# ------------------------------------------------------------------------------ memory
def test_chunks_fit_into_the_memory_of_a_gpu(monkeypatch):
    fed = federation(clients=7)
    plan = go(METHODS["fedavg"], fed, rounds=1)._run.engine.plan
    assert plan.chunk == 64 and plan.workers == 1
    large = go(METHODS["fedavg"], fed, model="mlp:3000", rounds=1)._run
    per_client, per_sample = training_bytes(large.task, fed.roster)
    model = 8 * (64 * 3000 + 3000 + 3000 * 10 + 10)
    assert 4 * model <= per_client <= 6 * model, "weights, gradient, new weights, momentum, upload"
    assert 8 * 3000 <= per_sample <= 8 * 3000 * 6, "activations and their gradients"
    monkeypatch.setattr("coterie.engines.plan.UNKNOWN_MEMORY", 20 * per_client)
    plan = plan_for(large.task, fed.roster)
    assert plan.chunk == 5 and plan.rows == 5 * per_client // per_sample
    run = go(METHODS["fedavg"], fed, model="mlp:3000", rounds=1, plan=plan)
    assert distance(whole(run), whole(ct.Result.of(large))) < 1e-9


@every_method
def test_checkpoint_resume_and_start(name, tmp_path):
    if name.startswith("fedbn"):
        pytest.xfail("running statistics of batch norms are still on the CPU in evaluation")
    method = METHODS[name]
    fed = rows_for(method, federation(clients=10, unseen=2))
    straight = go(method, fed, rounds=2)
    stop = lambda row, run: run.stop() if row["round"] == 1 else None
    half = go(method, fed, rounds=2, on_round=stop, out=tmp_path / "run")
    devices = [v.device for v in tree_leaves(half.state)]
    loaded = ct.load(tmp_path / "run", model_for(method), method)
    assert [v.device for v in tree_leaves(loaded.state)] == devices
    run = ct.result.load_run(tmp_path / "run", fed, model_for(method), method)
    assert [v.device for v in tree_leaves(run.state)] == devices
    if run.round < straight.trained.round:  # a method may finish in the first round
        run.stopped = False
        run.train()
    assert distance(whole(ct.Result.of(run)), whole(straight)) == 0
    own, _ = method.start(run.task, len(fed), 1)
    if [v.shape for v in tree_leaves(own)] != [v.shape for v in tree_leaves(half.state)]:
        return  # the number of clusters was found, and a start has to have that of the settings
    again = go(method, fed, rounds=1, start=half.state)
    assert [v.device for v in tree_leaves(again.state)] == devices


# ------------------------------------------------------------------------------ options
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "mean"])
@pytest.mark.parametrize("name", ["fedavg", "ifca", "one-shot"])
def test_robust_rules(name, rule):
    options = {"robust": rule, "rounds": 1}
    cpu = go(METHODS[name], device="cpu", **options)
    assert distance(whole(go(METHODS[name], **options)), whole(cpu)) < 1e-9


@pytest.mark.parametrize(
    "options",
    [
        *({"attack": attack} for attack in ATTACKS),
        {"clip_factor": 2.0},
        {"participation": 0.5, "dropout": 0.3},
        {"valid": 0.3, "stop_after": 1},
        {"choose_on": "test"},
        {"dtype": "float32"},
    ],
    ids=str,
)
def test_options(options):
    for engine in ("loop", "vectorised"):
        assert go(ct.IFCA(clusters=2, local_steps=2, batch=5), engine=engine, **options).final


def test_convolutions_bytes_and_regression():
    images = ct.data.rotated("digits", clients=4, samples=20)
    assert go(ct.FedAvg(local_steps=2), images, model="cnn").final["accuracy"] >= 0
    numbers = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
    assert go(ct.IFCA(clusters=2, lr=0.1), numbers, model="linear").final["mse"] >= 0


def test_using_a_result(tmp_path):
    fed = federation(clients=7, unseen=2)
    result = go(ct.IFCA(clusters=2, local_steps=2), fed)
    x, y = fed.test.client(0)
    assert result.assign(x, y).group in (0, 1)
    assert result.predict(x, cluster=1).shape == y.shape
    assert result.predict(x, client=fed.names[0], probabilities=True).shape == (len(y), 10)
    assert result.predict(x, support=(x, y)).shape == y.shape
    assert ct.load(result.export(tmp_path / "models"), "mlp:12").predict(x, "group-0") is not None
    result.export(tmp_path / "clients", per="client")
    assert result.report(tmp_path / "report.html").exists()
