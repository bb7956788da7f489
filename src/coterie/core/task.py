"""The model as a function of its parameters, and its masked losses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from coterie.core.errors import CoterieError
from coterie.core.layers import (
    First,
    Layer,
    common_layers,
    first_layer,
    override_output,
    uses_rows_elsewhere,
)
from coterie.core.params import Params, stack

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


class Scale(NamedTuple):
    """A unit for numbers: how many deviations they are from the mean."""

    mean: float
    deviation: float


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
        scale: Scale | None = None,
    ) -> None:
        """Check a model on a few rows of the data.

        model: a factory, called anew for each start; or a module, whose weights are then the one
            common start.
        example: [n, ...] a few rows, on which the model is tried.
        scale: the unit in which the model gives a regression target. Losses are in this unit, so
            that step sizes that suit one table suit another; outputs are in the target's own.
        """
        self.kind = kind
        self.classes = classes
        self.scale = scale
        self.dtype = dtype
        self.device = torch.device(device)
        if isinstance(model, nn.Module):
            self.factory = None
            self.module = self._prepare(copy.deepcopy(model))
        else:
            self.factory = model
            self.module = self._prepare(model())
        check_layers(self.module)
        if not any(p.requires_grad for p in self.module.parameters()):
            raise CoterieError("the model has no parameters that can be trained.")
        self._check_outputs(example.to(self.device))
        self.row_shape = example.shape[1:]
        self.fixed: Params = {}  # parameters that are given once and for all: see `with_fixed`
        self.first: First | None = None
        like = torch.empty(0, dtype=dtype, device=self.device)
        if example.is_floating_point():
            self.first = first_layer(self.module, example.shape[1:], like)
        self.rows_are_used_elsewhere = self.first is not None and uses_rows_elsewhere(
            self.module, self.first, example.shape[1:], like
        )
        self.layers: list[Layer] | None = None  # of a model that has common ones only
        if self.first is not None:
            self.layers = common_layers(self.module)

    def _prepare(self, module: Any) -> nn.Module:
        """The module on the task's device and in its dtype."""
        if not isinstance(module, nn.Module):
            raise CoterieError(
                f"the model factory gave a {type(module).__name__}: "
                "it must return a torch nn.Module."
            )
        return module.to(self.device, self.dtype)

    def copy(self) -> Task:
        """A copy with its own module: `functional_call` writes into it, so workers cannot share."""
        other = copy.copy(self)
        other.module = copy.deepcopy(self.module)
        return other

    def with_fixed(self, fixed: Params) -> Task:
        """The same task with these parameters fixed: its models are the other ones alone."""
        other = copy.copy(self)
        other.fixed = {**self.fixed, **fixed}
        other.first = None  # it may be among the fixed ones, and then nothing trains it
        other.layers = None
        return other

    # ---- starts
    def init(self, seed: int, j: int = 0) -> Params:
        """Start number j of this seed: the parameters that are trained; frozen ones stay behind."""
        module = self.module
        if self.factory is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed((seed * 1_000_003 + j) % 2**63)
                module = self._prepare(self.factory())
        return {k: v.detach().clone() for k, v in module.named_parameters() if v.requires_grad}

    def inits(self, seed: int, k: int, start: int = 0) -> Params:
        """k separately drawn starts, stacked."""
        if k > 1 and self.factory is None:
            raise CoterieError(
                f"{k} separate random starts need a model factory: give a function that returns "
                "a new module (model=lambda: Net()), not one module, or start from one common "
                "model (init='updates')."
            )
        models = stack([self.init(seed, start + j) for j in range(k)])
        if k > 1 and all(torch.equal(v[0], v[1]) for v in models.values()):
            raise CoterieError(
                "the model factory gave equal weights twice, and centres that start equal stay "
                "so: let it build a new module with random weights at each call "
                "(model=lambda: Net())."
            )
        return models

    # ---- losses
    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """[n, classes], or [n] for regression, in the target's own unit."""
        return self.answers(functional_call(self.module, {**self.fixed, **params}, (x,)))

    def answers(self, out: Tensor) -> Tensor:
        """What the module's own outputs mean."""
        if self.kind == "regression" and out.dim() > 1:
            out = out[..., 0]
        if self.scale is not None:
            out = out * self.scale.deviation + self.scale.mean
        return out

    def measure(self, outputs: Tensor, y: Tensor) -> Tensor:
        """[n] each row's loss: cross-entropy, or the squared error in the target's own unit."""
        if self.kind == "classification":
            return F.cross_entropy(outputs, y, reduction="none")
        return (outputs - y) ** 2

    def losses(self, params: Params, batch: Batch) -> Tensor:
        """[n] each row's loss under the model with these parameters, in the task's unit."""
        return self.measure(self.outputs(params, batch.x), batch.y) / self.loss_unit

    @property
    def loss_unit(self) -> float:
        """What a loss of 1 is in the target's own unit, squared."""
        return 1.0 if self.scale is None else self.scale.deviation**2

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Mean over the real rows, each times its weight."""
        return self.mean(self.losses(params, batch), batch)

    @staticmethod
    def mean(losses: Tensor, batch: Batch) -> Tensor:
        """The mean of losses [n] over the real rows, each times its weight."""
        return (losses * (batch.mask * batch.weight)).sum() / batch.mask.sum().clamp(min=1)

    def first_outputs(self, models: list[Params], x: Tensor) -> Tensor:
        """X·Wᵀ [n, K, hidden] of the first layer of K models, without its bias: one product."""
        assert self.first is not None
        weights = torch.cat([model[self.first.weight] for model in models])
        return (x.flatten(1) @ weights.T).unflatten(1, (len(models), -1))

    def loss_from_outputs(self, outputs: Tensor, params: Params, batch: Batch) -> Tensor:
        """The loss, given the first layer's X·Wᵀ; params may be without its weights."""
        assert self.first is not None
        z = outputs
        if self.first.bias is not None:
            z = outputs + params[self.first.bias]
        return self.loss_after_first(z, params, batch)

    def loss_after_first(self, z: Tensor, rest: Params, batch: Batch) -> Tensor:
        """The loss, given the first layer's outputs z [n, hidden] instead of its parameters."""
        assert self.first is not None
        with override_output(self.module, self.first, z):
            return self.loss(rest, batch)

    @property
    def is_linear(self) -> bool:
        """Whether the model is one linear layer, and nothing but it."""
        if self.first is None:
            return False
        own = {k for k, p in self.module.named_parameters() if p.requires_grad}
        if not own <= {self.first.weight, self.first.bias}:
            return False
        outputs = len(self.module.get_parameter(self.first.weight))
        z = torch.tensor([[-9.0], [0.5], [9.0]], dtype=self.dtype, device=self.device)
        z = z.expand(3, outputs)
        with torch.no_grad(), override_output(self.module, self.first, z):
            out = self.module(torch.zeros(3, *self.row_shape, dtype=self.dtype, device=self.device))
        return torch.equal(out.reshape(z.shape), z)

    # ---- checks
    def _check_outputs(self, x: Tensor) -> None:
        """Refuse a model that cannot take rows x, or whose outputs do not fit the data."""
        if x.is_floating_point():
            x = x.to(self.dtype)
        try:
            with torch.no_grad():
                out = self.module(x)
        except (RuntimeError, IndexError, TypeError, ValueError) as e:
            lines = str(e).strip().splitlines() or [type(e).__name__]
            raise CoterieError(
                f"the model cannot take a row of the data, of shape {tuple(x.shape[1:])} and type "
                f"{x.dtype}: {lines[0]}."
            ) from e
        shape = tuple(out.shape[1:])
        if self.kind == "classification" and (len(shape) != 1 or shape[0] < (self.classes or 1)):
            raise CoterieError(
                f"the model gives outputs of shape {shape} per row, but the data have "
                f"{self.classes} classes: its last layer must have {self.classes} outputs."
            )
        if self.kind == "regression" and shape not in ((), (1,)):
            raise CoterieError(
                f"the model gives outputs of shape {shape} per row, but the target is one "
                "number: its last layer must have 1 output."
            )


def check_layers(module: nn.Module) -> None:
    """Refuse layers whose result depends on other rows, on past calls or on hidden randomness."""
    for name, layer in module.named_modules():
        where = f"layer {name!r} ({type(layer).__name__})"
        if not name:
            where = f"the model ({type(layer).__name__})"
        if _is_batch_norm(layer):
            raise CoterieError(
                f"{where} is a batch norm, which keeps statistics of its own between clients: "
                "use nn.GroupNorm instead."
            )
        if _drops_out(layer):
            raise CoterieError(
                f"{where} uses dropout, whose randomness would differ between engines: "
                "set it to 0 or remove it; l2 and clip are there to regularise."
            )


def _is_batch_norm(layer: nn.Module) -> bool:
    if not isinstance(layer, _NormBase):
        return False
    return layer.track_running_stats or "BatchNorm" in type(layer).__name__


def _drops_out(layer: nn.Module) -> bool:
    """Whether it is a dropout layer, or has one inside as recurrent layers and transformers do."""
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    rate = getattr(layer, "dropout", 0.0)
    return isinstance(rate, int | float) and rate > 0
