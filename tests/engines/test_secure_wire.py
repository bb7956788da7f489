"""Secure sums with real masks: the same bits as without, clients that drop out, and refusals."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from test_secure_runs import METHODS
from torch.utils._pytree import tree_leaves

import coterie as ct
from cases import federation
from coterie.core.errors import SiteRefusal
from coterie.privacy.identity import make_identities
from coterie.privacy.secure_sum import (
    Lists,
    SumClient,
    SumFailed,
    run_secure_sum,
    threshold,
)
from coterie.runs.start import prepare_run

SMALL = {"model": "mlp:4", "rounds": 1, "seed": 1, "secure": True}
NAMES = [f"site-{i}" for i in range(6)]
FAST_AND_SLOW = [
    pytest.param(name, marks=[] if name in ("fedavg", "ifca", "fedsoft") else pytest.mark.slow)
    for name in METHODS
]


# ------------------------------------------------------------------------------ the protocol
class Party:
    """Six clients and a server in one process."""

    def __init__(self, gone: dict[str, str] | None = None, size: int = 50) -> None:
        identities = make_identities(NAMES)
        self.clients = {n: SumClient(identities[n], b"round 1", 3) for n in NAMES}
        rng = np.random.default_rng(0)
        self.vectors = {n: rng.integers(0, 2**20, size).astype(np.uint64) for n in NAMES}
        self.gone = gone or {}
        self.sent: dict[str, dict[str, bytes]] = {}  # by stage, what clients sent

    def send(self, stage: str, messages: dict[str, bytes]) -> dict[str, bytes]:
        replies = {}
        for name, raw in messages.items():
            if self.gone.get(name) == stage:
                continue
            client = self.clients[name]
            if stage == "shares":
                replies[name] = client.share(raw)
            elif stage == "masked":
                replies[name] = client.mask(raw, self.vectors[name])
            else:
                replies[name] = client.reveal(raw)
        self.sent[stage] = replies
        return replies

    def run(self):
        keys = {n: c.publish() for n, c in self.clients.items() if self.gone.get(n) != "keys"}
        size = len(self.vectors[NAMES[0]])
        return run_secure_sum(keys, self.send, context=b"round 1", size=size, min_clients=3)


@pytest.mark.parametrize(
    "gone",
    [
        {},
        {"site-1": "keys"},
        {"site-1": "shares"},
        {"site-4": "masked"},
        {"site-0": "masked", "site-5": "masked"},
        {"site-2": "reveal"},
        {"site-1": "shares", "site-3": "reveal"},
    ],
)
def test_the_sum_of_those_who_sent_a_vector(gone):
    party = Party(gone)
    result = party.run()
    expected = [n for n in NAMES if gone.get(n) not in ("keys", "shares", "masked")]
    assert sorted(result.clients) == expected
    assert np.array_equal(result.total, sum(party.vectors[n] for n in expected))


@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "reveal"])
def test_too_few_reveal_nothing(stage):
    party = Party(dict.fromkeys(NAMES[: 3 if stage != "keys" else 4], stage))
    with pytest.raises(SumFailed, match="the secure sum needs"):
        party.run()


def test_masked_vectors_are_uniform():
    """χ² of bytes, and no correlation with the plain vectors, which are small numbers."""
    party = Party(size=20_000)
    party.run()
    for name, raw in party.sent["masked"].items():
        counts = np.bincount(np.frombuffer(raw, dtype=np.uint8), minlength=256)
        chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert 150 < chi2 < 370  # 255 degrees of freedom: beyond 4.6 deviations
        masked = np.frombuffer(raw, dtype="<u8").astype(np.float64)
        plain = party.vectors[name].astype(np.float64)
        assert abs(np.corrcoef(masked, plain)[0, 1]) < 5 / np.sqrt(len(plain))


def test_masks_differ_in_every_sum():
    first, second = Party(), Party()
    first.run(), second.run()
    assert first.sent["masked"]["site-0"] != second.sent["masked"]["site-0"]


def published(party: Party, names: list[str]) -> dict[str, bytes]:
    return {n: party.clients[n].publish() for n in names}


def test_a_client_refuses_too_few_names():
    party = Party()
    keys = published(party, NAMES[:2])
    with pytest.raises(SiteRefusal, match="too few clients"):
        party.clients["site-0"].share(msgspec.msgpack.encode(keys))


def test_a_client_refuses_a_key_that_its_owner_did_not_sign():
    party = Party()
    keys = published(party, NAMES)
    stranger = SumClient(make_identities(NAMES)["site-3"], b"round 1", 3)
    forged = msgspec.msgpack.encode(keys | {"site-3": stranger.publish()})
    with pytest.raises(SiteRefusal, match="signature"):
        party.clients["site-0"].share(forged)
    other_sum = SumClient(party.clients["site-3"].identity, b"round 0", 3)  # replayed
    replayed = msgspec.msgpack.encode(keys | {"site-3": other_sum.publish()})
    with pytest.raises(SiteRefusal, match="signature"):
        party.clients["site-1"].share(replayed)
    unknown = msgspec.msgpack.encode(keys | {"site-9": keys["site-3"]})
    with pytest.raises(SiteRefusal, match="signature"):
        party.clients["site-2"].share(unknown)


def until_masked(party: Party) -> None:
    keys = msgspec.msgpack.encode(published(party, NAMES))
    letters = {
        n: msgspec.msgpack.decode(raw, type=dict[str, bytes])
        for n, raw in party.send("shares", dict.fromkeys(NAMES, keys)).items()
    }
    for_each = {
        n: msgspec.msgpack.encode({m: letters[m][n] for m in NAMES if m != n}) for n in NAMES
    }
    party.send("masked", for_each)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (Lists(NAMES, ["site-1"]), "in both lists"),
        (Lists(NAMES[:2], NAMES[2:]), "too few"),
        (Lists(NAMES[:5], []), "not those of its clients"),
        (Lists([*NAMES, "site-9"], []), "not those of its clients"),
    ],
)
def test_a_client_refuses_to_reveal_more_than_a_sum(lists, message):
    party = Party()
    until_masked(party)
    with pytest.raises(SiteRefusal, match=message):
        party.clients["site-0"].reveal(msgspec.msgpack.encode(lists))
    with pytest.raises(SiteRefusal, match="out of order, or again"):  # and no second attempt
        party.clients["site-0"].reveal(msgspec.msgpack.encode(Lists(NAMES, [])))


def test_a_client_answers_each_stage_once_and_in_order():
    party = Party()
    client = party.clients["site-0"]
    with pytest.raises(SiteRefusal, match="out of order"):
        client.reveal(msgspec.msgpack.encode(Lists(NAMES, [])))
    until_masked(party)
    assert client.reveal(msgspec.msgpack.encode(Lists(NAMES, [])))
    with pytest.raises(SiteRefusal, match="again"):
        client.reveal(msgspec.msgpack.encode(Lists(NAMES, [])))


def test_shares_of_others_cannot_be_sent_back():
    """A share is bound to its sender and its receiver."""
    party = Party()
    keys = msgspec.msgpack.encode(published(party, NAMES))
    sent = party.send("shares", dict.fromkeys(NAMES, keys))
    own = msgspec.msgpack.decode(sent["site-0"], type=dict[str, bytes])
    back = msgspec.msgpack.encode({n: own[n] for n in NAMES if n != "site-0"})
    with pytest.raises(SiteRefusal, match="cannot be decrypted"):
        party.clients["site-0"].mask(back, party.vectors["site-0"])


def test_mutated_messages_are_refused():
    """Any change of a message to a client is refused, or changes nothing that it decrypts."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        party = Party()
        keys = bytearray(msgspec.msgpack.encode(published(party, NAMES)))
        keys[rng.integers(len(keys))] ^= 1 << int(rng.integers(8))
        with pytest.raises(SiteRefusal):
            party.clients["site-0"].share(bytes(keys))


