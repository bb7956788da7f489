"""What IFCA sends: layers that all clusters share (figure 2), only the own centre once identities
are settled (section IV-C), and which rows a round uses (resampling, section V).

The settings are fields of `IFCA`, which also says how a client trains.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core.contract import Ask, Data, Drawn, Repeat, Rows, SentWeight, Sums, Upload, client
from coterie.core.errors import CoterieError
from coterie.core.layers import is_named, refuse_unknown_layers
from coterie.core.params import Params, count
from coterie.core.task import Batch, Task
from coterie.methods.held_out import HeldOut


def identities(state: Any, sums: Sums) -> tuple[Tensor, Tensor]:
    """(the cluster of each client now, rounds since one changed).

    A round without answers does not count.
    """
    group = state.group.index_copy(0, sums.ids, sums.report["cluster"])
    if not torch.equal(group, state.group):
        return group, torch.zeros_like(state.still)
    return group, state.still + int(len(sums.ids) > 0)


class Traffic(HeldOut):
    """The exchanges of IFCA but for the one in which clients choose."""

    average: str
    share: tuple[str, ...]
    patience: int | None
    recheck: int
    resample: int
    weighted: bool

    @property
    def weighs_rows(self) -> bool:
        return self.weighted

    @property
    def by_updates(self) -> bool:
        raise NotImplementedError

    def local_update(
        self,
        task: Task,
        w: Params,
        data: Data,
        pair: int,
        start: bool = False,
        goes_out: bool = False,
    ) -> Params:
        raise NotImplementedError

    # ------------------------------------------------------------------ weight sharing
    def is_shared(self, name: str) -> bool:
        return is_named(name, self.share)

    def tied(self, centres: Params) -> Params:
        """The centres with one copy of each layer that all clusters share."""
        return {k: v[:1] if self.is_shared(k) else v for k, v in centres.items()}

    def split(self, w: Params) -> dict[str, Params]:
        """The layers that each cluster has apart, and those common to all."""
        return {
            "apart": {k: v for k, v in w.items() if not self.is_shared(k)},
            "common": {k: v for k, v in w.items() if self.is_shared(k)},
        }

    def upload(self, value: Params, s: Tensor, data: Data, report: dict[str, Tensor]) -> Upload:
        """s: [K], one-hot; common layers count in every cluster's place."""
        if self.weighted:
            s = s * data.size
        return Upload(self.split(value), {"apart": s, "common": s.sum()[None]}, report)

    def started_from(self, centres: Params) -> dict[str, Params] | None:
        """The centres that screening compares models with; gradients are compared with nothing."""
        if self.average == "gradients":
            return None
        return self.split(centres)

    # ------------------------------------------------------------------ saving communication
    def settled(self, state: Any, ask: Ask) -> tuple[Tensor, Tensor]:
        """(participants that are sent only their own centre, the other participants)"""
        if self.patience is None or int(state.still) < self.patience:
            return ask.participants[:0], ask.participants
        if ask.round % self.recheck == 0:
            return ask.participants[:0], ask.participants
        known = state.group[ask.participants] >= 0
        return ask.participants[known], ask.participants[~known]

    @client(
        weight=SentWeight(place=1, rows="weighted"),
        when=lambda method: method.by_updates or method.patience is not None,
    )
    def train_sent(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data,
        pair: int, start: bool,
    ) -> tuple[Upload, Any]:  # fmt: skip
        """Train the one centre that was sent."""
        centre, s = per_client
        value = self.local_update(task, centre, data, pair, start, goes_out=True)
        return self.upload(value, s, data, {}), private

    def train_within(
        self, centres: Params, ids: Tensor, group: Tensor, ask: Ask, start: bool = False
    ) -> Sums:
        """One exchange in which each client is sent only the centre of its group."""
        one_hots = torch.eye(count(centres), dtype=next(iter(centres.values())).dtype)
        return ask(
            self.train_sent,
            ids,
            per_client=Rows((centres, one_hots), group[ids]),
            static={"start": start, **self.pair_of(ask)},
            stream="start" if start else "train",
            started_from=self.started_from(centres),
        )

    # ------------------------------------------------------------------ resampling
    def pair_of(self, ask: Ask) -> dict[str, int]:
        """Which pair of parts a round uses; round 0 the last."""
        if not self.resample:
            return {"pair": 0}
        return {"pair": (ask.round - 1) % self.resample}

    def choosing_rows(self, data: Data, pair: int) -> Batch:
        if not self.resample:
            return data.all
        return data.part(2 * pair, 2 * self.resample)

    def training_batches(self, data: Data, pair: int) -> Repeat | Drawn:
        if not self.resample:
            return data.batches(self)
        return Repeat(data.part(2 * pair + 1, 2 * self.resample), self.local_steps)

    # ------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        refuse_unknown_layers("share", self.share, list(task.init(0)))
        if self.resample and (self.batch is not None or self.local_epochs is not None):
            raise CoterieError(
                "resample cuts the rows itself and takes full-batch local_steps: "
                "leave batch and local_epochs."
            )
        fewest = int(sizes.min())
        if fewest < 2 * self.resample:
            raise CoterieError(
                f"resample={self.resample} cuts the rows of each client into {2 * self.resample} "
                f"parts, and a client has only {fewest} rows: use at most {fewest // 2}."
            )
