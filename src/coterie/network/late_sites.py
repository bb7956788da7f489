"""Late sites: they connect after a run has begun, join as unseen clients, and do not train.

A late site agrees to the terms like all sites, is assigned to the group whose model has the lowest
loss on its rows, and computes its own model with the method's `join`. It writes the model when it
connects, and again at the end. Its replies do not change the run.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import torch

from coterie.core import randomness
from coterie.core.call import Call, Version
from coterie.core.contract import Algorithm, Upload
from coterie.core.params import count
from coterie.engines.codec import BadBytes, decode, encode
from coterie.engines.coordinator import HEADER, SiteCoordinator
from coterie.network.audit import now_as_text
from coterie.network.engine import FINAL_EXCHANGE, NetworkEngine, as_pieces
from coterie.network.packets import CallClient, RequestBody, Terms, WriteModel
from coterie.network.waiting import ExchangeResult
from coterie.runs.late_sites import LateSite, describe_late_site, read_late_sites, write_late_sites
from coterie.runs.run import Run

log = logging.getLogger("coterie")
NO_LOSSES = "it sent no losses"


class LateSites:
    """Finds sites that are connected and not in the run, and lets them join.

    Args:
        run: A run on a network, with a folder.
        terms: The terms of the run.
    """

    def __init__(self, run: Run, terms: Terms) -> None:
        assert isinstance(run.engine, NetworkEngine) and run.folder is not None
        self.run = run
        self.terms = terms
        self.messenger = run.engine.messenger
        self.folder: Path = run.folder.path
        self.known = read_late_sites(self.folder)
        self.tried: dict[str, Hashable] = {}  # site → connection of the last attempt

    def update(self) -> None:
        """Let sites join that connected since the last update; retry a failed one on reconnect."""
        connected = self.messenger.transport.connections()
        new = []
        for name in sorted(connected.keys() - set(self.run.roster.names)):
            has_joined = name in self.known and not self.known[name].fault
            if not has_joined and self.tried.get(name) != connected[name]:
                self.tried[name] = connected[name]
                new.append(name)
        if new:
            self._introduce(new)

    def finish(self) -> None:
        """Update the group and the model of all late sites after the last round."""
        connected = self.messenger.transport.connections()
        joined = [n for n, late in self.known.items() if n in connected and not late.fault]
        if joined:
            self._join(joined)

    def _introduce(self, names: list[str]) -> None:
        """Send the terms to sites, then let them join."""
        faults = self._exchange(self.terms, {name: {} for name in names}).failures()
        for name, reason in faults.items():
            self._record(name, None, reason)
            log.warning("%s connected late and cannot join: %s.", name, reason)
        agreed = [name for name in names if name not in faults]
        if agreed:
            self._join(agreed)
        write_late_sites(self.folder, self.known)

    def _join(self, names: list[str]) -> None:
        groups, unassigned = self._assign(names)
        without_model = self._write_models([name for name in names if name not in unassigned])
        for name in names:
            fault = unassigned.get(name) or without_model.get(name) or ""
            self._record(name, groups.get(name), fault)
            log.info("%s %s", name, describe_late_site(self.known[name]))
        write_late_sites(self.folder, self.known)

    def _record(self, name: str, group: int | None, fault: str) -> None:
        self.known[name] = LateSite(
            group=group, round=max(self.run.round, 0), time=now_as_text(), fault=fault
        )

    # -- exchanges
    def _exchange(self, body: RequestBody, pieces: dict[str, dict[str, bytes]]) -> ExchangeResult:
        """Send a request to late sites; do not wait for disconnected ones."""
        return self.messenger.exchange(body, pieces, quorum=0.0, grace=0.0)

    def _assign(self, names: list[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the group with the lowest loss per site, and the reasons why a site has none."""
        run = self.run
        method = run.trained().method_now
        centres = method.centres(run.state)
        if centres is None or method.groups(run.state) is None:
            return {}, {}
        started = now_as_text()
        pieces = self._messages(names, "membership", centres)
        result = self._exchange(CallClient(), pieces)
        self.messenger.audit.record(result.audit_records(started, "start", "membership"))
        faults = result.failures()
        groups = {}
        for name in names:
            if name in faults:
                continue
            group = self._best_group(result, name, count(centres))
            if group is None:
                faults[name] = NO_LOSSES
            else:
                groups[name] = group
        return groups, faults

    def _best_group(self, result: ExchangeResult, name: str, groups: int) -> int | None:
        """Return the group with the lowest loss; None if the site sent no losses."""
        raw = result.arrived[name].pieces.get("upload", b"")
        try:
            upload, _ = decode(raw, self.run.types, limit=HEADER)
        except BadBytes:
            return None
        if not isinstance(upload, Upload):
            return None
        losses = upload.report.get("losses")
        if not isinstance(losses, torch.Tensor) or losses.shape != (groups,):
            return None
        losses = losses.double().nan_to_num(torch.inf, torch.inf)
        return int(losses.argmin())

    def _write_models(self, names: list[str]) -> dict[str, str]:
        """Make each site write its own model; return the reasons why a site did not."""
        if not names:
            return {}
        method = self.run.trained().method_now
        if type(method).model is Algorithm.model:
            return dict.fromkeys(names, "a client of this method has no single model")
        shared, _ = method.use(self.run.state)
        pieces = self._messages(names, "unseen_model", shared)
        return self._exchange(WriteModel(), pieces).failures()

    def _messages(
        self, names: list[str], function: str, shared: Any
    ) -> dict[str, dict[str, bytes]]:
        """Encode a call to sites without private states."""
        run = self.run
        round = max(run.round, 0)
        root = run.round_context(round, "evaluate").root
        keys = randomness.client_keys(names, run.options.seed)
        call = Call(
            fn=getattr(root, function),
            path="",
            ids=torch.arange(len(names)),
            shared=shared,
            per_client=(),
            static={},
            keys=randomness.keys(keys, round, "evaluate"),
            client_keys=keys,
            version=Version(round, "evaluate", FINAL_EXCHANGE),
            keeps_private=False,
            enrolled=False,
        )
        coordinator = SiteCoordinator(len(names), run.types)
        encoded = encode(shared, run.types)
        messages = [coordinator.message(at, call, encoded) for at in torch.arange(len(names))]
        return dict(zip(names, map(as_pieces, messages)))
