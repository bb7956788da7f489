"""`ModelSpec`: a model together with how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.core.forward import BATCH_NORMS, Draws
from coterie.core.layers import check_layer_names, is_named


@dataclass(frozen=True)
class ModelSpec:
    """A model with a loss of its own, or of which only a part is trained, or with augmentation.

    It can be given wherever a model can: to `ct.run`, `ct.resume`, `ct.load`, and in a file for
    `--model my_net.py:NAME`.

    Args:
        model: A name, a function that returns a module, or a module.
        loss: Maps outputs and targets of n rows to n values that are not negative, such as
            `nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)`. Outputs are
            [n, classes], or [n] for a regression with one output.
        class_weights: Weight of each class in the cross-entropy.
        trainable: Names of the parameters or layers that are trained, or a function from a
            parameter's name to whether it is. All others are frozen and never sent.
        augment: Maps rows x [n, ...] and a `Draws` to rows of the same shape, in training only;
            see `ct.augment`.
        autocast: Whether training computes matrix products and convolutions in bfloat16
            (`torch.autocast`). Parameters, updates and evaluation keep the run's dtype, float32.

    Example:
        >>> import torch, coterie as ct
        >>> fed = ct.data.rotated("digits", clients=4, samples=20)
        >>> smooth = torch.nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
        >>> spec = ct.ModelSpec("mlp:16", loss=smooth, trainable=["3"])
        >>> sorted(ct.run(ct.FedAvg(lr=0.3), fed, spec, rounds=1).state)
        ['3.bias', '3.weight']
    """

    model: Any
    loss: Callable[[Any, Any], Tensor] | None = None
    class_weights: Sequence[float] | None = None
    trainable: Sequence[str] | Callable[[str], bool] | None = None
    augment: Callable[[Tensor, Draws], Tensor] | None = None
    autocast: bool = False

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
