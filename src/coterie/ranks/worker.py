"""All ranks except rank 0: they answer the messages of rank 0 until it ends."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from coterie.core.trees import tree_map
from coterie.engines.codec import decode, encode, encode_part
from coterie.ranks.group import RankGroup, RankMessage
from coterie.ranks.launch import RankInfo, exit_with_launcher
from coterie.ranks.shard import RankShard
from coterie.runs.run import to_device

LoadShard = Callable[[str], RankShard]  # from the config that rank 0 sends
DescribeError = Callable[[Exception], tuple[str, int]]  # a sentence and an exit status


class RankResult(NamedTuple):
    """The result of a message: bytes for rank 0, and sums to which all ranks contribute."""

    rest: bytes = b""
    sums: Any = ()


class RankWorker:
    """Answers the messages of rank 0."""

    def __init__(self, group: RankGroup, load_shard: LoadShard) -> None:
        self.group = group
        self.load_shard = load_shard
        self.shard: RankShard | None = None

    def serve(self, describe_error: DescribeError, debug: bool = False) -> None:
        """Answer messages until rank 0 ends; send errors to rank 0, which raises them."""
        while True:
            message = self.group.receive()
            if message.kind == "end":
                self.group.confirm_end()
                return
            try:
                result = self.handle(message)
            except Exception as e:
                if debug:
                    traceback.print_exc()
                self.group.report_error(*describe_error(e))
            else:
                self.group.reply(result.rest, result.sums)

    def handle(self, message: RankMessage) -> RankResult:
        """Do what a message says."""
        if message.kind == "open":
            self.shard = None  # free its memory before the next one is loaded
            self.shard = self.load_shard(message.common.decode())
            return RankResult()
        assert self.shard is not None
        types = self.shard.types
        if message.kind == "enroll":
            initial_payload = clone(decode(message.common, types)[0])
            self.shard.enroll(to_device(initial_payload, self.shard.task))
            return RankResult()
        if message.kind == "restore":
            self.shard.engine.restore(clone(decode(message.own, types)[0]))
            return RankResult()
        if message.kind == "snapshot":
            return RankResult(encode(self.shard.engine.snapshot(), types))
        part = self.shard.run(self.shard.read_call(message.common, message.own))
        without_sums = part._replace(totals={}, mass={})
        return RankResult(encode_part(without_sums, types), (part.totals, part.mass))


def clone(tree: Any) -> Any:
    """Copy the tensors of a message, which are not aligned in its bytes."""
    return tree_map(lambda v: v.clone(), tree)


def serve_rank(
    info: RankInfo, load_shard: LoadShard, describe_error: DescribeError, debug: bool = False
) -> None:
    """Run this process as a rank other than 0 until rank 0 ends; call it in the main thread.

    Args:
        info: This rank.
        load_shard: Loads the shard of this rank from the config of a run.
        describe_error: Turns an error into a sentence and an exit status.
        debug: Print tracebacks.
    """
    exit_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # end at once while waiting for other ranks
    group = RankGroup(info)
    group.connect()
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 receives them too, and decides
        signal.signal(number, signal.SIG_IGN)
    RankWorker(group, load_shard).serve(describe_error, debug)
    group.close()
