"""Signs of life, by which peers tell who is gone from who is only slow.

A connection that breaks does not say who was killed: the neighbours of a dead peer end, then
theirs. So every peer writes a number into the store now and then; the first that looks for those
who do not writes down its verdict, and all others take it over.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from coterie.network.peers.meeting import Place, Store, connect

BEAT = 0.5  # seconds between signs of life
LOOK = 3.0  # seconds in which a living peer gives another one
LONGEST_ANSWER = LOOK + 5.0  # seconds until the store must have answered
VERDICT = "verdict"


class Sign(NamedTuple):
    """What a peer writes: a number that grows, and which exchange it has come to."""

    beat: int
    exchange: int


class Verdict(NamedTuple):
    """Why an exchange failed, by ranks."""

    gone: list[int]
    slow: list[int]


RANK_0_IS_GONE = Verdict([0], [])  # the store was in its process


class Signs(threading.Thread):
    """Writes this peer's signs of life until it is stopped."""

    def __init__(self, place: Place, exchange: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.exchange = exchange
        self.stopped = threading.Event()

    def run(self) -> None:
        """Write a sign now and then."""
        beat = 0
        try:
            store = connect(self.place)
            while not self.stopped.wait(BEAT):
                beat += 1
                store.set(f"sign/{self.place.rank}", json.dumps([beat, self.exchange()]))
        except RuntimeError:  # rank 0 has ended: whoever asks the store next notices
            return

    def stop(self) -> None:
        """Write no more."""
        self.stopped.set()


def read_signs(store: Store, place: Place) -> list[Sign]:
    """The newest sign of every peer."""
    signs = []
    for rank in range(place.world):
        key = f"sign/{rank}"
        sign = Sign(0, 0)
        if store.check([key]):
            sign = Sign(*json.loads(store.get(key)))
        signs.append(sign)
    return signs


def agree_on_verdict(store: Store, place: Place, exchange: int) -> Verdict:
    """Who is gone or slow, as the first peer saw it that noticed; then this peer has left.

    A question to a store whose process stands still never ends, so it is asked in a thread.
    """
    verdicts: list[Verdict] = []

    def ask() -> None:
        with suppress(RuntimeError):  # rank 0 has ended
            verdicts.append(ask_for_verdict(store, place, exchange))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(LONGEST_ANSWER)
    if not verdicts:
        return RANK_0_IS_GONE
    return verdicts[0]


def ask_for_verdict(store: Store, place: Place, exchange: int) -> Verdict:
    """The verdict that is written down, or this peer's own."""
    if not store.check([VERDICT]):
        verdict = look_around(store, place, exchange)
        store.compare_set(VERDICT, "", json.dumps(verdict))
    agreed = Verdict(*json.loads(store.get(VERDICT)))
    store.set(f"left/{place.rank}", "yes")
    return agreed


def look_around(store: Store, place: Place, exchange: int) -> Verdict:
    """Who gives no more signs of life, and who has not come to this exchange."""
    before = read_signs(store, place)
    time.sleep(LOOK)
    now = read_signs(store, place)
    gone = [
        rank
        for rank, (old, new) in enumerate(zip(before, now))
        if new.beat <= old.beat and rank != place.rank
    ]
    slow = [rank for rank, sign in enumerate(now) if sign.exchange < exchange]
    return Verdict(gone, [rank for rank in slow if rank not in gone and rank != place.rank])


def wait_for_others(store: Store, place: Place, verdict: Verdict) -> None:
    """Let rank 0, whose store the others read the verdict from, be the last that leaves."""
    if place.rank != 0 or verdict == RANK_0_IS_GONE:
        return
    end = time.monotonic() + place.deadline
    awaited = [rank for rank in range(1, place.world) if rank not in verdict.gone]
    while time.monotonic() < end:
        if all(store.check([f"left/{rank}"]) for rank in awaited):
            return
        time.sleep(BEAT)
