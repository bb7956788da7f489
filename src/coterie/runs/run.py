"""A run: the round loop.

    run.train()                       to the last round, with checkpoints
      run.step()                      one round
        method.round(state, ask)      the algorithm; `ask` runs a client function on the clients
        run.evaluate()                every few rounds: sums over test samples become scores
      folder.append(row)              the round's row of metrics.jsonl
      run.save()                      a checkpoint

A run knows its clients only by their roster. Their samples and private states belong to the engine.
"""

from __future__ import annotations

import inspect
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from coterie.aggregation.aggregator import RobustRule
from coterie.aggregation.norm_screening import NormScreening
from coterie.aggregation.pipeline import Pipeline, SimulatedAttack
from coterie.aggregation.private_sums import FIRST_CLIP, NoiseSource, PrivateRelease
from coterie.core import randomness
from coterie.core.call import pick_clients
from coterie.core.contract import Algorithm, Stack, Sums, at_round
from coterie.core.declarations import calls_per_round
from coterie.core.errors import CoterieError, Diverged
from coterie.core.params import Params, nbytes
from coterie.core.task import Task
from coterie.core.trees import tree_flatten, tree_map, tree_unflatten
from coterie.data.roster import Roster
from coterie.engines.codec import Types, types_of
from coterie.engines.coordinator import SiteCoordinator
from coterie.engines.evaluate import Evaluation
from coterie.engines.exchange import RoundContext
from coterie.engines.protocol import Engine
from coterie.engines.templates import UploadTemplates
from coterie.metrics import Row, hard_labels, planted_error
from coterie.metrics.clusters import cluster_row, encode_assignment, secure_cluster_row
from coterie.metrics.scores import (
    evaluation_row,
    pool_counts,
    scores_per_client,
    secure_evaluation_row,
)
from coterie.privacy.differential import make_promise
from coterie.privacy.ledger import LEDGER, PrivacyLedger
from coterie.runs.folder import RunFolder
from coterie.runs.options import Options, check_run_options
from coterie.runs.row_privacy import RowLedger, open_row_ledger
from coterie.runs.tables import remove_tables, write_tables
from coterie.runs.trained import MembershipReports, TrainedRun, measure_memberships

