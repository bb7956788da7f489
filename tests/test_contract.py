"""One suite over every method: engines agree under faults, chunks change nothing, resume is exact,
bad uploads harm no one, nobody accepted changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import coterie as ct
from cases import small_federation, spoilt, variants
from coterie.aggregation.aggregator import Aggregator
from coterie.core.call import START
from coterie.core.contract import Upload
from coterie.core.errors import SiteRefusal
from coterie.engines.codec import decode, encode
from coterie.engines.wire import Message
from coterie.runs.folder import RunFolder
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from oracles import private_states

METHODS = variants()
ROUNDS = 3
FAULTY = {"participation": 0.7, "dropout": 0.15}
slow = pytest.mark.slow
PLANS = (ct.Plan(True, 4, 2), ct.Plan(True, 100, 1), ct.Plan(False, 3, 2))


def all_methods(are_slow) -> pytest.MarkDecorator:
    """Parametrise a test with every method; those that are slow are left to `make test-all`."""
    names = [pytest.param(n, marks=[slow] if are_slow(n) else []) for n in METHODS]
    return pytest.mark.parametrize("name", names)


every_variant = all_methods(lambda name: False)
# where clusters are counted is in round 0, and tests of engines and of "auto" look there
every_quick_variant = all_methods(lambda name: name.endswith("=auto"))
every_method = all_methods(lambda name: " " in name)


def model_for(method) -> str:
    """A small model for the rows of `small_federation`."""
    if isinstance(method, ct.FedBN):
        return "mlp_bn:12"
    return "additive" if isinstance(method, ct.Mixed) else "mlp:12"


def whole_rounds(method) -> dict:
    """A method without a server has no partial participation."""
    return {"participation": 1.0} if method.needs_all_clients else {}


def go(method, fed, rounds=ROUNDS, plan=None, **options) -> Run:
    options = {
        "model": model_for(method),
        "rounds": rounds,
        "dtype": "float64",
        "eval_every": 2,
        "seed": 1,
        **options,
    }
    options |= whole_rounds(method)
    run = prepare_run(method, fed, options.pop("model"), plan=plan, **options)
    for _ in run.rounds():
        pass
    return run


def whole(run: Run):
    """All that a run holds."""
    return run.state, private_states(run)


def distance(a, b) -> float:
    """Largest relative difference between two nests of the same shape."""
    a, b = tree_leaves(a), tree_leaves(b)
    assert [v.shape for v in a] == [v.shape for v in b]
    gap = lambda u, v: float((u.double() - v.double()).norm() / (v.double().norm() + 1e-12))
    return max([gap(u, v) for u, v in zip(a, b)], default=0.0)


def same_bits(a, b) -> bool:
    a, b = tree_leaves(a), tree_leaves(b)
    return len(a) == len(b) and all(u.dtype == v.dtype and torch.equal(u, v) for u, v in zip(a, b))


def scores(run: Run) -> list[dict]:
    """Rows of metrics without what a clock says; None for NaN, which is not equal to itself."""
    plain = lambda value: None if value != value else value
    return [{k: plain(v) for k, v in r.items() if "seconds" not in k} for r in run.history]


def with_a_bad_client(method) -> ct.data.Federation:
    return spoilt(small_federation(method, unseen=2), 3)


@cache
def loop_under_faults(name: str) -> Run:
    """What other engines are compared with; several tests share it."""
    return go(METHODS[name], with_a_bad_client(METHODS[name]), engine="loop", **FAULTY)


@cache
def never_stopped(name: str) -> Run:
    """What resumed runs are compared with."""
    return go(METHODS[name], small_federation(METHODS[name]), rounds=4, **FAULTY)


# ------------------------------------------------------------------------------ engines
@every_variant
def test_vectorised_is_the_loop_under_faults(name):
    """A method with its defaults under all plans, its variants under one of them in turn."""
    method, loop = METHODS[name], loop_under_faults(name)
    fed = with_a_bad_client(method)
    assert all(v.isfinite().all() for v in tree_leaves(whole(loop)) if v.is_floating_point())
    turn = list(METHODS).index(name) % len(PLANS)
    for plan in PLANS if " " not in name else PLANS[turn : turn + 1]:
        fast = go(method, fed, plan=plan, **FAULTY)
        assert distance(whole(fast), whole(loop)) < 1e-9
        assert [r["rejected"] for r in fast.history] == [r["rejected"] for r in loop.history]
        assert [r["bytes_up"] for r in fast.history] == [r["bytes_up"] for r in loop.history]


@every_variant
def test_wire_is_the_loop_to_the_bit(name):
    loop = loop_under_faults(name)
    wire = go(METHODS[name], with_a_bad_client(METHODS[name]), engine="wire", **FAULTY)
    assert same_bits(whole(wire), whole(loop))
    assert scores(wire) == scores(loop)


@every_method
def test_the_same_run_twice_gives_the_same_bits(name):
    fed = small_federation(METHODS[name])
    one, two = (go(METHODS[name], fed, dtype="float32", rounds=2, **FAULTY) for _ in range(2))
    assert same_bits(whole(one), whole(two))
    assert scores(one) == scores(two)
    loop = go(METHODS[name], fed, dtype="float32", rounds=1, engine="loop")
    fast = go(METHODS[name], fed, dtype="float32", rounds=1)
    assert distance(whole(fast), whole(loop)) < 1e-4, "engines agree roughly in float32, too"


@every_quick_variant
def test_the_dual_form_is_the_plain_form(name, monkeypatch):
    method = METHODS[name]
    dual = go(method, small_federation(method), rounds=2)
    assert dual.task.first is not None or isinstance(method, ct.Mixed | ct.FedBN)
    monkeypatch.setattr("coterie.optim.solvers.choose_form", lambda *_: False)
    plain = go(method, small_federation(method), rounds=2)
    assert distance(whole(dual), whole(plain)) < 1e-9


# ------------------------------------------------------------------------------ faults
@every_quick_variant
def test_nobody_accepted_changes_nothing(name):
    run = go(METHODS[name], small_federation(METHODS[name]), rounds=1, engine="loop")
    before = tree_map(torch.clone, whole(run))
    run.options = replace(run.options, dropout=1 - 1e-15, rounds=2)
    run.step()
    centres = lambda state: run.method.centres(state) or {}
    assert same_bits(centres(run.state), centres(before[0]))
    assert same_bits(private_states(run), before[1])
    groups = run.method.groups(run.state)
    assert groups is None or torch.equal(groups, run.method.groups(before[0]))


@every_quick_variant
def test_evaluation_changes_nothing_and_unseen_clients_get_a_model(name):
    run = go(METHODS[name], small_federation(METHODS[name], unseen=2), rounds=1)
    before = tree_map(torch.clone, whole(run))
    row = run.evaluate(1)
    assert same_bits(whole(run), before)
    assert 0 <= row["accuracy"] <= 1 and 0 <= row["unseen_accuracy"] <= 1
    assert row["loss"] < 100 and row["unseen_loss"] < 100


@every_quick_variant
def test_groups_are_a_partition_or_lie_on_the_simplex(name):
    run, fed = never_stopped(name), small_federation(METHODS[name])
    groups, centres = run.method.groups(run.state), run.method.centres(run.state)
    if groups is None:
        assert centres is None or max(len(v) for v in centres.values()) == 1
        return
    assert len(groups) == len(fed)
    if groups.dim() == 1:
        assert groups.dtype == torch.int64 and int(groups.min()) >= -1
        assert int(groups.max()) < max(len(v) for v in centres.values())
    else:
        seen = groups.sum(1) > 0
        assert bool((groups >= 0).all()) and torch.allclose(
            groups[seen].sum(1), torch.ones(int(seen.sum())).to(groups)
        )


def huge(up: Upload) -> Upload:
    return up._replace(values=tree_map(lambda v: v + 1e6, up.values))


def poisoned(up: Upload) -> Upload:
    return up._replace(values=tree_map(lambda v: v * torch.nan, up.values))


def misshapen(up: Upload) -> Upload:
    return up._replace(values=tree_map(lambda v: v[..., None], up.values))


def mistyped(up: Upload) -> Upload:
    return up._replace(values=tree_map(lambda v: v.float(), up.values))


def renamed(up: Upload) -> Upload:
    return up._replace(values={f"x{k}": v for k, v in up.values.items()})


def swollen(up: Upload) -> Upload:
    return up._replace(report={**up.report, "more": torch.zeros(200_000)})


def infinite_weight(up: Upload) -> Upload:
    return up._replace(weight=tree_map(lambda v: v + torch.inf, up.weight))


ATTACKS = [huge, poisoned, misshapen, mistyped, renamed, swollen, infinite_weight, "noise", "cut"]
PAIRS = []
for name in METHODS:
    for attack in ATTACKS:
        if name in ("fedavg", "ifca") or attack in (poisoned, "cut"):
            marks = [slow] if " " in name else []
            PAIRS.append(pytest.param(name, attack, marks=marks))


ATTACKER = 4


def attacked(method, fed, attack) -> tuple[Run, dict]:
    """(a run of two rounds in which one client's last reply is an attack, its last row)"""
    options = {"rounds": 2, "seed": 1, "dtype": "float64", "engine": "wire", "eval_every": 50}
    run = prepare_run(method, fed, model_for(method), **options)
    steps = run.rounds()
    next(steps), next(steps)

    def tamper(i: int, reply: bytes) -> bytes:
        if i != ATTACKER:
            return reply
        if attack in ("silent", "noise"):
            return b"\x08\x00\x00\x00\x00\x00\x00\x00not json, not tensors"
        if attack == "cut":
            return reply[: len(reply) // 2]
        up, _ = decode(reply, run.types)
        if up.values or attack in (swollen, infinite_weight):
            return encode(attack(up), run.types)
        return reply

    run.engine.tamper = tamper
    return run, next(steps)


@cache
def silent_attacker(name: str):
    """What everyone reaches when the attacker says nothing that can be read."""
    return whole(attacked(METHODS[name], small_federation(METHODS[name]), "silent")[0])


@pytest.mark.parametrize("name, attack", PAIRS, ids=lambda v: getattr(v, "__name__", v))
def test_a_bad_upload_harms_no_one_else(name, attack, caplog):
    """What the others reach is what they reach when the attacker says nothing."""
    fed = small_federation(METHODS[name])
    run, row = attacked(METHODS[name], fed, attack)
    sends = METHODS[name].name != "local"  # its uploads hold no values
    if sends or attack in ("noise", "cut", swollen):
        assert row["rejected"] == [fed.names[ATTACKER]]
        assert fed.names[ATTACKER] in caplog.text
        assert same_bits(whole(run), silent_attacker(name))


@every_method
def test_a_late_or_refused_answer_leaves_no_trace(name):
    """A site whose answer was lost starts its next one from the state before."""
    run = prepare_run(
        METHODS[name],
        small_federation(METHODS[name]),
        model_for(METHODS[name]),
        rounds=3,
        seed=1,
        dtype="float64",
        engine="wire",
        eval_every=50,
    )
    steps = run.rounds()
    next(steps), next(steps)
    before = tree_map(lambda v: v[2].clone(), private_states(run))
    run.engine.tamper = lambda i, reply: b"lost" if i == 2 else reply
    next(steps)
    assert same_bits(tree_map(lambda v: v[2], private_states(run)), before)
    run.engine.tamper = lambda i, reply: reply
    next(steps)
    after = tree_map(lambda v: v[2], private_states(run))
    assert not tree_leaves(after) or not same_bits(after, before)


# ------------------------------------------------------------------------------ resume
class Killed(BaseException):
    """Stands for a kill: nothing in the library catches it."""


def ends_alike(folder, straight: Run, **known) -> None:
    """Resumed to the end, it is what never stopped; and so are its rows of metrics."""
    result = ct.resume(folder, **known)
    assert same_bits(whole(result._run), whole(straight))
    assert scores(result._run) == json.loads(json.dumps(scores(straight)))


@every_method
@pytest.mark.parametrize("when", ["in an exchange", "while saving"])
def test_resume_is_exact_wherever_it_was_killed(name, when, tmp_path, monkeypatch):
    method, straight = METHODS[name], never_stopped(name)
    fed = small_federation(method)
    faults = {**FAULTY, **whole_rounds(method)}
    run = prepare_run(
        method,
        fed,
        model_for(method),
        rounds=4,
        seed=1,
        dtype="float64",
        eval_every=2,
        out=tmp_path / "run",
        **faults,
    )
    with monkeypatch.context() as patch:
        if when == "in an exchange":
            aggregator = Aggregator.add

            def add(self, at, up):
                if run.round == 2 and run.engine.parts["test"] is not None and len(at):
                    raise Killed
                return aggregator(self, at, up)

            patch.setattr("coterie.aggregation.aggregator.Aggregator.add", add)
        else:
            save = RunFolder.save

            def killed_save(self, round, *rest):
                if round == 2:
                    (self.path / "checkpoints" / "000002.new").write_bytes(b"half a file")
                    raise Killed
                save(self, round, *rest)

            patch.setattr(RunFolder, "save", killed_save)
            patch.setattr(
                Run, "save", lambda self, always=False, one=Run.save: one(self, always=True)
            )
        with pytest.raises(Killed):
            run.train()
    ends_alike(tmp_path / "run", straight, fed=fed, model=model_for(method), method=method)


# ------------------------------------------------------------------------------ what may be asked
def test_only_client_functions_run_on_a_site(fed):
    run = prepare_run(ct.FedAvg(), fed, "mlp:12", rounds=1, dtype="float64", engine="wire")
    site = run.engine.sites[0]
    zero = torch.tensor(0)
    nothing = encode((), run.types)

    def message(**head):
        plain = {
            "static": {},
            "version": (1, "train", 1),
            "accepted": START,
            "keep": [START],
            "split": None,
            "keeps_private": True,
            "enrolled": True,
            **head,
        }
        return Message(nothing, encode(((), zero, zero), run.types, **plain), nothing)

    for path, name in (
        ("method", "round"),
        ("method", "start"),
        ("method", "__class__"),
        ("", "_choosing_data"),
    ):
        with pytest.raises(SiteRefusal):
            site.answer(message(path=path, name=name))
    for path in ("method.__class__", "task", "method.lr"):
        with pytest.raises(SiteRefusal):
            site.answer(message(path=path, name="train"))


def test_a_function_that_is_not_marked_cannot_be_asked_for(fed):
    run = prepare_run(ct.FedAvg(), fed, "mlp:12", rounds=1)
    ask = run.round_context(1)
    with pytest.raises(ct.CoterieError, match="@client"):
        ask(ask.root.method.round)


def test_random_draws_in_evaluation_are_refused_on_every_engine(fed):
    class Draws(torch.nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(1)) + torch.rand(())

    for engine in ("loop", "vectorised", "wire"):
        with pytest.raises(
            ct.CoterieError, match="nothing may be random: draw only if self.training"
        ):
            go(ct.FedAvg(), fed, model=lambda: Draws(64, 10), engine=engine)
