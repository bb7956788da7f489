"""Chromium without a window, spoken to through a pair of pipes.

Enough to open a page, look at it and ask it things.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# Chromium reads messages on descriptor 3 and writes them on 4
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
SECONDS = 60  # that an answer may take
# no name can be looked up; tests serve pages on this machine
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
CONSOLE = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


class Browser:
    """One tab. Messages are JSON, ended by a zero byte."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        its_input, self.to = os.pipe()
        self.back, its_output = os.pipe()
        # copies with numbers that are not 3 or 4 themselves
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (its_input, its_output)]
        command = [CHROMIUM, *FLAGS, OFFLINE, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", LAUNCH, *map(str, ends), *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (its_input, its_output, *ends):
            os.close(end)
        self.unread = b""
        self.asked = 0
        self.session = ""
        self.loaded = False
        self.console: list[str] = []
        tabs = self.ask("Target.getTargets")["targetInfos"]
        tab = next(tab for tab in tabs if tab["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; keep what the page writes to its console."""
        self.asked += 1
        message: dict[str, Any] = {"id": self.asked, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.asked:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def read(self) -> dict[str, Any]:
        """Wait for the next message."""
        while b"\0" not in self.unread:
            assert select.select([self.back], [], [], SECONDS)[0], "chromium is silent"
            more = os.read(self.back, 1 << 20)
            assert more, "chromium has ended"
            self.unread += more
        text, self.unread = self.unread.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        if message.get("method") == "Page.loadEventFired":
            self.loaded = True
        if message.get("method") in CONSOLE:
            self.console.append(json.dumps(message["params"]))
        return message

    def open(self, page: Path | str, width: int, dark: bool = False) -> None:
        """Load a page, a file or an address, at a width; returns when its scripts have run."""
        address = page.resolve().as_uri() if isinstance(page, Path) else page
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.console = []
        self.loaded = False
        self.ask("Page.navigate", url=address)
        while not self.loaded:
            self.read()

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; of a promise, what it comes to."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        os.close(self.to)
        os.close(self.back)
        self.process.terminate()
        self.process.wait(timeout=20)
