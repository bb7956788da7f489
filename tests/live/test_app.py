"""The page over HTTP: who may look, what a browser may do with it, what its events hold."""

from __future__ import annotations

import http.client
import re
import socket
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_run import NAMES, ODD, make, row, save, train

from coterie.core.errors import CoterieError
from coterie.reporting.live import server as app_module
from coterie.reporting.live.folder import WatchedFolder
from coterie.reporting.live.page import SECTIONS, render_page
from coterie.reporting.live.server import LiveServer, listen
from coterie.reporting.live.snapshot import SiteReport
from coterie.runs.folder import RunFolder
from serving import KEY, TOKEN, Stream, ask, port_of, served


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = make(tmp_path / "run")
    train(made, 5)
    return made


@pytest.fixture
def server(folder):
    with served(WatchedFolder(folder.path)) as running:
        yield running


# ------------------------------------------------------------------------------ the token
@pytest.mark.parametrize("path", ["/", "/events", "/page.js", "/page.css", "/nothing", "/?run=."])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer "},
        {"Cookie": f"coterie={TOKEN}"},
        {"Authorization": "Bearer \xe9\xe9"},
    ],
)
def test_nothing_is_shown_without_the_token(server, path, headers):
    answer = ask(server, path, headers)
    assert answer.status == 401 and answer.text == app_module.UNAUTHORIZED
    assert "set-cookie" not in answer.headers


def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(server):
    answer = ask(server, f"/?token={TOKEN}&run=a%2Fb", {})
    assert answer.status == 303 and answer.headers["location"] == "./?run=a%2Fb"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie
    name_and_value = cookie.partition(";")[0]
    assert name_and_value.endswith(f"={TOKEN}")
    assert ask(server, "/", {"Cookie": name_and_value}).status == 200
    assert ask(server, "/?token=wrong", {}).status == 401
    assert ask(server, f"/page.js?token={TOKEN}", {}).status == 401  # only the page takes it


def test_two_servers_on_one_machine_have_cookies_of_their_own(folder, server):
    with served(WatchedFolder(folder.path), token="another-token") as other:
        names = [
            ask(one, f"/?token={token}", {}).headers["set-cookie"].partition("=")[0]
            for one, token in ((server, TOKEN), (other, "another-token"))
        ]
    assert names[0] != names[1]


def test_tokens_are_compared_in_constant_time(server, monkeypatch):
    compared = []
    real = app_module.secrets.compare_digest
    monkeypatch.setattr(
        app_module.secrets, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b)
    )
    ask(server, "/", {"Authorization": "Bearer guess"})
    assert (b"guess", TOKEN.encode()) in compared


@pytest.mark.parametrize("token", ["", "short", "with space and more", "sémaphore", "a;b=c;d=e"])
def test_tokens_that_cannot_stand_in_a_cookie_are_refused(folder, token):
    with pytest.raises(CoterieError, match="the token must have at least 8"):
        LiveServer(WatchedFolder(folder.path), token=token)


def test_tokens_are_random_where_none_is_given(folder):
    made = [LiveServer(WatchedFolder(folder.path)) for _ in range(2)]
    for one in made:
        one.socket.close()
    assert made[0].token != made[1].token and len(made[0].token) >= 20


