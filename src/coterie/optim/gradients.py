"""Losses and gradients of many clients at once, each under its own model.

The clients are the first axis: parameters [c, ...], samples [c, n, ...]. `vmap` and autograd work
for any model, but where layers or batches are small their overhead exceeds the work itself. For
models of common layers a linear layer of all clients is one batched product, and for models of
linear layers with the usual activations the backward pass is a few products. Both are written out
here; other models use `vmap` and autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from coterie.core.layers import Layer, Linear
from coterie.core.params import Params
from coterie.core.task import Batch, Task

aten = torch.ops.aten


# ------------------------------------------------------------------------------ losses
def training_losses_of_models(task: Task, params: Params, batch: Batch) -> tuple[Tensor, Params]:
    """(loss [c], new running statistics) of each client's model on its batch, in training mode."""
    if task.layers is None:
        found: tuple[Tensor, Params] = vmap(task.training_loss)(params, batch)
        return found
    outputs = _through(task.layers, params, batch.x.flatten(2))
    return _mean_losses(task, outputs, batch), {}


def losses_from_first_outputs(task: Task, z: Tensor, params: Params, batch: Batch) -> Tensor:
    """The same, given the first layer's X·Wᵀ [c, n, h]; its weights may be missing in params."""
    if task.layers is None:
        losses: Tensor = vmap(task.loss_from_outputs)(z, params, batch)
        return losses
    assert task.first is not None
    if task.first.bias is not None:
        z = z + params[task.first.bias][:, None]
    outputs = _through(task.layers[1:], params, z)
    return _mean_losses(task, outputs, batch)


def _through(layers: Sequence[Layer], params: Params, rows: Tensor) -> Tensor:
    """Apply the layers to samples [c, n, ...]."""
    for layer in layers:
        if isinstance(layer, Linear):
            rows = linear(layer, params, rows)
        else:
            rows = layer(rows)
    return rows


def linear(layer: Linear, params: Params, rows: Tensor) -> Tensor:
    """Apply a linear layer to samples [c, n, d]."""
    if layer.bias is None:
        return rows @ params[layer.weight].mT
    return torch.baddbmm(params[layer.bias][:, None], rows, params[layer.weight].mT)


def _on_one_client(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of one client's tensors, applied to tensors [1, ...] without `vmap`."""
    return lambda *of_clients: fn(*(v[0] for v in of_clients))[None]


def _mean_losses(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """The mean over each client's unmasked samples, [c]."""
    losses = task.row_loss.values
    if task.row_loss.gradient is None:  # a function of one client's samples
        losses = vmap(losses) if len(outputs) > 1 else _on_one_client(losses)
    weighted = losses(task.predictions(outputs), batch.y) * (batch.mask * batch.weight)
    return weighted.sum(1) / batch.mask.sum(1).clamp(min=1) / task.loss_unit


# ------------------------------------------------------------------------------ backward pass
class Activation(NamedTuple):
    """An activation whose derivative is a function of its outputs; both passes are in place."""

    apply_: Callable[[Tensor], Tensor]
    back_: Callable[[Tensor, Tensor], Tensor]  # (∂f/∂outputs, outputs) to ∂f/∂inputs


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(
        torch.relu_, lambda g, out: aten.threshold_backward.grad_input(g, out, 0, grad_input=g)
    ),
    nn.Sigmoid: Activation(
        torch.sigmoid_, lambda g, out: aten.sigmoid_backward.grad_input(g, out, grad_input=g)
    ),
    nn.Tanh: Activation(
        torch.tanh_, lambda g, out: aten.tanh_backward.grad_input(g, out, grad_input=g)
    ),
}


def has_manual_backward(task: Task) -> bool:
    """Whether the backward pass is written out: linear layers, each with at most one activation.

    A second activation in a row would overwrite the outputs that the first derivative needs.
    """
    if task.layers is None:
        return False
    follows_linear = False
    for layer in task.layers:
        is_linear = isinstance(layer, Linear)
        if not is_linear and not (follows_linear and type(layer) in ACTIVATIONS):
            return False
        follows_linear = is_linear
    return True


def gradients_of_models(task: Task, params: Params, batch: Batch) -> Params:
    """∂f/∂ of all parameters."""
    assert task.layers is not None
    outputs = outputs_of_layers(task.layers, params, batch.x.flatten(2))
    g = gradient_of_loss(task, outputs[-1], batch)
    of_params, _ = backward_pass(task.layers, params, outputs, g)
    return {name: of_params[name] for name in params}


def gradients_from_first_outputs(
    task: Task, z: Tensor, params: Params, batch: Batch
) -> tuple[Tensor, Params]:
    """(∂f/∂z, ∂f/∂ of the parameters), given the first layer's z = X·Wᵀ [c, n, h].

    Args:
        task: The task.
        z: Overwritten.
        params: All parameters but the first layer's weights.
        batch: One batch per client.
    """
    assert task.first is not None
    assert task.layers is not None
    layers = task.layers[1:]
    bias = task.first.bias
    if bias is not None:
        z.add_(params[bias][:, None])
    outputs = outputs_of_layers(layers, params, z)
    g = gradient_of_loss(task, outputs[-1], batch)
    of_params, g = backward_pass(layers, params, outputs, g, to_rows=True)
    if bias is not None:
        of_params[bias] = g.sum(1)
    return g, {name: of_params[name] for name in params}


def outputs_of_layers(layers: Sequence[Layer], params: Params, rows: Tensor) -> list[Tensor]:
    """The samples and the outputs of each layer; activations overwrite their inputs."""
    outputs = [rows]
    for layer in layers:
        if isinstance(layer, Linear):
            outputs.append(linear(layer, params, outputs[-1]))
        else:
            outputs.append(ACTIVATIONS[type(layer)].apply_(outputs[-1]))
    return outputs


def gradient_of_loss(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """∂f/∂ of the last layer's outputs, where f is a client's mean over unmasked samples."""
    if task.row_loss.gradient is None:
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(_mean_losses(task, leaf, batch).sum(), leaf)[0]
    share = batch.mask * batch.weight / batch.mask.sum(1, keepdim=True).clamp(min=1)
    g = task.row_loss.gradient(task.predictions(outputs), batch.y)
    if task.scale is not None:
        g = g / task.scale.deviation
    g = g.mul_(share.view(*share.shape, *[1] * (g.dim() - 2)))
    return g.view_as(outputs)


def backward_pass(
    layers: Sequence[Layer],
    params: Params,
    outputs: list[Tensor],
    g: Tensor,
    *,
    to_rows: bool = False,
) -> tuple[Params, Tensor]:
    """Backpropagate through the layers.

    Args:
        layers: The layers.
        params: Their parameters.
        outputs: The samples, then each layer's outputs.
        g: ∂f/∂ of the last outputs.
        to_rows: Whether the gradient of the samples is needed.

    Returns:
        ∂f/∂ of the parameters, and ∂f/∂ of the samples (only valid with `to_rows`).
    """
    of_params: Params = {}
    for at in reversed(range(len(layers))):
        layer = layers[at]
        if not isinstance(layer, Linear):
            g = ACTIVATIONS[type(layer)].back_(g, outputs[at + 1])
            continue
        of_params[layer.weight] = g.mT @ outputs[at]
        if layer.bias is not None:
            of_params[layer.bias] = g.sum(1)
        if at > 0 or to_rows:
            g = g @ params[layer.weight]
    return of_params, g
