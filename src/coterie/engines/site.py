"""One client on its own machine: what it answers to a server that it need not trust.

A site runs only client functions that the run's own settings use, in the rounds and as often as
they are declared, on data that never leave it. Whatever a message holds, `Site.answer` returns an
upload or raises BadBytes or PermissionError, whose one sentence tells nothing of the site's rows;
then the site is as it was before.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from coterie.core.call import START, EvaluationData, Version, follow
from coterie.core.contract import Data, Declaration, at_round
from coterie.core.task import Batch, Task
from coterie.engines.codec import BadBytes, Types, decode, encode
from coterie.engines.evaluate import Evaluation
from coterie.engines.message import Head, Limits, Message, Own, Reader, form

SCORES = ("measure", "measure_newcomer", "membership")  # of Evaluation, what every site answers
Asked = tuple[int, str, str, str]  # round, phase, path and name of a function


@dataclass(frozen=True)
class Agreement:
    """What a site's owner agreed to before the first message."""

    root: Evaluation
    task: Task
    types: Types
    clients: int  # how many take part
    rounds: int | None = None  # the run's last round; none: not known
    limits: Limits = field(default_factory=Limits)
    min_rows_to_report: int = 1  # with fewer it does not measure
    # functions of Evaluation that may be asked for beyond the scores, as often as a server likes
    allowed: frozenset[str] = frozenset()

    @cached_property
    def reader(self) -> Reader:
        """Reads the messages of this run."""
        return Reader(self.task, self.types, self.limits)

    @cached_property
    def initial_payload_form(self) -> Any:
        """The form that an initial payload must have: that of the method's own start."""
        _, initial_payload = self.root.method.start(self.task, self.clients, seed=0)
        return form(decode(encode(initial_payload, self.types), self.types)[0])

    def function(self, head: Head) -> Any:
        """The function that a message names, if this run uses it; the budget is counted apart."""
        moment = head.asked_at
        if self.rounds is not None and moment.round > self.rounds:
            raise PermissionError("the run has fewer rounds")
        owner = follow(at_round(self.root, moment.round), head.path)
        declaration = getattr(getattr(type(owner), head.name, None), "declaration", None)
        if not isinstance(declaration, Declaration):
            raise PermissionError("that is not a client function")
        if not declaration.when(owner):
            raise PermissionError("the run's settings do not use that function")
        if declaration.rounds == "start" and moment.round > 0:
            raise PermissionError("that function runs in round 0 alone")
        if declaration.rounds == "later" and moment.round == 0:
            raise PermissionError("that function does not run in round 0")
        self._check_phase(head)
        return getattr(owner, head.name)

    def _check_phase(self, head: Head) -> None:
        """Evaluations leave private states as they are, and only training changes them."""
        phase = head.asked_at.phase
        expected = "train"
        if owner_is_root(head):
            expected = "evaluate"
            if head.name not in {*SCORES, *self.allowed}:
                raise PermissionError("this site's owner did not allow that function")
        if phase != expected:
            raise PermissionError("that function belongs to another phase of the run")
        if head.keeps_private != (phase == "train"):
            raise PermissionError("private states change in training, and only there")
        if head.keeps_private and not head.enrolled:
            raise PermissionError("a client without a private state does not train")

    def most_answers(self, fn: Any, head: Head) -> float:
        """How often a function is answered in one round and phase, with what is asked again."""
        if owner_is_root(head) and head.name in self.allowed:
            return float("inf")
        declaration: Declaration = fn.declaration
        return declaration.max_calls(fn.__self__) * self.limits.repeats


def owner_is_root(head: Head) -> bool:
    """Whether the function is one of Evaluation, not of the method."""
    return not head.path


