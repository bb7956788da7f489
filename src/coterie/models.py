"""Models by name, sized for a federation's data.

Tables: linear, softmax, additive; rows of any shape: mlp, mlp_bn; images: cnn, cnn6, resnet18;
tokens: lstm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from coterie.core.additive import Additive
from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data.roster import Roster

Factory = Callable[[], nn.Module]
INIT_STD = 0.01  # of a linear model's initial weights on tables: small, but not equal
MODELS: dict[str, Callable[[Roster, str], Factory]] = {}


def build(name: str, roster: Roster) -> Factory:
    """A factory of models that map rows [n, ...] to [n, classes] or [n, 1].

    Args:
        name: A model's name, with options after a colon: "mlp:128,64", "linear:nobias".
        roster: The federation's roster, which gives the shapes.

    Raises:
        CoterieError: If the name is unknown or the model does not fit the data.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.rotated("digits", clients=4, samples=20)
        >>> ct.models.build("mlp:16", fed.roster)()[-1]
        Linear(in_features=16, out_features=10, bias=True)
    """
    kind, _, option = name.partition(":")
    if kind not in MODELS:
        raise unknown_name("model", kind, MODELS)
    if roster.fields:
        raise CoterieError(
            f"the model {name} takes one input, and the data have "
            f"{len(roster.fields)}: give a model of your own, whose forward takes a dict."
        )
    if roster.tokens and kind != "lstm":
        raise CoterieError(
            f"the model {name} takes floats, and the data are whole numbers: convert x to floats, "
            "or use lstm for the classes of tokens."
        )
    return MODELS[kind](roster, option)


def default(roster: Roster) -> str:
    """The default model: linear for tables and regression, lstm for tokens, else mlp.

    Args:
        roster: The federation's roster.

    Example:
        >>> import coterie as ct
        >>> ct.models.default(ct.data.rotated("digits", clients=4, samples=20).roster)
        'mlp'
    """
    if roster.schema is not None or roster.kind == "regression":
        return "linear"
    return "lstm" if roster.kind == "tokens" and roster.tokens else "mlp"


def models() -> dict[str, str]:
    """All models with one line about each.

    Example:
        >>> import coterie as ct
        >>> sorted(ct.models.models())
        ['additive', 'cnn', 'cnn6', 'linear', 'lstm', 'mlp', 'mlp_bn', 'resnet18', 'softmax']
    """
    return {name: (make.__doc__ or "").split("\n")[0] for name, make in MODELS.items()}


def model(make: Callable[[Roster, str], Factory]) -> Callable[[Roster, str], Factory]:
    """Register a function under its name for `build`.

    Args:
        make: Given a roster and an option, returns a factory.

    Example:
        >>> import coterie as ct
        >>> ct.models.model(ct.models.linear) is ct.models.linear
        True
    """
    MODELS[make.__name__] = make
    return make


@model
def linear(roster: Roster, option: str) -> Factory:
    """One linear layer; linear:nobias has no intercept."""
    if option not in ("", "nobias"):
        raise unknown_name("option of the model linear", option, ["nobias"])
    is_table = roster.schema is not None
    return partial(_one_layer, _inputs(roster), _outputs(roster), bias=not option, near_0=is_table)


@model
def softmax(roster: Roster, option: str) -> Factory:
    """Softmax regression: one linear layer with an output per class."""
    _no_option("softmax", option)
    if roster.kind == "regression":
        raise CoterieError(
            "the model softmax is for classification, and the data are for regression: use linear."
        )
    is_table = roster.schema is not None
    return partial(_one_layer, _inputs(roster), _outputs(roster), near_0=is_table)


@model
def additive(roster: Roster, option: str) -> Factory:
    """A curve for each column, linear between 5 knots; a linear model without its curves."""
    _no_option("additive", option)
    if len(roster.row_shape) != 1:
        raise CoterieError(
            "the model additive is for tables, and rows have the shape "
            f"{tuple(roster.row_shape)}: use cnn or mlp."
        )
    return partial(Additive, _inputs(roster), _outputs(roster))


@model
def mlp(roster: Roster, option: str) -> Factory:
    """Hidden layers with ReLU: one of 200 units, or as in mlp:128,64."""
    return partial(_layers, _sizes("mlp", roster, option))


@model
def mlp_bn(roster: Roster, option: str) -> Factory:
    """The layers of mlp, with a batch norm before each ReLU."""
    return partial(_layers, _sizes("mlp_bn", roster, option), batch_norm=True)


@model
def cnn(roster: Roster, option: str) -> Factory:
    """5×5 convolutions (32, 64), ReLU, 2×2 max-pooling, 512 units; cnn:4 has a quarter of each."""
    image = _image_shape("cnn", roster, pixels=4)
    by = _divisor("cnn", option)
    return partial(_convolutions, image, _outputs(roster), by, add_channel=_is_flat(roster))


@model
def cnn6(roster: Roster, option: str) -> Factory:
    """Six 3×3 convolutions (32 to 256), a pooling after every two, 1024 and 512 units; cnn6:4."""
    image = _image_shape("cnn6", roster, pixels=8)
    by = _divisor("cnn6", option)
    return partial(_six_convolutions, image, _outputs(roster), by, add_channel=_is_flat(roster))


@model
def resnet18(roster: Roster, option: str) -> Factory:
    """ResNet-18 for small images with batch norm; resnet18:4 is narrower, :group has group norm."""
    image = _image_shape("resnet18", roster, pixels=8)
    words = [word for word in option.split(",") if word]
    has_group_norm = "group" in words
    sizes = [word for word in words if word != "group"]
    if len(sizes) > 1:
        raise CoterieError(
            f"{option!r} has two sizes of resnet18: write resnet18:4 or resnet18:4,group."
        )
    by = _divisor("resnet18", "".join(sizes))
    return partial(
        _residual_network, image, _outputs(roster), by, has_group_norm, add_channel=_is_flat(roster)
    )


@model
def lstm(roster: Roster, option: str) -> Factory:
    """A class for each token from those up to it: embeddings of 16, an LSTM of 64, or lstm:128."""
    if not (option or "64").isdecimal() or int(option or 64) < 1:
        raise CoterieError(f"{option!r} is not a number of units of lstm: write lstm:128.")
    if roster.kind != "tokens" or not roster.tokens:
        raise CoterieError(
            "the model lstm is for tokens, each with a class, and the data are others: use mlp."
        )
    return partial(_TokenLSTM, roster.classes or 1, int(option or 64))


class _TokenLSTM(nn.Module):
    """Logits [n, T, classes] of the token after each of x [n, T], whose tokens are the classes."""

    def __init__(self, classes: int, units: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 16)
        self.lstm = nn.LSTM(16, units, batch_first=True)
        self.linear = nn.Linear(units, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        try:
            embedded = self.embedding(x)
        except IndexError:
            raise CoterieError(
                f"a token of x is outside 0 to {self.embedding.num_embeddings - 1}: the model lstm "
                "takes tokens that are classes, too; give a model of your own."
            ) from None
        logits: Tensor = self.linear(self.lstm(embedded)[0])
        return logits


def _is_flat(roster: Roster) -> bool:
    """Whether rows are images [H, W], without a channel."""
    return len(roster.row_shape) != 3


def _image_shape(name: str, roster: Roster, pixels: int) -> tuple[int, int, int]:
    """Channels, height and width of the rows; raises a `CoterieError` if they are no images."""
    shape = roster.row_shape
    image = (1, *shape) if _is_flat(roster) else shape
    if len(image) != 3 or image[0] not in (1, 3) or min(image[1:]) < pixels:
        raise CoterieError(
            f"the model {name} needs images of 1 or 3 channels and at least {pixels}×{pixels} "
            f"pixels, and rows have the shape {shape}: use mlp."
        )
    return image


def _divisor(name: str, option: str) -> int:
    """The divisor of a model's channels and units, a power of 2 up to 32."""
    allowed = {"": 1, "1": 1, "2": 2, "4": 4, "8": 8, "16": 16, "32": 32}
    if option not in allowed:
        raise CoterieError(
            f"{option!r} is not a size of {name}: write {name}:2, :4, :8, :16 or :32 for half, a "
            "quarter and so on of its channels and units."
        )
    return allowed[option]


