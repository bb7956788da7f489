"""The options of a run. Nothing here needs torch."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coterie.core.errors import CoterieError, CoterieWarning, Option
from coterie.core.settings import check_settings, setting

if TYPE_CHECKING:
    from coterie.core.contract import Algorithm
    from coterie.core.task import Task
    from coterie.data.roster import Roster

ENGINES = ("vectorised", "loop", "wire")
RULES = ("mean", "median", "trimmed", "geometric", "krum", "mixing")  # of aggregation/robust.py
# of aggregation/attacks.py
ATTACKS = ("flip", "scale", "noise", "shift", "ipm", "labels", "free-ride", "claim", "collude")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run: all that the method, the data and the model do not determine."""

    rounds: int = setting(50, "rounds of training", ge=1)
    seed: int = setting(0, "seed of every random draw")
    participation: float = setting(
        1.0, "share of the clients that participate in a round", gt=0, le=1
    )
    dropout: float = setting(
        0.0, "share of the participating clients that do not answer, drawn per exchange", ge=0, lt=1
    )
    engine: str = setting("vectorised", "the engine that runs the clients", choices=ENGINES)
    ranks: int = setting(1, "processes among which the simulated clients are divided", ge=1)
    eval_every: int | None = setting(
        None, "rounds between evaluations; none: about twenty evaluations per run", ge=1
    )
    eval_clients: int | None = setting(
        None, "evaluate this many clients, the same in every round; none: all", ge=1
    )
    client_curves: bool = setting(
        False, "keep each client's scores of every evaluation, not only of the last", switch=True
    )
    min_rows_to_report: int = setting(
        1,
        "a client with fewer rows is not measured and, in tables, not described; on real sites "
        "5 or more",
        ge=1,
    )
    valid: float = setting(
        0.0, "share of the training rows held out for early stopping and search", ge=0, lt=1
    )
    stop_after: int | None = setting(
        None, "stop after this many evaluations without a lower valid loss", ge=1
    )
    stop_when_settled: float | None = setting(
        None,
        "stop when a round changes the shared model by less than this share of its norm",
        gt=0,
        lt=1,
    )
    label_scale: str = setting(
        "standard",
        "unit of regression targets from tables during training: standard deviations, or none",
        choices=("standard", "none"),
    )
    paper: bool = setting(
        False,
        "use the settings of the papers, even where ours fit the data better",
        switch=True,
    )
    choose_on: str = setting(
        "train", "split on which a method selects and fine-tunes models", choices=("train", "test")
    )
    clip_factor: float = setting(
        10.0,
        "clip updates whose norm exceeds this multiple of the typical norm, reject above its "
        "square; 0: reject only updates that are not finite",
        ge=0,
    )
    secure: bool = setting(
        False,
        "secure aggregation: the server gets only sums over clients, no single update",
        switch=True,
    )
    secure_min: int = setting(
        3, "with --secure: fewest clients in a sum, and in a group whose model is updated", ge=2
    )
    dp: str | None = setting(
        None,
        "differential privacy for each client, or for each row of a client; extra `privacy`",
        choices=("clients", "rows"),
    )
    epsilon: float | None = setting(
        None, "with --dp: the budget ε; training stops before it is exceeded", gt=0
    )
    delta: float | None = setting(
        None, "with --dp: δ, below one divided by the number of clients", gt=0, lt=1
    )
    noise_multiplier: float | None = setting(
        None,
        "with --dp: noise relative to the largest update; none: follows from ε and δ; 0: no noise, "
        "no promise",
        ge=0,
    )
    dp_clip: float | str = setting(
        "auto",
        "with --dp: clip updates, or gradients of rows, to this norm; auto: the median norm of "
        "updates, found in training, and 1 for rows",
        gt=0,
        literals=("auto",),
    )
    dp_seed: int | None = setting(
        None, "with --dp: seed of noise and sampling, for tests; nothing is private then"
    )
    dp_choice_epsilon: float = setting(0.1, "with --dp rows: ε of each choice of a cluster", gt=0)
    robust: str = setting("mean", "the aggregation rule", choices=RULES)
    robust_share: float = setting(
        0.25, "share of a cluster's clients that may be hostile, for --robust", ge=0, lt=0.5
    )
    attack: str | None = setting(None, "simulate an attack of this kind", choices=ATTACKS)
    attackers: int | None = setting(None, "number of clients that attack; none: a fifth", ge=1)
    attack_strength: float | None = setting(
        None, "strength of the attack; none: see the page on security", gt=0
    )
    replay: str | None = setting(
        None,
        "diary.jsonl, the log of exchanges of a network run: repeat the run with the same "
        "participation",
    )
    dtype: str = setting(
        "float32", "floating-point type of models and data", choices=("float32", "float64")
    )
    device: str = setting("cpu", "where models train: cpu, cuda, cuda:1, mps")

    @property
    def only_sums(self) -> bool:
        """Whether methods use nothing of single clients, only sums over them."""
        return self.secure or self.dp == "clients"

    @property
    def every(self) -> int:
        """Rounds between evaluations."""
        return self.eval_every or math.ceil(self.rounds / 20)

    def attackers_among(self, clients: int) -> int:
        """Return the number of attackers: a fifth of the clients unless it is given."""
        if self.attack is None:
            return 0
        return self.attackers or max(1, clients // 5)

    def with_rounds(self, rounds: int) -> Options:
        """Return these options with another number of rounds."""
        return replace(self, rounds=rounds)


# ------------------------------------------------------------------------------ checks
def check_run_options(options: Options, method: Algorithm, task: Task, roster: Roster) -> None:
    """Check that options fit each other, the method and the clients.

    Raises:
        CoterieError: On the first conflict.
    """
    check_settings(options)
    method.check(task, roster.rows.train[: len(roster)])
    if method.needs_all_clients and options.participation < 1:
        raise CoterieError(
            f"{method.name} needs all clients in every round: leave participation at 1."
        )
    check_ranks(roster, options)
    if 0 < options.clip_factor <= 1:
        raise CoterieError(
            f"clip_factor is {options.clip_factor}: it must be 0 (no clipping) or larger than 1."
        )
    if options.attack is None and (options.attackers or options.attack_strength):
        raise CoterieError(
            "attackers and attack_strength need an attack: name one, such as attack flip."
        )
    if options.attack in ("labels", "free-ride") and options.attack_strength is not None:
        raise CoterieError(f"attack {options.attack} has no strength: leave attack_strength.")
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
            "stop_after needs a validation split, and there is none",
            "hold out a share of the training rows, such as {}",
            options=[Option("valid", "0.2")],
        )
    check_enough_rows(roster, options.min_rows_to_report)
    check_secure(options, method, len(roster))
    check_private(options, method, task, roster)


