"""Sites that come when a run has begun: they join as newcomers do, and do not train.

A latecomer agrees to the run as all sites did, is assigned to the group whose model fits it best,
and computes its own model by the method's `join`. That model is written into its folder when it
comes, and again at the end. Its answers change nothing in the run.
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
from coterie.network.engine import LAST, NetworkEngine, as_pieces
from coterie.network.packets import CallClient, Done, RequestBody, Terms, WriteModel
from coterie.network.waiting import ExchangeResult, audit_records, reason_of
from coterie.runs.late_sites import LateSite, describe_late_site, read_late_sites, write_late_sites
from coterie.runs.run import Run

log = logging.getLogger("coterie")
NO_ANSWER = "it did not say which group fits it"


class LateSites:
    """Looks for sites that are connected and take no part in the run."""

    def __init__(self, run: Run, terms: Terms) -> None:
        assert isinstance(run.engine, NetworkEngine) and run.folder is not None
        self.run = run
        self.terms = terms
        self.messenger = run.engine.messenger
        self.folder: Path = run.folder.path
        self.known = read_late_sites(self.folder)
        self.tried: dict[str, Hashable] = {}  # by which connection each was last spoken to

    def look(self) -> None:
        """Take in those who have come since; one whose join failed may connect again."""
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
        """Give all of them the group and the model of the last round."""
        connected = self.messenger.transport.connections()
        joined = [n for n, late in self.known.items() if n in connected and not late.fault]
        if joined:
            self._join(joined)

    def _introduce(self, names: list[str]) -> None:
        """Let sites agree to the run, then join."""
        outcome = self._exchange(self.terms, {name: {} for name in names})
        faults = faults_in(outcome)
        for name, reason in faults.items():
            self._note(name, None, reason)
            log.warning("%s came later and cannot join: %s.", name, reason)
        agreed = [name for name in names if name not in faults]
        if agreed:
            self._join(agreed)
        write_late_sites(self.folder, self.known)

    def _join(self, names: list[str]) -> None:
        groups, unassigned = self._assign(names)
        without_model = self._give_models([name for name in names if name not in unassigned])
        for name in names:
            fault = unassigned.get(name) or without_model.get(name) or ""
            self._note(name, groups.get(name), fault)
            log.info("%s %s", name, describe_late_site(self.known[name]))
        write_late_sites(self.folder, self.known)

    def _note(self, name: str, group: int | None, fault: str) -> None:
        self.known[name] = LateSite(
            group=group, round=max(self.run.round, 0), time=now_as_text(), fault=fault
        )

    # -- exchanges
    def _exchange(self, order: RequestBody, pieces: dict[str, dict[str, bytes]]) -> ExchangeResult:
        """Ask latecomers; the run waits for none that is not connected any more."""
        return self.messenger.exchange(order, pieces, quorum=0.0, grace=0.0)

    def _assign(self, names: list[str]) -> tuple[dict[str, int], dict[str, str]]:
        """(the group whose model fits each site best, why one has none)"""
        run = self.run
        method = run.trained().method_now
        centres = method.centres(run.state)
        if centres is None or method.groups(run.state) is None:
            return {}, {}
        began = now_as_text()
        pieces = self._messages(names, "membership", centres)
        outcome = self._exchange(CallClient(), pieces)
        self.messenger.audit.record(audit_records(CallClient(), outcome, began, "membership"))
        faults = faults_in(outcome)
        groups = {}
        for name in names:
            if name in faults:
                continue
            group = self._best_group(outcome, name, count(centres))
            if group is None:
                faults[name] = NO_ANSWER
            else:
                groups[name] = group
        return groups, faults

    def _best_group(self, outcome: ExchangeResult, name: str, groups: int) -> int | None:
        """The group of least loss; None if the site sent no losses."""
        raw = outcome.arrived[name].pieces.get("upload", b"")
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

    def _give_models(self, names: list[str]) -> dict[str, str]:
        """Let each site write its own model; by name, why one did not."""
        if not names:
            return {}
        method = self.run.trained().method_now
        if type(method).model is Algorithm.model:
            return dict.fromkeys(names, "a client of this method has no single model")
        shared, _ = method.use(self.run.state)
        pieces = self._messages(names, "newcomer_model", shared)
        return faults_in(self._exchange(WriteModel(), pieces))

    def _messages(
        self, names: list[str], function: str, shared: Any
    ) -> dict[str, dict[str, bytes]]:
        """A question to sites without private states."""
        run = self.run
        moment = max(run.round, 0)
        ask = run.round_context(moment, "evaluate")
        keys = randomness.client_keys(names, run.options.seed)
        call = Call(
            fn=getattr(ask.root, function),
            path="",
            ids=torch.arange(len(names)),
            shared=shared,
            per_client=(),
            static={},
            keys=randomness.keys(keys, moment, "evaluate"),
            client_keys=keys,
            version=Version(moment, "evaluate", LAST),
            keeps_private=False,
            enrolled=False,
        )
        ledger = SiteCoordinator(len(names), run.types)
        encoded = encode(shared, run.types)
        messages = [ledger.message(at, call, encoded) for at in torch.arange(len(names))]
        return dict(zip(names, map(as_pieces, messages)))


def faults_in(outcome: ExchangeResult) -> dict[str, str]:
    """By name, why a site did not do as it was asked."""
    faults = dict(outcome.absent)
    for name, arrival in outcome.arrived.items():
        reason = reason_of(arrival.reply)
        if reason is None and not isinstance(arrival.reply.answer, Done):
            reason = "it answered another question"
        if reason is not None:
            faults[name] = reason
    return faults
