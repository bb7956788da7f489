"""A page in a real browser: every figure is drawn, and the console stays silent."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from small_runs import figures

import coterie as ct

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def opened(page, profile) -> tuple[str, list[str]]:
    """(the document after its scripts ran, what they wrote to the console); no name can be looked up."""
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=20000",
        "--enable-logging=stderr",
    ]
    flags += [f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1000,3000"]
    done = subprocess.run([CHROMIUM, *flags, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_figures_are_drawn_and_the_console_is_clean(results, tmp_path):
    page = ct.report(results, tmp_path / "page.html")
    text = page.read_text()
    page.write_text(text.replace("<details>", '<details open="">'))  # as if the reader had opened everything
    document, console = opened(page, tmp_path / "profile")
    assert console == []
    body = document[: document.index('<script type="application/json"')]
    assert body.count('class="main-svg"') >= len(figures(text)) >= 8
    drawn = re.split(r'<div class="plot[^"]*" id="figure-', body)[1:]
    assert len(drawn) == len(figures(text))
    for part in drawn:
        assert 'class="main-svg"' in part and ('class="trace' in part or 'class="hm' in part or "<image" in part)
    assert "Hôpital &lt;b&gt;Élie" in body


def test_the_check_sees_errors(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<script>nothing.here()</script><img src='http://example.org/x.png'>")
    console = opened(page, tmp_path / "profile")[1]
    assert any("nothing is not defined" in line for line in console)