log = logging.getLogger("coterie")
MAX_SAVING_SHARE = 0.05  # of the time goes into checkpoints
Split = Literal["test", "valid"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, raised after the round was finished and, if there is a folder, saved."""


class Run:
    """A run in progress.

    Args:
        method: The method, with its settings.
        task: The model.
        roster: The clients.
        engine: Runs client functions on the clients.
        options: Rounds, seed, participation and so on.
        folder: Where rows and checkpoints are written; None: nowhere.
        model_name: The model's name in the config.
        start: A server state to start from instead of the method's own, or a run to continue.
        attack: An attack, in a simulation.
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
        attack: SimulatedAttack | None = None,
    ) -> None:
        check_run_options(options, method, task, roster)
        self.method = method
        self.task = task
        self.roster = roster
        self.engine = engine
        self.options = options
        self.folder = folder
        self.model_name = model_name
        # the method, with the client functions of evaluation
        self.root = Evaluation(method, options.choose_on)
        self.pipeline = Pipeline(
            NormScreening(options.clip_factor or None),
            RobustRule(options.robust, options.robust_share),
            attack,
            min_clients=self.min_clients,
        )

        self.noise = NoiseSource(options.dp_seed)
        self.samples: dict[int, Tensor] = {}  # the Poisson sample of the current round
        self.ledger: PrivacyLedger | None = None  # under client-level differential privacy
        if options.dp == "clients":
            self._refuse_start(start)
            self._open_ledger()
        self.row_ledger: RowLedger | None = None  # under record-level differential privacy
        if options.dp == "rows":
            self.row_ledger = open_row_ledger(options, method, roster, start)

        self.client_keys = randomness.client_keys(roster.names, options.seed)
        self.all_clients = torch.tensor(sorted(range(len(roster)), key=roster.names.__getitem__))
        # len(roster) counts the training clients; the ids of unseen clients follow theirs
        unseen = torch.arange(len(roster), roster.total)
        self.unseen_clients = unseen[self._have_samples(unseen, "test")]
        honest = self.all_clients
        if attack is not None:
            honest = honest[~torch.isin(honest, attack.attackers)]
        measurable = honest[self._have_samples(honest, "test", "valid")]
        self.evaluated = self._draw(measurable, options.eval_clients, 0, "evaluated")

        self.round = -1  # the last completed round; round 0 initialises the method
        self.history: list[Row] = []
        self.client_scores: dict[str, np.ndarray] = {}  # [N] each, at the last evaluation
        # with the option `client_curves`, of all evaluations: "round" [E], others [E, N]
        self.client_curves: dict[str, np.ndarray] = {}
        self.pooled_counts: dict[str, np.ndarray] = {}  # over all clients, at the last evaluation
        self.membership_reports: MembershipReports = {}  # measured after the last round
        self.best_valid_loss = math.inf
        self.evaluations_without_gain = 0
        self.stopped = False  # early: `stop_after`, `stop()`, or the method has finished
        self.stop_requested = False  # by `stop()`
        self.diverged = False  # training did not stay finite
        self.interrupted = False  # by Ctrl-C, perhaps in the last round
        self.saved_at = time.monotonic()
        self.last_save_took = 0.0
        # even if saving takes over MAX_SAVING_SHARE: a private round that is repeated counts twice
        self.saves_every_round = options.dp is not None

        start_method = method.start_secure if options.only_sums else method.start
        self.state, initial_payload = start_method(task, len(roster), options.seed)
        self.initial_payload_bytes = nbytes(initial_payload)
        self.templates = UploadTemplates(task, roster, method, initial_payload)
        engine.enroll(method, initial_payload)
        self.has_given_start = start is not None
        if isinstance(start, Run):
            self.continue_from(start)
        elif self.has_given_start:
            self.state = check_start(start, self.state)
            log.warning(
                "%s starts from a server state alone: private states of clients and the numbers "
                "of earlier rounds, which determine random draws, are dropped; to keep them, give "
                "the whole result (start=result).",
                method.name,
            )

    @property
    def min_clients(self) -> int | None:
        """The fewest clients in a sum; None if single updates are used."""
        if self.options.secure:
            return self.options.secure_min
        return 0 if self.options.only_sums else None

    # -- differential privacy
    def _refuse_start(self, start: Any) -> None:
        if start is not None:
            raise CoterieError(
                "a given start comes from data whose privacy loss this run does not know: leave "
                "out start with dp, or resume the earlier run."
            )

    def _open_ledger(self) -> None:
        """Begin the ledger of a new run; `restore` reads that of a resumed one."""
        options = self.options
        if self.folder is not None and (self.folder.path / LEDGER).exists():
            self.use_ledger(PrivacyLedger.read(self.folder.path, None))
            return
        calls = calls_per_round(self.method)
        promise = make_promise(
            "clients",
            epsilon=options.epsilon,
            delta=options.delta,
            noise_multiplier=options.noise_multiplier,
            sampling_rate=options.participation,
            steps=options.rounds + int(calls[0] > 0),
            clip=None if options.dp_clip == "auto" else float(options.dp_clip),
            seed=options.dp_seed,
        )
        trusted = "the server, which sees updates and adds the noise"
        if options.secure:
            trusted = "the server, which sees sums over clients and adds the noise"
        self.use_ledger(PrivacyLedger(promise, clients=len(self.roster), trusted=trusted))

    def use_ledger(self, ledger: PrivacyLedger) -> None:
        """Keep the promise of a ledger, and write down in it what is released."""
        self.ledger = ledger
        promise = ledger.promise
        self.pipeline.private = PrivateRelease(
            noise_multiplier=promise.noise_multiplier,
            expected_clients=promise.sampling_rate * len(self.roster),
            clip=promise.clip or FIRST_CLIP,
            is_adaptive=promise.clip is None,
            calls=calls_per_round(self.method),
            noise=self.noise,
            record=ledger.record,
            sampling_rate=promise.sampling_rate,
        )
        # a round that is repeated after a crash would be counted twice
        self.saves_every_round = True

    def _stop_before_overspending(self) -> bool:
        """End training if a further round would exceed the budget; whether it did."""
        can_go_on = True
        if self.ledger is not None:
            can_go_on = self.ledger.affords()
        elif self.row_ledger is not None:  # each site has its own
            can_go_on = len(self.participants(self.round + 1)) > 0
        if can_go_on:
            return False
        log.warning(
            "stopped after round %d: another round would exceed the privacy budget ε = %g.",
            self.round, self.options.epsilon,
        )  # fmt: skip
        self._end_early()
        return True

    # -- the round loop
    def train(self, on_round: OnRound | Sequence[OnRound] | None = None) -> Run:
        """Train to the last round. Ctrl-C finishes the round, saves and stops.

        Args:
            on_round: Called with each round's row of metrics and this run: one function, or
                several. They may call `stop`; what has a method `close` is closed at the end.

        Returns:
            The run itself.

        Raises:
            Interrupted: After Ctrl-C, if rounds are left.
            Diverged: If most updates of an exchange are rejected.
        """
        locked = nullcontext() if self.folder is None else self.folder.training()
        with locked, finish_round_on_interrupt() as interrupt, closing_all(on_round) as callbacks:
            if self.folder is not None:  # rounds after the restored checkpoint are repeated
                self.folder.rewind(self.history, self.options.rounds)
                if self.ledger is not None and self.ledger.file is None:
                    self.ledger.create(self.folder.path)
                if self.row_ledger is not None:
                    self.row_ledger.open(self.folder.path)
                remove_tables(self.folder.path)
            self._warn_of_attack()
            for row in self.rounds():
                self.interrupted = interrupt.is_set()
                if self.folder is not None:
                    self.folder.append(row)
                    self.save(always=self.ended or self.interrupted or self.round == 0)
                for callback in callbacks:
                    callback(row, self)
                if self.stop_requested and not self.ended:
                    self._end_early()
                if self.interrupted and not self.ended:
                    raise Interrupted
            if self.folder is not None:
                write_tables(self.folder.path, self.trained())
            for warning in self.trained().warnings:
                log.warning("%s: %s", self.method.name, warning)
        return self

    def rounds(self) -> Iterator[Row]:
        """Train to the last round and yield each round's row of metrics."""
        while not (self.ended or self._stop_before_overspending()):
            yield self.step()

    def stop(self) -> None:
        """End training after the current round, as early stopping does.

        Example:
            >>> import coterie as ct
            >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
            >>> enough = lambda row, run: run.stop() if row["round"] == 2 else None
            >>> len(ct.run(ct.FedAvg(lr=0.1), fed, rounds=9, on_round=enough).history)
            3
        """
        self.stop_requested = True

    def _end_early(self) -> None:
        self.stopped = True
        self.membership_reports = self._measure_memberships()
        if self.folder is not None:
            self.save(always=True)

    @property
    def ended(self) -> bool:
        """Whether no round is left."""
        return self.stopped or self.round >= self.options.rounds

    def step(self) -> Row:
        """Train one round and return its row of metrics; round 0 initialises the method."""
        began = time.perf_counter()
        r = self.round + 1
        before = self.groups()
        shared_before, _ = self.method.use(self.state)
        ask = self.round_context(r)
        method: Algorithm = ask.root.method
        try:
            if r > 0:
                self.state = method.round(self.state, ask)
            elif not self.has_given_start:
                self.state = method.begin(self.state, ask)
        except Diverged:
            self.diverged = True
            raise
        row: Row = {
            "round": r,
            "seconds": 0.0,  # set below, here for the order of columns
            "bytes_down": ask.bytes_down + ask.bytes_of_initial_payloads,
            "bytes_up": ask.bytes_up,
            "rejected": [self.roster.names[i] for i in sorted(set(ask.rejected))],
            "clipped": [self.roster.names[i] for i in sorted(set(ask.clipped))],
            "free_riders": [self.roster.names[i] for i in sorted(set(ask.free_riders))],
            "absent": len(set(ask.absent)),
        }
        if self.ledger is not None:
            row["epsilon"] = self.ledger.close_round(r)
        if self.row_ledger is not None:
            row["epsilon"] = self.row_ledger.epsilon()
        if self.options.only_sums:
            row |= secure_cluster_row(ask.notes)
        else:
            row |= cluster_row(
                method.groups(self.state),
                before,
                self.roster.known_groups,
                getattr(method, "clusters", None),
            )
        groups = self.groups()
        if groups is not None:
            row |= encode_assignment(groups, before if self.history else None)
        if ask.notes:
            row["notes"] = ask.notes
        row["seconds"] = time.perf_counter() - began
        row |= planted_error(method.centres(self.state), self.roster.planted)
        is_finished = method.finished(self.state) or (r > 0 and self._is_settled(shared_before))
        if is_finished:
            row["finished"] = True
        if r % self.options.every == 0 or r == self.options.rounds or is_finished:
            row |= self.evaluate(r)
            # initial payloads are a cost of training, whichever exchange carries them
            row["bytes_down"] += row.pop("bytes_of_initial_payloads")
        self.round = r
        self.history.append(row)
        self.stopped = is_finished
        self._stop_early(row)
        self.membership_reports = {}
        # Kept out of the row: if this run is resumed with more rounds, its rows are the same as
        # those of a run that trained all rounds at once.
        if self.ended:
            self.membership_reports = self._measure_memberships()
        return row

    def _measure_memberships(self) -> MembershipReports:
        return measure_memberships(
            self.round_context(self.round, "evaluate"),
            self.method.centres(self.state),
            self.groups(),
            self.options.min_rows_to_report,
        )

    def round_context(self, r: int, phase: Literal["train", "evaluate"] = "train") -> RoundContext:
        """Return the `ask` of a round. Evaluations have no dropout and no clipping."""
        training = phase == "train"
        return RoundContext(
            root=at_round(self.root, r),
            engine=self.engine,
            templates=self.templates,
            roster=self.roster,
            client_keys=self.client_keys,
            seed=self.options.seed,
            round=r,
            all_clients=self.all_clients,
            participants=self.participants(r),
            phase=phase,
            dropout=self.options.dropout if training else 0.0,
            row_ledger=self.row_ledger,
            pipeline=self.pipeline if training else Pipeline(min_clients=self.min_clients),
            initial_payload_bytes=self.initial_payload_bytes,
        )

    def participants(self, r: int) -> Tensor:
        """Return the clients of a round, sorted by name."""
        if self.ledger is not None:
            if r not in self.samples:  # drawn once, by the operating system
                chance = self.noise.uniform(len(self.all_clients), "participants", r)
                taken = torch.from_numpy(chance < self.ledger.promise.sampling_rate)
                self.samples = {r: self.all_clients[taken]}
            return self.samples[r]
        clients = self.all_clients
        if self.row_ledger is not None and r > 0:
            clients = clients[self.row_ledger.affordable(clients)]
        n = max(1, round(self.options.participation * len(self.all_clients)))
        return self._draw(clients, n, r, "participants")

    def _draw(self, ids: Tensor, count: int | None, r: int, stream: str) -> Tensor:
        """Draw clients without changing their order; depends on their names, not positions."""
        if count is None or count >= len(ids):
            return ids
        chance = randomness.uniform(randomness.keys(self.client_keys[ids], r, stream))
        return ids[randomness.smallest(chance, count)]

    def _have_samples(self, ids: Tensor, *splits: Split) -> Tensor:
        """Return which clients have enough samples in one of the splits, bool [n]."""
        most = torch.stack([getattr(self.roster.rows, split)[ids] for split in splits]).amax(0)
        return most >= self.options.min_rows_to_report

    def groups(self) -> np.ndarray | None:
        """Return the current cluster of each client, int64 [N]; None without clusters."""
        groups = self.method.groups(self.state)
        if groups is None or self.options.only_sums:  # then only the clients know
            return None
        return hard_labels(groups)

    def _is_settled(self, before: Any) -> bool:
        """Whether the round changed the shared model by less than `stop_when_settled`."""
        limit = self.options.stop_when_settled
        after, _ = self.method.use(self.state)
        if limit is None or not isinstance(after, dict):
            return False
        change = sum(float((after[name] - before[name]).double().square().sum()) for name in after)
        norm = sum(float(after[name].double().square().sum()) for name in after)
        return change <= limit**2 * norm

    def _stop_early(self, row: Row) -> None:
        """Stop after `stop_after` evaluations without a lower validation loss."""
        if self.options.stop_after is None or "valid_loss" not in row:
            return
        is_robust = self.options.robust != "mean"
        if is_robust and not math.isfinite(row["valid_loss"]):  # one hostile client can cause it
            return
        if row["valid_loss"] < self.best_valid_loss:
            self.best_valid_loss, self.evaluations_without_gain = row["valid_loss"], 0
        else:
            self.evaluations_without_gain += 1
        if self.evaluations_without_gain >= self.options.stop_after:
            self.stopped = True

    def _warn_of_attack(self) -> None:
        attack = self.pipeline.attack
        if attack is None:
            return
        names = [self.roster.names[i] for i in attack.attackers.tolist()]
        some = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        log.warning(
            "%d of %d clients attack (%s): %s; scores are those of the others.",
            len(names), len(self.roster), attack.kind, some,
        )  # fmt: skip

    # -- evaluation
    def evaluate(self, r: int) -> Row:
        """Evaluate on the test and validation splits, and on clients unseen in training.

        Also updates `client_scores` and `pooled_counts`.

        Returns:
            The columns that an evaluation adds to the round's row.
        """
        began = time.perf_counter()
        ask = self.round_context(r, "evaluate")
        root = ask.root
        shared, per_client = root.method.use(self.state)
        row: Row = {}
        secure = self.options.only_sums
        splits: dict[Split, str] = {"test": "", "valid": "valid_"}
        for split, prefix in splits.items():
            ids = self.evaluated[self._have_samples(self.evaluated, split)]
            if len(ids) < (self.min_clients or 1):
                continue
            sums: Sums = ask(
                root.measure_summed if secure else root.measure,
                ids,
                shared=shared,
                per_client=pick_clients(per_client, ids),
                stream="evaluate",
                split=split,
            )
            row |= self._evaluation_row(sums.report, prefix)
            if split == "test":
                self.pooled_counts = pool_counts(sums.report)
            if split == "test" and not secure:
                self.client_scores = {}
                own = self.task.spec.row_metrics()
                scores = scores_per_client(self.roster.kind, sums.report, own)
                for name, values in scores.items():
                    self.client_scores[name] = np.full(len(self.roster), np.nan)
                    self.client_scores[name][sums.ids.numpy()] = values
                if self.options.client_curves:
                    self._extend_curves(r)
        if len(self.unseen_clients) >= (self.min_clients or 1):
            sums = ask(
                root.measure_unseen_summed if secure else root.measure_unseen,
                self.unseen_clients,
                shared=shared,
                stream="evaluate",
                split="test",
                enrolled=False,
            )
            row |= self._evaluation_row(sums.report, "unseen_")
        row["eval_bytes_down"], row["eval_bytes_up"] = ask.bytes_down, ask.bytes_up
        row["bytes_of_initial_payloads"] = ask.bytes_of_initial_payloads
        row["eval_seconds"] = time.perf_counter() - began
        return row

    def _evaluation_row(self, report: dict[str, Tensor], prefix: str) -> Row:
        kind, own = self.roster.kind, self.task.spec.row_metrics()
        if self.options.only_sums:
            return secure_evaluation_row(kind, report, prefix, self.task.loss_unit, own)
        return evaluation_row(kind, report, prefix, own)

    def _extend_curves(self, r: int) -> None:
        """Append the clients' scores of this evaluation to `client_curves`."""
        new = {"round": np.array([r]), **{k: v[None] for k, v in self.client_scores.items()}}
        for name, values in new.items():
            before = self.client_curves.get(name, values[:0])
            self.client_curves[name] = np.concatenate([before, values])

    def ask_clients(
        self, function: str, ids: Tensor, shared: Any, per_client: Any, **static: Any
    ) -> Stack:
        """Run a client function of `Evaluation` and return every answer.

        Clients' private states do not change.

        Args:
            function: The name of the function.
            ids: The clients, int64 [n].
            shared: Sent to each client.
            per_client: Leaves [n, ...], a row for each client.
            **static: Plain numbers that the function takes.
        """
        ask = self.round_context(max(self.round, 0), "evaluate")
        answers: Stack = ask(
            getattr(ask.root, function),
            ids,
            shared=shared,
            per_client=per_client,
            static=static,
            reduce="stack",
            stream="evaluate",
        )
        return answers

    def trained(self) -> TrainedRun:
        """Return the run's models, history and scores, without the clients' samples."""
        return TrainedRun(
            method=self.method,
            task=self.task,
            roster=self.roster,
            options=self.options,
            state=self.state,
            round=self.round,
            history=self.history,
            client_scores=self.client_scores,
            client_curves=self.client_curves,
            pooled_counts=self.pooled_counts,
            membership_reports=self.membership_reports,
            model_name=self.model_name,
            folder=None if self.folder is None else self.folder.path,
        )

    # -- checkpoints
    @property
    def types(self) -> Types:
        """The NamedTuples that checkpoints may contain."""
        return types_of(self.method)

    def save(self, always: bool = False) -> None:
        """Write a checkpoint, unless checkpoints already took their share of the time."""
        assert self.folder is not None
        began = time.monotonic()
        is_due = MAX_SAVING_SHARE * (began - self.saved_at) >= self.last_save_took
        if not (is_due or always or self.saves_every_round):
            return
        trees, head = self.snapshot()
        self.folder.save(self.round, trees, head, self.types)
        self.saved_at = time.monotonic()
        self.last_save_took = self.saved_at - began

    def save_start(self) -> None:
        """Write the rows and the checkpoint of a run that starts from an earlier one."""
        assert self.folder is not None
        for row in self.history:
            self.folder.append(row)
        self.save(always=True)

    def restore(self) -> None:
        """Restore the newest undamaged checkpoint of the folder, if there is one."""
        assert self.folder is not None
        with self.folder.log_file():  # damaged checkpoints are logged
            saved = self.folder.latest(self.types)
        if saved is None:
            return
        if self.options.dp == "clients":
            self.use_ledger(PrivacyLedger.read(self.folder.path, saved.head["privacy"]))
        self._restore_snapshot(saved.trees, saved.head)
        self.history = self.folder.rows(until=self.round)
        self._check_budget()

    def _check_budget(self) -> None:
        """Refuse to resume a run whose privacy budget is spent."""
        is_planned = self.round < self.options.rounds
        if self.ledger is None or not is_planned or self.ledger.affords():
            return
        assert self.folder is not None
        raise CoterieError(
            f"the privacy budget of {self.folder.path}, ε = {self.ledger.promise.epsilon:g}, is "
            f"spent after round {self.round}: another round would exceed it."
        )

    def continue_from(self, earlier: Run) -> None:
        """Continue after the last round of an earlier run of the same clients.

        Everything is kept: server state, private states, history and round numbers. So several
        runs of a few rounds each equal one run of all rounds, to the bit.

        Raises:
            CoterieError: If the clients, the method's state or the kind of engine differ.
        """
        if earlier.roster.names != self.roster.names:
            raise CoterieError(
                "the start is a result of other clients, whose private states do not fit",
                "give start=result.state, which starts from its models alone",
            )
        trees, head = earlier.snapshot()
        state = check_start(trees["state"], self.state)
        if is_wire(self.engine) != is_wire(earlier.engine):
            raise CoterieError(
                "the start is a result of another engine, which keeps private states otherwise",
                f"use engine {earlier.options.engine}, or give start=result.state",
            )
        self._restore_snapshot(tree_map(torch.clone, {**trees, "state": state}), head)
        self.stopped = False
        self.history = list(earlier.history)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the trees of tensors and the plain values of a checkpoint."""
        trees = {
            "state": self.state,
            "scores": to_tensors(self.client_scores),
            "curves": to_tensors(self.client_curves),
            "pooled": to_tensors(self.pooled_counts),
            "memberships": to_tensors(self.membership_reports),
            "engine": self.engine.snapshot(),
            "frozen": self.task.frozen,
        }
        head = {
            "round": self.round,
            # the key in checkpoints since 0.2
            "usual_moves": self.pipeline.screening.typical_norms,
            "free_rider_suspects": self.pipeline.free_riders.suspects.tolist(),
            "best_valid_loss": self.best_valid_loss,
            "evaluations_without_gain": self.evaluations_without_gain,
            "stopped": self.stopped,
            "has_given_start": self.has_given_start,
        }
        if self.ledger is not None and self.pipeline.private is not None:
            head["privacy"] = {**self.ledger.seal(), "clip": self.pipeline.private.clip}
        return trees, head

    def _restore_snapshot(self, trees: dict[str, Any], head: dict[str, Any]) -> None:
        check_frozen(trees.get("frozen", {}), self.task)
        self.state = place_state(trees["state"], self.state, self.task)
        self.engine.restore(trees["engine"])
        self.client_scores = to_arrays(trees["scores"])
        self.client_curves = to_arrays(trees.get("curves", {}))
        self.pooled_counts = to_arrays(trees.get("pooled", {}))  # older runs have none
        self.membership_reports = to_arrays(trees.get("memberships", {}))
        self.round, self.stopped = head["round"], head["stopped"]
        self.pipeline.screening.typical_norms = dict(head["usual_moves"])
        suspects = head.get("free_rider_suspects", [])  # older runs have none
        self.pipeline.free_riders.suspects = torch.tensor(suspects, dtype=torch.long)
        if head["best_valid_loss"] is not None:  # JSON has no infinity
            self.best_valid_loss = head["best_valid_loss"]
        self.evaluations_without_gain = head["evaluations_without_gain"]
        self.has_given_start = head["has_given_start"]
        if self.pipeline.private is not None:
            self.pipeline.private.clip = head["privacy"]["clip"]


# ------------------------------------------------------------------------------ callbacks
class OnRound(Protocol):
    """Is called after each round with its row of metrics and the run."""

    def __call__(self, row: Row, run: Run, /) -> Any:
        """Read the row and the run: `state`, `client_scores`, `groups()`, `stop()`."""
        ...


@contextmanager
def closing_all(on_round: OnRound | Sequence[OnRound] | None) -> Iterator[list[OnRound]]:
    """Yield the given functions as a list, and close at the end those that can be closed."""
    if on_round is None:
        on_round = []
    callbacks = [on_round] if callable(on_round) else list(on_round)
    with ExitStack() as stack:
        for callback in callbacks:
            stack.callback(getattr(callback, "close", lambda: None))
        yield [with_run(callback) for callback in callbacks]


def with_run(callback: Any) -> OnRound:
    """Let a function that takes only the row, as in version 0.2, take the run as well."""
    try:
        inspect.signature(callback).bind({}, None)
    except TypeError:
        return lambda row, run: callback(row)
    except ValueError:  # a built-in function without a signature
        pass
    return cast(OnRound, callback)


# ------------------------------------------------------------------------------ helpers
@contextmanager
def finish_round_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets; the second Ctrl-C raises KeyboardInterrupt."""
    stop_requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop_requested  # only the main thread receives signals
        return

    def on_first(*_: object) -> None:
        stop_requested.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log.warning("stopping after this round; press Ctrl-C again to stop now.")

    before = signal.signal(signal.SIGINT, on_first)
    try:
        yield stop_requested
    finally:
        signal.signal(signal.SIGINT, before)


