"""The engine of rank 0: questions go to all ranks, and their answers are merged here."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_map

from coterie.aggregation.aggregator import Fold, Part
from coterie.core.call import Call
from coterie.core.contract import Algorithm
from coterie.engines.codec import decode, decode_part, encode
from coterie.ranks.group import Group
from coterie.ranks.share import Question, Share, call_of_rank, write_common, write_own
from coterie.ranks.snapshots import cut_snapshot, join_snapshots


class Ranks:
    """The engine whose clients are divided among the ranks of a group."""

    def __init__(self, group: Group, share: Share, about: str) -> None:
        """share: of rank 0.  about: by which the other ranks make theirs, see `serve`."""
        self.group = group
        self.share = share
        self.shares = share.shares
        self.types = share.types
        group.tell("open", about.encode())
        group.hear_outcomes()  # whether all have the same data

    def enroll(self, method: Algorithm, initial_payload: Any) -> None:
        """Let every rank know how clients begin."""
        self.group.tell("enroll", encode(initial_payload, self.types))
        self.share.enroll(initial_payload)
        self.group.hear_outcomes()

    def map(self, call: Call, fold: Fold) -> Part:
        """Run the call on the clients of all ranks; parts are merged in the order of ranks."""
        reduce = "stack" if fold.holds_values else fold.reduce
        positions = self.shares.positions(call.ids)
        calls = [call_of_rank(call, some, self.shares) for some in positions]
        question = Question(calls[0], reduce, fold.screening)
        own = [write_own(some, self.types) for some in calls]
        self.group.tell("map", write_common(question, self.types), own)
        part = self.share.answer(question, fold.like)
        self.group.hear_outcomes(answers_follow=True)
        totals, mass = self.group.reduce((part.totals, part.mass))
        parts = [part, *(decode_part(raw, self.types) for raw in self.group.gather())]
        # the sums of all ranks are known: only what is said of single clients is merged
        rest = [
            fold.absorb(part._replace(totals={}, mass={}).at(some))
            for part, some in zip(parts, positions)
        ]
        merged = fold.merge(rest)._replace(totals=totals, mass=mass)
        return fold.complete(merged)

    # -- checkpoints
    def snapshot(self) -> Any:
        """Private states of all ranks, as an engine of one process would keep them."""
        self.group.tell("snapshot")
        own = self.share.engine.snapshot()
        self.group.hear_outcomes(answers_follow=True)
        others = [decode(raw, self.types)[0] for raw in self.group.gather()]
        on_cpu = tree_map(lambda v: v.cpu(), own)
        return join_snapshots([on_cpu, *others], self.shares)

    def restore(self, snapshot: Any) -> None:
        """Be where `snapshot` was taken, by these ranks or by one process."""
        pieces = [
            cut_snapshot(snapshot, self.shares, rank) for rank in range(len(self.shares.clients))
        ]
        self.group.tell("restore", own=[encode(piece, self.types) for piece in pieces])
        self.share.engine.restore(pieces[0])
        self.group.hear_outcomes()
