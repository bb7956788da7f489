"""Ctrl-C finishes the round; a second one stops at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("coterie")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after the round was finished and, where there is a folder, saved."""


@contextmanager
def finish_round_on_interrupt() -> Iterator[threading.Event]:
    """Within it, the first Ctrl-C sets the event and the second stops at once."""
    asked_to_stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked_to_stop  # only the main thread hears signals
        return

    def on_first(*_: object) -> None:
        asked_to_stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log.warning("stopping after this round; once more to stop at once.")

    before = signal.signal(signal.SIGINT, on_first)
    try:
        yield asked_to_stop
    finally:
        signal.signal(signal.SIGINT, before)