def check_private(options: Options, method: Algorithm, task: Task, roster: Roster) -> None:
    """Check that differential privacy is possible with the method and the other options."""
    default = Options()
    private = (
        "epsilon", "delta", "noise_multiplier", "dp_clip", "dp_seed", "dp_choice_epsilon"
    )  # fmt: skip
    if options.dp is None:
        for name in private:
            if getattr(options, name) != getattr(default, name):
                raise CoterieError(
                    f"{name} does nothing without dp",
                    "name whom it protects, {}",
                    options=[Option("dp", "clients")],
                )
        return
    protected = f"{len(roster)} clients"
    most = len(roster)
    if options.dp == "rows":
        most = int(roster.rows.train[: len(roster)].min())
        protected = f"{most} rows at a client"
    if options.delta is not None and options.delta >= 1 / most:
        warnings.warn(
            CoterieWarning(
                f"delta is {options.delta:g}, and with {protected} such a promise allows to "
                "publish one of them whole",
                f"use a delta well below {1 / most:.2g}",
            ),
            stacklevel=2,
        )
    if options.dp == "clients":
        check_private_clients(options, method)
    else:
        check_private_rows(options, method, task, roster)


def check_private_clients(options: Options, method: Algorithm) -> None:
    """Check client-level differential privacy."""
    from coterie.core.declarations import private_obstacle  # loads torch

    default = Options()
    conflicts = {
        "robust": options.robust != default.robust,
        "attack": options.attack is not None,
        "clip_factor": options.clip_factor not in (default.clip_factor, 0),
        "client_curves": options.client_curves,
    }
    for name, is_given in conflicts.items():
        if is_given:
            raise CoterieError(
                f"{name} needs the update or the scores of each client, and with dp=clients only "
                "noised sums are used: use one of the two."
            )
    if options.stop_after is not None:
        raise CoterieError(
            "stop_after would choose the last round by scores that have no noise: leave it out "
            "with dp."
        )
    if options.ranks != default.ranks or options.replay is not None:
        raise CoterieError("dp runs without ranks and replay: leave these out.")
    if options.secure and options.engine == "wire":
        raise CoterieError(
            "the engine wire does not add noise under secure sums yet: use engine vectorised, or "
            "one of dp and secure."
        )
    obstacle = private_obstacle(method)
    if obstacle is not None:
        raise CoterieError(f"{obstacle}: use other settings or another method, or leave out dp.")


