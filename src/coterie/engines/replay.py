"""A network run again in one process: the loop engine, in which the same answers count."""

from __future__ import annotations

import torch

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.engines.diary import Diary
from coterie.engines.loop import Loop, one_by_one


class Replay(Loop):
    """The loop engine, whose clients answer as a diary says."""

    def __init__(self, task: Task, fed: Federation, diary: Diary) -> None:
        super().__init__(task, fed)
        self.diary = diary

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run the call on the clients whose answers were accepted, in order."""
        new = self.begin_call(call)
        parts = []
        for at in range(len(call.ids)):
            name = self.roster.names[int(call.ids[at])]
            outcome = self.diary.outcome(call, name)
            if outcome is True:
                parts.append(one_by_one(self, self.task, call, aggregator, torch.tensor([at])))
            elif outcome is None:
                parts.append(aggregator.record_absent([at]))
            else:
                parts.append(aggregator.reject([(at, str(outcome))]))
        return aggregator.finish(aggregator.merge(parts))._replace(first_contacts=new)
