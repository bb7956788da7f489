"""The one round loop."""

from __future__ import annotations

import hashlib
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie import randomness
from coterie.contract import Algorithm, Rows, Sums, at_round, check_settings
from coterie.data.federation import Federation
from coterie.engine.ask import Engine, Exchanges
from coterie.engine.call import DryRun, is_rows
from coterie.runs.folder import RunFolder
from coterie.engine.codec import types_of
from coterie.engine.evaluate import Evaluation
from coterie.engine.loop import Loop
from coterie.runs.options import Options
from coterie.engine.vectorised import Plan, Vectorised, plan
from coterie.engine.wire import Wire
from coterie.errors import CoterieError
from coterie.metrics import Row, concerns, group_row, hard, per_client, summary
from coterie.params import nbytes
from coterie.task import Task

log = logging.getLogger("coterie")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after the round was finished and saved."""


class Run:
    """A run in progress: `rounds()` yields a row of metrics per round."""

    model_name = ""  # as the config file tells it

    def __init__(
        self,
        method: Algorithm,
        fed: Federation,
        task: Task,
        options: Options,
        cut: Plan | None = None,
        folder: RunFolder | None = None,
    ) -> None:
        check_settings(options)
        if not fed.blank:
            method.check(task, fed.train.sizes[: len(fed)])
        if method.needs_everyone and options.participation < 1:
            raise CoterieError(f"in {method.name} everyone takes part in every round: leave participation at 1.")
        if options.stop_after is not None and fed.valid is None and not fed.blank:
            raise CoterieError(
                "stop_after looks at the valid part, and there is none: set valid to a share such as 0.2."
            )
        self.method, self.fed, self.task, self.options, self.folder = method, fed, task, options, folder
        self.root = Evaluation(method, options.choose_on)
        self.cut = cut or plan(task, fed)
        self.engine = self._engine()
        self.client_keys = randomness.client_keys(fed.names, options.seed)
        self.everyone = torch.tensor(sorted(range(len(fed)), key=fed.names.__getitem__))
        self.newcomers = torch.arange(len(fed), len(fed.names))
        self.medians: dict[str, float] = {}
        self.history: list[Row] = []
        self.clients: dict[str, np.ndarray] = {}  # the last evaluation, per client
        self.round = -1  # the last that is done; 0 is the start
        self.best, self.waited, self.stopped = math.inf, 0, False
        self.interrupted = False  # by Ctrl-C, perhaps in the last round
        self.saved_at, self.save_took = time.monotonic(), 0.0
        self.state, welcome = method.start(task, len(fed), options.seed)
        self.welcome_bytes = nbytes(welcome) * len(fed)
        self.engine.enroll(method, welcome, self.everyone, self.client_keys[self.everyone])
        private = tree_map(lambda v: v[int(self.everyone[0])], self.engine.snapshot())
        self.dry = DryRun(task, self.engine.example, private)

    def _engine(self) -> Engine:
        if self.options.engine == "wire":
            return Wire(self.task, self.fed, self.root)
        if self.options.engine == "loop":
            return Loop(self.task, self.fed)
        return Vectorised(self.task, self.fed, self.cut)

    # ---- rounds
    def rounds(self) -> Iterator[Row]:
        while self.round < self.options.rounds and not self.stopped:
            yield self.step()

    def step(self) -> Row:
        began, r = time.perf_counter(), self.round + 1
        if self.fed.blank:
            raise CoterieError("this run has no data: give them again to train it.")
        before = self.groups()
        ask = self.asker(r)
        method: Algorithm = ask.root.method
        self.state = method.begin(self.state, ask) if r == 0 else method.round(self.state, ask)
        row: Row = {
            "round": r,
            "seconds": 0.0,
            "bytes_down": ask.bytes_down + (self.welcome_bytes if r == 0 else 0),
            "bytes_up": ask.bytes_up,
            "refused": [self.fed.names[i] for i in sorted(set(ask.refused))],
            **group_row(method.groups(self.state), before, self.fed.truth, getattr(method, "clusters", None)),
        }
        if ask.notes:
            row["notes"] = ask.notes
        now = self.groups()
        if now is not None and (before is None or not np.array_equal(now, before) or not self.history):
            row["groups"] = now.tolist()
        row["seconds"] = time.perf_counter() - began
        if r % self.options.every == 0 or r == self.options.rounds:
            row |= self.evaluate(r)
        self.round = r
        self.history.append(row)
        self._maybe_stop(row)
        return row

    def asker(self, r: int) -> Exchanges:
        o = self.options
        return Exchanges(
            at_round(self.root, r), self.engine, self.dry, self.fed.names, self.client_keys, o.seed, r, self.everyone,
            self.participants(r), o.dropout, o.screen or None, self.medians,
        )  # fmt: skip

    def participants(self, r: int) -> Tensor:
        """This round's clients, in the order of their names; the draw depends on names, not on positions."""
        n = max(1, round(self.options.participation * len(self.everyone)))
        if n == len(self.everyone):
            return self.everyone
        chance = randomness.uniform(randomness.keys(self.client_keys[self.everyone], r, "participants"))
        return self.everyone[chance.argsort()[:n].sort().values]

    def groups(self) -> np.ndarray | None:
        found = self.method.groups(self.state)
        return None if found is None else hard(found)

    def _maybe_stop(self, row: Row) -> None:
        if self.options.stop_after is None or "valid_loss" not in row:
            return
        if row["valid_loss"] < self.best:
            self.best, self.waited = row["valid_loss"], 0
        else:
            self.waited += 1
        self.stopped = self.waited >= self.options.stop_after

    # ---- evaluation
    def evaluate(self, r: int) -> Row:
        """Every client on its test part, on its valid part if there is one, and the clients never seen in training."""
        began = time.perf_counter()
        ask = replace(self.asker(r), dropout=0.0, screen=None, medians={})
        root, (shared, per_client) = ask.root, ask.root.method.use(self.state)
        pick = lambda v: Rows(v.table, v.index[self.everyone]) if isinstance(v, Rows) else v[self.everyone]
        per_client = tree_map(pick, per_client, is_leaf=is_rows)
        row: Row = {}
        for exam, prefix in (("test", ""), ("valid", "valid_")):
            part = getattr(self.fed, exam)
            if part is not None and len(part.x):
                got = ask(root.measure, self.everyone, shared=shared, per_client=per_client, stream="evaluate", exam=exam)
                row |= summary(self.task.kind, got.report, prefix)
                if exam == "test":
                    self.clients = self._by_client(got)
        if len(self.newcomers) and len(self.fed.test.x):
            ids, fn = self.newcomers, root.measure_newcomer
            got = ask(fn, ids, shared=shared, stream="evaluate", exam="test", enrolled=False)
            row |= summary(self.task.kind, got.report, "unseen_")
        return row | {
            "eval_bytes_down": ask.bytes_down,
            "eval_bytes_up": ask.bytes_up,
            "eval_seconds": time.perf_counter() - began,
        }

    def _by_client(self, got: Sums) -> dict[str, np.ndarray]:
        order = got.ids.argsort()
        return {k: v[order.numpy()] for k, v in per_client(self.task.kind, got.report).items()}

    # ---- the folder
    def go(self, on_round: Callable[[Row], Any] | None = None) -> Run:
        """Run to the end, saving as it goes; Ctrl-C finishes the round and saves."""
        with self.folder or nullcontext(), _on_interrupt() as asked_to_stop:
            if self.folder is not None:
                self.folder.rewind(self.history, self.options.rounds)  # rows after the checkpoint are made again
            for row in self.rounds():
                if self.folder is not None:
                    self.folder.append(row)
                    last = self.round >= self.options.rounds or self.stopped or asked_to_stop.is_set()
                    self.save(always=last or self.round == 0)
                if on_round is not None:
                    on_round(row)
                self.interrupted = asked_to_stop.is_set()
                if self.interrupted and self.folder is not None and self.round < self.options.rounds:
                    raise Interrupted
            for concern in self.concerns():
                log.warning("%s: %s", self.method.name, concern)
        return self

    def concerns(self) -> list[str]:
        """What is odd about the groups so far, a sentence each."""
        return concerns(self.history, self.method.centres(self.state), self.method.groups(self.state))

    def save(self, always: bool = False) -> None:
        """At most 5 % of the time goes into checkpoints."""
        assert self.folder is not None
        since = time.monotonic() - self.saved_at
        if not always and 0.05 * since < self.save_took:
            return
        began = time.monotonic()
        tree = {"state": self.state, "private": self.engine.snapshot()}
        head = {"medians": self.medians, "best": self.best, "waited": self.waited, "stopped": self.stopped}
        self.folder.save(self.round, tree, head)
        self.saved_at = time.monotonic()
        self.save_took = self.saved_at - began

    def restore(self) -> None:
        """Be where the newest whole checkpoint of the folder was; nothing is written until the run goes on."""
        assert self.folder is not None
        with self.folder:
            found = self.folder.latest(types_of(self.method))
        if found is None:
            return
        tree, head = found
        device = self.task.device
        self.state = tree_map(lambda v: v.to(device) if v.is_floating_point() else v, tree["state"])
        self.engine.restore(tree["private"])
        self.round, self.medians = head["round"], head["medians"]
        self.best = math.inf if head["best"] is None else head["best"]
        self.waited, self.stopped = head["waited"], head["stopped"]
        self.history = self.folder.rows(until=self.round)
        if self.stopped or self.round >= self.options.rounds:
            self.evaluate(self.round)  # the clients' scores are not in the folder


@contextmanager
def _on_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C sets the event, the second stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def first(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log.warning("stopping after this round; once more to stop at once.")

    old = signal.signal(signal.SIGINT, first)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, old)


def model_fingerprint(task: Task) -> str:
    shapes = {k: list(v.shape) for k, v in task.module.named_parameters()}
    return hashlib.sha256(f"{task.module} {shapes}".encode()).hexdigest()
