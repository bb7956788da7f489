"""Damaged messages between a server and its sites: refused, or answered as what they say.

A message that a site refuses leaves no trace there: the true message still gets the true reply.
A reply that the server refuses changes nothing but that the client did not take part.
"""

from __future__ import annotations

import copy
import json
import math
from typing import Any, NamedTuple

import pytest
import torch
from harness import case, fuzz, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_json
from torch.utils._pytree import tree_leaves

import coterie as ct
from cases import federation
from coterie.core.errors import CoterieError, SiteRefusal
from coterie.engines.codec import BadBytes, decode, encode
from coterie.engines.wire import Message, Site
from coterie.runs.run import Run
from coterie.runs.start import create_job

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
KIND = "messages"
METHODS = {
    "ifca": ct.IFCA(clusters=2, lr=0.1, local_steps=1),
    "ditto": ct.Ditto(lr=0.1, local_steps=1),
    "cgpfl": ct.CGPFL(clusters=2, lr=0.05, local_steps=1),
}


class SentPacket(NamedTuple):
    """A message, the site that it was for as it was then, and its reply."""

    site: Site
    before: dict[str, Any]
    message: Message
    reply: bytes

    def __repr__(self) -> str:
        return "Sent(…)"  # the bytes of all messages are megabytes


def snapshot(site: Site) -> dict[str, Any]:
    """What a site holds, copied as deep as it is changed."""
    return {name: copy.copy(value) for name, value in vars(site).items()}


def restored(sent: SentPacket) -> Site:
    """The site as it was before the message."""
    sent.site.__dict__.clear()
    sent.site.__dict__.update({name: copy.copy(value) for name, value in sent.before.items()})
    return sent.site


def new_run(name: str) -> Run:
    """A run of a method on sites behind bytes."""
    job = create_job(METHODS[name], federation(), "softmax", rounds=2, engine="wire")
    return job.create_run()


@pytest.fixture(scope="module")
def exchanges() -> list[SentPacket]:
    """Messages of all kinds, as short runs send them."""
    sent: list[SentPacket] = []
    answer = Site.answer

    def record(self: Site, message: Message) -> bytes:
        before = snapshot(self)
        reply = answer(self, message)
        sent.append(SentPacket(self, before, message, reply))
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "answer", record)
        for name in METHODS:
            new_run(name).train()
    return sent


def try_message(sent: SentPacket, message: Message) -> bytes | None:
    """The reply to a damaged message; None if it is refused, which must leave no trace."""
    site = restored(sent)
    try:
        reply = site.answer(message)
    except (BadBytes, SiteRefusal):
        assert site.answer(sent.message) == sent.reply, "a refused message left a trace"
        return None
    if same_content(sent, message):
        assert reply == sent.reply
    return reply


def same_content(sent: SentPacket, message: Message) -> bool:
    """Whether a message says what the true one says."""
    for part, true in zip(message, sent.message):
        if part == true:
            continue
        if part is None or true is None:
            return False
        (tree, head), (true_tree, true_head) = (
            decode(raw, sent.site.types) for raw in (part, true)
        )
        leaves, true_leaves = tree_leaves(tree), tree_leaves(true_tree)
        if head != true_head or str(tree) != str(true_tree) or len(leaves) != len(true_leaves):
            return False
        if not all(torch.equal(a, b) for a, b in zip(leaves, true_leaves)):
            return False
    return True


def replace_part(message: Message, name: str, raw: bytes) -> Message:
    """A message with other bytes in one part."""
    return message._replace(**{name: raw})


def draw_sent(data: st.DataObject, exchanges: list[SentPacket]) -> tuple[SentPacket, str]:
    """A message and the name of one of its parts."""
    sent = data.draw(st.sampled_from(exchanges))
    names = [name for name in Message._fields if getattr(sent.message, name) is not None]
    return sent, data.draw(st.sampled_from(names))


