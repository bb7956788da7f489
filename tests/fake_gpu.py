"""A GPU for machines without one: tensors of the device "gpu" that compute on the CPU.

torch's FakeTensorMode knows devices but no values, so code that reads a number of a tensor (most
methods do between rounds) cannot run in it, and a CPU build of torch has no gradients there. Here
each tensor of the device holds a tensor on the CPU with its values. Operations that a real GPU
refuses raise: those that mix devices, and `numpy()`. What the CPU has to wait for is in `READS`.

    install()
    ct.run(ct.FedAvg(), fed, rounds=1, device="gpu")
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
# indices may be on the CPU if the indexed tensor is not
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
COPIES = {aten.copy_, aten._to_copy, aten._copy_from}
# the CPU waits for their results, or for the shapes of these
READING = {aten._local_scalar_dense, aten.equal, aten.nonzero, aten._unique2, aten.masked_select}
READS: list[str] = []  # operations for which the CPU waited, since the last `clear`


class GPUTensor(Tensor):
    """A tensor of the device "gpu"."""

    values: Tensor  # on the CPU

    @staticmethod
    def __new__(cls, values: Tensor) -> GPUTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device="gpu:0",
        )
        made.values = values
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self) -> str:
        return f"gpu {self.values!r}"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        operation = func.overloadpacket
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        if operation not in COPIES:
            check_devices(operation, args, tensors)
        has_gpu = any(isinstance(v, GPUTensor) for v in tensors)
        is_result_on_gpu = has_gpu
        if kwargs.get("device") is not None:
            is_result_on_gpu = torch.device(kwargs["device"]).type == "gpu"
            kwargs["device"] = "cpu"
        if operation is aten.copy_:
            is_result_on_gpu = isinstance(args[0], GPUTensor)
        masks = operation in INDEXING and any(is_mask(v) for v in args[1])
        if operation in READING or masks or (has_gpu and not is_result_on_gpu):
            READS.append(str(operation))
        plain_args, plain_kwargs = tree_map(values_of, (args, kwargs))
        out = func(*plain_args, **plain_kwargs)
        if func._schema.is_mutable and plain_args and out is plain_args[0]:
            return args[0]  # in place
        if is_result_on_gpu:
            out = tree_map(lambda v: GPUTensor(v) if isinstance(v, Tensor) else v, out)
        return out


def is_mask(index: Any) -> bool:
    return isinstance(index, GPUTensor) and index.dtype == torch.bool


def values_of(v: Any) -> Any:
    return v.values if isinstance(v, GPUTensor) else v


def check_devices(operation: Any, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    """Raise as torch does where tensors of both devices meet; a CPU scalar may."""
    if operation in INDEXING and isinstance(args[0], GPUTensor):
        indices = [v for v in args[1] if isinstance(v, Tensor)]
        tensors = [v for v in tensors if not any(v is i for i in indices)]
    on_gpu = [v for v in tensors if isinstance(v, GPUTensor)]
    on_cpu = [v for v in tensors if not isinstance(v, GPUTensor) and v.dim()]
    if on_gpu and on_cpu:
        shapes = [tuple(v.shape) for v in on_cpu]
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, gpu:0 "
            f"and cpu, in {operation}: {shapes} on the CPU"
        )


def empty(size: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return GPUTensor(torch.empty(size, dtype=dtype, device="cpu"))


def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return GPUTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    values_of(target).copy_(values_of(source))
    return target


@cache
def install() -> torch.library.Library:
    """Register the device, once per process."""
    _setup_privateuseone_for_python_backend("gpu")
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    return library
