"""Tables for uploads: in memory, or in a file without a name where they are large."""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile

import torch
from torch import Tensor

from coterie.core.errors import CoterieError

MOST_IN_MEMORY = 1 << 30  # bytes of one table


def empty_table(rows: int, like: Tensor) -> Tensor:
    """An empty [rows, ...] whose rows are shaped as `like`."""
    size = rows * math.prod(like.shape) * like.element_size()
    if size <= MOST_IN_MEMORY or like.device.type != "cpu":
        return like.new_empty(rows, *like.shape)
    return _mapped(size, like.dtype).view(rows, *like.shape)


def _mapped(size: int, dtype: torch.dtype) -> Tensor:
    """A tensor of so many bytes in a temporary file, which goes when the tensor does."""
    with tempfile.TemporaryFile(prefix="coterie-") as file:
        try:
            # all of it now: a disk that is full later would kill the process
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            raise CoterieError(
                f"{size / 1e9:.3g} GB are needed in {tempfile.gettempdir()} for the uploads of one "
                "exchange, and it has not as much room",
                "set TMPDIR to a larger disk, or leave out the robust means",
            ) from e
        memory = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(memory, dtype=dtype)