def _inputs(roster: Roster) -> int:
    """Number of features of a row."""
    return math.prod(roster.row_shape)


def _outputs(roster: Roster) -> int:
    """Number of outputs: one per class, label or number.

    Raises:
        CoterieError: If the targets need outputs of another shape than [n, outputs].
    """
    if roster.kind == "multioutput" and len(roster.target_shape) == 1:
        return roster.target_shape[0]
    if roster.kind not in ("classification", "regression", "multilabel"):
        raise CoterieError(
            f"models by name predict one class or number, or several of them, per row, and the "
            f"targets are of the kind {roster.kind}",
            "give a model of your own, such as {}",
            options=[Option("model", "FILE.py:NAME")],
        )
    return roster.classes or 1


def _no_option(name: str, option: str) -> None:
    """Raise a `CoterieError` if a model without options gets one."""
    if option:
        raise CoterieError(
            f"the model {name} has no options: write {name} instead of {name}:{option}."
        )


def _one_layer(inputs: int, outputs: int, bias: bool = True, near_0: bool = False) -> nn.Sequential:
    """One linear layer.

    Args:
        inputs: Number of features.
        outputs: Number of outputs.
        bias: Whether it has an intercept.
        near_0: Start near 0, for tables. A client with fewer rows than columns learns nothing in
            some directions; there its model stays at the start, and torch's own start would add a
            third of the target's variance as noise. Elsewhere torch's start is used: methods with
            several random models need them to differ.
    """
    layer = nn.Linear(inputs, outputs, bias)
    if near_0:
        nn.init.normal_(layer.weight, std=INIT_STD)
        if bias:
            nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def _sizes(name: str, roster: Roster, option: str) -> list[int]:
    """Sizes of the layers from inputs to outputs, given the hidden ones as text."""
    hidden = (option or "200").split(",")
    if not all(size.isdecimal() and int(size) for size in hidden):
        raise CoterieError(
            f"{option!r} is not a list of hidden sizes of {name}: write {name}:128 or "
            f"{name}:128,64."
        )
    return [_inputs(roster), *map(int, hidden), _outputs(roster)]


