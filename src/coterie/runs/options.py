"""What decides a run beside the method, the data and the model. Nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from coterie.core.settings import setting

ENGINES = ("vectorised", "loop", "wire")
RULES = ("mean", "median", "trimmed", "geometric", "krum", "mixing")  # of aggregation/rules.py
ATTACKS = ("flip", "scale", "noise", "shift", "ipm", "labels")  # of aggregation/attacks.py


@dataclass(frozen=True, kw_only=True)
class Options:
    """What decides a run beside the method, the data and the model."""

    rounds: int = setting(50, "rounds of training", ge=1)
    seed: int = setting(0, "seed of every random draw")
    participation: float = setting(
        1.0, "share of the clients that take part in a round", gt=0, le=1
    )
    dropout: float = setting(
        0.0, "share of the asked clients that give no answer, drawn per exchange", ge=0, lt=1
    )
    engine: str = setting("vectorised", "where clients run", choices=ENGINES)
    ranks: int = setting(
        1, "processes that share the simulated clients, here or as torchrun starts them", ge=1
    )
    eval_every: int | None = setting(
        None, "rounds between evaluations; none: about twenty in all", ge=1
    )
    eval_clients: int | None = setting(
        None, "evaluate this many clients, the same in every round; none: all", ge=1
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
    label_scale: str = setting(
        "standard",
        "the unit in which tables' regression targets are learnt: deviations, or their own",
        choices=("standard", "none"),
    )
    paper: bool = setting(
        False,
        "methods with their papers' settings, also where ours suit the data better",
        switch=True,
    )
    choose_on: str = setting(
        "train", "the rows a method may choose and adapt on", choices=("train", "test")
    )
    screen: float = setting(
        10.0,
        "uploads that moved over this many times as far as is usual are shortened, over its square "
        "refused; 0: only those not finite are refused",
        ge=0,
    )
    robust: str = setting("mean", "how means are made: the rule", choices=RULES)
    robust_share: float = setting(
        0.25, "share of a group's clients that may be hostile, for --robust", ge=0, lt=0.5
    )
    attack: str | None = setting(None, "try an attack: what attackers do", choices=ATTACKS)
    attackers: int | None = setting(None, "how many clients attack; none: a fifth", ge=1)
    attack_strength: float | None = setting(
        None, "how strong the attack is; none: see the page on security", gt=0
    )
    replay: str | None = setting(
        None, "diary.jsonl of a network's run: the same answers count, by the loop engine"
    )
    dtype: str = setting("float32", "of models and data", choices=("float32", "float64"))
    device: str = setting("cpu", "cpu, or cuda where there is one")

    @property
    def every(self) -> int:
        """Rounds between evaluations."""
        return self.eval_every or math.ceil(self.rounds / 20)

    def attackers_among(self, clients: int) -> int:
        """How many of the clients attack: a fifth, unless their number is given."""
        if self.attack is None:
            return 0
        return self.attackers or max(1, clients // 5)

    def with_rounds(self, rounds: int) -> Options:
        """The same options with another number of rounds."""
        return replace(self, rounds=rounds)
