"""`ModelSpec`: a model together with how it is trained."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.core.forward import BATCH_NORMS, Draws
from coterie.core.layers import check_layer_names, is_named

RowFunction = Callable[[Any, Any], Tensor]  # of outputs and targets: one value per row


class RowMetric(NamedTuple):
    """A metric of one's own."""

    function: RowFunction
    higher_is_better: bool


@dataclass(frozen=True)
class ModelSpec:
    """A model with a loss of its own, or of which only a part is trained, or with augmentation.

    It can be given wherever a model can: to `ct.run`, `ct.resume`, `ct.load`, and in a file for
    `--model my_net.py:NAME`.

    Args:
        model: A name, a function that returns a module, or a module.
        loss: Maps outputs and targets of n rows to n values that are not negative, such as
            `nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)`. Outputs are what the model
            returns, which may be a tuple or dict that begins with the prediction; a regression
            with one output has [n]. Without targets, the function gets the inputs instead.
        class_weights: Weight of each class, or label, in the cross-entropy.
        trainable: Names of the parameters or layers that are trained, or a function from a
            parameter's name to whether it is. All others are frozen and never sent.
        augment: Maps rows x [n, ...] and a `Draws` to rows of the same shape, in training only;
            see `ct.augment`.
        autocast: Whether training computes matrix products and convolutions in bfloat16
            (`torch.autocast`). Parameters, updates and evaluation keep the run's dtype, float32.
        metrics: Metrics of your own by name: functions of outputs and targets that give one value
            per row, of which clients send the sum. Higher is better, unless it is a pair
            (function, "min").

    Example:
        >>> import torch, coterie as ct
        >>> fed = ct.data.rotated("digits", clients=4, samples=20)
        >>> smooth = torch.nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
        >>> spec = ct.ModelSpec("mlp:16", loss=smooth, trainable=["3"])
        >>> sorted(ct.run(ct.FedAvg(lr=0.3), fed, spec, rounds=1).state)
        ['3.bias', '3.weight']
    """

    model: Any
    loss: RowFunction | None = None
    class_weights: Sequence[float] | None = None
    trainable: Sequence[str] | Callable[[str], bool] | None = None
    augment: Callable[[Any, Draws], Any] | None = None
    autocast: bool = False
    metrics: Mapping[str, RowFunction | tuple[RowFunction, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.loss is not None and self.class_weights is not None:
            raise CoterieError(
                "class_weights are for the cross-entropy, and loss replaces it: weight the classes "
                "in your loss."
            )
        for name in ("loss", "augment"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise CoterieError(f"{name} is {given!r}: it must be a function.")
        if not isinstance(self.autocast, bool):
            raise CoterieError(f"autocast is {self.autocast!r}: it must be True or False.")
        self.row_metrics()

    def row_metrics(self) -> dict[str, RowMetric]:
        """The metrics of one's own, by name.

        Raises:
            CoterieError: If one is no function, or its name cannot be a column.
        """
        found = {}
        for name, given in self.metrics.items():
            function, best = given if isinstance(given, tuple) else (given, "max")
            if not callable(function) or best not in ("min", "max"):
                raise CoterieError(
                    f"the metric {name!r} is {given!r}: it must be a function of outputs and "
                    'targets, or a pair (function, "min" or "max").'
                )
            if not re.fullmatch(r"[a-z][a-z0-9_]*", str(name)):
                raise CoterieError(
                    f"a metric is called {name!r}: use lower-case letters, digits and underscores."
                )
            found[name] = RowMetric(function, higher_is_better=best == "max")
        return found

    def describe(self) -> str:
        """The options that are not the defaults, for the model's fingerprint."""
        parts = []
        if self.loss is not None:
            parts.append(f"loss={_name(self.loss)}")
        if self.class_weights is not None:
            parts.append(f"class_weights={[float(v) for v in self.class_weights]}")
        if self.augment is not None:
            parts.append(f"augment={_name(self.augment)}")
        if self.autocast:
            parts.append("autocast")
        if self.metrics:
            parts.append(f"metrics={sorted(self.metrics)}")
        return ", ".join(parts)  # what is trained shows in the frozen values

    def freeze(self, module: nn.Module) -> None:
        """Freeze all parameters that `trainable` does not name, and batch norms without others."""
        if self.trainable is None:
            return
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        chosen = self.trainable
        if not callable(chosen):
            layers = [chosen] if isinstance(chosen, str) else list(chosen)
            check_layer_names("trainable", layers, names)
            chosen = lambda name: is_named(name, layers)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and bool(chosen(name)))
        for part in module.modules():
            is_frozen = not any(p.requires_grad for p in part.parameters())
            if isinstance(part, BATCH_NORMS) and is_frozen:
                part.eval()


def _name(function: Any) -> str:
    """The name of a function; the text of a module or dataclass, with its settings."""
    if isinstance(function, nn.Module) or is_dataclass(function):
        return repr(function)
    return str(getattr(function, "__qualname__", type(function).__qualname__))
