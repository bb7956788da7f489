"""A run in progress: the one round loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from coterie.aggregation.aggregator import RobustRule
from coterie.aggregation.attacks import Attack, choose_attackers
from coterie.core import randomness
from coterie.core.call import pick_clients
from coterie.core.contract import Algorithm, Stack, Sums, at_round, check_settings
from coterie.core.errors import CoterieError, Option
from coterie.core.params import nbytes
from coterie.core.task import Task
from coterie.data.roster import Roster
from coterie.engines.codec import Types, types_of
from coterie.engines.dry_run import DryRun
from coterie.engines.evaluate import Evaluation
from coterie.engines.exchange import Guard, RoundContext
from coterie.engines.protocol import Engine
from coterie.metrics import Row, hard_labels, planted_error
from coterie.metrics.clusters import cluster_row, encode_assignment
from coterie.metrics.scores import evaluation_row, pool_counts, scores_per_client
from coterie.runs.folder import RunFolder
from coterie.runs.interrupt import Interrupted, finish_round_on_interrupt
from coterie.runs.membership import Answers, measure_memberships
from coterie.runs.options import Options
from coterie.runs.tables import remove_tables, write_tables
from coterie.runs.trained import TrainedRun

log = logging.getLogger("coterie")
SAVING_SHARE = 0.05  # of the time, at most, goes into checkpoints


class Run:
    """A run in progress; `rounds()` yields a row of metrics per round.

    It knows its clients by their roster alone: their rows and private states are the engine's.
    """

    def __init__(
        self,
        method: Algorithm,
        task: Task,
        roster: Roster,
        engine: Engine,
        options: Options,
        *,
        folder: RunFolder | None = None,
        model_name: str = "",
        start: Any = None,
    ) -> None:
        """start: a state of the server to begin from instead of the method's own."""
        check_run(method, task, roster, options)
        self.method, self.task, self.roster, self.options = method, task, roster, options
        self.engine, self.folder, self.model_name = engine, folder, model_name
        self.root = Evaluation(method, options.choose_on)
        self.client_keys = randomness.client_keys(roster.names, options.seed)
        by_name = sorted(range(len(roster)), key=roster.names.__getitem__)
        self.all_clients = torch.tensor(by_name)
        newcomers = torch.arange(len(roster), roster.total)
        self.newcomers = newcomers[self._have_rows(newcomers, "test")]
        self.guard = Guard(
            clip_factor=options.screen or None,
            robust=RobustRule(options.robust, options.robust_share),
            attack=create_attack(options, roster),
        )
        honest = self.all_clients
        if self.guard.attack is not None:
            honest = honest[~torch.isin(honest, self.guard.attack.attackers)]
        measurable = honest[self._have_rows(honest, "test", "valid")]
        self.evaluated = self._draw(measurable, options.eval_clients, 0, "evaluated")

        self.history: list[Row] = []
        self.client_scores: dict[str, np.ndarray] = {}  # of the last evaluation
        self.pooled_counts: dict[str, np.ndarray] = {}  # of the same, over all clients
        self.memberships: Answers = {}  # asked for at the end
        self.round = -1  # the last that is done; 0 is the start
        self.best_valid_loss, self.evaluations_without_gain = math.inf, 0
        self.stopped = False  # early, by `stop_after`
        self.interrupted = False  # by Ctrl-C, perhaps in the last round
        self.saved_at, self.last_save_took = time.monotonic(), 0.0
        self.saves_every_round = False  # whatever share of the time it takes

        self.state, initial_payload = method.start(task, len(roster), options.seed)
        self.has_given_start = start is not None
        if self.has_given_start:
            self.state = check_start(start, self.state, task)
        self.initial_payload_bytes = nbytes(initial_payload)
        self.dry_run = DryRun(task, roster, method, initial_payload)
        engine.enroll(method, initial_payload)

    # -- rounds
    def rounds(self) -> Iterator[Row]:
        """Train to the end, a row of metrics per round."""
        while not self.ended:
            yield self.step()

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to train."""
        return self.stopped or self.round >= self.options.rounds

    def step(self) -> Row:
        """One more round; round 0 is the start."""
        began, r = time.perf_counter(), self.round + 1
        before = self.groups()
        ask = self.asker(r)
        method: Algorithm = ask.root.method
        if r == 0:
            if not self.has_given_start:
                self.state = method.begin(self.state, ask)
        else:
            self.state = method.round(self.state, ask)
        row: Row = {
            "round": r,
            "seconds": 0.0,
            "bytes_down": ask.bytes_down + ask.bytes_of_initial_payloads,
            "bytes_up": ask.bytes_up,
            "rejected": [self.roster.names[i] for i in sorted(set(ask.rejected))],
            "clipped": [self.roster.names[i] for i in sorted(set(ask.clipped))],
            "absent": len(set(ask.absent)),
            **self._group_row(before),
        }
        if ask.notes:
            row["notes"] = ask.notes
        row["seconds"] = time.perf_counter() - began
        row |= planted_error(method.centres(self.state), self.roster.planted)
        if r % self.options.every == 0 or r == self.options.rounds:
            row |= self.evaluate(r)
            row["bytes_down"] += row.pop(
                "bytes_of_initial_payloads"
            )  # a cost of training, not of scores
        self.round = r
        self.history.append(row)
        self._stop_early(row)
        self.memberships = {}
        if self.ended:
            self._ask_memberships()
        return row

    def asker(self, r: int, phase: Literal["train", "evaluate"] = "train") -> RoundContext:
        """The `ask` of a round; evaluations drop and screen nobody."""
        training = phase == "train"
        return RoundContext(
            root=at_round(self.root, r),
            engine=self.engine,
            dry_run=self.dry_run,
            roster=self.roster,
            client_keys=self.client_keys,
            seed=self.options.seed,
            round=r,
            all_clients=self.all_clients,
            participants=self.participants(r),
            phase=phase,
            dropout=self.options.dropout if training else 0.0,
            guard=self.guard if training else Guard(),
            initial_payload_bytes=self.initial_payload_bytes,
        )

    def participants(self, r: int) -> Tensor:
        """This round's clients, in the order of their names."""
        n = max(1, round(self.options.participation * len(self.all_clients)))
        return self._draw(self.all_clients, n, r, "participants")

    def _draw(self, ids: Tensor, count: int | None, r: int, stream: str) -> Tensor:
        """Some of these clients, in the same order; the draw depends on names, not on positions."""
        if count is None or count >= len(ids):
            return ids
        chance = randomness.uniform(randomness.keys(self.client_keys[ids], r, stream))
        return ids[randomness.smallest(chance, count)]

    def _have_rows(self, ids: Tensor, *parts: Literal["test", "valid"]) -> Tensor:
        """Which of these clients have enough rows to be measured in one of the parts, bool."""
        most = torch.stack([getattr(self.roster.rows, part)[ids] for part in parts]).amax(0)
        return most >= self.options.min_rows_to_report

    # -- groups
    def groups(self) -> np.ndarray | None:
        """The group of each client now, int64 [N]; None for methods without groups."""
        groups = self.method.groups(self.state)
        return None if groups is None else hard_labels(groups)

    def _group_row(self, before: np.ndarray | None) -> Row:
        """Sizes, churn and agreement of the groups, and who changed."""
        row = cluster_row(
            self.method.groups(self.state),
            before,
            self.roster.truth,
            getattr(self.method, "clusters", None),
        )
        now = self.groups()
        if now is None:
            return row
        return row | encode_assignment(now, before if self.history else None)

    def _stop_early(self, row: Row) -> None:
        if self.options.stop_after is None or "valid_loss" not in row:
            return
        is_robust = self.options.robust != "mean"
        if is_robust and not math.isfinite(row["valid_loss"]):  # one client can report that
            return
        if row["valid_loss"] < self.best_valid_loss:
            self.best_valid_loss, self.evaluations_without_gain = row["valid_loss"], 0
        else:
            self.evaluations_without_gain += 1
        self.stopped = self.evaluations_without_gain >= self.options.stop_after

    # -- evaluation
    def evaluate(self, r: int) -> Row:
        """Scores on test and valid rows, and of the clients never seen in training."""
        began = time.perf_counter()
        ask = self.asker(r, "evaluate")
        root = ask.root
        shared, per_client = root.method.use(self.state)
        row: Row = {}
        splits: tuple[tuple[Literal["test", "valid"], str], ...] = (
            ("test", ""),
            ("valid", "valid_"),
        )
        for split, prefix in splits:
            ids = self.evaluated[self._have_rows(self.evaluated, split)]
            if not len(ids):
                continue
            sums: Sums = ask(
                root.measure,
                ids,
                shared=shared,
                per_client=pick_clients(per_client, ids),
                stream="evaluate",
                split=split,
            )
            row |= evaluation_row(self.roster.kind, sums.report, prefix)
            if split == "test":
                self.client_scores = self._by_client(sums)
                self.pooled_counts = pool_counts(sums.report)
        if len(self.newcomers):
            sums = ask(
                root.measure_newcomer,
                self.newcomers,
                shared=shared,
                stream="evaluate",
                split="test",
                enrolled=False,
            )
            row |= evaluation_row(self.roster.kind, sums.report, "unseen_")
        row["eval_bytes_down"], row["eval_bytes_up"] = ask.bytes_down, ask.bytes_up
        row["bytes_of_initial_payloads"] = ask.bytes_of_initial_payloads
        row["eval_seconds"] = time.perf_counter() - began
        return row

    def _ask_memberships(self) -> None:
        """Ask at the end which groups' models fit each client, and how surely.

        As with what a report asks, its bytes are not in the history: a run that is trained further
        has the same rows as one that never stopped.
        """
        ask = self.asker(self.round, "evaluate")
        self.memberships = measure_memberships(
            ask, self.method.centres(self.state), self.groups(), self.options.min_rows_to_report
        )

    def _by_client(self, sums: Sums) -> dict[str, np.ndarray]:
        """Each metric of every client that trains, [N]; NaN for those that did not answer."""
        scores = {}
        for name, values in scores_per_client(self.roster.kind, sums.report).items():
            scores[name] = np.full(len(self.roster), np.nan)
            scores[name][sums.ids.numpy()] = values
        return scores

    def ask_clients(self, function: str, ids: Tensor, shared: Any, per_client: Any) -> Stack:
        """Every answer to one question about the trained models; private states stay as they are.

        function: the name of a client function of `Evaluation`.
        """
        ask = self.asker(max(self.round, 0), "evaluate")
        answers: Stack = ask(
            getattr(ask.root, function),
            ids,
            shared=shared,
            per_client=per_client,
            reduce="stack",
            stream="evaluate",
        )
        return answers

    # -- to the end, and the folder
    def go(self, on_round: Callable[[Row], Any] | None = None) -> Run:
        """Train to the end, saving as it goes; Ctrl-C finishes the round, saves and stops."""
        in_folder = nullcontext() if self.folder is None else self.folder.training()
        with in_folder, finish_round_on_interrupt() as asked_to_stop:
            if self.folder is not None:  # rows after the checkpoint are made again
                self.folder.rewind(self.history, self.options.rounds)
                remove_tables(self.folder.path)
            self._tell_attack()
            for row in self.rounds():
                self.interrupted = asked_to_stop.is_set()
                if self.folder is not None:
                    self.folder.append(row)
                    self.save(always=self.ended or self.interrupted or self.round == 0)
                if on_round is not None:
                    on_round(row)
                if self.interrupted and not self.ended:
                    raise Interrupted
            if self.folder is not None:
                write_tables(self.folder.path, self.trained())
            for concern in self.trained().warnings:
                log.warning("%s: %s", self.method.name, concern)
        return self

    def _tell_attack(self) -> None:
        """Say who attacks: nobody must take such scores for those of an ordinary run."""
        attack = self.guard.attack
        if attack is None:
            return
        names = [self.roster.names[i] for i in attack.attackers.tolist()]
        some = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        log.warning(
            "%d of %d clients attack (%s): %s; scores are those of the others.",
            len(names), len(self.roster), attack.kind, some,
        )  # fmt: skip

    def trained(self) -> TrainedRun:
        """What the run has come to, without the clients' rows."""
        return TrainedRun(
            method=self.method,
            task=self.task,
            roster=self.roster,
            options=self.options,
            state=self.state,
            round=self.round,
            history=self.history,
            client_scores=self.client_scores,
            pooled_counts=self.pooled_counts,
            memberships=self.memberships,
            model_name=self.model_name,
            folder=None if self.folder is None else self.folder.path,
        )

    @property
    def types(self) -> Types:
        """The NamedTuples that checkpoints may hold."""
        return types_of(self.method)

    def save(self, always: bool = False) -> None:
        """Write a checkpoint, unless too much of the time went into checkpoints already."""
        assert self.folder is not None
        since = time.monotonic() - self.saved_at
        if self.saves_every_round:
            always = True
        if not always and SAVING_SHARE * since < self.last_save_took:
            return
        began = time.monotonic()
        trees = {
            "state": self.state,
            "scores": to_tensors(self.client_scores),
            "pooled": to_tensors(self.pooled_counts),
            "memberships": to_tensors(self.memberships),
            "engine": self.engine.snapshot(),
        }
        head = {
            "usual_moves": self.guard.typical_norms,
            "best_valid_loss": self.best_valid_loss,
            "evaluations_without_gain": self.evaluations_without_gain,
            "stopped": self.stopped,
            "has_given_start": self.has_given_start,
        }
        self.folder.save(self.round, trees, head, self.types)
        self.saved_at = time.monotonic()
        self.last_save_took = self.saved_at - began

    def restore(self) -> None:
        """Be where the newest undamaged checkpoint of the folder was; nothing is written."""
        assert self.folder is not None
        with self.folder:
            saved = self.folder.latest(self.types)
        if saved is None:
            return
        self.state = to_device(saved.trees["state"], self.task)
        self.engine.restore(saved.trees["engine"])
        self.client_scores = to_arrays(saved.trees["scores"])
        self.pooled_counts = to_arrays(saved.trees.get("pooled", {}))  # older runs have none
        self.memberships = to_arrays(saved.trees.get("memberships", {}))  # absent in older folders
        head = saved.head
        self.round, self.stopped = head["round"], head["stopped"]
        self.guard.typical_norms = head["usual_moves"]
        if head["best_valid_loss"] is not None:  # JSON has no infinity
            self.best_valid_loss = head["best_valid_loss"]
        self.evaluations_without_gain = head["evaluations_without_gain"]
        self.has_given_start = head["has_given_start"]
        self.history = self.folder.rows(until=self.round)


