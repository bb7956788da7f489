"""Small tables of six sites, and networks of them in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import coterie as ct
from cases import model_for
from coterie.core.contract import Algorithm, Data
from coterie.data.table_options import TableOptions
from coterie.engines.replay import ExchangeRecord, read_log
from coterie.network.handshake import RunSpec
from coterie.network.packets import Packet
from coterie.network.policy import OwnerPolicy
from coterie.network.server import begin, resume, serve
from coterie.network.site import NetworkSite
from coterie.network.transport import Messenger, WaitPolicy
from coterie.runs.options import Options
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from in_process import Fate, InProcessTransport, deliver
from machines import NAMES, write_tables

OPTIONS = {"rounds": 3, "seed": 1, "dtype": "float64", "eval_every": 2}
MODEL = "mlp:4"


@dataclass
class InProcessNetwork:
    """A server and its sites, in folders below `base`."""

    base: Path
    method: Algorithm
    fate: Fate = deliver
    model: str = MODEL
    waiting: WaitPolicy = field(default_factory=lambda: WaitPolicy(deadline=10, quorum=0.5))
    options: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = NAMES
    data: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)  # more of the `RunSpec`

    def __post_init__(self) -> None:
        self.tables = self.base / "tables"
        if not self.tables.exists():
            write_tables(self.tables, self.names)
        whole = {"participation": 1.0} if self.method.needs_all_clients else {}
        self.options = {**OPTIONS, **self.options, **whole}
        self.transport = InProcessTransport(
            {name: self.site(name) for name in self.names}, self.fate
        )
        if model_for(self.method) in ("softmax", "mlp_bn:12") and self.model == MODEL:
            self.model = model_for(self.method)

    @property
    def out(self) -> Path:
        return self.base / "run"

    @property
    def diary(self) -> list[ExchangeRecord]:
        return read_log(self.out / "diary.jsonl")

    def site(self, name: str, **how: Any) -> NetworkSite:
        """A site, by default one that splits and describes its rows as `coterie run` does."""
        how = {"owner": OwnerPolicy(exact=self.options["seed"]), **how}
        return NetworkSite(name, self.tables / f"{name}.csv", self.base / "states" / name, **how)

    def messenger(self) -> Messenger:
        return Messenger(self.transport, self.waiting, clock=self.transport.clock)

    def begin(self) -> Run:
        asked = RunSpec(
            method=self.method,
            data=TableOptions(label="outcome", seed=self.options["seed"], **self.data),
            options=Options(**self.options),
            model=self.model,
            **self.spec,
        )
        return begin(asked, list(self.names), self.messenger(), self.out)

    def run(self) -> Run:
        return serve(self.begin())

    def resume(self) -> Run:
        return serve(resume(self.out, self.messenger()))

    def in_the_loop(self, **options: Any) -> Run:
        """The same run in one process."""
        fed = ct.data.folder(
            str(self.tables), label="outcome", seed=self.options["seed"], **self.data
        )
        run = prepare_run(
            self.method, fed, self.model, **{**self.options, "engine": "loop", **options}
        )
        for _ in run.rounds():
            pass
        return run

    def replayed(self) -> Run:
        return self.in_the_loop(replay=str(self.out / "diary.jsonl"))

    def private_states(self, run: Run) -> Any:
        """The private state that counts of every site, a table per leaf, [N, ...]."""
        states = []
        _, initial_payload = run.method.start(run.task, len(run.roster), run.options.seed)
        for i, name in enumerate(run.roster.names):
            site = self.transport.sites[name].session.site
            accepted = run.engine.accepted[i]
            if accepted in site.versions:
                states.append(site.versions[accepted])
                continue
            assert not run.engine.contacted[i], "the server asks for a state that is not there"
            key = run.client_keys[i]
            data = Data(site.parts["train"], key, key)
            states.append(run.method.enroll(run.task, initial_payload, data))
        return tree_map(lambda *rows: torch.stack(rows), *states)


def is_question(request: Packet) -> bool:
    """Whether a packet asks for an answer in a round or an evaluation."""
    return b'"do":"call"' in request.head


def distance(a: Any, b: Any) -> float:
    """Largest relative difference between two nests of the same shape."""
    gaps = [0.0]
    for u, v in zip(tree_leaves(a), tree_leaves(b), strict=True):
        assert u.shape == v.shape
        gaps.append(float((u.double() - v.double()).norm() / (v.double().norm() + 1e-12)))
    return max(gaps)
