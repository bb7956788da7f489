"""A node that is slow, or that lies: `python bad_node.py slow|lying SEED SECONDS node --data …`.

It answers honestly now and then, so that its private state counts for something.
"""

from __future__ import annotations

import itertools
import random
import sys
import time

import torch
from torch.utils._pytree import tree_map

from coterie.cli import main
from coterie.engines.codec import decode, encode
from coterie.network.packets import Packet
from coterie.network.site import NetworkSite

SHARE = 0.3  # of the answers that are lies
EVERY = 8  # how many answers of a slow node have one that is late
LIES = ("poisoned", "misshapen", "swollen", "no tensors", "no pieces", "more pieces", "no head")


def lie(kind: str, site: NetworkSite, reply: Packet) -> Packet:
    """A reply that a server must refuse."""
    if kind == "no tensors":
        return reply._replace(pieces={"upload": b"not tensors"})
    if kind == "no pieces":
        return reply._replace(pieces={})
    if kind == "more pieces":
        return reply._replace(pieces={**reply.pieces, "rows": b"1,2"})
    if kind == "no head":
        return reply._replace(head=b'{"protocol": 1, "rows": [[1, 2]]}')
    assert site.session is not None
    types = site.session.site.types
    up, _ = decode(reply.pieces["upload"], types)
    if kind == "poisoned":
        up = tree_map(lambda v: v * torch.nan if v.is_floating_point() else v, up)
    elif kind == "misshapen":
        up = tree_map(lambda v: v[None], up)
    else:
        up = up._replace(report={**up.report, "more": torch.zeros(2_000_000)})
    return reply._replace(pieces={"upload": encode(up, types)})


def misbehave(how: str, rng: random.Random, seconds: float) -> None:
    """Let every site of this process be slow, or lie."""
    handle = NetworkSite.handle
    answers = itertools.count(rng.randrange(EVERY))

    def badly(site: NetworkSite, packet: Packet) -> Packet:
        reply = handle(site, packet)
        if "upload" not in reply.pieces:
            return reply
        if how == "slow" and next(answers) % EVERY == 0:
            time.sleep(seconds)
        if how == "lying" and rng.random() < SHARE:
            return lie(rng.choice(LIES), site, reply)
        return reply

    NetworkSite.handle = badly  # type: ignore[method-assign]


if __name__ == "__main__":
    # another start, other lies
    misbehave(sys.argv[1], random.Random(f"{sys.argv[2]} {time.time()}"), float(sys.argv[3]))
    sys.exit(main(["network", *sys.argv[4:]]))
