"""The clients that one rank simulates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie.aggregation.aggregator import Fold, Part
from coterie.aggregation.checks import Checks
from coterie.aggregation.clipping import Limit, Screening
from coterie.core.call import Call, Version, follow
from coterie.core.contract import Algorithm, Rows, Upload, at_round
from coterie.core.params import Params
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.data.shards import Among, Shares, divide
from coterie.engines.codec import Types, decode, encode, types_of
from coterie.engines.dry_run import DryRun
from coterie.engines.evaluate import Evaluation
from coterie.engines.guard import ask
from coterie.engines.plan import Plan
from coterie.engines.vectorised import Vectorised
from coterie.runs.options import Options
from coterie.runs.run import on_device
from coterie.runs.start import prepared_rows


class Question(NamedTuple):
    """What a rank is asked: a call with its own clients alone, and how answers are folded."""

    call: Call  # ids are those of the rank's own federation
    reduce: Literal["sum", "stack"]
    screening: Screening


class Share:
    """The clients of one rank: their rows, their private states, and the answers they give."""

    def __init__(
        self,
        rank: int,
        method: Algorithm,
        task: Task,
        fed: Federation,
        options: Options,
        plan: Plan,
    ) -> None:
        """fed: all clients, of which those of this rank are kept."""
        self.shares: Shares = divide(fed.roster, options.ranks, plan.workers)
        clients = self.shares.clients[rank]
        own = prepared_rows(method, task, fed, options).subset(clients)
        self.rank = rank
        self.method = method
        self.task = task
        self.roster = own.roster
        self.root = Evaluation(method, options.choose_on)
        self.engine = Vectorised(task, own, plan, Among(clients, fed.roster))
        self.types = types_of_questions(method)
        self.dry_run: DryRun | None = None

    def enroll(self, initial_payload: Any) -> None:
        """Remember how clients begin."""
        self.engine.enroll(self.method, initial_payload)
        self.dry_run = DryRun(self.task, self.roster, self.method, initial_payload)

    def answer(self, question: Question, like: Upload | None = None) -> Part:
        """What the answers of this rank's clients come to; like: an upload, where it is known."""
        call = question.call
        if like is None:
            assert self.dry_run is not None
            like = self.dry_run(call)
        checks = Checks(call, self.roster)
        fold = Fold(question.reduce, like, len(call.ids), checks, question.screening)
        return ask(self.engine, call, fold)

    def read_question(self, common: bytes, own: bytes) -> Question:
        """The question that `write_common` and `write_own` wrote."""
        (shared, started_from), head = decode(common, self.types)
        (ids, per_client, keys, client_keys), _ = decode(own, self.types)
        # copied: tensors in a message are not aligned, and sums may differ in the last bit then
        shared, started_from, per_client = tree_map(
            lambda v: v.clone(), (shared, started_from, per_client)
        )
        started_from = on_device(started_from, self.task)
        version = Version(*head["version"])
        owner = follow(at_round(self.root, version.round), head["path"])
        call = Call(
            fn=getattr(owner, head["name"]),
            path=head["path"],
            ids=ids.clone(),
            shared=on_device(shared, self.task),
            per_client=per_client,
            static=head["static"],
            keys=keys.clone(),
            client_keys=client_keys.clone(),
            version=version,
            split=head["split"],
            keeps_private=head["keeps_private"],
            enrolled=head["enrolled"],
        )
        for name in head["is_shared"]:
            started_from[name] = call.shared
        limits = {name: Limit(*limit) for name, limit in head["limits"].items()}
        screening = Screening(started_from, limits)
        return Question(call, head["reduce"], screening)


def types_of_questions(method: Algorithm) -> Types:
    """The NamedTuples that questions and answers may be made of."""
    types = types_of(method)
    if Rows not in types.values():
        types["coterie.Rows"] = Rows
    return types


def write_common(question: Question, types: Types) -> bytes:
    """The part of a question that is the same for all ranks."""
    call = question.call
    started_from = question.screening.started_from
    is_shared = [name for name in started_from if is_same(started_from[name], call.shared)]
    others = {name: started_from[name] for name in started_from if name not in is_shared}
    return encode(
        (call.shared, others),
        types,
        path=call.path,
        name=call.name,
        static=call.static,
        version=call.version,
        split=call.split,
        keeps_private=call.keeps_private,
        enrolled=call.enrolled,
        reduce=question.reduce,
        is_shared=is_shared,
        limits=question.screening.limits,
    )


def is_same(centres: Params, shared: Any) -> bool:
    """Whether clients started from what they are sent, which need not be sent again then."""
    if not isinstance(shared, dict) or shared.keys() != centres.keys():
        return False
    return all(torch.equal(v, shared[k]) for k, v in centres.items())


def write_own(call: Call, types: Types) -> bytes:
    """The part of a question that is for one rank; call: with its clients alone."""
    return encode((call.ids, call.per_client, call.keys, call.client_keys), types)


def call_of_rank(call: Call, positions: Tensor, shares: Shares) -> Call:
    """The call with the clients of one rank alone, by their ids there."""
    some = call.only(positions)
    return replace(some, ids=shares.local[some.ids])
