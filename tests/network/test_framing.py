"""The body of an HTTP message: every packet survives, and damaged bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.engines.codec import BadBytes
from coterie.network.packets import Packet, from_bytes, to_chunks

NAMES = st.text(max_size=20).filter(lambda name: name != "head")
PACKETS = st.builds(Packet, st.binary(), st.dictionaries(NAMES, st.binary(), max_size=4))


@given(PACKETS)
def test_a_packet_survives(packet):
    assert from_bytes(b"".join(to_chunks(packet))) == packet


@given(PACKETS, st.data())
def test_damaged_bytes_are_a_packet_or_refused(packet, data):
    raw = bytearray(b"".join(to_chunks(packet)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut]), bytes(raw) + b"x"):
        try:
            read = from_bytes(damaged)
        except BadBytes:
            continue
        assert read.size <= len(damaged)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\0",
        b"\xff\xff\xff\xff" + b"x" * 100,
        b"\0\0\0\2[]",
        b"\0\0\0\2{}",
        b'\0\0\0\x0c[["head",1]]',
        b'\0\0\0\x17[["head",0],["head",0]]',
        b'\0\0\0\x0d[["head",-1]]',
        b'\0\0\0\x0e[["head",1.5]]',
    ],
)
def test_bytes_that_are_no_packet_are_refused(raw):
    with pytest.raises(BadBytes):
        from_bytes(raw)
