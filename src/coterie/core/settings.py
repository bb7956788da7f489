"""Fields that are settings: a default, one line on the meaning, limits.

The command line is made from them. Nothing here needs torch, so that `coterie run --help` is quick.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from coterie.core.errors import CoterieError, unknown_name

M = TypeVar("M")
L = TypeVar("L", bound="Local")


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A field of a method: its default, one line on its meaning, and what values it takes.

    default: `...` means that it must be given.
    limits: above, least, below, most (numbers), choices (a tuple), words (a tuple: taken in place
        of a number), paper (the paper's value, where the default is our own).
    """
    metadata = {"help": help, **limits}
    if default is ...:
        return field(default=MISSING, metadata=metadata)
    return field(default=default, metadata=metadata)


class TunableDefault(float):
    """A default that may be changed to suit the data: a number that nobody chose."""


STEP_FRACTION = (
    0.5  # a step, in units of the inverse curvature: half of it keeps clients from drifting
)
DEFAULT_TABLE_L2 = 0.02  # enough for a site of few rows, and next to nothing for all rows together
STABILITY_LIMIT = 1.9  # a step of 2 in units of the inverse curvature diverges


@dataclass(frozen=True, kw_only=True)
class Local:
    """How a client trains: the one block of fields that all local trainers share."""

    lr: float = setting(
        TunableDefault(0.1), "step size; linear models on tables: what the rows allow", gt=0
    )
    local_steps: int = setting(10, "local steps per round", ge=1)
    local_epochs: int | None = setting(None, "passes over the client's rows instead of steps", ge=1)
    batch: int | None = setting(None, "rows per step; none: all the client's rows", ge=1)
    decay: float = setting(1.0, "the step size is multiplied by this after every round", gt=0, le=1)
    l2: float = setting(
        TunableDefault(0.0),
        "weight decay, in the local steps only, biases excepted; linear models on tables: 0.02",
        ge=0,
    )
    clip: float | None = setting(None, "longest gradient; longer ones are scaled down", gt=0)
    solver: str = setting("sgd", "the local optimiser", choices=("sgd", "heavy_ball", "adam"))
    momentum: float = setting(0.9, "of heavy_ball", ge=0, lt=1)

    def fit_step_sizes(self: L, curvature: float, clients: int) -> L:
        """The method with settings that suit a linear model on rows of this curvature.

        Only settings that nobody chose are changed.
        """
        changes: dict[str, float] = {}
        if isinstance(self.lr, TunableDefault) and self.solver != "adam":
            changes["lr"] = STEP_FRACTION / curvature
        if isinstance(self.l2, TunableDefault):
            lr = changes.get("lr", self.lr)
            changes["l2"] = min(
                DEFAULT_TABLE_L2, 0.1 / lr
            )  # far below 2 / lr, from which it diverges
        return replace(self, **changes)  # type: ignore[arg-type]

    def max_curvature(self, clients: int) -> float:
        """The largest curvature on which this method's steps do not diverge."""
        return STABILITY_LIMIT / self.lr - self.l2


def resolve_defaults(method: M) -> M:
    """The method with plain numbers in place of suggested ones, also in fields that are methods."""
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
    """The method with its paper's values where the default, left as it is, is our own."""
    changes = {
        f.name: f.metadata["paper"]
        for f in fields(method)  # type: ignore[arg-type]
        if "paper" in f.metadata and getattr(method, f.name) == f.default
    }
    return resolve_defaults(replace(method, **changes))  # type: ignore[type-var]


# what other libraries call some of these fields
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
    """Refuse, in one sentence with the nearest name, settings that a class does not take."""
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
    """The method with the step size that it has in a round, also in fields that are methods.

    Round 1 is the first that counts; after each the step size of `Local` is multiplied by `decay`.
    """
    changes: dict[str, Any] = {}
    for f in fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if is_dataclass(value):
            changes[f.name] = at_round(value, round)
    if isinstance(method, Local) and method.decay != 1 and round > 1:
        changes["lr"] = method.lr * method.decay ** (round - 1)
    if not changes:
        return method
    return replace(method, **changes)  # type: ignore[type-var]


# ------------------------------------------------------------------------------ limits
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": (">", operator.gt),
    "ge": ("≥", operator.ge),
    "lt": ("<", operator.lt),
    "le": ("≤", operator.le),
}
NUMBERS = ("int", "float", "int | None", "float | None")


def check_settings(settings: Any) -> None:
    """Refuse, in one sentence, a field whose value lies outside its limits."""
    owner = ""
    if hasattr(settings, "name"):
        owner = f" of {settings.name}"
    for f in fields(settings):
        value = getattr(settings, f.name)
        if value is not None:
            # a class where the annotation is evaluated, else its text
            kind = getattr(f.type, "__name__", str(f.type))
            _check_value(f"{f.name}{owner}", value, f.metadata, is_number=kind in NUMBERS)


def _check_value(what: str, value: Any, limits: Mapping[str, Any], is_number: bool) -> None:
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
    for word, (sign, holds) in BOUNDS.items():
        if word in limits and not holds(value, limits[word]):
            raise CoterieError(f"{what} is {value}: it must be {sign} {limits[word]}.")
