"""States in checkpoints keep the names under which version 0.2 saved them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coterie as ct
from cases import points
from coterie.engines.codec import types_of

NAMES = [  # of the server's state, and of a client's
    (ct.APFL(), None, "Mixed"),
    (ct.CFL(), "Splits", None),
    (ct.CFLMGD(clusters=2), "Moving", "Kept"),
    (ct.CGPFL(clusters=2), "Clusters", "Personal"),
    (ct.FedBCD(), "Blocks", None),
    (ct.FedEM(clusters=2), "Mixed", None),
    (ct.FedSoft(clusters=2), "Soft", "Personal"),
    (ct.FLHC(), "Grouped", None),
    (ct.IFCA(clusters=2), "Clusters", None),
    (ct.L2SGD(), "Loopless", None),
    (ct.OneShot(clusters=2), "Grouped", None),
    (ct.PDLTC(clusters=2), None, "Member"),
    (ct.PFedMe(), None, "Personal"),
    (ct.PFLTC(clusters=2), "Clustered", "Member"),
]


@pytest.mark.parametrize("method, of_server, of_client", NAMES)
def test_states_keep_their_names(method: Any, of_server: str | None, of_client: str | None) -> None:
    task = points({"a": [(1, 2)], "b": [(1, 3)]}).ready(ct.FedAvg()).task
    state, payload = method.start(task, 2, 0)
    batch = ct.Batch.of(torch.zeros(3, 1), torch.zeros(3), task.dtype)
    private = method.enroll(task, payload, ct.Data(batch, torch.tensor(0), torch.tensor(0)))
    names = {cls: name for name, cls in types_of(method).items()}
    assert names.get(type(state)) == of_server
    assert names.get(type(private)) == of_client