def _layers(sizes: Sequence[int], batch_norm: bool = False) -> nn.Sequential:
    """Linear layers of these sizes, with ReLU, and perhaps batch norms before it, between them."""
    parts: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(sizes[:-1]):
        parts.append(nn.Linear(a, b, bias=not batch_norm))  # a batch norm removes any bias
        if batch_norm:
            parts.append(nn.BatchNorm1d(b))
        parts.append(nn.ReLU())
    return nn.Sequential(*parts, nn.Linear(sizes[-2], sizes[-1]))


def _convolutions(
    image: tuple[int, int, int], outputs: int, by: int, add_channel: bool
) -> nn.Sequential:
    """The network of `cnn`, sizes divided by `by`; with `add_channel` it takes [n, H, W]."""
    channels, height, width = image
    few, more, units = 32 // by, 64 // by, 512 // by
    parts: list[nn.Module] = []
    if add_channel:
        parts += [nn.Unflatten(1, (1, height))]
    parts += [nn.Conv2d(channels, few, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    parts += [nn.Conv2d(few, more, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    parts += [nn.Flatten(), nn.Linear(more * (height // 4) * (width // 4), units), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(units, outputs))


def _six_convolutions(
    image: tuple[int, int, int], outputs: int, by: int, add_channel: bool
) -> nn.Sequential:
    """The network of `cnn6`, sizes divided by `by`; with `add_channel` it takes [n, H, W].

    Weights are initialised by Xavier's rule, as in FedSoft's paper: with torch's own the
    activations shrink so much over nine layers that a small network does not learn.
    """
    before, height, width = image
    parts: list[nn.Module] = []
    if add_channel:
        parts += [nn.Unflatten(1, (1, height))]
    for first, second in ((32, 64), (128, 128), (256, 256)):
        parts += [nn.Conv2d(before, first // by, 3, padding=1), nn.ReLU()]
        parts += [nn.Conv2d(first // by, second // by, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before = second // by
    sizes = [before * (height // 8) * (width // 8), 1024 // by, 512 // by, outputs]
    network = nn.Sequential(*parts, *_layers(sizes))
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return network


class _ResidualBlock(nn.Module):
    """Two 3×3 convolutions with norms, added to their input (He, Zhang, Ren, Sun, CVPR 2016)."""

    def __init__(self, before: int, channels: int, stride: int, has_group_norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(channels, has_group_norm)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = _norm(channels, has_group_norm)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, channels, 1, stride, bias=False), _norm(channels, has_group_norm)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (out + self.shortcut(x)).relu()


def _norm(channels: int, has_group_norm: bool) -> nn.Module:
    """A batch norm, or a group norm of two channels or more per group."""
    if has_group_norm:
        return nn.GroupNorm(min(32, channels // 2), channels)
    return nn.BatchNorm2d(channels)


def _residual_network(
    image: tuple[int, int, int], outputs: int, by: int, has_group_norm: bool, add_channel: bool
) -> nn.Sequential:
    """The network of `resnet18`, channels divided by `by`; with `add_channel` it takes [n, H, W].

    As usual for images of 32 × 32 pixels, the first convolution is 3×3 with stride 1, and no
    pooling follows it.
    """
    before = 64 // by
    parts: list[nn.Module] = []
    if add_channel:
        parts += [nn.Unflatten(1, (1, image[1]))]
    parts += [nn.Conv2d(image[0], before, 3, padding=1, bias=False)]
    parts += [_norm(before, has_group_norm), nn.ReLU()]
    for size, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        parts += [_ResidualBlock(before, size // by, stride, has_group_norm)]
        parts += [_ResidualBlock(size // by, size // by, 1, has_group_norm)]
        before = size // by
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))
