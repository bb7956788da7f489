"""The live page of a server: the state of its sites, its run, and metrics for Prometheus."""

from __future__ import annotations

import re
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coterie.core.errors import CoterieError
from coterie.network.audit import LastContact
from coterie.network.certificates import write_private
from coterie.network.engine import NetworkEngine
from coterie.network.https_server import HttpsServer
from coterie.network.owner import OWNER_REASONS
from coterie.reporting.live.folder import Dashboard, WaitingDashboard, WatchedFolder
from coterie.reporting.live.server import LiveServer
from coterie.reporting.live.snapshot import SiteReport
from coterie.runs.run import Run

TOKEN_FILE = "page-token"
SHUTDOWN_TIMEOUT = 5.0  # seconds
MAX_REASONS = 20  # further reasons of refusals are counted together
OTHER_REASON = "other"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class WatchedServer(Collector):
    """The state of a server: the sites it waits for, then its run. Read from another thread.

    Args:
        transport: Reaches the sites.
        title: Name of the run.
        starts: A sentence that says when the run starts.
    """

    def __init__(self, transport: HttpsServer, title: str, starts: str) -> None:
        self.transport = transport
        self.title = title
        self.starts = starts
        self.run: Run | None = None  # None: the run has not begun in this process
        self.folder: WatchedFolder | None = None
        self.expected: Mapping[str, SiteReport] = self.reports()

    # -- live page
    def show_folder(self, folder: Path) -> None:
        """Show a run that this server will resume."""
        self.folder = WatchedFolder(folder, reports=self.reports)

    def show(self, run: Run) -> None:
        """Show a run that has begun."""
        assert run.folder is not None
        self.run = run
        self.show_folder(run.folder.path)

    def poll(self) -> bool:
        """Read the state again; return whether the page changes."""
        if self.folder is not None:
            return self.folder.poll()
        before = self.expected
        self.expected = self.reports()
        return self.expected != before

    def dashboard(self, key: str = "") -> Dashboard | WaitingDashboard:
        """Return the content of the page."""
        if self.folder is not None:
            return self.folder.dashboard(key)
        return WaitingDashboard(self.title, self.starts, self.expected)

    def reports(self) -> dict[str, SiteReport]:
        """Return the state of each site; before the run, whether it is connected."""
        connected = self.transport.connections()
        if self.run is not None:
            messenger = network_of(self.run).messenger
            contacts = messenger.audit.by_site()
            return {
                name: report_site(contacts.get(name), name in connected, name in messenger.awaited)
                for name in self.run.roster.names
            }
        reports = {}
        for name in self.transport.names:
            state = "connected" if name in connected else "away"
            reports[name] = SiteReport(state, is_healthy=name in connected)
        return reports

    # -- Prometheus
    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the server."""
        round = -1 if self.run is None else self.run.round
        yield GaugeMetricFamily("coterie_round", "Last completed round; -1: none.", round)
        sites, connected = len(self.transport.names), len(self.transport.connections())
        yield GaugeMetricFamily("coterie_sites_registered", "Sites that have a certificate.", sites)
        yield GaugeMetricFamily("coterie_sites_connected", "Sites connected now.", connected)
        if self.run is not None:
            yield from self._run_metrics(self.run)

    def _run_metrics(self, run: Run) -> Iterator[Metric]:
        messenger = network_of(run).messenger
        totals = messenger.audit.totals
        seconds = run.history[-1]["seconds"] if run.history else 0.0
        for name, help, value in (
            ("rounds", "Rounds of this run.", run.options.rounds),
            ("last_round_seconds", "Duration of the last round.", seconds),
            ("sites_awaited", "Sites whose reply is due.", len(messenger.awaited)),
            ("server_starts", "Starts of this run's server.", messenger.epoch),
        ):
            yield GaugeMetricFamily(f"coterie_{name}", help, value)
        yield CounterMetricFamily("coterie_exchanges", "Exchanges with sites.", totals.exchanges)
        refusals, unread = group_reasons(totals.refusals), self.transport.refusals.counts
        traffic = {"out": totals.bytes_out, "in": totals.bytes_in}
        for name, help, label, counts in (
            ("answers", "Replies by result.", "result", totals.answers),
            ("refused_answers", "Rejected replies by reason.", "reason", refusals),
            ("refused_requests", "Requests refused unread, by reason.", "reason", unread),
            ("bytes", "Bytes of packets, without TLS and HTTP.", "direction", traffic),
        ):
            family = CounterMetricFamily(f"coterie_{name}", help, labels=[label])
            for key, count in dict(counts).items():
                family.add_metric([key], count)
            yield family

    def metrics_text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()


def network_of(run: Run) -> NetworkEngine:
    """Return the engine of a run on a network."""
    assert isinstance(run.engine, NetworkEngine)
    return run.engine


def group_reasons(counts: Mapping[str, int]) -> dict[str, int]:
    """Count refusals by reason without its numbers, so that there are few labels."""
    grouped: Counter[str] = Counter()
    for reason, count in counts.items():
        label = NUMBER.sub("N", reason)
        if label not in grouped and len(grouped) >= MAX_REASONS:
            label = OTHER_REASON
        grouped[label] += count
    return dict(grouped)


def report_site(contact: LastContact | None, is_connected: bool, is_awaited: bool) -> SiteReport:
    """Return the state of a site and its last event."""
    if contact is None:
        return SiteReport(site_state(is_connected, is_awaited), is_healthy=is_connected)
    record, answered = contact.record, contact.answered
    when = "" if record.round is None else f" of round {record.round}"
    message = f"{record.function}{when}: {record.reason}"
    if record.result == "accepted" and record.seconds is not None:
        message = f"answered {record.function}{when} after {record.seconds:.2g} s"
    for status, reason in OWNER_REASONS.items():
        if contact.record.reason == reason:
            return SiteReport(status, message, answered, is_healthy=False)
    is_healthy = is_connected and contact.record.result == "accepted"
    return SiteReport(site_state(is_connected, is_awaited), message, answered, is_healthy)


def site_state(is_connected: bool, is_awaited: bool) -> str:
    """Return the state of a site in one word."""
    if not is_connected:
        return "away"
    if is_awaited:
        return "working"
    return "ready"


# ------------------------------------------------------------------------------ page
class LivePage:
    """Serves the page of a server in a thread until it is closed.

    Args:
        watched: The state of the server.
        host: Address to serve at.
        port: Port to serve at.
        token: Secret that readers of the page need.
    """

    def __init__(self, watched: WatchedServer, host: str, port: int, token: str) -> None:
        self.watched = watched
        self.server = LiveServer(watched, host, port, token, [web.get("/metrics", self.metrics)])
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer a request of Prometheus."""
        headers = {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        return web.Response(body=self.watched.metrics_text().encode(), headers=headers)

    def close(self) -> None:
        """Stop serving."""
        self.server.should_exit = True
        self.thread.join(SHUTDOWN_TIMEOUT)


def page_token(certs: Path) -> str:
    """Return the token of a server's page, which stays the same after a restart."""
    file = certs / TOKEN_FILE
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(18)
        write_private(file, f"{token}\n".encode())
        return token
    except (OSError, ValueError) as e:
        raise CoterieError(f"{file} cannot be read ({e})", "remove it") from e
