"""The live page in a real browser: it follows a run, outlives its server, and stays silent."""

from __future__ import annotations

import time

import pytest
from made_run import NAMES, make, row, save, train

from browser import CHROMIUM, Browser
from coterie.reporting.live.folder import WatchedFolder
from coterie.reporting.live.server import LiveServer
from serving import TOKEN, port_of, served

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
WIDE = 1400
PHONE = 390
SECONDS = 30  # that a change may take to show
ROUND = 'document.querySelector(".tile .value").textContent'
WIDTH = "document.documentElement.scrollWidth"
LINK = 'document.getElementById("link").hidden ? "" : document.getElementById("link").textContent'


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def browser(one_browser):
    yield one_browser
    one_browser.open("about:blank", WIDE)  # else the page would look for its server for ever


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "run")


def address(server: LiveServer) -> str:
    return f"http://127.0.0.1:{port_of(server)}/?token={TOKEN}"


def wait_for(browser: Browser, script: str, value: object) -> None:
    """Wait until an expression in the page has a value."""
    deadline = time.monotonic() + SECONDS
    while (now := browser.run(script)) != value:
        assert time.monotonic() < deadline, f"{script} is {now!r} instead of {value!r}"
        time.sleep(0.1)


def faults(browser: Browser) -> list[str]:
    """What the console says, but for attempts to reach a server that is not there."""
    gone = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
    return [line for line in browser.console if not any(word in line for word in gone)]


def test_the_page_follows_a_run_of_30_rounds(browser, folder):
    folder.append(row(0, [0, 0, 1, 1], accuracy=0.5))
    with served(WatchedFolder(folder.path)) as server:
        browser.open(address(server), WIDE)
        assert "token" not in browser.run("location.href")
        assert browser.run("document.cookie") == ""  # no script can read it
        wait_for(browser, ROUND, "0 of 30")
        for r in range(1, 31):
            more = {"accuracy": 0.5 + r / 100, "eval_seconds": 0.1} if r % 2 == 0 else {}
            folder.append(row(r, [0, r % 2, 1, 1], rejected=[NAMES[2]] if r == 7 else [], **more))
            if r % 2 == 0:
                save(folder, r, [0.5, 0.6, 0.7, 0.8])
            wait_for(browser, ROUND, f"{r} of 30")
        wait_for(browser, 'document.querySelector(".status b").textContent', "Ended")
        tiles = browser.run(
            '[...document.querySelectorAll(".tile .value")].map((v) => v.textContent)'
        )
        assert tiles[1] == "0.800" and tiles[2] == "2" and tiles[3] == "1"
        points = browser.run(
            'document.querySelector("#score path").getAttribute("d").split("L").length'
        )
        assert points == 16
        moved = browser.run('[...document.querySelectorAll("li.moved")].map((s) => s.textContent)')
        assert moved == [NAMES[1]]
        assert browser.console == []


def test_the_page_outlives_its_server(browser, folder):
    train(folder, 3)
    with served(WatchedFolder(folder.path)) as server:
        port = port_of(server)
        browser.open(address(server), WIDE)
        wait_for(browser, ROUND, "2 of 30")
        browser.run("window.mark = 1")  # lost if the page were loaded anew
    wait_for(browser, f"({LINK}).startsWith('The server does not answer')", True)
    assert browser.run(ROUND) == "2 of 30"
    train(folder, 2)
    with served(WatchedFolder(folder.path), port=port):
        wait_for(browser, ROUND, "4 of 30")
        wait_for(browser, LINK, "")
        assert browser.run("window.mark") == 1
        folder.append(row(5))
        wait_for(browser, ROUND, "5 of 30")
    assert faults(browser) == []


def test_a_page_of_another_version_loads_itself_anew(browser, folder, monkeypatch):
    train(folder, 3)
    with served(WatchedFolder(folder.path)) as server:
        browser.open(address(server), WIDE)
        wait_for(browser, ROUND, "2 of 30")
        browser.run("window.mark = 1")
        monkeypatch.setattr("coterie.reporting.live.feed.build", lambda: "another")
        monkeypatch.setattr("coterie.reporting.live.page.build", lambda: "another")
        train(folder, 1)
        wait_for(browser, "window.mark === undefined && document.body?.dataset.build", "another")
        assert browser.console == []


def test_what_a_reader_opened_sorted_and_hid_stays(browser, folder):
    train(folder, 9)
    with served(WatchedFolder(folder.path)) as server:
        browser.open(address(server), WIDE)
        wait_for(browser, ROUND, "8 of 30")
        watch = server.feed.watched
        browser.run('document.querySelector("#sites summary").click()')
        browser.run('document.querySelectorAll("#sites th button")[2].click()')
        browser.run('document.querySelectorAll("#sites th button")[2].click()')
        browser.run(f'document.querySelector("button[data-series={NAMES[0]}]").click()')
        before = browser.run('document.getElementById("sites").innerHTML')
        train(folder, 2)
        wait_for(browser, ROUND, "10 of 30")
        assert watch.dashboard().chosen.round == 10
        assert browser.run('document.getElementById("sites").innerHTML') != before
        assert browser.run('document.querySelector("#sites details").open') is True
        scores = browser.run(
            '[...document.querySelectorAll("#sites tbody tr")].map((r) => +r.cells[2].textContent)'
        )
        assert scores == sorted(scores, reverse=True)
        assert browser.run('document.querySelectorAll("#by_site [data-line].off").length') == 1
        assert browser.console == []


@pytest.mark.parametrize("sites", [4, 200])
@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_nothing_overflows_with_few_and_many_sites(browser, tmp_path, sites, width):
    names = [f"a clinic with quite a long name, number {i}" for i in range(sites)]
    folder = make(tmp_path / "run", names=names, rounds=60)
    train(folder, 40, clients=sites)
    with served(WatchedFolder(folder.path)) as server:
        browser.open(address(server), width, dark=width == PHONE)
        wait_for(browser, ROUND, "39 of 60")
        assert browser.run(WIDTH) <= width
        assert browser.run('document.querySelectorAll(".card li").length') == sites
        drawn = browser.run(
            '[...document.querySelectorAll(".picture > svg")]'
            ".map((p) => [p.clientWidth, p.querySelectorAll('rect, circle, path').length])"
        )
        assert len(drawn) >= 3
        for wide, marks in drawn:
            assert 150 < wide <= width and marks > 0
        assert browser.console == []
