"""What engines promise beyond equal numbers.

Who is absent, what sites keep, what memory is taken.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import coterie as ct
from cases import federation
from coterie.aggregation.aggregator import Aggregator
from coterie.core.call import START, Version
from coterie.core.contract import Upload
from coterie.engines.codec import decode_part, encode_part, types_of
from coterie.runs.start import prepare_run
from oracles import private_states


def uploads(clients: int, seed: int = 0) -> Upload:
    g = torch.Generator().manual_seed(seed)
    values = {"model": {"w": torch.randn(clients, 3, 2, generator=g, dtype=torch.float64)}}
    weight = torch.rand(clients, 2, generator=g, dtype=torch.float64)
    return Upload(values, weight, {"loss": torch.rand(clients, generator=g, dtype=torch.float64)})


def rows(up: Upload, at: slice) -> Upload:
    return tree_map(lambda v: v[at], up)


# ------------------------------------------------------------------------------ parts
@pytest.mark.parametrize("reduce", ["sum", "stack"])
def test_a_part_from_another_process_is_absorbed_as_if_it_were_folded_here(reduce):
    """Rows, sums, moves, bytes and outcomes all cross as bytes; one client is refused there."""
    up = uploads(6)
    up.values["model"]["w"][4] = torch.nan
    like = tree_map(lambda v: torch.zeros_like(v[0]), up)
    here = Aggregator(reduce, like, 6)
    expected = here.finish(here.add(torch.arange(6), up))

    types = types_of(ct.FedAvg())
    there = Aggregator(reduce, like, 6)
    remote = there.finish(there.add(torch.arange(3, 6), rows(up, slice(3, 6))))
    received = decode_part(encode_part(remote, types), types)

    server = Aggregator(reduce, like, 6)
    local = server.add(torch.arange(3), rows(up, slice(0, 3)))
    merged = server.finish(server.merge([local, server.absorb(received)]))
    assert merged.accepted.tolist() == expected.accepted.tolist() == [0, 1, 2, 3, 5]
    assert merged.rejected == expected.rejected == [(4, "its update contains NaN or infinity")]
    assert merged.bytes_up == expected.bytes_up == 6 * here.update_bytes
    for part in ("totals", "mass", "updates", "norms"):
        pairs = zip(tree_leaves(getattr(merged, part)), tree_leaves(getattr(expected, part)))
        assert all(torch.allclose(a, b, rtol=1e-14, atol=0) for a, b in pairs), part


# ------------------------------------------------------------------------------ absent clients
def test_an_absent_client_is_neither_accepted_nor_refused(fed):
    run = prepare_run(ct.FedAvg(), fed, "mlp:12", rounds=2, engine="wire", eval_every=50)
    steps = run.rounds()
    next(steps)
    run.engine.tamper = lambda i, reply: None if i in (2, 5) else reply
    row = next(steps)
    assert row["absent"] == 2 and row["rejected"] == []
    full = nbytes_up(run)
    run.engine.tamper = lambda i, reply: reply
    assert next(steps)["bytes_up"] == full * 10 and row["bytes_up"] == full * 8


def nbytes_up(run) -> int:
    """Of one client's answer: a model and its weight."""
    model = sum(p.numel() for p in run.task.module.parameters())
    return 4 * (model + 1)


def test_many_absent_clients_are_no_divergence(fed):
    run = prepare_run(ct.FedAvg(), fed, "mlp:12", rounds=1, engine="wire", eval_every=50)
    run.engine.tamper = lambda i, reply: reply if i == 0 else None
    assert [row["absent"] for row in run.rounds()] == [0, 9]


def test_dropouts_are_counted_as_absent(fed):
    run = prepare_run(ct.FedAvg(), fed, "mlp:12", rounds=3, dropout=0.4, eval_every=50)
    history = list(run.rounds())
    assert sum(row["absent"] for row in history) > 0
    assert all(row["rejected"] == [] for row in history)


# ------------------------------------------------------------------- initial payload and versions
def unmeasured(fed):
    """The same clients without test rows, so that nobody is asked for scores."""
    x, y, sizes = fed.test
    return replace(fed, test=ct.data.Ragged(x[:0], y[:0], torch.zeros_like(sizes)))


def test_the_welcome_rides_on_a_clients_first_message(fed):
    run = prepare_run(
        ct.Ditto(), unmeasured(fed), "mlp:12", rounds=3, engine="wire", participation=0.3
    )
    assert all(not site.versions for site in run.engine.sites)
    sent = []
    for i, site in enumerate(run.engine.sites):
        answer = site.answer
        site.answer = lambda m, i=i, answer=answer: (
            sent.append((i, m.initial_payload)),
            answer(m),
        )[1]
    for _ in run.rounds():
        pass
    first_contacts = [i for i, initial_payload in sent if initial_payload is not None]
    assert sorted(first_contacts) == sorted({i for i, _ in sent}), "each once, on its first message"
    assert len(sent) > len(first_contacts)
    untouched = set(range(10)) - {i for i, _ in sent}
    assert untouched and all(not run.engine.sites[i].versions for i in untouched)


