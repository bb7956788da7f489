"""The linear layer that a model applies to the rows themselves, if it has one.

On a client's own rows such a layer can be trained without its weights: see `optim/dual.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call


class First(NamedTuple):
    """A first layer: its name in the model, and the names of its parameters."""

    layer: str
    weight: str
    bias: str | None


def first_layer(module: nn.Module, shape: torch.Size, like: Tensor) -> First | None:
    """The linear layer that is applied to the flattened rows, and whose parameters only it uses.

    It is tried on random rows rather than guessed from the module's structure: a model may begin
    with a flatten, or be any module whose forward does. The rows are wide and of both signs, so
    that a ReLU or a clamp before the layer shows.

    shape: of one row.  like: a tensor of the model's dtype and device.
    """
    x = _random_rows(shape, like)
    rows = x.flatten(1)
    out, inputs = _linear_inputs(module, x)
    for name, layer_input in inputs:
        takes_rows = layer_input.shape == rows.shape and torch.equal(layer_input, rows)
        first = _names(module, name)
        if takes_rows and _is_used_nowhere_else(module, first, x, out):
            return first
    return None


def uses_rows_elsewhere(module: nn.Module, first: First, shape: torch.Size, like: Tensor) -> bool:
    """Whether the rows reach the outputs by another way than through the first layer, too.

    It is tried, as above: while the layer's outputs are kept, other rows must change nothing.
    """
    x = _random_rows(shape, like)
    layer = module.get_submodule(first.layer)
    with torch.no_grad(), returning(module, first, layer(x.flatten(1))):
        out = module(x)
        others = (-x, torch.zeros_like(x), torch.full_like(x, torch.nan))
        return not all(torch.equal(module(rows), out) for rows in others)


def _random_rows(shape: torch.Size, like: Tensor) -> Tensor:
    """Two rows, wide and of both signs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return 1000 * torch.randn(2, *shape, dtype=like.dtype).to(like.device)


@contextmanager
def returning(module: nn.Module, first: First, z: Tensor) -> Iterator[None]:
    """Let the first layer return z, whatever its input and its parameters are."""
    layer = module.get_submodule(first.layer)
    layer.forward = lambda _: z
    try:
        yield
    finally:
        del layer.forward  # the class's own again


def _names(module: nn.Module, name: str) -> First:
    prefix = f"{name}." if name else ""  # "" is the model itself
    if module.get_submodule(name).bias is None:
        return First(name, f"{prefix}weight", None)
    return First(name, f"{prefix}weight", f"{prefix}bias")


def _linear_inputs(module: nn.Module, x: Tensor) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """(the outputs for x, the name and input of each trained linear layer as they are called)"""
    inputs: list[tuple[str, Tensor]] = []
    handles = []
    for name, layer in module.named_modules():
        if _is_trained_linear(layer):
            note = lambda _, args, name=name: inputs.append((name, args[0]))
            handles.append(layer.register_forward_pre_hook(note))
    try:
        with torch.no_grad():
            return module(x), inputs
    finally:
        for handle in handles:
            handle.remove()


def _is_trained_linear(layer: nn.Module) -> bool:
    """Whether it is a linear layer, and no subclass, all of whose parameters are trained."""
    own = dict(layer.named_parameters())
    if type(layer) is not nn.Linear or "weight" not in own:
        return False
    return all(p.requires_grad for p in own.values())


def _is_used_nowhere_else(module: nn.Module, first: First, x: Tensor, out: Tensor) -> bool:
    """Whether NaN for its parameters changes nothing while the layer's own outputs are kept."""
    names = [name for name in (first.weight, first.bias) if name is not None]
    spoilt = {k: torch.full_like(module.get_parameter(k), torch.nan) for k in names}
    layer = module.get_submodule(first.layer)
    with torch.no_grad(), returning(module, first, layer(x.flatten(1))):
        return torch.equal(functional_call(module, spoilt, (x,)), out)
