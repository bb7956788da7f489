"""What a site replies: the fixed words of its failures, and packets of its answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.core.errors import CoterieError
from coterie.engines.codec import BadBytes
from coterie.engines.message import Message
from coterie.network.packets import Answer, Number, Packet, Reply, write_head

log = logging.getLogger("coterie")
NO_EXPERIMENT = "0" * 16
BAD_TABLE = "its table cannot be used for this run; its own log says why"
BAD_STATES = "its own files of this run cannot be used; its own log says why"
NOT_KEPT = "it could not keep its private state; its own log says why"
BUG = "it failed; its own log says why"
NOT_WRITTEN = "it could not write its own model; its own log says why"
FOR_ITS_OWNER = (BAD_TABLE, BAD_STATES)  # a node ends; a full disk may have room again


class Failure(Exception):
    """This machine could not do what it was asked; the text is what the server is told."""


class Faults:
    """Failures of this machine, which its owner reads and the server does not."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.last: CoterieError | None = None  # what this machine's owner must mend

    @contextmanager
    def told_as(self, words: str) -> Iterator[None]:
        """Where this machine fails, its own log says why, and the server is told `words`."""
        try:
            yield
        except (CoterieError, OSError, MemoryError) as e:
            log.error("%s: %s", self.client, e)
            if isinstance(e, CoterieError) and e.options:
                log.info("%s: options stand in the server's config file", self.client)
            if isinstance(e, CoterieError) and words in FOR_ITS_OWNER:
                self.last = e
            raise Failure(words) from e


def read_message(pieces: dict[str, bytes]) -> Message:
    """The message in the pieces of a packet."""
    if not {"shared", "own"} <= pieces.keys() <= set(Message._fields):
        raise BadBytes("its pieces are not those of a message")
    return Message(pieces["shared"], pieces["own"], pieces.get("initial_payload"))


def packed(
    experiment: str, number: Number, answer: Answer, pieces: dict[str, bytes] | None = None
) -> Packet:
    """A reply as a packet."""
    reply = Reply(
        experiment=experiment, epoch=number.epoch, sequence=number.sequence, answer=answer
    )
    return Packet(write_head(reply), pieces or {})
