"""pFedMe: personalised federated learning with Moreau envelopes (T. Dinh, Tran, Nguyen, NeurIPS
2020), Algorithm 1.

    paper       here             shape
    w           model            every leaf [1, ...], the global model
    w_i         Upload.values    every leaf [...]
    θ̃_i         private.model    every leaf [...], the personal model (PM)
    λ, η        lam, lr          w_i ← w_i − ηλ(w_i − θ̃_i)
    R, K        outer, inner     local rounds, and gradient steps towards θ̃_i in each
    |D|, β      batch, beta

Ours, not the paper's:
* θ̃_i begins each round at the w received, as in the released code; `restart=False` goes on from the
  last θ̃_i.
* The inner problem is solved by `inner` steps of inner_lr on one mini-batch; l2 counts there alone,
  and is 0 by default (the released code takes 0.001).
* Only the clients that take part train, and their w_i are averaged unweighted, as the paper writes
  it (the released code trains everyone and averages the sampled ones by size).
* The released code's stored personal model is w_i under another name, so that published numbers may
  be of w_i. Here θ̃_i is kept apart and evaluated; `evaluate="local"` measures w_i and "global"
  measures w.
* A client that never took part answers with w; one that joins later takes a round's local steps
  from w.
* local_steps plays no part; decay acts on η alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from coterie.core.contract import Ask, Data, Upload, Weight, client, setting
from coterie.core.params import Params, mix, pick, where
from coterie.core.task import Task
from coterie.methods.envelope import Envelope, Personal


@dataclass(frozen=True, kw_only=True)
class PFedMe(Envelope):
    """Personal models tied to a global one, which follows the gradient of Moreau envelopes."""

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = "T. Dinh et al. 2020"

    beta: float = setting(1.0, "server's step β: w ← (1−β)·w + β·mean", gt=0)
    evaluate: str = setting(
        "personal", "which model is measured", choices=("personal", "local", "global")
    )

    def start(self, task: Task, clients: int, seed: int) -> tuple[Params, Params]:
        return task.inits(seed, 1), task.init(seed)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Personal:
        return (
            super().enroll(task, initial_payload, data)._replace(local=self.kept(initial_payload))
        )

    def kept(self, w: Params) -> Params:
        """The local model, where it is evaluated; else nothing."""
        if self.evaluate == "local":
            return w
        return {}

    @client(weight=Weight(), rounds="later", sample_size=lambda method: method.batch)
    def train(
        self, task: Task, model: Params, per_client: Any, private: Personal, data: Data
    ) -> tuple[Upload, Personal]:
        received = pick(model, 0)
        one = torch.ones_like(data.size)
        w, theta = self.solve(task, received, self.theta_start(received, private), data)
        return Upload({"model": w}, one[None], {}), Personal(theta, self.kept(w), one)

    def round(self, model: Params, ask: Ask) -> Params:
        sums = ask(self.train, shared=model, stream="train", started_from={"model": model})
        return mix(self.beta, model, sums.mean("model", empty=model))  # w ← (1−β)w + β Σ w_i / S

    def model(
        self, task: Task, shared: Params, per_client: Any, private: Personal, data: Data
    ) -> Params:
        w = pick(shared, 0)
        if self.evaluate == "global":
            return w
        mine = private.local if self.evaluate == "local" else private.model
        return where(private.asked > 0, mine, w)

    def join(self, task: Task, shared: Params, data: Data) -> tuple[Any, Personal]:
        w, theta = self.solve(task, pick(shared, 0), pick(shared, 0), data)
        return (), Personal(theta, self.kept(w), torch.ones_like(data.size))