class Site:
    """One client on its own machine, with its rows and private states."""

    def __init__(self, agreement: Agreement, parts: dict[str, Batch]) -> None:
        self.agreement = agreement
        self.parts = parts
        self.versions: dict[Version, Any] = {}  # the private states that the server may still name
        self.answered: Counter[Asked] = Counter()  # how often, for the budget of each round

    @property
    def types(self) -> Types:
        """The NamedTuples that messages may hold."""
        return self.agreement.types

    def answer(self, message: Message) -> bytes:
        """Run the function that the message names; its upload as bytes."""
        read = self.agreement.reader
        own = read.own(message.own)
        head = own.head
        fn = self.agreement.function(head)
        asked = (head.asked_at.round, head.asked_at.phase, head.path, head.name)
        if self.answered[asked] >= self.agreement.most_answers(fn, head):
            raise PermissionError("that function was answered often enough in this round")
        shared = read.nest(message.shared)
        data = self._data(own)
        initial_payload = None
        if message.initial_payload is not None:
            initial_payload = self._read_initial_payload(message.initial_payload, head)
        try:
            with time_limit(self.agreement.limits.seconds):
                versions = self._enrolled(initial_payload, own)
                private = self._starting_state(versions, head)
                up, after = fn(
                    self.agreement.task, shared, own.per_client, private, data, **head.static
                )
                reply = encode(up, self.types)
        except BadBytes:
            raise
        except Exception as e:  # functions are pure: whatever they met, nothing has changed
            raise BadBytes(
                f"that function cannot work with what it was sent ({type(e).__name__})"
            ) from e
        if head.keeps_private:
            versions = self._moved_on(versions, private, after, head)
        self.versions = versions
        self.answered[asked] += 1
        return reply

    def forget(self) -> None:
        """Be as before the first message."""
        self.versions = {}
        self.answered = Counter()

    def _data(self, own: Own) -> Any:
        """The rows that the function sees."""
        train = Data(self.parts["train"], own.key, own.client_key)
        split = own.head.split
        if split is None:
            if owner_is_root(own.head) and own.head.name in SCORES:
                self._refuse_few_rows("train")
            return train
        if not owner_is_root(own.head) or split == "train" or split not in self.parts:
            raise BadBytes("there are no such rows to measure on")
        self._refuse_few_rows(split)
        return EvaluationData(train, self.parts[split])

    def _refuse_few_rows(self, part: str) -> None:
        """Refuse to be measured on so few rows that scores would tell of single ones."""
        if int(self.parts[part].mask.sum()) < self.agreement.min_rows_to_report:
            raise PermissionError("this site has too few rows to be measured on")

    # -- private states
    def _read_initial_payload(self, raw: bytes, head: Head) -> Any:
        """The initial payload; refused where it would take a client back to its beginning."""
        if not head.enrolled or head.starts_from != START:
            raise BadBytes("an initial payload belongs to a client's first answer")
        if self.versions and START not in self.versions:
            raise PermissionError("this site has private states already")
        initial_payload = self.agreement.reader.nest(raw)
        if form(initial_payload) != self.agreement.initial_payload_form:
            raise BadBytes("the initial payload is not built like one of this method")
        return initial_payload

    def _enrolled(self, initial_payload: Any, own: Own) -> dict[Version, Any]:
        """The private states, with a first one if there was none.

        An initial payload that is sent again, because the first answer was lost, changes nothing.
        """
        if initial_payload is None or self.versions:
            return self.versions
        data = Data(self.parts["train"], own.client_key, own.client_key)
        method = self.agreement.root.method
        return {START: method.enroll(self.agreement.task, initial_payload, data)}

    def _starting_state(self, versions: dict[Version, Any], head: Head) -> Any:
        if not head.enrolled:
            return ()
        before, now = head.starts_from, head.asked_at
        if before not in versions:
            raise BadBytes(f"no private state of {tuple(before)} is kept here")
        if now.round < before.round:
            raise BadBytes("it asks about a round before the one that it starts from")
        is_later = (now.round, now.exchange) > (before.round, before.exchange)
        if head.keeps_private and not is_later:
            raise BadBytes("it asks to train again what was accepted")
        return versions[before]

    def _moved_on(
        self, versions: dict[Version, Any], before: Any, after: Any, head: Head
    ) -> dict[Version, Any]:
        """The private states that are kept, and the new one."""
        if form(after) != form(before):
            raise BadBytes("the private state would change its form")
        kept = {v: state for v, state in versions.items() if v in head.kept}
        if not is_finite(after) and is_finite(before):
            after = before  # such an upload is refused; a server that says otherwise erases nothing
        return {**kept, head.asked_at: after}


def is_finite(state: Any) -> bool:
    """Whether all numbers of a private state are finite."""
    return all(bool(v.isfinite().all()) for v in tree_leaves(state))


# ------------------------------------------------------------------------------ time
class TooLong(Exception):
    """An answer took longer than its time."""


class Deadline(TorchFunctionMode):
    """Stops what runs at its next call of torch; one such call is never interrupted."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.end = time.monotonic() + seconds

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call torch, unless the time is over."""
        if time.monotonic() > self.end:
            raise TooLong
        return func(*args, **(kwargs or {}))


def time_limit(seconds: float | None) -> AbstractContextManager[Any]:
    """A block that is stopped after this time."""
    if seconds is None:
        return nullcontext()
    return Deadline(seconds)
