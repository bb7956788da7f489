"""A computation for all clients of a `vmap` at once, written with their axis in front.

Client functions are written for one client, and the vectorised engine runs them under `vmap`. That
is the way to read them, and not always the way to compute them: `vmap` wraps every operation of
every step, knows no products that add in place, and takes gathers client by client. A function that
is called through `for_all_clients` gets plain tensors [clients, ...] instead, whatever the engine;
without `vmap` it gets one client.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

REHEARSED = 3  # steps: later ones take no more memory

T = TypeVar("T")
U = TypeVar("U")
OnTensors = Callable[..., tuple[Tensor, ...]]

_inside: ContextVar[bool] = ContextVar("inside", default=False)
_rehearsing: ContextVar[bool] = ContextVar("rehearsing", default=False)


def for_all_clients(compute: Callable[[T], U], arguments: T) -> U:
    """compute(arguments) for each client, where `compute` is called once for all of them.

    Leaves are tensors or None. `compute` gets and gives tensors with the clients as their first
    axis; what all clients share has the stride 0 there. Nothing is differentiated.
    """
    leaves, structure = tree_flatten(arguments)
    tensors = [v for v in leaves if v is not None]
    axes = tensors[0].dim()
    results: list[Any] = []

    def on_tensors(*stacked: Tensor) -> tuple[Tensor, ...]:
        around = stacked[0].shape[: stacked[0].dim() - axes]  # an axis for each `vmap`
        clients = iter([_with_one_axis(v, len(around)) for v in stacked])
        given = [None if v is None else next(clients) for v in leaves]
        token = _inside.set(True)
        try:
            results[:] = tree_flatten(compute(tree_unflatten(given, structure)))
        finally:
            _inside.reset(token)
        found = [v for v in results[0] if v is not None]
        return tuple(v.view((*around, *v.shape[1:])) for v in found)

    found = iter(_AllClients.apply(on_tensors, *tensors))
    made, result_structure = results
    whole: U = tree_unflatten([None if v is None else next(found) for v in made], result_structure)
    return whole


def is_inside() -> bool:
    """Whether such a computation is running. An exception must not leave it: torch would abort."""
    return _inside.get()


@contextmanager
def rehearsal() -> Iterator[None]:
    """While it is open only the first steps are taken: for counting, not for results."""
    token = _rehearsing.set(True)
    try:
        yield
    finally:
        _rehearsing.reset(token)


def to_take(steps: Iterable[T]) -> Iterator[T]:
    """The steps; only the first in a rehearsal."""
    if _rehearsing.get():
        return itertools.islice(steps, REHEARSED)
    return iter(steps)


def _with_one_axis(v: Tensor, around: int) -> Tensor:
    """The axes of nested `vmap`s as one; an axis of length 1 where there is none."""
    if around == 0:
        return v[None]
    return v.flatten(0, around - 1)


class _AllClients(torch.autograd.Function):
    """PyTorch's way to give a function a `vmap` rule of its own: here, to be called with all."""

    @staticmethod
    def forward(on_tensors: OnTensors, *leaves: Tensor) -> tuple[Tensor, ...]:
        return on_tensors(*leaves)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: there is no backward."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, on_tensors: OnTensors, *leaves: Tensor) -> Any:
        stacked = [_in_front(v, at, info.batch_size) for v, at in zip(leaves, in_dims[1:])]
        results = _AllClients.apply(on_tensors, *stacked)
        return results, (0,) * len(results)


def _in_front(v: Tensor, at: int | None, clients: int) -> Tensor:
    """The clients' axis in front; of what they share, without a copy."""
    if at is None:
        return v.expand(clients, *v.shape)
    return v.movedim(at, 0)
