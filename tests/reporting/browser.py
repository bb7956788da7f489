"""Chromium without a window, spoken to through a pair of pipes: enough to open a page, look at it and ask it things."""

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
LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
SECONDS = 60  # that an answer may take
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND"  # no name can be looked up


class Browser:
    """One tab. Messages are JSON, ended by a zero byte: Chromium reads them on descriptor 3 and writes them on 4."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        (theirs_in, self.to), (self.back, theirs_out) = os.pipe(), os.pipe()
        pipes = [
            fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)
        ]  # not 3 or 4 themselves
        words = [CHROMIUM, *FLAGS, OFFLINE, f"--user-data-dir={profile}", "about:blank"]
        launch = [sys.executable, "-ISc", LAUNCH, *map(str, pipes), *words]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(launch, pass_fds=pipes, **quiet)
        for end in (theirs_in, theirs_out, *pipes):
            os.close(end)
        self.rest, self.sent, self.session, self.loaded, self.console = (
            b"",
            0,
            "",
            False,
            list[str](),
        )
        target = next(
            t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page"
        )
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer; what the page writes to its console meanwhile is kept."""
        self.sent += 1
        where = {"sessionId": self.session} if self.session else {}
        message = {"id": self.sent, "method": method, "params": params, **where}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            got = self.read()
            if got.get("id") == self.sent:
                assert "error" not in got, got
                return dict(got["result"])

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.back], [], [], SECONDS)[0], "chromium is silent"
            more = os.read(self.back, 1 << 20)
            assert more, "chromium has ended"
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        got: dict[str, Any] = json.loads(message)
        self.loaded |= got.get("method") == "Page.loadEventFired"
        if got.get("method") in (
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
        ):
            self.console.append(json.dumps(got["params"]))
        return got

    def open(self, page: Path, width: int, dark: bool = False) -> None:
        """Load a page at a width; returns when its scripts have run."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.console, self.loaded = [], False
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while not self.loaded:
            self.read()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it comes to."""
        got = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def close(self) -> None:
        os.close(self.to)
        os.close(self.back)
        self.process.terminate()
        self.process.wait(timeout=20)
