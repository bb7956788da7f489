"""Looks at a folder once a second and draws what somebody watches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol

from coterie.reporting.live.expected import ExpectedBoard
from coterie.reporting.live.folder import Board
from coterie.reporting.live.sections import build, draw_page, draw_sections

log = logging.getLogger("coterie")
PERIOD = 1.0  # seconds between looks
SHARE = 50  # drawing takes at most one part in this many of the time
BEAT = 15.0  # seconds after which an event is sent though nothing changed


class Watched(Protocol):
    """What a page is made of, such as a `WatchedFolder`."""

    def poll(self) -> bool:
        """Read what is new; whether a page would look different."""
        ...

    def board(self, key: str = "") -> Board | ExpectedBoard:
        """What a page shows."""
        ...


class Drawn(NamedTuple):
    """A page as it was drawn."""

    version: int
    title: str
    sections: dict[str, str]
    page: str


class Feed:
    """The pages of a folder, and who waits for the next."""

    def __init__(self, watched: Watched, period: float = PERIOD) -> None:
        self.watched = watched
        self.period = period
        self.version = 0
        self.is_closed = False
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()  # what is watched is read by one thread at a time
        self._pages: dict[str, Drawn] = {}  # by run
        self._drawing_took = 0.0  # seconds, of all pages of this version

    async def follow(self) -> None:
        """Look again and again, until the feed is closed."""
        has_news = False
        drawn_at = time.monotonic()
        while not self.is_closed:
            has_news = await self._poll() or has_news
            pause = max(self.period, SHARE * self._drawing_took)
            if has_news and time.monotonic() - drawn_at >= pause:
                has_news = False
                drawn_at = time.monotonic()
                self._announce()
            await asyncio.sleep(self.period)

    async def _poll(self) -> bool:
        try:
            async with self._reading:
                return await asyncio.to_thread(self.watched.poll)
        except Exception:  # a page that is up says more than one that is gone
            log.exception("what is watched cannot be read")
            return False

    def _announce(self) -> None:
        self.version += 1
        self._drawing_took = 0.0
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        self._changed.set()

    async def draw(self, key: str) -> Drawn:
        """The page of a run; it is drawn once for all who watch it."""
        async with self._reading:
            page = self._pages.get(key)
            if page is None or page.version != self.version:
                page = await asyncio.to_thread(self._draw, key)
                self._pages = {k: p for k, p in self._pages.items() if p.version == self.version}
                self._pages[key] = page
            return page

    def _draw(self, key: str) -> Drawn:
        began = time.thread_time()
        board = self.watched.board(key)
        sections = draw_sections(board)
        page = draw_page(board, sections)
        self._drawing_took += time.thread_time() - began
        return Drawn(self.version, board.title, sections, page)

    async def updates(self, key: str) -> AsyncIterator[dict[str, Any]]:
        """What to tell an open page: all sections, then those that changed.

        An update without sections says that the server is still there.
        """
        sent: dict[str, str] = {}
        while not self.is_closed:
            changed = self._changed  # before drawing, so that no change is missed
            drawn = await self.draw(key)
            news = {name: html for name, html in drawn.sections.items() if sent.get(name) != html}
            sent |= news
            yield {"build": build(), "title": drawn.title, "now": time.time(), "sections": news}
            try:
                await asyncio.wait_for(changed.wait(), BEAT)
            except TimeoutError:
                continue
