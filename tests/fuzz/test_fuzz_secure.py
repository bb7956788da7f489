"""Damaged messages of secure sums, to clients and to the server.

A client refuses in one sentence, or answers a message that is still one of the protocol; it never
answers a stage twice. A server ends each sum: with the right sum, or with a sentence. Neither logs
a key, a seed or a share.
"""

from __future__ import annotations

import copy
import logging
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import case, fuzz, time_is_over
from hypothesis import given
from hypothesis import strategies as st

import coterie as ct
from cases import federation
from coterie.core.errors import SiteRefusal
from coterie.engines.codec import BadBytes
from coterie.privacy.identity import make_identities
from coterie.privacy.secure_sum import SumClient, SumFailed, run_secure_sum
from coterie.runs.start import prepare_run

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
TO_CLIENTS, TO_SERVER, IN_RUNS = "secure: to clients", "secure: to the server", "secure: in runs"
NAMES = tuple(f"site-{i}" for i in range(5))
SIZE = 20
IDENTITIES = make_identities(NAMES)
STAGES = ("shares", "masked", "reveal")


SEEDS = st.integers(0, 2**32 - 1)  # messages are random, so the damage is drawn by its seed


def damage_bytes(seed: int, raw: bytes) -> bytes:
    """The message with one to three changes of bytes, or with other content that can be decoded."""
    rng = random.Random(seed)
    if rng.random() < 0.4:
        try:
            return msgspec.msgpack.encode(damage_content(rng, msgspec.msgpack.decode(raw)))
        except (msgspec.DecodeError, UnicodeError):  # a masked vector
            pass
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw) + 1)
        end = at + rng.randint(1, 40)
        raw = rng.choice(
            [
                raw[:at] + rng.randbytes(1) + raw[at + 1 :],
                raw[:at] + rng.randbytes(rng.randint(1, 8)) + raw[at:],
                raw[:at] + raw[end:],
                raw[:at],
                raw[:at] + bytes(len(raw[at:end])) + raw[end:],
                raw[:end] + raw[at:end] + raw[end:],
            ]
        )
    return raw


def damage_content(rng: random.Random, content: Any) -> Any:
    """A part of a decoded message dropped, repeated, renamed, exchanged or of another kind."""
    if isinstance(content, dict) and content:
        key = rng.choice(sorted(content))
        other = rng.choice(sorted(content))
        changes: list[Any] = [
            {k: v for k, v in content.items() if k != key},
            content | {rng.choice(["", "site-9", "server"]): content[key]},
            content | {key: content[other]},
            content | {key: damage_content(rng, content[key])},
        ]
        return rng.choice(changes)
    if isinstance(content, list) and content:
        at = rng.randrange(len(content))
        changes = [
            content[:at] + content[at + 1 :],
            [*content, content[at]],
            content[::-1],
            [*content[:at], damage_content(rng, content[at]), *content[at + 1 :]],
        ]
        return rng.choice(changes)
    if isinstance(content, bytes) and content:
        at = rng.randrange(len(content))
        return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
    return rng.choice([None, 0, -1, 2**63, "", "site-1", b"", [], {}, 1.5])


class Sum:
    """A sum of five clients, in which each message can be changed on its way."""

    def __init__(self) -> None:
        self.clients = {n: SumClient(IDENTITIES[n], b"fuzz", 3) for n in NAMES}
        rng = np.random.default_rng(0)
        self.vectors = {n: rng.integers(0, 2**30, SIZE).astype(np.uint64) for n in NAMES}
        self.refusals: dict[tuple[str, str], str] = {}  # by client and stage
        self.damage: Any = lambda direction, stage, name, raw: raw

    def send(self, stage: str, messages: dict[str, bytes]) -> dict[str, bytes]:
        replies = {}
        for name, raw in messages.items():
            client = self.clients[name]
            raw = self.damage("down", stage, name, raw)
            try:
                if stage == "shares":
                    reply = client.share(raw)
                elif stage == "masked":
                    reply = client.mask(raw, self.vectors[name])
                else:
                    reply = client.reveal(raw)
            except SiteRefusal as e:
                self.refusals[name, stage] = str(e)
                continue
            replies[name] = self.damage("up", stage, name, reply)
        return replies

    def run(self) -> Any:
        keys = {n: self.damage("up", "keys", n, c.publish()) for n, c in self.clients.items()}
        return run_secure_sum(keys, self.send, context=b"fuzz", size=SIZE, min_clients=3)

    def secrets(self) -> list[bytes]:
        """Everything that must not be in a log."""
        found = [c.seed for c in self.clients.values()]
        found += [c.masking.private_bytes_raw() for c in self.clients.values()]
        found += [part for c in self.clients.values() for held in c.held.values() for part in held]
        return found


