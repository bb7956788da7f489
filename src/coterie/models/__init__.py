"""Models by name, sized for a federation's data: linear, softmax, mlp, cnn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from torch import nn

from coterie.data.roster import Roster
from coterie.errors import CoterieError, unknown

Factory = Callable[[], nn.Module]
MODELS: dict[str, Callable[[Roster, str], Factory]] = {}


def build(name: str, roster: Roster) -> Factory:
    """A factory of fresh models of this name; an option stands after a colon ("mlp:128,64", "linear:nobias").

    Models map rows [n, ...] to [n, classes], or to [n, 1] for regression.
    """
    kind, _, option = name.partition(":")
    if kind not in MODELS:
        raise unknown("model", kind, MODELS)
    if roster.tokens:
        raise CoterieError(
            f"the model {name} takes floats, and the data are whole numbers: convert x to floats."
        )
    return MODELS[kind](roster, option)


def default(roster: Roster) -> str:
    """The model to take where none is named: linear for regression, mlp for classification."""
    return "linear" if roster.kind == "regression" else "mlp"


def models() -> dict[str, str]:
    """Every model and what it is, in one line."""
    return {name: (make.__doc__ or "").split("\n")[0] for name, make in MODELS.items()}


def model(make: Callable[[Roster, str], Factory]) -> Callable[[Roster, str], Factory]:
    """Make a function known to `build` under its name."""
    MODELS[make.__name__] = make
    return make


@model
def linear(roster: Roster, option: str) -> Factory:
    """One linear layer; linear:nobias is without intercept."""
    if option not in ("", "nobias"):
        raise unknown("option of the model linear", option, ["nobias"])
    return partial(layers, [inputs(roster), outputs(roster)], bias=not option)


@model
def softmax(roster: Roster, option: str) -> Factory:
    """Softmax regression: one linear layer with an output per class."""
    no_option("softmax", option)
    if roster.kind == "regression":
        raise CoterieError(
            "the model softmax is for classes, and the data are for regression: use linear."
        )
    return partial(layers, [inputs(roster), outputs(roster)])


@model
def mlp(roster: Roster, option: str) -> Factory:
    """Hidden layers with ReLU: one of 200 units, or as in mlp:128,64."""
    sizes = option.split(",") if option else ["200"]
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise CoterieError(
            f"the hidden sizes {option!r} of mlp are none: write them as in mlp:128 or mlp:128,64."
        )
    return partial(layers, [inputs(roster), *map(int, sizes), outputs(roster)])


@model
def cnn(roster: Roster, option: str) -> Factory:
    """Two 5×5 convolutions (32, 64) with ReLU and 2×2 max-pooling, then 512 units; for images of 1 or 3 channels."""
    no_option("cnn", option)
    shape = roster.row_shape
    image = shape if len(shape) == 3 else (1, *shape)
    if len(image) != 3 or image[0] not in (1, 3) or min(image[1:]) < 4:
        raise CoterieError(
            f"the model cnn takes images of 1 or 3 channels and at least 4×4 pixels, and rows have the shape {shape}: "
            "use mlp."
        )
    return partial(convolutions, image, outputs(roster), add_channel=len(shape) == 2)


def inputs(roster: Roster) -> int:
    return math.prod(roster.row_shape)


def outputs(roster: Roster) -> int:
    return roster.classes or 1


def no_option(name: str, option: str) -> None:
    if option:
        raise CoterieError(
            f"the model {name} has no options: write {name} instead of {name}:{option}."
        )


def layers(sizes: Sequence[int], bias: bool = True) -> nn.Sequential:
    """Linear layers of these sizes, inputs first, with ReLU between them."""
    parts: list[nn.Module] = []
    for a, b in pairwise(sizes):
        parts += [nn.ReLU(), nn.Linear(a, b, bias)]
    return nn.Sequential(nn.Flatten(), *parts[1:])


def convolutions(image: tuple[int, int, int], outputs: int, add_channel: bool) -> nn.Sequential:
    """The network of `cnn`; with `add_channel` it takes [n, H, W]."""
    channels, height, width = image
    first = [nn.Unflatten(1, (1, height))] if add_channel else []
    return nn.Sequential(
        *first,
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, outputs),
    )