def create_attack(options: Options, roster: Roster) -> Attack | None:
    """The attack that the options ask for."""
    if options.attack is None:
        return None
    attackers = choose_attackers(roster, options.attackers_among(len(roster)), options.seed)
    return Attack(options.attack, options.attack_strength, attackers)


def to_device(state: Any, task: Task) -> Any:
    """A server's state where models live; labels and counts stay where they are."""
    return tree_map(lambda v: v.to(task.device) if v.is_floating_point() else v, state)


def to_tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Arrays as a checkpoint keeps them."""
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def to_arrays(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """The arrays that `to_tensors` was given."""
    return {name: values.numpy() for name, values in tensors.items()}


def check_start(start: Any, own: Any, task: Task) -> Any:
    """A given start on the right device; refused if it is built otherwise than the method's own."""
    leaves, structure = tree_flatten(start)
    own_leaves, own_structure = tree_flatten(own)
    shapes = [tuple(v.shape) for v in leaves]
    own_shapes = [tuple(v.shape) for v in own_leaves]
    if structure != own_structure or shapes != own_shapes:
        raise CoterieError(
            f"the start has leaves of the shapes {shapes}, and the method's own {own_shapes}",
            "give a state of the same method, model, groups and number of clients, such as "
            "result.state",
        )
    dtypes = [v.dtype for v in own_leaves]
    moved = [v.detach().clone().to(task.device, d) for v, d in zip(leaves, dtypes)]
    return tree_unflatten(moved, structure)


