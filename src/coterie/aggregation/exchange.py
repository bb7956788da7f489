"""One exchange as the pipeline sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.aggregation.clipping import NormLimit
from coterie.core.call import Call
from coterie.core.contract import Declaration, Upload
from coterie.core.params import Params
from coterie.data.roster import Roster


@dataclass(frozen=True)
class Exchange:
    """What the pipeline knows about an exchange."""

    call: Call
    roster: Roster
    template: Upload  # one client's update with the expected names, shapes and dtypes
    reduce: Literal["sum", "stack"]
    started_from: dict[str, Params]  # the stacked models that the server sent, per value name
    rng: Callable[[str], torch.Generator]  # generators for draws of the server
    num_clients: int  # of the whole exchange
    limits: dict[str, NormLimit] = field(default_factory=dict)  # per value name

    @property
    def declaration(self) -> Declaration:
        """What the client function declares about its uploads."""
        declaration: Declaration = self.call.fn.declaration  # type: ignore[attr-defined]
        return declaration

    @property
    def values(self) -> list[str]:
        """The names of the uploaded values."""
        return list(self.template.values)

    def only(self, positions: Tensor) -> Exchange:
        """The same exchange for only the clients at these positions."""
        return replace(self, call=self.call.only(positions))
