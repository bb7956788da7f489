"""The model as a function of its parameters, and its masked losses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from coterie.errors import CoterieError
from coterie.params import Params, stack

Kind = Literal["classification", "regression"]


class Batch(NamedTuple):
    """Rows of one client."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n]
    mask: Tensor  # [n] 1 where a row is real, 0 where it pads: clients are ragged
    weight: Tensor  # [n] of each row's loss; 1 unless the method says otherwise

    @staticmethod
    def of(x: Tensor, y: Tensor, dtype: torch.dtype) -> Batch:
        """All rows real, all weights 1."""
        ones = torch.ones(len(x), dtype=dtype, device=x.device)
        return Batch(x, y, ones, ones)


class First(NamedTuple):
    """A linear layer that sees the input itself: the names of its parameters."""

    layer: str
    weight: str
    bias: str | None


class Task:
    """A model from a factory, classification or regression, in one dtype."""

    def __init__(
        self,
        model: Callable[[], nn.Module] | nn.Module,
        kind: Kind,
        example: Tensor,
        classes: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        """model: a factory, called anew for each start; or a module, whose weights are then the one common start.

        example: [n, ...] a few rows, on which the model is tried.
        """
        self.kind, self.classes, self.dtype, self.device = (
            kind,
            classes,
            dtype,
            torch.device(device),
        )
        self.factory = None if isinstance(model, nn.Module) else model
        self.module = self._made(copy.deepcopy(model) if isinstance(model, nn.Module) else model())
        refuse_layers(self.module)
        if not any(p.requires_grad for p in self.module.parameters()):
            raise CoterieError("the model has no parameters that can be trained.")
        self._check_outputs(example.to(self.device))
        self.first = self._first_layer(example)

    def _made(self, module: Any) -> nn.Module:
        if not isinstance(module, nn.Module):
            raise CoterieError(
                f"the model factory gave a {type(module).__name__}: it must return a torch nn.Module."
            )
        return module.to(self.device, self.dtype)

    def copy(self) -> Task:
        """With a module of its own: `functional_call` writes into its module, so each worker needs one."""
        other = copy.copy(self)
        other.module = copy.deepcopy(self.module)
        return other

    # ---- starts
    def init(self, seed: int, j: int = 0) -> Params:
        """Start number j of this seed: what can be trained. Frozen parameters stay in the module."""
        module = self.module
        if self.factory is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed((seed * 1_000_003 + j) % 2**63)
                module = self._made(self.factory())
        return {k: v.detach().clone() for k, v in module.named_parameters() if v.requires_grad}

    def inits(self, seed: int, k: int, start: int = 0) -> Params:
        """k separately drawn starts, stacked."""
        if k > 1 and self.factory is None:
            raise CoterieError(
                f"{k} separate random starts need a model factory: give a function that returns a new module "
                "(model=lambda: Net()), not one module, or start from one common model (init='updates')."
            )
        found = stack([self.init(seed, start + j) for j in range(k)])
        if k > 1 and all(torch.equal(v[0], v[1]) for v in found.values()):
            raise CoterieError(
                "the model factory gave equal weights twice, and centres that start equal stay so: let it build a new "
                "module with random weights at each call (model=lambda: Net())."
            )
        return found

    # ---- losses
    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """[n, classes], or [n] for regression."""
        out: Tensor = functional_call(self.module, params, (x,))
        return out if self.kind == "classification" or out.dim() == 1 else out[..., 0]

    def measure(self, outputs: Tensor, y: Tensor) -> Tensor:
        """[n] each row's loss: cross-entropy, or the squared error."""
        if self.kind == "classification":
            return F.cross_entropy(outputs, y, reduction="none")
        return (outputs - y) ** 2

    def losses(self, params: Params, batch: Batch) -> Tensor:
        return self.measure(self.outputs(params, batch.x), batch.y)

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Mean over the real rows, each times its weight."""
        return self.mean(self.losses(params, batch), batch)

    @staticmethod
    def mean(losses: Tensor, batch: Batch) -> Tensor:
        return (losses * (batch.mask * batch.weight)).sum() / batch.mask.sum().clamp(min=1)

    def loss_after_first(self, z: Tensor, rest: Params, batch: Batch) -> Tensor:
        """The loss, given the first layer's outputs z [n, hidden] instead of its parameters."""
        assert self.first is not None
        with self._given(self.first, z):
            return self.loss(rest, batch)

    @contextmanager
    def _given(self, first: First, z: Tensor) -> Iterator[None]:
        """Within it the first layer gives z."""
        layer = self.module.get_submodule(first.layer)
        layer.forward = lambda _: z
        try:
            yield
        finally:
            del layer.forward  # the class's own again

    # ---- checks
    def _check_outputs(self, x: Tensor) -> None:
        x = x.to(self.dtype) if x.is_floating_point() else x
        try:
            with torch.no_grad():
                out = self.module(x)
        except (RuntimeError, IndexError, TypeError, ValueError) as e:
            reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
            raise CoterieError(
                f"the model cannot take a row of the data, of shape {tuple(x.shape[1:])} and type {x.dtype}: {reason}."
            ) from e
        shape = tuple(out.shape[1:])
        if self.kind == "classification" and (len(shape) != 1 or shape[0] < (self.classes or 1)):
            raise CoterieError(
                f"the model gives outputs of shape {shape} per row, but the data have {self.classes} classes: "
                f"its last layer must have {self.classes} outputs."
            )
        if self.kind == "regression" and shape not in ((), (1,)):
            raise CoterieError(
                f"the model gives outputs of shape {shape} per row, but the target is one number: "
                "its last layer must have 1 output."
            )

    def _first_layer(self, example: Tensor) -> First | None:
        """The linear layer that is applied to the flattened rows themselves and to nothing else, if there is one.

        Tried on random rows rather than guessed from the module's structure: it may begin with a flatten, or be
        any module whose forward does. The rows are wide and of both signs, so that a ReLU or a clamp before the layer
        shows.
        """
        if not example.is_floating_point():
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            x = 1000 * torch.randn(2, *example.shape[1:], dtype=self.dtype).to(self.device)
        flat, seen, handles = x.flatten(1), [], []
        for name, layer in self.module.named_modules():
            own = dict(layer.named_parameters())
            if (
                type(layer) is nn.Linear
                and "weight" in own
                and all(p.requires_grad for p in own.values())
            ):
                note = lambda _, args, name=name: seen.append((name, args[0]))
                handles.append(layer.register_forward_pre_hook(note))
        try:
            with torch.no_grad():
                out = self.module(x)
        finally:
            for h in handles:
                h.remove()
        for name, given in seen:
            dot, layer = f"{name}." if name else "", self.module.get_submodule(name)
            first = First(name, f"{dot}weight", f"{dot}bias" if layer.bias is not None else None)
            if given.shape == flat.shape and torch.equal(given, flat):
                nowhere = {
                    k: torch.full_like(self.module.get_parameter(k), torch.nan)
                    for k in first[1:]
                    if k
                }
                with torch.no_grad(), self._given(first, layer(given)):
                    same = torch.equal(functional_call(self.module, nowhere, (x,)), out)
                if same:  # its parameters are used nowhere else
                    return first
        return None


def refuse_layers(module: nn.Module) -> None:
    """Layers whose result depends on other rows, on past calls or on hidden randomness cannot be functions."""
    for name, layer in module.named_modules():
        where = (
            f"layer {name!r} ({type(layer).__name__})"
            if name
            else f"the model ({type(layer).__name__})"
        )
        if isinstance(layer, _NormBase) and (
            layer.track_running_stats or "BatchNorm" in type(layer).__name__
        ):
            raise CoterieError(
                f"{where} is a batch norm, which keeps statistics of its own between clients: use nn.GroupNorm instead."
            )
        rate = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
        if isinstance(rate, int | float) and rate > 0:
            raise CoterieError(
                f"{where} uses dropout, whose randomness would differ between engines: set it to 0 or remove it; "
                "l2 and clip are there to regularise."
            )