def check_run(method: Algorithm, task: Task, roster: Roster, options: Options) -> None:
    """Refuse what makes no sense together, in one sentence."""
    check_settings(options)
    method.check(task, roster.rows.train[: len(roster)])
    if method.needs_all_clients and options.participation < 1:
        raise CoterieError(
            f"in {method.name} everyone takes part in every round: leave participation at 1."
        )
    check_ranks(roster, options)
    if 0 < options.screen <= 1:
        raise CoterieError(
            f"screen is {options.screen}: it must be 0, for no screening, or larger than 1."
        )
    if options.attack is None and (options.attackers or options.attack_strength):
        raise CoterieError("attackers do nothing without an attack: name one, such as attack flip.")
    if options.attack == "labels" and options.attack_strength is not None:
        raise CoterieError("attack labels has no strength: leave attack_strength.")
    if options.robust == "mean" and options.robust_share != Options().robust_share:
        raise CoterieError(
            "robust_share does nothing with plain means: name a rule, such as robust trimmed."
        )
    if options.attackers is not None and options.attackers >= len(roster):
        raise CoterieError(
            f"attackers is {options.attackers}: some of the {len(roster)} clients must be honest."
        )
    if options.stop_after is not None and not int(roster.rows.valid.sum()):
        raise CoterieError(
            "stop_after looks at the valid part, and there is none",
            "hold out a share of the training rows, such as {}",
            options=[Option("valid", "0.2")],
        )
    refuse_nobody_measured(roster, options.min_rows_to_report)


def check_ranks(roster: Roster, options: Options) -> None:
    """Refuse ranks that would have no clients, and engines that ranks cannot share."""
    if options.ranks == 1:
        return
    if options.ranks > len(roster):
        raise CoterieError(
            f"ranks is {options.ranks}, and only {len(roster)} clients train: each rank needs one",
            "use at most {}",
            options=[Option("ranks", str(len(roster)))],
        )
    if options.replay is not None:
        raise CoterieError("a replay is one process: leave ranks at 1.")
    if options.engine != "vectorised":
        raise CoterieError(
            f"the engine {options.engine} is one process: with ranks, use engine vectorised."
        )


def refuse_nobody_measured(roster: Roster, min_rows_to_report: int) -> None:
    """Refuse to measure clients none of which has enough rows; no rows at all may be meant."""
    for part in ("test", "valid"):
        rows = getattr(roster.rows, part)[: len(roster)]
        if 0 < int(rows.max()) < min_rows_to_report:
            raise CoterieError(
                f"no client has {min_rows_to_report} {part} rows or more, so that nobody can be "
                f"measured (the most is {int(rows.max())})",
                "lower {}, or hold out more rows",
                options=[Option("min_rows_to_report")],
            )