def to_device(tree: Any, task: Task) -> Any:
    """Move the floating-point leaves of a pytree to the task's device.

    Integer leaves, such as the cluster of each client, stay on the CPU, where client ids are.
    """
    return tree_map(lambda v: v.to(task.device) if v.is_floating_point() else v, tree)


def place_state(state: Any, own: Any, task: Task) -> Any:
    """Move each leaf of a server state to the device of the same leaf of the initial state.

    Models are on the task's device; what clients reported is on the CPU.
    """
    leaves, structure = tree_flatten(state)
    own_leaves, own_structure = tree_flatten(own)
    if structure != own_structure:  # a method whose state grows
        return to_device(state, task)
    return tree_unflatten([v.to(o.device) for v, o in zip(leaves, own_leaves)], structure)


def to_tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Convert arrays for a checkpoint."""
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def to_arrays(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Convert the tensors of a checkpoint back to arrays."""
    return {name: values.numpy() for name, values in tensors.items()}


def is_wire(engine: Engine) -> bool:
    """Whether the clients of an engine keep their private states in versions, as sites do."""
    return isinstance(engine, SiteCoordinator)


def check_frozen(saved: Params, task: Task) -> None:
    """Raise a `CoterieError` if the frozen values of a checkpoint are not those of the model."""
    for name, value in task.frozen.items():
        if name in saved and not torch.equal(saved[name].to(value), value):
            raise CoterieError(
                f"the frozen values {name!r} of the model are not those that it was trained with",
                "give the model with the values of the run",
            )


def check_start(start: Any, own: Any) -> Any:
    """Return a copy of a given server state, each leaf on the device of the method's own.

    Raises:
        CoterieError: If its structure or shapes differ from those of the method's own state.
    """
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
    copies = [v.detach().clone().to(o.device, o.dtype) for v, o in zip(leaves, own_leaves)]
    return tree_unflatten(copies, structure)