def test_the_threshold_is_over_half():
    assert [threshold(n, 3) for n in (3, 4, 5, 6, 10, 40)] == [3, 3, 3, 4, 6, 21]


# ------------------------------------------------------------------------------ runs
def same_bits(a: Any, b: Any) -> bool:
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("name", FAST_AND_SLOW)
def test_masks_change_no_bit(name):
    """Wire adds masked vectors; loop adds the same integers without masks."""
    fed = federation(clients=5)
    loop = prepare_run(METHODS[name], fed, **SMALL, engine="loop")
    wire = prepare_run(METHODS[name], fed, **SMALL, engine="wire")
    for run in (loop, wire):
        for _ in run.rounds():
            pass
    assert same_bits(loop.state, wire.state)
    for a, b in zip(loop.history, wire.history, strict=True):
        assert a.get("sizes") == b.get("sizes") and a.get("accuracy") == b.get("accuracy")


@pytest.mark.parametrize("stage", ["call", "shares", "masked", "reveal"])
def test_a_client_that_drops_out_at_a_stage(stage):
    """The sum is that of the others, to the bit; at "reveal" its vector is in the sum already."""
    fed = federation(clients=5)
    wire = prepare_run(ct.FedAvg(), fed, **SMALL, engine="wire")
    quiet = fed.roster.names[2]
    wire.step()
    wire.engine.tamper_stage = lambda name, at, reply: (
        None if (name, at) == (quiet, stage) else reply
    )
    ask = wire.round_context(1)
    sums = ask(wire.method.train, shared=wire.state, stream="train")
    others = torch.tensor([i for i in range(5) if i != 2 or stage == "reveal"])
    loop = prepare_run(ct.FedAvg(), fed, **SMALL, engine="loop")
    loop.step()
    expected = loop.round_context(1)(loop.method.train, others, shared=loop.state, stream="train")
    assert sorted(sums.ids.tolist()) == others.tolist()
    assert same_bits(sums.totals, expected.totals) and same_bits(sums.mass, expected.mass)


