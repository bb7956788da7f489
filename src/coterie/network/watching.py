"""What a server can tell of itself while it runs: its sites' state, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from coterie.network.audit import LastContact
from coterie.network.engine import NetworkEngine
from coterie.network.listening import Refusals
from coterie.network.metrics import Metric, counter, counter_by, few_reasons, gauge
from coterie.network.participation import OWNER_REASONS
from coterie.network.transport import Transport
from coterie.reporting.live.folder import Dashboard, WaitingDashboard, WatchedFolder
from coterie.reporting.live.snapshot import SiteReport
from coterie.runs.run import Run


class RegisteredTransport(Transport, Protocol):
    """A transport that knows its sites by their keys."""

    refusals: Refusals
    nodes: dict[str, int]  # by name


class WatchedServer:
    """What a page shows of a server: whom it waits for, then its run."""

    def __init__(self, transport: RegisteredTransport, title: str, begins: str) -> None:
        """title: what is to be run.  begins: a sentence on when that begins."""
        self.transport = transport
        self.title = title
        self.begins = begins
        self.view: ServerView | None = None  # None: no run has begun in this process
        self.folder: WatchedFolder | None = None
        self.expected: Mapping[str, SiteReport] = self.reports()

    def show_folder(self, folder: Path) -> None:
        """Show a run that this server will go on with."""
        self.folder = WatchedFolder(folder, reports=self.reports)

    def show(self, run: Run) -> None:
        """Show a run that has begun."""
        assert run.folder is not None
        self.view = ServerView(run, self.transport)
        self.folder = WatchedFolder(run.folder.path, reports=self.reports)

    def poll(self) -> bool:
        """Look again; whether a page would look different."""
        if self.folder is not None:
            return self.folder.poll()
        before = self.expected
        self.expected = self.reports()
        return self.expected != before

    def dashboard(self, key: str = "") -> Dashboard | WaitingDashboard:
        """What a page shows."""
        if self.folder is not None:
            return self.folder.dashboard(key)
        return WaitingDashboard(self.title, self.begins, self.expected)

    def reports(self) -> dict[str, SiteReport]:
        """The state of each site; before a run has begun, whether it is connected."""
        if self.view is not None:
            return self.view.reports()
        connected = self.transport.connections()
        reports = {}
        for name in list(self.transport.nodes):  # which may grow meanwhile
            state = "connected" if name in connected else "away"
            reports[name] = SiteReport(state, is_healthy=name in connected)
        return reports

    def metrics(self) -> list[Metric]:
        """What Prometheus is told."""
        if self.view is not None:
            return self.view.metrics()
        return [
            gauge("coterie_round", "The last round that is done; -1: none.", -1),
            *site_counts(self.transport),
        ]


class ServerView:
    """Looks at a run of a network from another thread; nothing is changed."""

    def __init__(self, run: Run, transport: RegisteredTransport) -> None:
        assert isinstance(run.engine, NetworkEngine)
        self.run = run
        self.messenger = run.engine.messenger
        self.transport = transport

    def reports(self) -> dict[str, SiteReport]:
        """The state and last words of each site, for a live page."""
        connected = self.transport.connections()
        seen = self.messenger.audit.by_site()
        awaited = self.messenger.awaited
        return {
            name: report_of(seen.get(name), name in connected, name in awaited)
            for name in self.run.roster.names
        }

    def metrics(self) -> list[Metric]:
        """What Prometheus is told."""
        totals = self.messenger.audit.totals
        history = self.run.history
        last = history[-1]["seconds"] if history else 0.0
        return [
            gauge("coterie_round", "The last round that is done; -1: none.", self.run.round),
            gauge("coterie_rounds", "Rounds of this run.", self.run.options.rounds),
            gauge("coterie_last_round_seconds", "How long the last round took.", last),
            *site_counts(self.transport),
            gauge(
                "coterie_sites_awaited", "Sites whose answer is due.", len(self.messenger.awaited)
            ),
            gauge(
                "coterie_server_starts", "How often this run's server began.", self.messenger.epoch
            ),
            counter("coterie_exchanges_total", "Exchanges with sites.", totals.exchanges),
            counter_by(
                "coterie_answers_total", "Answers, by what came of them.", "result", totals.answers
            ),
            counter_by(
                "coterie_refused_answers_total",
                "Answers that were refused, by reason.",
                "reason",
                few_reasons(totals.refusals),
            ),
            counter_by(
                "coterie_refused_requests_total",
                "Requests that were refused before they were read, by reason.",
                "reason",
                self.transport.refusals.counts,
            ),
            counter_by(
                "coterie_bytes_total",
                "Bytes of packets, without those of TLS and HTTP.",
                "direction",
                {"out": totals.bytes_out, "in": totals.bytes_in},
            ),
        ]


def site_counts(transport: RegisteredTransport) -> list[Metric]:
    """How many sites there are, and how many of them are connected."""
    connected = len(transport.connections())
    return [
        gauge("coterie_sites_registered", "Sites that have a key.", len(transport.nodes)),
        gauge("coterie_sites_connected", "Sites that are connected now.", connected),
    ]


def report_of(seen: LastContact | None, is_connected: bool, is_awaited: bool) -> SiteReport:
    """The state and last words of a site."""
    words = "" if seen is None else last_words(seen)
    answered = None if seen is None else seen.answered
    fault = seen is not None and seen.line.result != "accepted"
    for wish, reason in OWNER_REASONS.items():
        if seen is not None and seen.line.reason == reason:
            return SiteReport(wish, words, answered, is_healthy=False)
    if not is_connected:
        return SiteReport("away", words, answered, is_healthy=False)
    if is_awaited:
        return SiteReport("working", words, answered, is_healthy=not fault)
    return SiteReport("ready", words, answered, is_healthy=not fault)


def last_words(seen: LastContact) -> str:
    """What a site was last asked, and what came of it."""
    line = seen.line
    when = "" if line.round is None else f" of round {line.round}"
    if line.result == "accepted" and line.seconds is not None:
        return f"answered {line.function}{when} after {line.seconds:.2g} s"
    return f"{line.function}{when}: {line.reason}"
