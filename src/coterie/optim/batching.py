"""Batched operations inside `vmap`: one call with plain tensors [clients, ...] for all clients.

Client functions are written for one client, and the vectorised engine runs them under `vmap`. That
reads well but is not always fast: `vmap` wraps every operation of every step, has no matrix product
that adds in place, and gathers client by client. A function that is called through `batch_clients`
receives plain tensors with the clients as their first axis; without `vmap` it receives one client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core.execution import Execution
from coterie.core.trees import tree_flatten, tree_unflatten

T = TypeVar("T")
U = TypeVar("U")
OnTensors = Callable[..., tuple[Tensor, ...]]


def batch_clients(compute: Callable[[T], U], arguments: T, execution: Execution) -> U:
    """Evaluate `compute` once for all clients of the surrounding `vmap`.

    Not differentiable.

    Args:
        compute: Takes and returns pytrees whose leaves have the clients as their first axis. A leaf
            that all clients share has stride 0 there.
        arguments: A pytree of tensors and None, for one client.
        execution: Marked while `compute` runs.

    Returns:
        The result of one client, as seen under `vmap`.
    """
    leaves, structure = tree_flatten(arguments)
    tensors = [v for v in leaves if v is not None]
    axes = tensors[0].dim()
    results: list[Any] = []

    def on_tensors(*stacked: Tensor) -> tuple[Tensor, ...]:
        around = stacked[0].shape[: stacked[0].dim() - axes]  # one axis per `vmap`
        clients = iter([_with_one_axis(v, len(around)) for v in stacked])
        given = [None if v is None else next(clients) for v in leaves]
        execution.in_batched_op = True
        try:
            results[:] = tree_flatten(compute(tree_unflatten(given, structure)))
        finally:
            execution.in_batched_op = False
        found = [v for v in results[0] if v is not None]
        return tuple(v.view((*around, *v.shape[1:])) for v in found)

    found = iter(_AllClients.apply(on_tensors, *tensors))
    made, result_structure = results
    whole: U = tree_unflatten([None if v is None else next(found) for v in made], result_structure)
    return whole


def _with_one_axis(v: Tensor, around: int) -> Tensor:
    """Merge the axes of nested `vmap`s; add an axis of length 1 without `vmap`."""
    if around == 0:
        return v[None]
    return v.flatten(0, around - 1)


class _AllClients(torch.autograd.Function):
    """A function with its own `vmap` rule: it is called once, with all clients."""

    @staticmethod
    def forward(on_tensors: OnTensors, *leaves: Tensor) -> tuple[Tensor, ...]:
        return on_tensors(*leaves)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing: there is no backward."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, on_tensors: OnTensors, *leaves: Tensor) -> Any:
        stacked = [_in_front(v, at, info.batch_size) for v, at in zip(leaves, in_dims[1:])]
        results = _AllClients.apply(on_tensors, *stacked)
        return results, (0,) * len(results)


def _in_front(v: Tensor, at: int | None, clients: int) -> Tensor:
    """Move the clients' axis to the front; expand shared tensors without a copy."""
    if at is None:
        return v.expand(clients, *v.shape)
    return v.movedim(at, 0)