def check_log(text: str, secrets: list[bytes]) -> None:
    """Assert that no key, seed or share is in a log, in any usual notation."""
    for secret in secrets:
        assert secret.hex() not in text and repr(secret)[2:-1] not in text


def check_sentence(text: str) -> None:
    """Assert that a refusal is one short sentence without bytes of the message."""
    assert 10 < len(text) < 150 and "\n" not in text and text.isascii(), text


@given(stage=st.sampled_from(STAGES), target=st.sampled_from(NAMES), seed=SEEDS)
@fuzz(1000)
def test_messages_to_a_client(stage, target, seed, caplog):
    if time_is_over(TO_CLIENTS):
        return
    made = Sum()

    def damage(direction: str, at: str, name: str, raw: bytes) -> bytes:
        if (direction, at, name) == ("down", stage, target):
            return damage_bytes(seed, raw)
        return raw

    made.damage = damage
    with case(TO_CLIENTS), caplog.at_level(logging.DEBUG):
        result = made.run()
    for sentence in made.refusals.values():
        check_sentence(sentence)
    if stage != "masked" or (target, stage) in made.refusals:
        # four of five clients are enough, and the sum is right to the bit; only a server that
        # withholds shares from a client that then sends its vector gets a wrong one
        expected = sum(made.vectors[name] for name in result.clients)
        assert np.array_equal(result.total, expected)
    again = {"shares": "share", "reveal": "reveal"}.get(stage)
    if again is not None:
        with pytest.raises(SiteRefusal, match="out of order, or again"):
            getattr(made.clients[target], again)(b"")
    check_log(caplog.text, made.secrets())


@given(stage=st.sampled_from(("keys", *STAGES)), target=st.sampled_from(NAMES), seed=SEEDS)
@fuzz(1000)
def test_replies_to_the_server(stage, target, seed, caplog):
    if time_is_over(TO_SERVER):
        return
    made = Sum()
    changed = False

    def damage(direction: str, at: str, name: str, raw: bytes) -> bytes:
        nonlocal changed
        if (direction, at, name) != ("up", stage, target):
            return raw
        damaged = damage_bytes(seed, raw)
        changed = damaged != raw
        return damaged

    made.damage = damage
    with case(TO_SERVER), caplog.at_level(logging.DEBUG):
        try:
            result = made.run()
        except SumFailed as e:
            check_sentence(str(e))
            result = None
    for sentence in made.refusals.values():
        check_sentence(sentence)
    if result is not None and not (stage == "masked" and changed and target in result.clients):
        # a client may send any vector; of all other damage the sum knows nothing
        expected = sum(made.vectors[name] for name in result.clients)
        assert np.array_equal(result.total, expected)
    check_log(caplog.text, made.secrets())


@given(
    stages=st.lists(
        st.sampled_from(("keys", "shares", "masked", "reveal", "unmask", "")),
        min_size=3,
        max_size=3,
    ),
    seed=SEEDS,
)
@fuzz(200)
def test_stages_of_a_run(stages, seed, caplog):
    """Sites of a run answer or refuse damaged stages in any order, and the run goes on."""
    if time_is_over(IN_RUNS):
        return
    run = prepare_run(
        ct.IFCA(clusters=2, local_steps=1, init="random"),
        federation(clients=4),
        "softmax",
        rounds=1,
        secure=True,
        engine="wire",
    )
    with case(IN_RUNS), caplog.at_level(logging.DEBUG):
        run.step()
        site = next(iter(run.engine.secure_sites.values()))
        before = copy.copy(site.site.versions)
        for stage in stages:
            with pytest.raises((SiteRefusal, BadBytes)) as refused:
                site.answer(stage, damage_bytes(seed, bytes(20)))
            check_sentence(str(refused.value))
        assert site.site.versions == before
        run.step()
        assert run.round == 1