def test_bytes_of_the_welcome_count_when_a_client_is_first_asked(fed):
    """Ditto sends each client the first global model once; by loop and by wire alike."""
    for engine in ("loop", "wire"):
        run = prepare_run(
            ct.Ditto(), unmeasured(fed), "mlp:12", rounds=4, engine=engine, participation=0.3
        )
        model = 4 * sum(p.numel() for p in run.task.module.parameters())
        asked: set[int] = set()
        for row in run.rounds():
            now = set(run.participants(row["round"]).tolist()) if row["round"] else set()
            assert row["bytes_down"] == model * len(now) + model * len(now - asked), engine
            asked |= now


def test_evaluation_and_training_never_share_a_version(fed):
    run = prepare_run(ct.Ditto(), fed, "mlp:12", rounds=2, engine="wire", eval_every=1)
    versions = []
    for site in run.engine.sites:
        answer = site.answer
        site.answer = lambda m, site=site, answer=answer: (
            versions.append(tuple(head_of(m, site)["version"])),
            answer(m),
        )[1]
    for _ in run.rounds():
        pass
    trained = {v for v in versions if v[1] == "train"}
    measured = {v for v in versions if v[1] == "evaluate"}
    assert {v[::2] for v in trained} & {v[::2] for v in measured}, "they would have collided"
    assert trained.isdisjoint(measured) and len(trained) == 2


def head_of(message, site) -> dict:
    from coterie.engines.codec import decode

    return decode(message.own, site.types)[1]


def test_a_site_keeps_the_versions_of_both_checkpoints(fed):
    """The server may die at any time and go on from either of the last two checkpoints."""
    run = prepare_run(ct.Ditto(), fed, "mlp:12", rounds=6, engine="wire", eval_every=50)
    saved = []
    for _ in run.rounds():
        saved.append(list(run.engine.accepted))
        private_states(run)
        if len(saved) > 3:
            for i, site in enumerate(run.engine.sites):
                assert {saved[-1][i], saved[-2][i]} <= set(site.versions)
                assert len(site.versions) <= 4
    assert all(START not in site.versions for site in run.engine.sites)
    assert run.engine.accepted[0] == Version(6, "train", 1)


def test_a_server_that_dies_between_two_exchanges_finds_its_sites_ready(fed, tmp_path):
    """FedSoft asks twice a round.

    Sites have states that no checkpoint knows, and the older ones.
    """
    method = ct.FedSoft(clusters=2)
    options = {"rounds": 4, "engine": "wire", "eval_every": 50, "dtype": "float64"}
    straight = prepare_run(method, fed, "mlp:12", **options)
    for _ in straight.rounds():
        pass

    run = prepare_run(method, fed, "mlp:12", out=tmp_path / "run", **options)
    steps = run.rounds()
    for _ in range(3):
        run.folder.append(next(steps))
        run.save(always=True)
    next(steps)  # a round that is never saved: its answers are with the sites only

    again = prepare_run(method, fed, "mlp:12", **options)
    again.folder = run.folder
    again.restore()
    again.engine.sites = run.engine.sites  # they live on, and were asked this round before
    for _ in again.rounds():
        pass
    for a, b in zip(tree_leaves(again.state), tree_leaves(straight.state)):
        assert torch.equal(a, b)


def test_an_engine_that_goes_back_has_sites_that_know_nothing_later(fed):
    """A site that is first asked after the checkpoint takes its initial payload anew."""
    options = {"rounds": 3, "engine": "wire", "participation": 0.3, "eval_every": 50}
    run = prepare_run(ct.Ditto(), unmeasured(fed), "mlp:12", **options)
    steps = run.rounds()
    next(steps)
    start, state = run.engine.snapshot(), run.state
    rows = [next(steps), next(steps)]
    run.engine.restore(start)
    run.state, run.round = state, 0
    again = [run.step(), run.step()]
    assert [row["rejected"] for row in again] == [[], []]
    assert [row["bytes_down"] for row in again] == [row["bytes_down"] for row in rows]


# ------------------------------------------------------------------------------ private states
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_private_states_are_kept_only_of_clients_that_were_asked(engine):
    fed = federation(clients=20)
    run = prepare_run(
        ct.Ditto(), fed, "mlp:12", rounds=2, engine=engine, participation=0.1, eval_every=1
    )
    asked = set()
    for row in run.rounds():
        if row["round"]:
            asked |= set(run.participants(row["round"]).tolist())
    private = run.engine.private
    assert private.written.nonzero()[:, 0].tolist() == sorted(asked)
    assert private.used == len(asked) < 5 and len(private.tables["1.weight"]) <= 2 * len(asked)


def test_a_client_that_was_never_asked_is_measured_with_its_first_state():
    """It has the model that all begin with, whatever the others have learnt since."""
    fed = federation(clients=10)
    run = prepare_run(ct.LocalOnly(), fed, "mlp:12", rounds=3, participation=0.2, eval_every=3)
    first = {k: v.clone() for k, v in run.task.init(run.options.seed).items()}
    for _ in run.rounds():
        pass
    never = [i for i in range(10) if not run.engine.private.written[i]]
    assert never
    x, y = fed.test.client(never[0])
    outputs = run.task.outputs(first, x.to(run.task.dtype))
    accuracy = float((outputs.argmax(-1) == y).double().mean())
    assert run.client_scores["accuracy"][never[0]] == pytest.approx(accuracy)
