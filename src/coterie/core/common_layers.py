"""Models that are a row of linear layers and element-wise activations, as most are.

Their layers can be computed for many clients at once without `vmap`: see `optim/many_models.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

ACTIVATIONS = (
    nn.ELU,
    nn.GELU,
    nn.LeakyReLU,
    nn.ReLU,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Tanh,
)


class Linear(NamedTuple):
    """A linear layer, by the names of its parameters."""

    weight: str
    bias: str | None


Layer = Linear | nn.Module  # a module is an activation


def common_layers(module: nn.Module) -> list[Layer] | None:
    """The layers of a model in their order, where it has no other than those named above.

    It is for models whose first layer is linear and takes the flattened rows, so that `nn.Flatten`
    changes nothing and is left out. None for any other model: for a subclass of a layer, which may
    compute anything, for hooks, and for parameters that are frozen or used twice.
    """
    if any(_is_hooked(part) for part in module.modules()):
        return None
    layers: list[Layer] = []
    names: list[str] = []
    for name, part in _parts("", module):
        if type(part) is nn.Linear:
            prefix = f"{name}." if name else ""
            linear = Linear(f"{prefix}weight", None if part.bias is None else f"{prefix}bias")
            layers.append(linear)
            names += [n for n in linear if n is not None]
        elif type(part) in ACTIVATIONS and not getattr(part, "inplace", False):
            layers.append(part)
        elif not _changes_nothing(part):
            return None
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    if sorted(names) != sorted(trained) or len(trained) != len(list(module.parameters())):
        return None
    return layers


def _parts(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a row passes, one after another."""
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for child, part in module._modules.items():  # `named_children` leaves out what comes again
        assert part is not None
        yield from _parts(f"{name}.{child}" if name else child, part)


def _changes_nothing(part: nn.Module) -> bool:
    """Whether it leaves flattened rows as they are."""
    if type(part) is nn.Identity:
        return True
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)


def _is_hooked(part: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(part, name) for name in hooks)
