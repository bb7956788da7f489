"""The losses of many clients at once, each under a model of its own.

`vmap` gives them for any model, but it wraps every operation of every call, which takes longer than
the work itself where models or batches are small. In models of common layers a linear layer of all
clients is one batched product: that is written out here, and differentiated as it stands.

The clients are the first axis: parameters [c, ...], rows [c, n, ...].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap

from coterie.core.layers import Layer, Linear
from coterie.core.params import Params
from coterie.core.task import Batch, Task


def losses_of_models(task: Task, params: Params, batch: Batch) -> Tensor:
    """[c] the loss of each client's model on its batch."""
    if task.layers is None:
        losses: Tensor = vmap(task.loss)(params, batch)
        return losses
    outputs = _through(task.layers, params, batch.x.flatten(2))
    return _mean_losses(task, outputs, batch)


def losses_from_first_outputs(task: Task, z: Tensor, params: Params, batch: Batch) -> Tensor:
    """[c] the same, given the first layer's X·Wᵀ [c, n, h]; params may be without its weights."""
    if task.layers is None:
        losses: Tensor = vmap(task.loss_from_outputs)(z, params, batch)
        return losses
    assert task.first is not None
    if task.first.bias is not None:
        z = z + params[task.first.bias][:, None]
    outputs = _through(task.layers[1:], params, z)
    return _mean_losses(task, outputs, batch)


def _through(layers: Sequence[Layer], params: Params, rows: Tensor) -> Tensor:
    """What the layers make of the rows [c, n, ...]."""
    for layer in layers:
        if isinstance(layer, Linear):
            rows = linear(layer, params, rows)
        else:
            rows = layer(rows)
    return rows


def linear(layer: Linear, params: Params, rows: Tensor) -> Tensor:
    """What a linear layer makes of the rows [c, n, d]."""
    if layer.bias is None:
        return rows @ params[layer.weight].mT
    return torch.baddbmm(params[layer.bias][:, None], rows, params[layer.weight].mT)


def _mean_losses(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """[c] the mean over each client's real rows."""
    weighted = _losses(task, task.answers(outputs), batch.y) * (batch.mask * batch.weight)
    return weighted.sum(1) / batch.mask.sum(1).clamp(min=1)


def _losses(task: Task, answers: Tensor, y: Tensor) -> Tensor:
    """[c, n] each row's loss: what `task.losses` gives.

    Cross-entropy is written out: of few classes, torch's own takes four times as long.
    """
    if task.kind == "classification":
        return answers.logsumexp(-1) - answers.gather(-1, y[..., None])[..., 0]
    return task.measure(answers, y) / task.loss_unit
