"""Settings: dataclass fields with a default, one line on their meaning, and limits.

The command line is generated from them. Nothing here needs torch, so that `coterie run --help`
starts quickly.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from numbers import Integral, Real
from typing import Any, TypeVar

from coterie.core.errors import CoterieError, unknown_name
from coterie.core.schedules import schedule_factor

# names of version 0.2, which methods in users' files may have
OLD_LIMITS = {"above": "gt", "least": "ge", "below": "lt", "most": "le", "words": "literals"}
M = TypeVar("M")
L = TypeVar("L", bound="Local")
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": (">", operator.gt),
    "ge": ("≥", operator.ge),
    "lt": ("<", operator.lt),
    "le": ("≤", operator.le),
}
LIMITS = (*BOUNDS, "choices", "literals", "paper", "switch", "repeated", "hidden")


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A field of a method, with limits that are checked before a run starts.

    Args:
        default: The default value; `...` means that it is required.
        help: One line for `--help` and the docs.
        limits: gt, ge, lt, le (bounds of a number), choices (a tuple of allowed values), literals
            (a tuple of strings allowed in place of a number), paper (the paper's value, where the
            default differs). For flags of the command line: switch (True: takes no value), repeated
            (the placeholder of a flag that may be given several times), hidden (True: not in
            `--help`).

    Raises:
        CoterieError: If a limit is not one of these.

    Example:
        >>> from dataclasses import dataclass
        >>> import coterie as ct
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Options:
        ...     trim: float = ct.setting(0.2, "fraction to trim at either end", ge=0, lt=0.5)
        >>> Options().trim
        0.2
    """
    for old, new in OLD_LIMITS.items():
        if old in limits:
            raise CoterieError(f"setting() has no limit {old!r} any more: write {new}=.")
    for limit in limits:
        if limit not in LIMITS:
            raise unknown_name("limit of setting()", limit, LIMITS)
    metadata = {"help": help, **limits}
    if default is ...:
        return field(default=MISSING, metadata=metadata)
    return field(default=default, metadata=metadata)


class TunableDefault(float):
    """A default that is fitted to the data, because the user did not choose it."""


# step sizes in units of the inverse curvature: half of it limits client drift, 2 would diverge
STEP_FRACTION = 0.5
STABILITY_LIMIT = 1.9
# optimizers; `optim/optimizers.py` defines them and can add others
SOLVERS = ["sgd", "heavy_ball", "nesterov", "adam", "adamw", "rmsprop", "adagrad"]
SCALED_BY_GRADIENTS = ("adam", "adamw", "rmsprop", "adagrad")  # whose steps do not grow with them
DEFAULT_TABLE_L2 = 0.02  # regularises a site of few rows, and has little effect on many


@dataclass(frozen=True, kw_only=True)
class Local:
    """Settings of local training, shared by all methods that train on clients.

    Example:
        >>> import coterie as ct
        >>> ct.FedAvg(lr=0.05, local_epochs=2, batch=32).local_epochs
        2
    """

    lr: float = setting(
        TunableDefault(0.1), "step size; fitted to the rows for linear models on tables", gt=0
    )
    local_steps: int = setting(10, "local steps per round", ge=1)
    local_epochs: int | None = setting(
        None, "epochs over the client's rows instead of local_steps", ge=1
    )
    batch: int | None = setting(None, "rows per step; none: all the client's rows", ge=1)
    decay: float = setting(1.0, "factor of the step size after every round", gt=0, le=1)
    l2: float = setting(
        TunableDefault(0.0),
        "weight decay in local steps, not on biases; 0.02 for linear models on tables",
        ge=0,
    )
    clip: float | None = setting(None, "maximum gradient norm", gt=0)
    solver: str = setting("sgd", "the local optimizer", choices=SOLVERS)
    momentum: float = setting(0.9, "momentum of heavy_ball and nesterov", ge=0, lt=1)
    schedule: str = setting(
        "constant",
        "step size by round: exponential:0.99, step:30,0.1, cosine:100, warmup:5+cosine:100; "
        "in Python also a function of the round",
    )
    accumulate: int = setting(1, "batches whose mean gradient makes one step", ge=1)

    def fit_step_sizes(self: L, curvature: float, clients: int) -> L:
        """Fit the step sizes of a linear model to the data; only `TunableDefault`s change.

        Args:
            curvature: The typical largest eigenvalue of the clients' (1/n)·XᵀX.
            clients: Number of clients.
        """
        changes: dict[str, float] = {}
        if isinstance(self.lr, TunableDefault) and self.solver not in SCALED_BY_GRADIENTS:
            changes["lr"] = STEP_FRACTION / curvature
        if isinstance(self.l2, TunableDefault):
            lr = changes.get("lr", self.lr)
            changes["l2"] = min(DEFAULT_TABLE_L2, 0.1 / lr)  # far below 2 / lr, where steps diverge
        return replace(self, **changes)  # type: ignore[arg-type]

    def for_rounds(self: L, rounds: int) -> L:
        """The same settings with the local steps, or epochs, of this many rounds."""
        if self.local_epochs is not None:
            return replace(self, local_epochs=self.local_epochs * rounds)
        return replace(self, local_steps=self.local_steps * rounds)

    def max_curvature(self, clients: int) -> float:
        """The largest curvature for which local steps do not diverge."""
        return STABILITY_LIMIT / self.lr - self.l2


