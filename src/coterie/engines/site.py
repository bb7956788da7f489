"""A site: one client on its own machine, and the policy by which it answers an untrusted server.

A site runs only client functions that the run's settings use, in the rounds and as often as they
are declared, on data that never leave it. For any message, `Site.answer` returns an upload or
raises BadBytes or SiteRefusal. The error reveals nothing about the site's samples and leaves
the site unchanged.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from coterie.core.call import START, EvaluationData, Version, follow
from coterie.core.contract import Data, Declaration, Upload, at_round
from coterie.core.errors import SiteRefusal
from coterie.core.rounding import round_significant, round_to_scale
from coterie.core.task import Batch, Task
from coterie.core.trees import tree_leaves
from coterie.engines.codec import BadBytes, Types, decode, encode
from coterie.engines.evaluate import Evaluation
from coterie.engines.message import Head, Limits, Message, Own, Reader, form
from coterie.privacy.row_budget import RowBudget

# functions of Evaluation that every site answers
SCORES = ("measure", "measure_unseen", "measure_summed", "measure_unseen_summed", "membership")
FunctionCall = tuple[int, str, str, str]  # round, phase, path and name


@dataclass(frozen=True)
class SitePolicy:
    """What a run may request from a site: its method, task and rounds, and the owner's limits.

    It is fixed before the first message.
    """

    root: Evaluation
    task: Task
    types: Types
    rounds: int | None = None  # the run's last round, if known
    limits: Limits = field(default_factory=Limits)
    min_rows_to_report: int = 1  # with fewer it does not measure
    digits: int | None = None  # significant digits of scores; None: all
    # called with the number of models before they are scored; raises SiteRefusal above a limit
    count_scores: Callable[[int], None] = lambda models: None
    # functions of Evaluation that are permitted beyond the scores, any number of times
    allowed: frozenset[str] = frozenset()
    functions: frozenset[str] | None = None  # of all functions, those that may run; None: all
    secure: bool = False  # only sums leave: see `engines/secure_exchange.py`
    only_sums: bool = False  # the run uses only sums, as also under differential privacy

    @cached_property
    def reader(self) -> Reader:
        """Reads the messages of this run."""
        return Reader(self.task, self.types, self.limits)

    @cached_property
    def initial_payload_form(self) -> Any:
        """The structure and shapes of a valid initial payload, from the method's own start.

        It does not depend on the number of clients, so that no message can make it large.
        """
        method = self.root.method
        start = method.start_secure if self.only_sums else method.start
        _, initial_payload = start(self.task, 1, seed=0)
        # encoded and decoded, because a message turns lists into tuples
        return form(decode(encode(initial_payload, self.types), self.types)[0])

    def function(self, head: Head) -> Any:
        """Look up the client function that a message names.

        Raises:
            SiteRefusal: If the run does not use it in this round and phase.
        """
        moment = head.call_version
        if self.rounds is not None and moment.round > self.rounds:
            raise SiteRefusal("the run has fewer rounds")
        owner = follow(at_round(self.root, moment.round), head.path)
        declaration = getattr(getattr(type(owner), head.name, None), "declaration", None)
        if not isinstance(declaration, Declaration):
            raise SiteRefusal("that is not a client function")
        if self.functions is not None and head.name not in self.functions:
            raise SiteRefusal("this site's owner does not permit that function")
        if not declaration.when(owner):
            raise SiteRefusal("the run does not use that function")
        if self.only_sums and (
            declaration.secure == "replaced" or declaration.obstacle is not None
        ):
            raise SiteRefusal("that function would reveal more than a sum")
        if not self.only_sums and declaration.secure == "only":
            raise SiteRefusal("the run has no secure sums")
        if declaration.rounds == "start" and moment.round > 0:
            raise SiteRefusal("that function runs only in round 0")
        if declaration.rounds == "later" and moment.round == 0:
            raise SiteRefusal("that function does not run in round 0")
        self._check_phase(head)
        return getattr(owner, head.name)

    def _check_phase(self, head: Head) -> None:
        """Check the phase, that only training changes private states, and the permitted scores."""
        phase = head.call_version.phase
        expected = "train"
        if is_evaluation(head):
            expected = "evaluate"
            if head.name not in {*SCORES, *self.allowed}:
                raise SiteRefusal("this site's owner does not permit that function")
        if phase != expected:
            raise SiteRefusal("that function belongs to another phase of the run")
        if head.keeps_private != (phase == "train"):
            raise SiteRefusal("private states change only in training")
        if head.keeps_private and not head.enrolled:
            raise SiteRefusal("a client without a private state does not train")

    def max_answers(self, fn: Any, head: Head) -> float:
        """How often a function is answered per round and phase, repeats included."""
        if is_evaluation(head) and head.name in self.allowed:
            return float("inf")
        declaration: Declaration = fn.declaration
        return declaration.max_calls(fn.__self__) * self.limits.repeats


def is_evaluation(head: Head) -> bool:
    """Whether the function belongs to Evaluation rather than to the method."""
    return not head.path


class Site:
    """Answers the messages of one client, with its samples and private states.

    Args:
        policy: What the run may request.
        parts: The samples of each part of the data: "train", "test", "valid".
        budget: Of its rows, under record-level differential privacy.
    """

    def __init__(
        self, policy: SitePolicy, parts: dict[str, Batch], budget: RowBudget | None = None
    ) -> None:
        self.policy = policy
        self.parts = parts
        self.budget = budget
        self.trainings = 0  # of which the budget was charged
        self.choices = 0
        self.versions: dict[Version, Any] = {}  # private states that the server may still refer to
        self.answered: Counter[FunctionCall] = Counter()  # answers per function call
        self.last_answered: FunctionCall | None = None

    @property
    def types(self) -> Types:
        """The NamedTuples that messages may contain."""
        return self.policy.types

    def answer(self, message: Message) -> bytes:
        """Run the function that the message names.

        Returns:
            The upload as bytes.

        Raises:
            BadBytes: If the message is malformed or does not fit this run.
            SiteRefusal: If the site's policy does not permit the call.
        """
        if self.policy.secure:
            raise SiteRefusal("only sums over sites leave this site")
        return self.run(message, lambda upload, fn, head: encode(upload, self.types))

    def run(self, message: Message, finish: Callable[[Upload, Any, Head], bytes]) -> bytes:
        """Run the function that the message names, as `answer` does.

        Args:
            message: The message.
            finish: Turns the upload into the reply; also gets the function and the header.
        """
        read = self.policy.reader
        own = read.own(message.own)
        head = own.head
        fn = self.policy.function(head)
        requested = (head.call_version.round, head.call_version.phase, head.path, head.name)
        if self.answered[requested] >= self.policy.max_answers(fn, head):
            raise SiteRefusal("the limit of answers to that function in this round is reached")
        shared = read.tree(message.shared)
        data = self._data(own)
        initial_payload = None
        if message.initial_payload is not None:
            initial_payload = self._read_initial_payload(message.initial_payload, head)
        is_score = is_evaluation(head) and head.name in SCORES
        if is_score:
            models = read.count_models(shared) if head.name == "membership" else 1
            self.policy.count_scores(models)
        self._charge(fn, head)
        try:
            with time_limit(self.policy.limits.seconds):
                versions = self._states_with_first(initial_payload, own)
                private = self._starting_state(versions, head)
                up, after = fn(
                    self.policy.task, shared, own.per_client, private, data, **head.static
                )
                if is_score:
                    min_rows, digits = self.policy.min_rows_to_report, self.policy.digits
                    up = up._replace(report=coarsen_sums(up.report, min_rows, digits))
                reply = finish(up, fn, head)
        except (BadBytes, SiteRefusal):
            raise
        except Exception as e:  # functions are pure, so the state is unchanged
            raise BadBytes(
                f"that function failed on the values that it received ({type(e).__name__})"
            ) from e
        if head.keeps_private:
            versions = self._states_after_training(versions, private, after, head)
        self.versions = versions
        self.answered[requested] += 1
        self.last_answered = requested
        return reply

    def reset(self) -> None:
        """Forget all private states and counts."""
        self.versions = {}
        self.answered = Counter()

    def _charge(self, fn: Any, head: Head) -> None:
        """Count what the function costs the rows, before it runs.

        Raises:
            SiteRefusal: If the budget of the rows does not suffice.
        """
        if self.budget is None:
            return
        declaration: Declaration = fn.declaration
        trainings, choices = declaration.trainings, declaration.choices
        if is_evaluation(head):
            trainings, choices = 0, self.policy.root.method.choices_to_predict or 0
        if trainings is None:
            raise SiteRefusal("that function would use rows without noise")
        trainings, choices = self.trainings + trainings, self.choices + choices
        if not self.budget.affords(trainings, choices):
            raise SiteRefusal("the privacy budget of this site is spent")
        self.trainings, self.choices = trainings, choices

    def _train_data(self, key: Tensor, client_key: Tensor) -> Data:
        """The training samples, with the site's noise under record-level differential privacy."""
        data = Data(self.parts["train"], key, client_key)
        if self.budget is None:
            return data
        noise = torch.tensor(self.budget.noise_multiplier, dtype=torch.float64)
        return data._replace(noise_multiplier=noise.to(client_key.device))

    def _data(self, own: Own) -> Any:
        """The samples that the function receives."""
        train = self._train_data(own.key, own.client_key)
        split = own.head.split
        if split is None:
            if is_evaluation(own.head) and own.head.name in SCORES:
                self._check_sample_count("train")
            return train
        if not is_evaluation(own.head) or split == "train" or split not in self.parts:
            raise BadBytes("the site has no such split to evaluate on")
        self._check_sample_count(split)
        return EvaluationData(train, self.parts[split])

    def _check_sample_count(self, part: str) -> None:
        """Refuse evaluation on so few samples that scores would reveal single ones."""
        if int(self.parts[part].mask.sum()) < self.policy.min_rows_to_report:
            raise SiteRefusal("this site has too few samples to be evaluated on")

    # -- private states
    def _read_initial_payload(self, raw: bytes, head: Head) -> Any:
        """Read the initial payload; refuse one that would reset a client."""
        if not head.enrolled or head.start_version != START:
            raise BadBytes("an initial payload is only valid in a client's first message")
        if self.versions and START not in self.versions:
            raise SiteRefusal("this site has private states already")
        initial_payload = self.policy.reader.tree(raw)
        if form(initial_payload) != self.policy.initial_payload_form:
            raise BadBytes("the initial payload does not have the structure of this method")
        return initial_payload

    def _states_with_first(self, initial_payload: Any, own: Own) -> dict[Version, Any]:
        """The private states, with a first one if there is none.

        An initial payload that is sent again, because the first answer was lost, changes nothing.
        """
        if initial_payload is None or self.versions:
            return self.versions
        data = self._train_data(own.client_key, own.client_key)
        method = self.policy.root.method
        return {START: method.enroll(self.policy.task, initial_payload, data)}

    def _starting_state(self, versions: dict[Version, Any], head: Head) -> Any:
        if not head.enrolled:
            return ()
        before, now = head.start_version, head.call_version
        if before not in versions:
            raise BadBytes(f"the site has no private state of version {tuple(before)}")
        if now.round < before.round:
            raise BadBytes("its round is before the round of the state to start from")
        is_later = (now.round, now.exchange) > (before.round, before.exchange)
        if head.keeps_private and not is_later:
            raise BadBytes("it repeats training that was accepted")
        return versions[before]

    def _states_after_training(
        self, versions: dict[Version, Any], before: Any, after: Any, head: Head
    ) -> dict[Version, Any]:
        """The private states after training: those to keep and the new one."""
        if form(after) != form(before):
            raise BadBytes("the private state would change its structure or shapes")
        kept = {v: state for v, state in versions.items() if v in head.versions_to_keep}
        if not is_finite(after) and is_finite(before):
            # servers reject the upload of such a client; one that accepts it cannot erase the state
            after = before
        return {**kept, head.call_version: after}


