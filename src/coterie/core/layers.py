"""The layers of a model: which are linear, which is first, and which a setting names.

Two facts speed up local training. A first linear layer that takes the rows themselves can be
trained without its weights (`first_layer`; see optim/dual.py). A chain of linear layers and
element-wise activations can be computed for many clients at once without `vmap` (`common_layers`;
see optim/gradients.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.errors import CoterieError

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


# ------------------------------------------------------------------------------ settings
def is_named(parameter: str, layers: Iterable[str]) -> bool:
    """Whether a parameter, or the layer it belongs to, is among these names."""
    return any(parameter == layer or parameter.startswith(f"{layer}.") for layer in layers)


def check_layer_names(setting: str, layers: Iterable[str], parameters: Sequence[str]) -> None:
    """Raise a `CoterieError` if a setting names a layer that the model does not have."""
    for layer in layers:
        if not any(is_named(parameter, [layer]) for parameter in parameters):
            raise CoterieError(
                f"{setting} names the layer {layer!r}, and the model has no such layer; "
                f"it has {', '.join(parameters)}."
            )


def without_compilation(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, and so for its parts.

    Local training calls a model as a function of its parameters, many clients at once; compiled for
    that, a small network takes a minute and is no faster.
    """
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
        module = inner
    module._compiled_call_impl = None  # of module.compile()
    for name, part in module.named_children():
        original = without_compilation(part)
        if original is not part:
            setattr(module, name, original)
    return module


# ------------------------------------------------------------------------------ the first layer
class First(NamedTuple):
    """A first layer: its name in the model, and the names of its parameters."""

    layer: str
    weight: str
    bias: str | None


def first_layer(module: nn.Module, shape: torch.Size, like: Tensor) -> First | None:
    """Find the linear layer that is applied to the flattened rows.

    The model runs on random rows, since its structure may hide the layer: it may begin with a
    flatten, or be any module whose forward does. The rows are large and of both signs, so that a
    ReLU or a clamp before the layer shows.

    Args:
        module: The model.
        shape: Shape of one row.
        like: A tensor of the model's dtype and device.

    Returns:
        The layer, or None if there is none or its parameters are used elsewhere, too.
    """
    x = _random_rows(shape, like)
    rows = x.flatten(1)
    out, inputs = _linear_inputs(module, x)
    for name, layer_input in inputs:
        takes_rows = layer_input.shape == rows.shape and torch.equal(layer_input, rows)
        first = _parameter_names(module, name)
        if takes_rows and _is_used_nowhere_else(module, first, x, out):
            return first
    return None


def uses_rows_elsewhere(module: nn.Module, first: First, shape: torch.Size, like: Tensor) -> bool:
    """Whether the rows reach the outputs also by another way than through the first layer.

    With the layer's outputs fixed, other rows must not change the result.
    """
    x = _random_rows(shape, like)
    layer = module.get_submodule(first.layer)
    with torch.no_grad(), override_output(module, first, layer(x.flatten(1))):
        out = module(x)
        others = (-x, torch.zeros_like(x), torch.full_like(x, torch.nan))
        return not all(torch.equal(module(rows), out) for rows in others)


@contextmanager
def override_output(module: nn.Module, first: First, z: Tensor) -> Iterator[None]:
    """Let the first layer return z, whatever its input and its parameters are."""
    layer = module.get_submodule(first.layer)
    layer.forward = lambda _: z
    try:
        yield
    finally:
        del layer.forward  # restores the class's own


def _random_rows(shape: torch.Size, like: Tensor) -> Tensor:
    """Two large rows of both signs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return 1000 * torch.randn(2, *shape, dtype=like.dtype).to(like.device)


def _parameter_names(module: nn.Module, name: str) -> First:
    prefix = f"{name}." if name else ""  # "" is the model itself
    if module.get_submodule(name).bias is None:
        return First(name, f"{prefix}weight", None)
    return First(name, f"{prefix}weight", f"{prefix}bias")


def _linear_inputs(module: nn.Module, x: Tensor) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """(outputs for x, the name and input of each trained linear layer in order of their calls)"""
    inputs: list[tuple[str, Tensor]] = []
    handles = []
    for name, layer in module.named_modules():
        if _is_trained_linear(layer):
            record = lambda _, args, name=name: inputs.append((name, args[0]))
            handles.append(layer.register_forward_pre_hook(record))
    try:
        with torch.no_grad():
            return module(x), inputs
    finally:
        for handle in handles:
            handle.remove()


def _is_trained_linear(layer: nn.Module) -> bool:
    """Whether it is exactly an `nn.Linear` with all parameters trained."""
    own = dict(layer.named_parameters())
    if type(layer) is not nn.Linear or "weight" not in own:
        return False
    return all(p.requires_grad for p in own.values())


def _is_used_nowhere_else(module: nn.Module, first: First, x: Tensor, out: Tensor) -> bool:
    """Whether NaN parameters change nothing while the layer's outputs are fixed."""
    names = [name for name in (first.weight, first.bias) if name is not None]
    invalid = {k: torch.full_like(module.get_parameter(k), torch.nan) for k in names}
    layer = module.get_submodule(first.layer)
    with torch.no_grad(), override_output(module, first, layer(x.flatten(1))):
        return torch.equal(functional_call(module, invalid, (x,)), out)


# ------------------------------------------------------------------------------ chains of layers
class Linear(NamedTuple):
    """A linear layer, by the names of its parameters."""

    weight: str
    bias: str | None


Layer = Linear | nn.Module  # a module is an activation


def common_layers(module: nn.Module) -> list[Layer] | None:
    """The layers of a model that consists of linear layers and `ACTIVATIONS`, in order.

    For models whose first layer is linear and takes the flattened rows, so that `nn.Flatten`
    changes nothing and is omitted.

    Returns:
        None for any other model, and with subclasses of these layers, which may compute anything,
        hooks, and parameters that are frozen or used twice.
    """
    if any(_has_hooks(part) for part in module.modules()):
        return None
    layers: list[Layer] = []
    names: list[str] = []
    for name, part in _leaf_modules("", module):
        if type(part) is nn.Linear:
            prefix = f"{name}." if name else ""
            linear = Linear(f"{prefix}weight", None if part.bias is None else f"{prefix}bias")
            layers.append(linear)
            names += [n for n in linear if n is not None]
        elif type(part) in ACTIVATIONS and not getattr(part, "inplace", False):
            layers.append(part)
        elif not _is_identity(part):
            return None
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    if sorted(names) != sorted(trained) or len(trained) != len(list(module.parameters())):
        return None
    return layers


def _leaf_modules(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a row passes, in order."""
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for child, part in module._modules.items():  # `named_children` omits repeated modules
        assert part is not None
        yield from _leaf_modules(f"{name}.{child}" if name else child, part)


def _is_identity(part: nn.Module) -> bool:
    """Whether it leaves flattened rows unchanged."""
    if type(part) is nn.Identity:
        return True
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)


def _has_hooks(part: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(part, name) for name in hooks)
