"""The peak memory of a function, measured without running it.

A dry run calls the function on fake tensors: they have the real shapes and no storage, and the
bytes that they would take are summed while they are alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.execution import Execution
from coterie.core.trees import tree_leaves

MAX_OPERATIONS = 1_000  # local steps repeat: later ones hold no more memory


def peak_bytes(
    function: Callable[..., Any],
    make_arguments: Callable[[], tuple[Any, ...]],
    execution: Execution,
) -> int:
    """Return the most bytes that a call holds at once, with its arguments except the first.

    Args:
        function: Takes the arguments; the first is shared by all clients and not counted.
        make_arguments: Makes them; called where new tensors are fake.
        execution: That of the function's task.
    """
    live = LiveBytes(execution)
    with FakeTensorMode(allow_non_fake_inputs=True):
        arguments = make_arguments()
        with live, suppress(MaxOperationsReached):
            for value in tree_leaves(arguments[1:]):
                live.count(value)
            function(*arguments)
    return live.peak


class MaxOperationsReached(Exception):
    """Enough operations were counted: the rest would hold no more memory."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors while they are alive."""

    def __init__(self, execution: Execution) -> None:
        super().__init__()
        self.execution = execution
        self.now = 0
        self.peak = 0
        self.operations = 0
        self.alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count its results."""
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self.count(value)
        self.operations += 1
        # an exception inside a batched operation would abort torch
        if self.operations > MAX_OPERATIONS and not self.execution.in_batched_op:
            raise MaxOperationsReached
        return out

    def count(self, value: Tensor) -> None:
        """Count a tensor's storage until it is freed; views share the storage of their base."""
        storage = value.untyped_storage()
        key = id(storage)
        if key in self.alive:
            return
        size = storage.nbytes()

        def free(_: Any) -> None:
            del self.alive[key]
            self.now -= size

        self.alive[key] = weakref.ref(storage, free)
        self.now += size
        self.peak = max(self.peak, self.now)