def is_finite(state: Any) -> bool:
    """Whether all numbers of a private state are finite."""
    return all(bool(v.isfinite().all()) for v in tree_leaves(state))


# ------------------------------------------------------------------------------ time
class TooLong(Exception):
    """An answer exceeded its time limit."""


class Deadline(TorchFunctionMode):
    """Raises `TooLong` at the next torch call after the deadline."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.end = time.monotonic() + seconds

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the torch function, unless the deadline has passed."""
        if time.monotonic() > self.end:
            raise TooLong
        return func(*args, **(kwargs or {}))


def time_limit(seconds: float | None) -> AbstractContextManager[Any]:
    """A context that is stopped after this time; None: no limit."""
    if seconds is None:
        return nullcontext()
    return Deadline(seconds)


# ------------------------------------------------------------------------------ coarse sums
# A sum of losses has 53 bits: a server that knows the rows can choose a model whose losses are
# different powers of two, and read every label from one sum. A bin of the histogram with one row is
# that row's score. So sums are rounded to a few digits, and neighbouring bins are joined until each
# has enough rows.
ROUNDED = ("loss", "log_loss", "absolute", "squared", "brier", "losses")


def coarsen_sums(sums: dict[str, Tensor], min_rows: int, digits: int | None) -> dict[str, Tensor]:
    """Round the sums of one client and join bins with few rows.

    Args:
        sums: What `sum_over_samples` returned, or a report of losses.
        min_rows: Fewest rows of a bin.
        digits: Significant digits; None: all.
    """
    coarse = dict(sums)
    if "scored" in sums and min_rows > 1:
        coarse["scored"] = join_bins(sums["scored"], min_rows)
    if digits is None:
        return coarse
    for name in ROUNDED:
        if name in sums:
            rounded = [round_significant(v, digits) for v in sums[name].double().flatten().tolist()]
            coarse[name] = sums[name].new_tensor(rounded).reshape(sums[name].shape)
    if "y2" in sums:
        n = float(sums["n"])
        mean = float(sums["y"]) / n
        deviation = math.sqrt(max(0.0, float(sums["y2"]) / n - mean**2))
        mean = round_to_scale(mean, deviation, digits)
        square = round_significant(deviation, digits) ** 2 + mean**2
        coarse["y"] = sums["y"].new_tensor(n * mean)
        coarse["y2"] = sums["y2"].new_tensor(n * square)
    return coarse


def join_bins(counts: Tensor, min_rows: int) -> Tensor:
    """Join neighbouring bins until each non-empty one has at least `min_rows` rows.

    Args:
        counts: [2, bins], by class.
        min_rows: Fewest rows of both classes in a bin.

    Returns:
        Counts of the same shape and total; each group of bins is counted in its middle bin.
    """
    joined = torch.zeros_like(counts)
    groups: list[list[int]] = [[]]
    rows = 0
    for place in counts.sum(0).nonzero()[:, 0].tolist():
        if rows >= min_rows:
            groups.append([])
            rows = 0
        groups[-1].append(place)
        rows += int(counts[:, place].sum())
    if rows < min_rows and len(groups) > 1:  # the last group is too small on its own
        groups[-2:] = [groups[-2] + groups[-1]]
    for places in groups:
        if places:
            joined[:, places[len(places) // 2]] = counts[:, places].sum(1)
    return joined
