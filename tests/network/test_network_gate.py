"""What a server does with requests before Flower reads them."""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging

from coterie.network import listening


def answered(gate: listening.RequestGate, headers: dict[bytes, bytes]) -> int:
    """The status of a gate's answer."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "headers": list(headers.items()),
        "client": ("10.0.0.9", 1),
        "path": "/",
    }
    asyncio.run(gate(scope, None, send))
    return sent[0]["status"]


async def accepting(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})


def test_who_names_no_key_may_send_a_signature_and_no_more(caplog):
    refusals = listening.Refusals()
    gate = listening.RequestGate(accepting, {b"PEM": "ash"}, refusals, most=1_000_000)
    known = {b"flwr-public-key": base64.b64encode(b"PEM")}
    long = {b"content-length": b"1000000"}
    assert answered(gate, {**known, **long}) == 200
    assert answered(gate, {**known, b"content-length": b"1000001"}) == 413
    assert answered(gate, long) == 413
    assert answered(gate, {b"flwr-public-key": b"!", **long}) == 413
    assert answered(gate, {b"content-length": b"16384"}) == 200
    assert answered(gate, known) == 411, "a request without a length"
    assert answered(gate, {**known, b"content-length": b"-5"}) == 413
    assert refusals.counts == {listening.TOO_LONG: 5}
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert lines == [
        "ash was refused: a request that is too long.",
        "somebody at 10.0.0.9 was refused: a request that is too long.",
    ], "the same is said once in a while"


def test_a_node_of_before_a_restart_is_no_stranger():
    """It is sent away, connects again, and nobody is alarmed."""
    now = datetime.datetime.now(datetime.UTC)
    signed = {b"flwr-timestamp": now.isoformat().encode()}
    old = {b"flwr-timestamp": (now - datetime.timedelta(seconds=400)).isoformat().encode()}
    connect, pull = "/v1/fleet/activate-node", "/v1/fleet/pull-messages"
    assert listening.reason_for(401, pull, signed, "ash") is None
    assert listening.reason_for(401, connect, signed, "ash") == listening.NO_SIGNATURE
    assert listening.reason_for(401, connect, {}, "ash") == listening.NO_SIGNATURE
    assert listening.reason_for(401, pull, old, "ash") == "a clock that is off by 400 seconds"
    assert listening.reason_for(401, pull, signed, None) == listening.UNKNOWN_KEY
    assert listening.reason_for(412, pull, signed, "ash") is None
    assert listening.reason_for(200, connect, signed, None) is None
    assert listening.reason_for(500, pull, signed, "ash") == listening.FAILURE
