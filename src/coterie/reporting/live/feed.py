"""Polls what the live page shows and renders it for its readers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

from coterie.reporting.live.folder import Dashboard, WaitingDashboard
from coterie.reporting.live.page import RenderedPage, build, render_page

log = logging.getLogger("coterie")
PERIOD = 1.0  # seconds between polls
MAX_LOAD = 50  # rendering takes at most one part in this many of the time
HEARTBEAT = 15.0  # seconds after which an empty update is sent


class Watched(Protocol):
    """The source of a page: a `WatchedFolder`, or a network's server."""

    def poll(self) -> bool:
        """Read what changed; return whether the page would look different."""
        ...

    def dashboard(self, key: str = "") -> Dashboard | WaitingDashboard:
        """Return what the page shows; `key` names a run."""
        ...


class Feed:
    """Polls a source, and renders a page only when somebody is reading it.

    Args:
        watched: The source of the page.
        period: Seconds between polls.
    """

    def __init__(self, watched: Watched, period: float = PERIOD) -> None:
        self.watched = watched
        self.period = period
        self.version = 0
        self.is_closed = False
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()  # one thread at a time reads the source
        self._pages: dict[str, RenderedPage] = {}  # by run
        self._render_seconds = 0.0  # of all pages of this version

    async def follow(self) -> None:
        """Poll until the feed is closed."""
        has_news = False
        rendered_at = time.monotonic()
        while not self.is_closed:
            has_news = await self._poll() or has_news
            pause = max(self.period, MAX_LOAD * self._render_seconds)
            if has_news and time.monotonic() - rendered_at >= pause:
                has_news = False
                rendered_at = time.monotonic()
                self._announce()
            await asyncio.sleep(self.period)

    async def _poll(self) -> bool:
        try:
            async with self._reading:
                return await asyncio.to_thread(self.watched.poll)
        except Exception:  # an outdated page is more useful than none
            log.exception("the live page cannot read its source")
            return False

    def _announce(self) -> None:
        self.version += 1
        self._render_seconds = 0.0
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        self._changed.set()

    async def render(self, key: str) -> RenderedPage:
        """Render the page of a run, once per version for all readers."""
        async with self._reading:
            page = self._pages.get(key)
            if page is None or page.version != self.version:
                page = await asyncio.to_thread(self._render, key)
                self._pages = {k: p for k, p in self._pages.items() if p.version == self.version}
                self._pages[key] = page
            return page

    def _render(self, key: str) -> RenderedPage:
        start = time.thread_time()
        page = render_page(self.watched.dashboard(key), self.version)
        self._render_seconds += time.thread_time() - start
        return page

    async def updates(self, key: str) -> AsyncIterator[dict[str, Any]]:
        """Yield updates for an open page: all sections first, then those that changed.

        An update without sections is a heartbeat.
        """
        sent: dict[str, str] = {}
        while not self.is_closed:
            changed = self._changed  # taken before rendering, so that no change is missed
            page = await self.render(key)
            news = {name: html for name, html in page.sections.items() if sent.get(name) != html}
            sent |= news
            yield {"build": build(), "title": page.title, "now": time.time(), "sections": news}
            try:
                await asyncio.wait_for(changed.wait(), HEARTBEAT)
            except TimeoutError:
                continue
