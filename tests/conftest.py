"""Real files are looked for beside the checkout unless COTERIE_DATA says where.

One torch thread per test process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import coterie as ct
from cases import federation
from coterie.core.settings import SOLVERS
from coterie.optim.optimizers import OPTIMIZERS

os.environ.setdefault("COTERIE_DATA", str(Path(__file__).parent.parent.parent / "shared" / "data"))
torch.set_num_threads(1)
# a shell's background jobs ignore Ctrl-C, and so would the processes that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def fed() -> ct.data.Federation:
    return federation()


@pytest.fixture(autouse=True)
def built_in_optimizers() -> Iterator[None]:
    """Remove the optimizers that a test or an example registers."""
    optimizers, solvers = dict(OPTIMIZERS), list(SOLVERS)
    yield
    OPTIMIZERS.clear()
    OPTIMIZERS.update(optimizers)
    SOLVERS[:] = solvers
