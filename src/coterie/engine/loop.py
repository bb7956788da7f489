"""One client after another, unpadded: the definition of correctness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie.contract import Algorithm, Data
from coterie.engine.call import Call
from coterie.engine.fold import Fold, Part
from coterie.engine.memory import Memory
from coterie.task import Task


def one_by_one(memory: Memory, task: Task, call: Call, fold: Fold, positions: Tensor) -> Part:
    """The clients at these positions of the call, each on its own."""

    def answer(at: Tensor) -> Part:
        private, data = memory.row(call, int(at))
        up, after = call.fn(task, *call.sent(at, task.device), private, data, **call.static)
        part = fold.digest(at[None], tree_map(lambda v: v[None], up))
        if call.keeps and len(part.accepted):
            memory.keep(call.ids[at][None], tree_map(lambda v: v[None], after))
        return part

    return fold.all(answer(at) for at in positions)


class Loop(Memory):
    name = "loop"

    def enroll(self, method: Algorithm, welcome: Any, ids: Tensor, client_keys: Tensor) -> None:
        for i, client_key in zip(ids, client_keys):
            data = Data(self._whole("train", int(i)), client_key, client_key)
            self.keep(i[None], tree_map(lambda v: v[None], method.enroll(self.task, welcome, data)))

    def map(self, call: Call, fold: Fold) -> Part:
        return one_by_one(self, self.task, call, fold, torch.arange(len(call.ids)))
