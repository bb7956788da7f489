"""What keeps a node's process small: many run on one machine, and each lives for days."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

NEED_PYARROW = ".parquet"


def leave_out_pyarrow(table: Path) -> None:
    """Keep pandas from loading pyarrow, which takes 40 MB, where the table needs none.

    With None in `sys.modules` an import fails as if the module were not installed.
    """
    if table.suffix.lower() == NEED_PYARROW or "pandas" in sys.modules:
        return
    modules: dict[str, Any] = sys.modules
    modules.setdefault("pyarrow", None)


class CompiledAutograd:
    """What gradients use of torch's compiler: they turn it off, which here it always is."""

    @staticmethod
    def _disable() -> AbstractContextManager[None]:
        return nullcontext()


class CompilerOnDemand(ModuleType):
    """Stands for torch's compiler until somebody needs more of it than to turn it off.

    An import of the real module takes its place, as torch's attribute of that name.
    """

    compiled_autograd = CompiledAutograd

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def leave_out_compiler() -> None:
    """Keep gradients from loading torch's compiler and sympy, which take 70 MB and a second.

    `torch.func.grad` loads it only to turn off a way of compiling that needs it loaded to be on.
    """
    if "torch._dynamo" not in sys.modules:
        torch._dynamo = CompilerOnDemand("torch._dynamo")


def leave_out_sympy() -> None:
    """Keep checks within torch's operations from loading sympy, which takes 30 MB.

    A check loads it to look at conditions that are symbols; a condition that is true needs nothing.
    """
    torch._check_with = partial(check_quickly, torch._check_with)


def check_quickly(check: Callable[..., None], error: type[Exception], cond: Any, say: Any) -> None:
    """What `torch._check` does, of which `check` is the original."""
    if cond is not True:
        check(error, cond, say)


def give_back_memory() -> None:
    """Return memory that is free to the system; glibc keeps that of large messages otherwise."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library
