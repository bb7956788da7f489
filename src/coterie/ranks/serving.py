"""What all ranks but rank 0 do: answer its questions until it ends."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils._pytree import tree_map

from coterie.engines.codec import decode, encode, encode_part
from coterie.ranks.group import Group, Message
from coterie.ranks.share import Share
from coterie.runs.run import on_device

MakeShare = Callable[[str], Share]  # of this rank, by what rank 0 says of the run
Describe = Callable[[Exception], tuple[str, int]]  # an error as a sentence and an exit status


class Answer(NamedTuple):
    """What a rank has for rank 0: bytes, and sums to which all ranks contribute."""

    rest: bytes = b""
    sums: Any = ()


class Rank:
    """A rank that answers questions."""

    def __init__(self, group: Group, make_share: MakeShare) -> None:
        self.group = group
        self.make_share = make_share
        self.share: Share | None = None

    def serve(self, describe: Describe, debug: bool = False) -> None:
        """Answer until rank 0 ends; errors are told to rank 0, which raises them."""
        while True:
            message = self.group.listen()
            if message.what == "end":
                self.group.agree_to_end()
                return
            try:
                answer = self.obey(message)
            except Exception as e:
                if debug:
                    traceback.print_exc()
                self.group.fail(*describe(e))
            else:
                self.group.answer(answer.rest, answer.sums)

    def obey(self, message: Message) -> Answer:
        """Do what a message asks."""
        if message.what == "open":
            self.share = None  # before the next one takes memory
            self.share = self.make_share(message.common.decode())
            return Answer()
        assert self.share is not None
        types = self.share.types
        if message.what == "enroll":
            initial_payload = cloned(decode(message.common, types)[0])
            self.share.enroll(on_device(initial_payload, self.share.task))
            return Answer()
        if message.what == "restore":
            self.share.engine.restore(cloned(decode(message.own, types)[0]))
            return Answer()
        if message.what == "snapshot":
            return Answer(encode(self.share.engine.snapshot(), types))
        part = self.share.answer(self.share.read_question(message.common, message.own))
        without_sums = part._replace(totals={}, mass={})
        return Answer(encode_part(without_sums, types), (part.totals, part.mass))


def cloned(tree: Any) -> Any:
    """Copies of the tensors of a message, which lie unaligned in its bytes."""
    return tree_map(lambda v: v.clone(), tree)
