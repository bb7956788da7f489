"""The model as a function of its parameters, and its masked losses."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.core.errors import CoterieError
from coterie.core.execution import Execution
from coterie.core.forward import Draws, ForwardPass, averaged_buffers, check_layers, counters
from coterie.core.inputs import InputField, pack_inputs, unpack_inputs
from coterie.core.layers import (
    First,
    Layer,
    common_layers,
    first_layer,
    override_output,
    uses_rows_elsewhere,
    without_compilation,
)
from coterie.core.losses import RowLoss
from coterie.core.model_spec import ModelSpec
from coterie.core.params import Params, stack
from coterie.core.randomness import scramble
from coterie.core.targets import Kind, Target, prediction_of
from coterie.core.trees import tree_leaves, tree_map

PROBED_ROWS = 7  # an unusual number, to recognise the axis of the rows
CONSTRUCTION_SEED = 0  # of the module whose frozen values and structure a task uses


class Batch(NamedTuple):
    """Samples of one client, one per row, padded because clients differ in size.

    Args:
        x: [n, ...]; inputs of several parts are packed, and `Task.inputs` unpacks them.
        y: [n, ...], as the kind of task has it; see `coterie.core.targets`.
        mask: [n], 1 for real rows, 0 for padding.
        weight: [n], the weight of each row's loss.
        key: int64 [], for random numbers of the model and of augmentation; () if there are none.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.Batch.of(torch.zeros(3, 2), torch.zeros(3), torch.float32).mask
        tensor([1., 1., 1.])
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    weight: Tensor
    key: Tensor | tuple[()] = ()

    def map_rows(self, fn: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to x, y, mask and weight."""
        return Batch(fn(self.x), fn(self.y), fn(self.mask), fn(self.weight), self.key)

    def at_step(self, step: int) -> Batch:
        """The same rows with the random numbers of a step."""
        if isinstance(self.key, Tensor):
            return self._replace(key=scramble(self.key + step))
        return self

    @staticmethod
    def of(x: Tensor, y: Tensor, dtype: torch.dtype) -> Batch:
        """A batch without padding, with weights 1."""
        ones = torch.ones(len(x), dtype=dtype, device=x.device)
        return Batch(x, y, ones, ones)


class Scale(NamedTuple):
    """Standardisation: numbers in standard deviations from the mean."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class RowPrivacy:
    """Record-level differential privacy of local training; each client's noise is in its `Data`.

    Args:
        clip: C, the largest norm of the gradient of one row.
        seed: Of batches and noise, for tests; then nothing is private. None: drawn by the
            operating system.
        choice_epsilon: ε_s of each choice of a cluster.
        noise_multipliers: [N], σ of each client.
    """

    clip: float
    noise_multipliers: Tensor
    seed: int | None = None
    choice_epsilon: float = 0.1


class Task:
    """A model as a pure function of its parameters, with its loss.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> task = ct.Task(lambda: torch.nn.Linear(2, 3), "classification", torch.zeros(1, 2), 3)
        >>> batch = ct.Batch.of(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]), task.dtype)
        >>> task.losses(task.init(seed=0), batch).shape
        torch.Size([4])
    """

    def __init__(
        self,
        model: ModelSpec | Callable[[], nn.Module] | nn.Module,
        kind: Kind | Target,
        example: Tensor,
        classes: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        scale: Scale | None = None,
        fields: Sequence[InputField] = (),
    ) -> None:
        """Check the model on a few rows.

        Args:
            model: A factory, called for each random start; or a module, whose weights are the only
                start; or one of these in a `ModelSpec`.
            kind: "classification" or "regression", or a `Target` for targets of other kinds.
            example: [n, ...], rows to check the model with.
            classes: Number of classes.
            dtype: Of parameters and rows.
            device: Where the model runs.
            scale: The standardisation of a regression target. The model predicts, and losses
                measure, the standardised target, so that one step size fits different tables;
                `outputs` returns the original unit.
            fields: The parts of the inputs, if the model takes a dict of tensors.

        Raises:
            CoterieError: If the model does not fit the data or has layers that are not supported.
        """
        self.target = kind if isinstance(kind, Target) else Target(kind, classes)
        self.fields = tuple(fields)
        self.scale = scale
        self.spec = model if isinstance(model, ModelSpec) else ModelSpec(model)
        factory: Callable[[], nn.Module] | nn.Module = self.spec.model
        self.dtype = dtype
        self.device = torch.device(device)
        if self.spec.autocast and dtype != torch.float32:
            raise CoterieError(
                "autocast computes in bfloat16, and the run in float64: leave out one of the two."
            )
        self.row_loss = self._choose_loss()
        self.factory: Callable[[], nn.Module] | None = None
        if isinstance(factory, nn.Module):
            self.module = self._prepare(copy.deepcopy(factory))
        else:
            self.factory = factory
            # the same frozen values in every process, whatever the run's seed is
            self.module = self._construct(CONSTRUCTION_SEED)
        check_layers(self.module)
        if not any(p.requires_grad for p in self.module.parameters()):
            raise CoterieError("the model has no parameters that can be trained.")
        self.fixed: Params = {}  # parameters that are not trained: see `with_fixed`
        self.averaged = tuple(averaged_buffers(self.module))  # travel, and are not trained
        self.evaluated = self.module  # the module in evaluation mode, if it differs
        self.replaces = False  # whether `ForwardPass` has functions to replace
        self.is_random = False  # whether the model draws random numbers in training
        self.needs_loop = any(isinstance(part, nn.RNNBase) for part in self.module.modules())
        self.norm_values = 2  # values per row and channel in the batch norm that has the fewest
        self._check_outputs(example.to(self.device))
        self.row_shape = example.shape[1:]
        self.execution = Execution()
        self.row_privacy: RowPrivacy | None = None  # of local training: see optim/dp_sgd.py
        # the first linear layer, if rows enter the model there
        self.first: First | None = None
        like = torch.empty(0, dtype=dtype, device=self.device)
        takes_rows = not self.fields and self.kind != "self-supervised"
        if example.is_floating_point() and not self.replaces and takes_rows:
            self.first = first_layer(self.module, example.shape[1:], like)
        # False: the dual form (optim/dual.py) passes zeros for rows, which take no memory
        self.rows_are_used_elsewhere = self.first is not None and uses_rows_elsewhere(
            self.module, self.first, example.shape[1:], like
        )
        self.layers: list[Layer] | None = None  # of a chain of linear layers
        if self.first is not None:
            self.layers = common_layers(self.module)
        if self.layers is None or self.spec.loss is not None:
            self.needs_loop = self.needs_loop or not self._can_be_vectorised(example)

    def _prepare(self, module: Any) -> nn.Module:
        """Move a module to the task's device and dtype."""
        if not isinstance(module, nn.Module):
            raise CoterieError(
                f"the model factory gave a {type(module).__name__}: "
                "it must return a torch nn.Module."
            )
        module = without_compilation(module)
        self.spec.freeze(module)
        return module.to(self.device, self.dtype)

    def _choose_loss(self) -> RowLoss:
        """The loss that the model's spec names; else that of the kind of task."""
        if self.spec.loss is not None:
            if self.scale is not None:
                raise CoterieError(
                    "a loss of your own measures targets in their own unit: set label_scale='none'."
                )
            return RowLoss("own", self.spec.loss)
        found = self.target.default_loss(self.spec.class_weights, self.dtype)
        if found is None:
            given = "inputs" if self.kind == "self-supervised" else "targets"
            raise CoterieError(
                f"data of the kind {self.kind} need a loss of your own: give "
                f"ct.ModelSpec(model, loss=function of outputs and {given})."
            )
        return found

    @property
    def kind(self) -> Kind:
        """The kind of task."""
        return self.target.kind

    @property
    def classes(self) -> int | None:
        """Number of classes; None without classes."""
        return self.target.classes

    def _construct(self, seed: int) -> nn.Module:
        """A new module from the factory."""
        assert self.factory is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            return self._prepare(self.factory())

    def copy(self) -> Task:
        """A copy with its own module, since `functional_call` writes into it: one per thread."""
        other = copy.copy(self)
        other.module = copy.deepcopy(self.module)
        other.evaluated = other.module
        if self.evaluated is not self.module:
            other.evaluated = copy.deepcopy(self.evaluated)
        return other

    def with_execution(self, execution: Execution) -> Task:
        """The same task for solvers that run with these options and report to them."""
        other = copy.copy(self)
        other.execution = execution
        return other

    @property
    def frozen(self) -> Params:
        """Parameters that are not trained, and buffers that are not averaged; they never travel."""
        parameters = {k: v for k, v in self.module.named_parameters() if not v.requires_grad}
        buffers = {k: v for k, v in self.module.named_buffers() if k not in self.averaged}
        return {k: v.detach() for k, v in (parameters | buffers).items()}

    def with_frozen(self, values: Params) -> Task:
        """The task with other frozen values; names that it does not have are ignored."""
        other = self.copy()
        frozen = self.frozen.keys() & values.keys()
        for module in (other.module, other.evaluated):
            module.load_state_dict({k: values[k] for k in frozen}, strict=False)
        return other

    def fingerprint(self) -> str:
        """A hash of the module's structure, its parameters' shapes and all frozen values.

        Models without frozen values have the hash that version 0.2 computed.
        """
        shapes = {k: list(v.shape) for k, v in self.module.named_parameters()}
        digest = hashlib.sha256(f"{self.module} {shapes}{self.spec.describe()}".encode())
        for name, value in self.frozen.items():
            digest.update(f" {name} {value.dtype} {list(value.shape)} ".encode())
            digest.update(value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def with_row_privacy(self, privacy: RowPrivacy | None) -> Task:
        """The same task for local training under record-level differential privacy."""
        other = copy.copy(self)
        other.row_privacy = privacy
        return other

    def with_fixed(self, fixed: Params) -> Task:
        """The task with these parameters fixed; its models consist of the others."""
        other = copy.copy(self)
        other.fixed = {**self.fixed, **fixed}
        other.first = None  # it may be fixed
        other.layers = None
        return other

    # ---- initial models
    def init(self, seed: int, j: int = 0) -> Params:
        """Random start j of this seed: the parameters of a new model that travel.

        These are the trained ones, and the running statistics of batch norms.
        """
        module = self.module
        if self.factory is not None:
            module = self._construct(seed * 1_000_003 + j)
        return {k: v.clone() for k, v in self.travelling(module).items()}

    def travelling(self, module: nn.Module) -> Params:
        """The values of a module that travel: trained parameters and running statistics."""
        trained = {k: v for k, v in module.named_parameters() if v.requires_grad}
        averaged = {k: module.get_buffer(k) for k in self.averaged}
        return {k: v.detach() for k, v in (trained | averaged).items()}

    def inits(self, seed: int, k: int, start: int = 0) -> Params:
        """k random starts, stacked, from number `start` on."""
        if k > 1 and self.factory is None:
            raise CoterieError(
                f"{k} separate random starts need a model factory: give a function that returns "
                "a new module (model=lambda: Net()), not one module, or start from one common "
                "model (init='updates')."
            )
        models = stack([self.init(seed, start + j) for j in range(k)])
        if k > 1 and all(torch.equal(v[0], v[1]) for v in models.values()):
            raise CoterieError(
                "the model factory returned equal weights twice, and centres that start equal stay "
                "equal: let it build a new module with random weights at each call "
                "(model=lambda: Net())."
            )
        return models

    # ---- losses
    def inputs(self, x: Tensor) -> Any:
        """Rows as the model takes them: x itself, or the dict of tensors that was packed."""
        return unpack_inputs(x, self.fields) if self.fields else x

    def outputs(self, params: Params, x: Tensor) -> Any:
        """Predictions for rows x: logits [n, classes], or [n] in the original unit.

        For other kinds of task see `coterie.core.targets`. A model with a loss of its own may
        return a tuple or dict, whose first tensor is the prediction.
        """
        given = (self.inputs(x),)
        if not self.replaces:
            return self.predictions(functional_call(self.module, {**self.fixed, **params}, given))
        with ForwardPass():
            out = functional_call(self.evaluated, {**self.fixed, **params}, given)
        return self.predictions(out)

    def predictions(self, out: Any) -> Any:
        """Convert the module's outputs to logits, or to targets in the original unit."""
        if not isinstance(out, Tensor):
            return out
        if self.kind == "regression" and out.dim() > 1 and out.shape[-1] == 1:
            out = out[..., 0]
        if self.scale is not None:
            out = out * self.scale.deviation + self.scale.mean
        return out

    def targets(self, batch: Batch) -> Any:
        """What the loss compares outputs with: y, or the inputs in a self-supervised task."""
        return self.inputs(batch.x) if self.kind == "self-supervised" else batch.y

    def row_losses(self, outputs: Any, batch: Batch) -> Tensor:
        """Each row's loss [n] from what `outputs` returned, in the target's unit."""
        return self.row_loss.values(outputs, self.targets(batch))

    def losses(self, params: Params, batch: Batch) -> Tensor:
        """Each row's loss [n] under a model, in standardised units."""
        return self.row_losses(self.outputs(params, batch.x), batch) / self.loss_unit

    def training_loss(self, params: Params, batch: Batch) -> tuple[Tensor, Params]:
        """(mean loss in training mode, new running statistics of batch norms).

        Other than `loss`, it applies dropout and normalises by the batch's own statistics.
        """
        if not self.replaces:
            return self.loss(params, batch), {}
        draws = None
        if isinstance(batch.key, Tensor):
            draws = Draws(batch.key, batch.mask)
        elif self.is_random:
            raise CoterieError(
                "the model draws random numbers, and these batches have no key: train on batches "
                "of data.batches, data.sample or data.all."
            )
        out, forward = self._run_training(params, batch.x, batch.mask, draws)
        losses = self.row_losses(self.predictions(out), batch) / self.loss_unit
        return self.mean(losses, batch), {
            k: v for k, v in forward.statistics.items() if k in params
        }

    def _run_training(
        self, params: Params, x: Tensor, mask: Tensor | None, draws: Draws | None
    ) -> tuple[Any, ForwardPass]:
        """The module's outputs in training mode, and the pass with its statistics."""
        given = {**self.fixed, **params}
        running = {k: given[k] for k in self.averaged if k in given}
        inputs = self.inputs(x)
        with ForwardPass(running, mask, draws) as forward:
            if self.spec.augment is not None:
                assert draws is not None
                inputs = self.spec.augment(inputs, draws)
            with self._precision():
                out = functional_call(self.module, {**counters(self.module), **given}, (inputs,))
        if self.spec.autocast:
            out = tree_map(lambda v: v.to(self.dtype) if v.dtype == torch.bfloat16 else v, out)
        return out, forward

    def _precision(self) -> AbstractContextManager[Any]:
        """bfloat16 for matrix products and convolutions, with `ModelSpec(autocast=True)`."""
        if not self.spec.autocast:
            return nullcontext()
        # no cache: under vmap it would keep casts of one client's weights for another's
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    @property
    def loss_unit(self) -> float:
        """The factor that converts standardised losses to squared original units."""
        return 1.0 if self.scale is None else self.scale.deviation**2

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Mean loss over real rows, each times its weight."""
        return self.mean(self.losses(params, batch), batch)

    @staticmethod
    def mean(losses: Tensor, batch: Batch) -> Tensor:
        """Mean of losses [n] over real rows, each times its weight."""
        return (losses * (batch.mask * batch.weight)).sum() / batch.mask.sum().clamp(min=1)

    def first_outputs(self, models: list[Params], x: Tensor) -> Tensor:
        """First-layer outputs X·Wᵀ of K models without bias, [n, K, hidden], in one product."""
        assert self.first is not None
        weights = torch.cat([model[self.first.weight] for model in models])
        return (x.flatten(1) @ weights.T).unflatten(1, (len(models), -1))

    def loss_from_outputs(self, outputs: Tensor, params: Params, batch: Batch) -> Tensor:
        """The loss from the first layer's X·Wᵀ; params need not contain its weights."""
        assert self.first is not None
        z = outputs
        if self.first.bias is not None:
            z = outputs + params[self.first.bias]
        return self.loss_after_first(z, params, batch)

    def loss_after_first(self, z: Tensor, rest: Params, batch: Batch) -> Tensor:
        """The loss from the first layer's outputs z [n, hidden]."""
        assert self.first is not None
        with override_output(self.module, self.first, z):
            return self.loss(rest, batch)

    @property
    def is_linear(self) -> bool:
        """Whether the model is a single linear layer."""
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
        """Raise a `CoterieError` if the model cannot process rows x or its outputs do not fit."""
        if x.is_floating_point():
            x = x.to(self.dtype)
        try:
            out = self._probe(x)
        except CoterieError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as e:
            lines = str(e).strip().splitlines() or [type(e).__name__]
            raise CoterieError(
                f"the model cannot take a row of the data, of shape {tuple(x.shape[1:])} and type "
                f"{x.dtype}: {lines[0]}."
            ) from e
        if not isinstance(out, Tensor) and self.spec.loss is None:
            raise CoterieError(
                f"the model returns a {type(out).__name__}: let it return one tensor, its outputs, "
                "or give a loss that takes what it returns."
            )
        leaves = tree_leaves(out)
        if not leaves or not isinstance(leaves[0], Tensor) or leaves[0].shape[:1] != (PROBED_ROWS,):
            raise CoterieError(
                f"the model returns a {type(out).__name__} that does not begin with a tensor of "
                "one prediction per row: put the predictions first."
            )
        if self.spec.loss is not None:
            self._check_row_function("loss", self.spec.loss, out)
        for name, metric in self.spec.row_metrics().items():
            self._check_row_function(f"metric {name!r}", metric.function, out)
        self.target.check_outputs(prediction_of(out), own_loss=self.spec.loss is not None)

    def _can_be_vectorised(self, example: Tensor) -> bool:
        """Whether `vmap` has rules for all that the model and its loss call."""
        x = example[:1].to(self.device)
        if x.is_floating_point():
            x = x.to(self.dtype)
        y = self.target.example(1, self.dtype).to(self.device)
        key = torch.zeros((), dtype=torch.long, device=self.device)
        batch = Batch.of(x, y, self.dtype)._replace(key=key)
        given = (self.travelling(self.module), batch)
        try:
            with torch.no_grad():
                vmap(self.training_loss)(*tree_map(lambda v: v[None], given))
        except RuntimeError:
            return False
        return True

    def _check_row_function(self, what: str, function: Callable[..., Any], out: Any) -> None:
        """Raise a `CoterieError` if a loss or metric of one's own gives not one value per row."""
        y: Any = self.target.example(PROBED_ROWS, self.dtype).to(self.device)
        if self.kind == "self-supervised":
            y = self._probed_inputs
        shown = self.predictions(out)
        try:
            with torch.no_grad():
                values = function(shown, y)
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as e:
            lines = str(e).strip().splitlines() or [type(e).__name__]
            raise CoterieError(
                f"the {what} cannot take outputs of {_describe(shown)} and targets of "
                f"{_describe(y)}: {lines[0]}."
            ) from e
        if not isinstance(values, Tensor) or values.shape != (PROBED_ROWS,):
            found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
            raise CoterieError(
                f"the {what} gives {found} for {PROBED_ROWS} rows: it must give one value per row, "
                "such as with reduction='none', and a mean over the other axes."
            )

    def _check_augmentation(self, x: Tensor, draws: Draws) -> None:
        """Raise a `CoterieError` if augmentation changes the shape of rows."""
        assert self.spec.augment is not None
        inputs = self.inputs(x)
        with torch.no_grad(), ForwardPass(draws=draws):
            changed = self.spec.augment(inputs, draws)
        if _describe(changed) != _describe(inputs):
            raise CoterieError(
                f"augment gives {_describe(changed)} for {_describe(inputs)}: it must keep both."
            )

    def _probe(self, x: Tensor) -> Any:
        """The outputs for some rows in evaluation; finds how the model differs in training."""
        x = x[:1].repeat(PROBED_ROWS, *[1] * (x.dim() - 1))
        key = torch.zeros((), dtype=torch.long, device=self.device)
        draws = Draws(key, torch.zeros((), dtype=self.dtype, device=self.device))
        if x.is_floating_point():
            x = self._random_rows(x, draws)
            draws.shapes.clear()
        self._probed_inputs = self.inputs(x)
        params = self.travelling(self.module)
        if self.spec.augment is not None:
            self._check_augmentation(x, draws)
        with torch.no_grad():
            trained, forward = self._run_training(params, x, None, draws)
            evaluated = copy.deepcopy(self.module).eval()
            with ForwardPass():
                out = functional_call(evaluated, params, (self.inputs(x),))
        self.is_random = bool(draws.shapes)
        self.norm_values = min([2, *forward.values_per_row])
        # a draw whose first axis is not that of the rows would change with padding
        self.needs_loop |= any(not shape or shape[0] % PROBED_ROWS for shape in draws.shapes)
        changes_rows = self.spec.augment is not None or self.spec.autocast
        if forward.replaced or changes_rows or not _are_equal(trained, out):
            self.replaces = True
            self.evaluated = evaluated
        return out

    def _random_rows(self, x: Tensor, draws: Draws) -> Tensor:
        """Random numbers like x; whole numbers among them stay as they are."""
        rows = draws.randn(*x.shape)
        if not self.fields:
            return rows
        old, new = unpack_inputs(x, self.fields), unpack_inputs(rows, self.fields)
        mixed = {f.name: old[f.name] if f.tokens else new[f.name] for f in self.fields}
        return pack_inputs(mixed, self.fields, "x").to(x)


def _describe(values: Any) -> str:
    """The shapes and types of one or several tensors."""
    if isinstance(values, Tensor):
        return f"rows of shape {tuple(values.shape[1:])} and type {values.dtype}"
    if isinstance(values, dict):
        return ", ".join(f"{name}: {_describe(v)}" for name, v in values.items())
    if isinstance(values, tuple | list):
        return ", ".join(map(_describe, values))
    return type(values).__name__


def _are_equal(a: Any, b: Any) -> bool:
    pairs = zip(tree_leaves(a), tree_leaves(b))
    return all(torch.equal(one, other) for one, other in pairs if isinstance(one, Tensor))