# ------------------------------------------------------------------------------ read-only, and safe
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(server, method):
    for path in ("/", "/events", "/page.js"):
        assert ask(server, path, method=method).status == 405


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/nothing"])
@pytest.mark.parametrize("headers", [KEY, {}])
def test_every_answer_forbids_all_but_its_own_script_and_style(server, path, headers):
    sent = ask(server, path, headers).headers
    policy = sent["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "style-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in sent["content-security-policy"]
    assert sent["x-content-type-options"] == "nosniff" and sent["cache-control"] == "no-store"
    assert sent["referrer-policy"] == "no-referrer"
    assert "server" not in sent


class Tags(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


def test_names_and_words_are_escaped_and_nothing_comes_from_elsewhere(tmp_path):
    folder = make(tmp_path / "run", names=[*NAMES, ODD])
    for r in range(4):
        groups = [0, 1, r % 2, 0, r % 2]
        folder.append(row(r, groups, rejected=[ODD], clipped=[ODD], accuracy=0.5))
        save(folder, r, [0.1, 0.2, 0.3, 0.4, 0.5])
    (folder.path / "log.txt").write_text(f"{ODD} was refused\n")
    reports = {ODD: SiteReport(ODD, ODD, is_healthy=False)}
    board = WatchedFolder(folder.path, reports=lambda: reports).dashboard()
    page = render_page(board, 0).html
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") > 8 and "<img" not in page
    tags = Tags(page).tags
    for tag, attributes in tags:
        assert "style" not in attributes, tag
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "href"):
            assert not re.match(r"https?:|//", attributes.get(name) or ""), tag
    assert [tag for tag, _ in tags].count("script") == 1
    assert "<style" not in page


def test_a_page_has_all_sections_and_works_without_its_script(server):
    page = ask(server, "/").text
    for name in SECTIONS:
        assert f'<div id="{name}">' in page
    assert "4 of 30" in page and "ifca on data in memory" in page and "Aachen" in page


# ------------------------------------------------------------------------------ events
def test_events_hold_only_what_changed(server, folder):
    stream = Stream(server)
    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    first = stream.next()
    assert set(first["sections"]) == set(SECTIONS) and "4 of 30" in first["sections"]["top"]
    assert abs(first["now"] - time.time()) < 60
    (folder.path / "log.txt").write_text("WARNING something\n")
    second = stream.next()
    assert list(second["sections"]) == ["log"] and "something" in second["sections"]["log"]
    folder.append(row(5, [0, 0, 1, 1], accuracy=0.75))
    third = stream.next()["sections"]
    assert "5 of 30" in third["top"] and "0.750" in third["top"] and "log" not in third
    stream.close()


def test_a_page_that_nobody_watches_is_not_drawn(folder, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "coterie.reporting.live.feed.render_page",
        lambda board, version: drawn.append(1) or render_page(board, version),
    )
    with served(WatchedFolder(folder.path)) as server:
        for r in range(5, 8):
            folder.append(row(r))
            time.sleep(0.3)
        assert not drawn
        assert "7 of 30" in ask(server, "/").text and drawn == [1]
        version = server.feed.version
        ask(server, "/")
        assert drawn == [1] or server.feed.version != version  # one drawing for all who look


def test_slow_drawing_makes_pages_rarer(folder):
    with served(WatchedFolder(folder.path)) as server:
        server.feed._render_seconds = 60.0
        before = server.feed.version
        folder.append(row(5))
        time.sleep(0.6)
        assert server.feed.version == before
        server.feed._render_seconds = 0.0
        time.sleep(0.6)
        assert server.feed.version > before


def test_streams_are_counted_and_limited(server, monkeypatch):
    monkeypatch.setattr(app_module, "MAX_STREAMS", 2)
    streams = [Stream(server) for _ in range(2)]
    for stream in streams:
        stream.next()
    assert ask(server, "/events").status == 503
    for stream in streams:
        stream.close()
    deadline = time.monotonic() + 10
    while ask_events_status(server) == 503:
        assert time.monotonic() < deadline, "a closed stream still counts"
        time.sleep(0.1)


def ask_events_status(server: LiveServer) -> int:
    stream = Stream(server)
    status: int = stream.answer.status
    stream.close()
    return status


def test_connections_are_limited(server, monkeypatch):
    monkeypatch.setattr(app_module, "MAX_CONNECTIONS", 3)
    opened = []
    try:
        for _ in range(3):
            opened.append(socket.create_connection(("127.0.0.1", port_of(server)), timeout=5))
            opened[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert opened[-1].recv(100).startswith(b"HTTP/1.1 401")
        opened.append(socket.create_connection(("127.0.0.1", port_of(server)), timeout=5))
        assert opened[-1].recv(1) == b"", "closed at once"
    finally:
        for one in opened:
            one.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            assert ask(server, "/").status == 200
            return
        except (ConnectionError, http.client.RemoteDisconnected):
            time.sleep(0.1)
    pytest.fail("closed connections still count")


def test_a_server_ends_its_streams_and_its_port_is_free_at_once(folder):
    with served(WatchedFolder(folder.path)) as server:
        port = port_of(server)
        stream = Stream(server)
        stream.next()
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert stream.answer.read() == b""  # ended as it should, not cut off
    with served(WatchedFolder(folder.path), port=port) as server:
        assert ask(server, "/").status == 200


def test_a_reader_that_reads_nothing_does_not_keep_the_server_up(tmp_path, caplog):
    folder = make(tmp_path / "run", names=[f"site {i}" for i in range(200)], rounds=400)
    train(folder, 200, clients=200)
    with served(WatchedFolder(folder.path)) as server, socket.socket() as asleep:
        asleep.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asleep.connect(("127.0.0.1", port_of(server)))
        asking = "\r\n".join(f"GET / HTTP/1.1|Host: x|Authorization: Bearer {TOKEN}||".split("|"))
        asleep.sendall(10 * asking.encode())
        time.sleep(1)
        server.should_exit = True
        began = time.monotonic()
        while server.started and time.monotonic() < began + 10:
            time.sleep(0.05)
        assert time.monotonic() - began < 5
    assert not caplog.records


def test_a_look_that_fails_leaves_the_page_up(folder):
    watch = WatchedFolder(folder.path)
    fail = [True]

    def poll():
        if fail[0]:
            raise RuntimeError("a bug")
        return real()

    real, watch.poll = watch.poll, poll
    with served(watch) as server:
        time.sleep(0.3)
        assert ask(server, "/").status == 200
        fail[0] = False
        folder.append(row(5))
        stream = Stream(server)
        while "5 of 30" not in stream.next()["sections"].get("top", ""):
            pass
        stream.close()


# ------------------------------------------------------------------------------ ports
def test_a_port_in_use_and_a_host_of_others_are_one_sentence():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CoterieError, match=f"port {port} of 127.0.0.1 is in use: give another"):
            listen("127.0.0.1", port)
    for host in ("192.0.2.1", "no.such.host.invalid", "."):
        with pytest.raises(CoterieError, match="is not an address of this machine"):
            listen(host, 0)
