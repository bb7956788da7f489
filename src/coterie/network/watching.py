"""What a server can tell of itself while it runs: its sites' state, and its metrics."""

from __future__ import annotations

from typing import Protocol

from coterie.live.snapshot import SiteReport
from coterie.network.audit import Seen
from coterie.network.engine import Network
from coterie.network.listening import Refusals
from coterie.network.metrics import Metric, counter, counter_by, few_reasons, gauge
from coterie.network.presence import WORDS
from coterie.network.transport import Transport
from coterie.runs.run import Run


class Served(Transport, Protocol):
    """A transport that knows its sites by their keys."""

    refusals: Refusals
    nodes: dict[str, int]  # by name


class ServerView:
    """Looks at a run of a network from another thread; nothing is changed."""

    def __init__(self, run: Run, transport: Served) -> None:
        assert isinstance(run.engine, Network)
        self.run = run
        self.post = run.engine.post
        self.transport = transport

    def reports(self) -> dict[str, SiteReport]:
        """The state and last words of each site, for a live page."""
        connected = self.transport.connections()
        seen = self.post.audit.by_site()
        awaited = self.post.awaited
        return {
            name: report_of(seen.get(name), name in connected, name in awaited)
            for name in self.run.roster.names
        }

    def metrics(self) -> list[Metric]:
        """What Prometheus is told."""
        totals = self.post.audit.totals
        history = self.run.history
        last = history[-1]["seconds"] if history else 0.0
        sites = self.transport.nodes
        connected = len(self.transport.connections())
        return [
            gauge("coterie_round", "The last round that is done; -1: none.", self.run.round),
            gauge("coterie_rounds", "Rounds of this run.", self.run.options.rounds),
            gauge("coterie_last_round_seconds", "How long the last round took.", last),
            gauge("coterie_sites_registered", "Sites that have a key.", len(sites)),
            gauge("coterie_sites_connected", "Sites that are connected now.", connected),
            gauge("coterie_sites_awaited", "Sites whose answer is due.", len(self.post.awaited)),
            gauge("coterie_server_starts", "How often this run's server began.", self.post.epoch),
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


def report_of(seen: Seen | None, is_connected: bool, is_awaited: bool) -> SiteReport:
    """The state and last words of a site."""
    words = "" if seen is None else last_words(seen)
    answered = None if seen is None else seen.answered
    fault = seen is not None and seen.line.result != "accepted"
    for wish, reason in WORDS.items():
        if seen is not None and seen.line.reason == reason:
            return SiteReport(wish, words, answered, is_well=False)
    if not is_connected:
        return SiteReport("away", words, answered, is_well=False)
    if is_awaited:
        return SiteReport("working", words, answered, is_well=not fault)
    return SiteReport("ready", words, answered, is_well=not fault)


def last_words(seen: Seen) -> str:
    """What a site was last asked, and what came of it."""
    line = seen.line
    when = "" if line.round is None else f" of round {line.round}"
    if line.result == "accepted" and line.seconds is not None:
        return f"answered {line.function}{when} after {line.seconds:.2g} s"
    return f"{line.function}{when}: {line.reason}"