@fuzz(150)
@given(st.data())
def test_damaged_bytes(exchanges: list[SentPacket], data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    sent, name = draw_sent(data, exchanges)
    damaged = data.draw(damaged_bytes(getattr(sent.message, name)))
    with case(KIND):
        try_message(sent, replace_part(sent.message, name, damaged))


def with_head(raw: bytes, data: st.DataObject) -> bytes:
    """Bytes of a message whose head is changed as a document."""
    size = int.from_bytes(raw[:8], "little")
    outer = json.loads(raw[8 : 8 + size])
    inner = json.loads(outer["__metadata__"]["head"])
    outer["__metadata__"]["head"] = data.draw(damaged_json(inner))
    text = json.dumps(outer).encode()
    return len(text).to_bytes(8, "little") + text + raw[8 + size :]


@fuzz(200)
@given(st.data())
def test_damaged_head(exchanges: list[SentPacket], data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    sent, _ = draw_sent(data, exchanges)
    damaged = with_head(sent.message.own, data)
    with case(KIND):
        try_message(sent, sent.message._replace(own=damaged))


odd_numbers = st.sampled_from((math.nan, math.inf, -math.inf, 1e30, -1e30, -1.0, 0.0, 1e12, 7.0))


def change_leaf(leaf: torch.Tensor, data: st.DataObject) -> torch.Tensor:
    """A tensor with other numbers, of another shape or of another type."""
    change = data.draw(st.sampled_from(("fill", "fill", "one", "shape", "type", "empty", "large")))
    if change == "shape":
        return leaf[None].repeat(2, *[1] * leaf.dim())
    if change == "type":
        return leaf.to(data.draw(st.sampled_from((torch.float64, torch.int32, torch.bool))))
    if change == "empty":
        return leaf.reshape(-1)[:0]
    if change == "large":
        return torch.zeros(300_000)
    number = data.draw(odd_numbers)
    if not leaf.is_floating_point():
        number = data.draw(st.sampled_from((-1, 99, 10**12)))
    if change == "fill" or not leaf.numel():
        return torch.full_like(leaf, number)
    changed = leaf.clone().contiguous()
    changed.view(-1)[data.draw(st.integers(0, leaf.numel() - 1))] = number
    return changed


def with_leaf(raw: bytes, types: Any, data: st.DataObject) -> bytes:
    """Bytes of a message with one tensor changed."""
    tree, head = decode(raw, types)
    leaves, spec = torch.utils._pytree.tree_flatten(tree)
    if not leaves:
        return raw
    number = data.draw(st.integers(0, len(leaves) - 1))
    leaves[number] = change_leaf(leaves[number], data)
    return encode(torch.utils._pytree.tree_unflatten(leaves, spec), types, **head)


@fuzz(100)
@given(st.data())
def test_other_tensors(exchanges: list[SentPacket], data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    sent, name = draw_sent(data, exchanges)
    damaged = with_leaf(getattr(sent.message, name), sent.site.types, data)
    with case(KIND):
        try_message(sent, replace_part(sent.message, name, damaged))


@fuzz(80)
@given(st.data())
def test_mixed_parts(exchanges: list[SentPacket], data: st.DataObject) -> None:
    """The parts of one message with those of another."""
    if time_is_over(KIND):
        return
    sent, name = draw_sent(data, exchanges)
    other, _ = draw_sent(data, exchanges)
    with case(KIND):
        try_message(sent, sent.message._replace(**{name: getattr(other.message, name)}))


# ------------------------------------------------------------------------------ replies
def run_with(name: str, number: int, change: Any) -> Run:
    """A run of one round whose reply of this number is changed."""
    run = new_run(name)
    count = 0

    def tamper(i: int, reply: bytes) -> bytes:
        nonlocal count
        count += 1
        if count - 1 == number:
            return change(reply, run.engine.types)
        return reply

    run.engine.tamper = tamper
    try:
        run.step()
        run.step()
    except CoterieError:
        pass
    return run


def check_run(run: Run) -> None:
    """Assert that a run is finite, whatever it was sent."""
    for leaf in tree_leaves(run.state):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            assert bool(leaf.isfinite().all()), "the server's state is not finite"


@fuzz(60)
@given(st.sampled_from(list(METHODS)), st.integers(0, 20), st.data())
def test_damaged_reply(name: str, number: int, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    with case(KIND):
        check_run(run_with(name, number, lambda raw, types: data.draw(damaged_bytes(raw))))


@fuzz(60)
@given(st.sampled_from(list(METHODS)), st.integers(0, 20), st.data())
def test_other_tensors_in_a_reply(name: str, number: int, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    with case(KIND):
        check_run(run_with(name, number, lambda raw, types: with_leaf(raw, types, data)))