def check_private_rows(options: Options, method: Algorithm, task: Task, roster: Roster) -> None:
    """Check record-level differential privacy."""
    from coterie.core.declarations import private_rows_obstacle  # loads torch
    from coterie.core.settings import Local
    from coterie.optim.dp_sgd import check_private_training

    obstacle = private_rows_obstacle(method, secure=options.secure)
    if obstacle is not None:
        raise CoterieError(f"{obstacle}: use other settings or another method, or leave out dp.")
    assert isinstance(method, Local)
    check_private_training(task, method)
    if method.choices_to_predict and task.kind != "classification":
        raise CoterieError(
            f"with dp=rows a client of {method.name} chooses its cluster by its error rate, and "
            "numbers have none: use a method without choices, such as mr-mtl."
        )
    if options.ranks > 1 or options.replay is not None:
        raise CoterieError("dp=rows runs without ranks and replay: leave these out.")
    if options.choose_on == "test":
        raise CoterieError("choose_on=test uses test rows to choose: leave it out with dp=rows.")
    if roster.total > len(roster):
        raise CoterieError(
            "unseen clients would train on their rows without noise: leave out unseen with dp=rows."
        )


def check_secure(options: Options, method: Algorithm, clients: int) -> None:
    """Check that the method and the options need only sums over clients."""
    from coterie.core.declarations import secure_obstacle  # loads torch

    default = Options()
    if not options.secure:
        if options.secure_min != default.secure_min:
            raise CoterieError("secure_min does nothing without secure: leave it out.")
        return
    conflicts = {
        "robust": options.robust != default.robust,
        "attack": options.attack is not None,
        "eval_clients": options.eval_clients is not None,
        "clip_factor": options.clip_factor not in (default.clip_factor, 0),
    }
    for name, is_given in conflicts.items():
        if is_given:
            raise CoterieError(
                f"{name} needs the update of each client, and with secure only sums leave them: "
                "use one of the two."
            )
    if options.ranks != default.ranks or options.replay is not None:
        raise CoterieError("secure sums run without ranks and replay: leave these out.")
    obstacle = secure_obstacle(method)
    if obstacle is not None:
        raise CoterieError(
            obstacle, "use another method, or leave out {}", options=[Option("secure")]
        )
    participants = max(1, round(options.participation * clients))
    if participants < options.secure_min:
        raise CoterieError(
            f"{participants} clients participate in a round, and a secure sum has at least "
            f"{options.secure_min}",
            "use more clients",
        )


def check_ranks(roster: Roster, options: Options) -> None:
    """Check that every rank has a client, and that the engine supports ranks."""
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


def check_enough_rows(roster: Roster, min_rows_to_report: int) -> None:
    """Check that a client has enough rows in each split that has any."""
    for part in ("test", "valid"):
        rows = getattr(roster.rows, part)[: len(roster)]
        if 0 < int(rows.max()) < min_rows_to_report:
            raise CoterieError(
                f"no client has {min_rows_to_report} {part} rows or more, so no client can be "
                f"measured (the most is {int(rows.max())})",
                "lower {}, or hold out more rows",
                options=[Option("min_rows_to_report")],
            )
