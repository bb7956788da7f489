"""The gradients of many clients at once, each of its own model, layer by layer.

autograd notes every operation on the way there and plays the notes back, which takes a third to a
half of a step's time where layers are small. In models of linear layers and the usual activations
the way back is a few products, written out here. Any other model is left to autograd.

The clients are the first axis: parameters [c, ...], rows [c, n, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.core.layers import Layer, Linear
from coterie.core.params import Params
from coterie.core.task import Batch, Task
from coterie.optim.many_models import linear

aten = torch.ops.aten


class Activation(NamedTuple):
    """An activation whose derivative its outputs tell, there and back in place."""

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


def is_written_out(task: Task) -> bool:
    """Whether the way back is known here: of linear layers, each with at most one activation.

    A second activation in a row would overwrite the outputs that tell the first one's derivative.
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
    of_params, _ = way_back(task.layers, params, outputs, g)
    return {name: of_params[name] for name in params}


def gradients_from_first_outputs(
    task: Task, z: Tensor, params: Params, batch: Batch
) -> tuple[Tensor, Params]:
    """(∂f/∂z, ∂f/∂ of the parameters), given the first layer's z = X·Wᵀ [c, n, h].

    z: it is overwritten.  params: all but the first layer's weights.
    """
    assert task.first is not None
    assert task.layers is not None
    layers = task.layers[1:]
    bias = task.first.bias
    if bias is not None:
        z.add_(params[bias][:, None])
    outputs = outputs_of_layers(layers, params, z)
    g = gradient_of_loss(task, outputs[-1], batch)
    of_params, g = way_back(layers, params, outputs, g, to_rows=True)
    if bias is not None:
        of_params[bias] = g.sum(1)
    return g, {name: of_params[name] for name in params}


def outputs_of_layers(layers: Sequence[Layer], params: Params, rows: Tensor) -> list[Tensor]:
    """The rows, and what each layer makes of them; activations overwrite what goes into them."""
    outputs = [rows]
    for layer in layers:
        if isinstance(layer, Linear):
            outputs.append(linear(layer, params, outputs[-1]))
        else:
            outputs.append(ACTIVATIONS[type(layer)].apply_(outputs[-1]))
    return outputs


def gradient_of_loss(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """∂f/∂ of the last layer's outputs, where f is a client's mean over its real rows."""
    share = batch.mask * batch.weight / batch.mask.sum(1, keepdim=True).clamp(min=1)
    if task.kind == "classification":  # softmax less 1 at the label
        g = outputs.softmax(-1)
        g.scatter_add_(-1, batch.y[..., None], g.new_full((), -1).expand(*batch.y.shape, 1))
        return g.mul_(share[..., None])
    error = task.answers(outputs) - batch.y
    unit = 1.0 if task.scale is None else task.scale.deviation
    return (error * share).mul_(2 / unit)[..., None]


def way_back(
    layers: Sequence[Layer],
    params: Params,
    outputs: list[Tensor],
    g: Tensor,
    *,
    to_rows: bool = False,
) -> tuple[Params, Tensor]:
    """(∂f/∂ of the layers' parameters, ∂f/∂ of the rows that went in).

    outputs: the rows, and each layer's outputs.  g: ∂f/∂ of the last ones.
    to_rows: the gradient of the rows is asked for; else the last step to it is left out.
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