def test_a_site_of_a_secure_run_sends_no_plain_upload():
    wire = prepare_run(ct.FedAvg(), federation(clients=4), **SMALL, engine="wire")
    ask = wire.round_context(1)
    seen = {}
    wire.engine.tamper_stage = lambda name, stage, reply: seen.setdefault((name, stage), reply)
    ask(wire.method.train, shared=wire.state, stream="train")
    assert {stage for _, stage in seen} == {"call", "shares", "masked", "reveal"}
    from coterie.core.call import Call

    call = Call(
        fn=ask.root.method.train, path="method", ids=torch.arange(4), shared=wire.state,
        per_client=(), static={}, keys=torch.arange(4), client_keys=torch.arange(4),
        version=(1, "train", 2),
    )  # fmt: skip
    from coterie.engines.codec import encode

    message = wire.engine.message(torch.tensor(0), call, encode(wire.state, wire.engine.types))
    with pytest.raises(SiteRefusal, match="only sums over sites leave"):
        wire.engine.sites[0].answer(message)


def test_a_site_hides_itself_in_a_small_cluster():
    """With few clients in a cluster, their vectors have zeros there once members are counted."""
    fed = ct.data.rotated("digits", clients=8, samples=24, angles=(0, 180), seed=0)
    kept = torch.cat([(fed.truth == 0).nonzero()[:, 0], (fed.truth == 1).nonzero()[:1, 0]])
    options = SMALL | {"rounds": 1}
    loop = prepare_run(ct.IFCA(clusters=2), fed.subset(kept), **options, engine="loop")
    wire = prepare_run(ct.IFCA(clusters=2), fed.subset(kept), **options, engine="wire")
    for run in (loop, wire):
        for _ in run.rounds():
            pass
    assert 0 < min(wire.history[-1]["sizes"]) < 3  # hidden
    assert same_bits(loop.state, wire.state)


def test_a_second_sum_of_a_round_is_over_the_same_sites():
    """The difference of two sums would be the update of the site that is in one of them."""
    fed = federation(clients=5)
    wire = prepare_run(ct.FedAvg(), fed, **SMALL, engine="wire")
    wire.step()
    before = wire.engine.snapshot()

    def train():
        wire.engine.restore(before)  # as a server that was killed before it saved the round
        return wire.round_context(1)(wire.method.train, shared=wire.state, stream="train")

    assert same_bits(train().totals, train().totals)
    quiet = fed.roster.names[2]
    wire.engine.tamper_stage = lambda name, stage, reply: (
        None if (name, stage) == (quiet, "masked") else reply
    )
    with pytest.raises(ct.CoterieError, match="0 clients answered train"):
        train()
    site = wire.engine.secure_sites[fed.roster.names[0]]
    assert list(site.summed.values()) == [frozenset(fed.roster.names[:5])]