def resolve_defaults(method: M) -> M:
    """Replace each `TunableDefault` by a plain number, also in fields that are methods."""
    changes: dict[str, Any] = {}
    for f in fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if isinstance(value, TunableDefault):
            changes[f.name] = float(value)
        elif is_dataclass(value):
            changes[f.name] = resolve_defaults(value)
    if not changes:
        return method
    return replace(method, **changes)  # type: ignore[type-var]


def use_paper_defaults(method: M) -> M:
    """Use the paper's values of settings that are at a default that differs from them."""
    changes = {
        f.name: f.metadata["paper"]
        for f in fields(method)  # type: ignore[arg-type]
        if "paper" in f.metadata and getattr(method, f.name) == f.default
    }
    return resolve_defaults(replace(method, **changes))  # type: ignore[type-var]


# names in other libraries
OTHER_NAMES = {
    "learning_rate": "lr",
    "step_size": "lr",
    "batch_size": "batch",
    "epochs": "local_epochs",
    "steps": "local_steps",
    "weight_decay": "l2",
    "optimizer": "solver",
    "k": "clusters",
}


def check_setting_names(cls: type, name: str, given: Iterable[str]) -> None:
    """Raise a `CoterieError` with a suggestion for settings that a class does not have."""
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = [word for word in parameters if word != "self"]
    for word in given:
        if word in known:
            continue
        meant = OTHER_NAMES.get(word.lower())
        if meant in known:
            raise CoterieError(f"unknown setting of {name} {word!r}: did you mean {meant!r}?")
        raise unknown_name(f"setting of {name}", word, known)


def at_round(method: M, round: int) -> M:
    """The method with the step size of a round, also in fields that are methods.

    The step size of `Local` is multiplied by `decay` after each round from 1 on, and by the factor
    of its schedule.
    """
    changes: dict[str, Any] = {}
    for f in fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if is_dataclass(value):
            changes[f.name] = at_round(value, round)
    if isinstance(method, Local):
        factor = method.decay ** max(round - 1, 0) * schedule_factor(method.schedule, round)
        if factor != 1:
            changes["lr"] = method.lr * factor
    if not changes:
        return method
    return replace(method, **changes)  # type: ignore[type-var]


# ------------------------------------------------------------------------------ limits
NUMBERS = ("int", "float", "int | None", "float | None")


def check_settings(settings: Any) -> None:
    """Raise a `CoterieError` if a field is outside its limits."""
    owner = ""
    if hasattr(settings, "name"):
        owner = f" of {settings.name}"
    for f in fields(settings):
        value = getattr(settings, f.name)
        if value is not None:
            # a class where the annotation is evaluated, else its text
            kind = getattr(f.type, "__name__", str(f.type))
            _check_value(f"{f.name}{owner}", value, f.metadata, kind)


def _check_value(what: str, value: Any, limits: Mapping[str, Any], kind: str) -> None:
    is_number = kind in NUMBERS
    choices = limits.get("choices")
    if choices is not None and value not in choices:
        allowed = ", ".join(map(str, choices))
        raise CoterieError(f"{what} is {value!r}: it must be one of {allowed}.")
    words = limits.get("literals", ())
    if isinstance(value, str):
        if (words or is_number) and value not in words:
            allowed = " or ".join(("a number", *words))
            raise CoterieError(f"{what} is {value!r}: it must be {allowed}.")
        return
    if is_number and (isinstance(value, bool) or not isinstance(value, Real)):
        if callable(value):
            raise CoterieError(
                f"{what} is a function: it must be a number (schedule varies a step size)."
            )
        raise CoterieError(f"{what} is {value!r}: it must be a number.")
    if kind.startswith("int") and is_number and not isinstance(value, Integral):
        raise CoterieError(f"{what} is {value}: it must be a whole number.")
    for word, (sign, holds) in BOUNDS.items():
        if word in limits and not holds(value, limits[word]):
            raise CoterieError(f"{what} is {value}: it must be {sign} {limits[word]}.")
