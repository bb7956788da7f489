"""What a server keeps and tells of its exchanges: the audit, metrics, and the sites on its page."""

from __future__ import annotations

import json
import logging

import pytest
from made_network import NAMES, InProcessNetwork

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.network.connections import Refusals
from coterie.network.https_server import TOO_LONG
from coterie.network.monitoring import (
    MAX_REASONS,
    OTHER_REASON,
    LivePage,
    WatchedServer,
    group_reasons,
    page_token,
)
from coterie.network.packets import Reply, read_head
from coterie.runs.folder import RunFolder
from serving import TOKEN, ask

IFCA = ct.IFCA(clusters=2, local_steps=3)
FIELDS = {
    "time", "epoch", "sequence", "round", "phase", "function", "site", "bytes_out", "bytes_in",
    "seconds", "result", "reason",
}  # fmt: skip


def audit_records(network: InProcessNetwork) -> list[dict]:
    return [json.loads(line) for line in (network.out / "audit.jsonl").read_text().splitlines()]


def losing_oak_and_poisoning_fir(name, request, reply):
    """oak's answers to questions are lost, and fir's are no uploads."""
    if b'"do":"call"' not in request.head:
        return [(0.0, reply)]
    if name == "oak":
        return []
    if name == "fir":
        return [(0.5, reply._replace(pieces={"upload": b"1,2,red"}))]
    return [(0.25, reply)]


def view_of(run, network: InProcessNetwork) -> WatchedServer:
    network.transport.refusals = Refusals()
    network.transport.names = sorted(NAMES)
    view = WatchedServer(network.transport, "a title", "soon")
    view.show(run)
    return view


# ------------------------------------------------------------------------------ the audit
def test_each_exchange_has_a_line_for_each_site_without_any_data(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA, losing_oak_and_poisoning_fir)
    run = network.run()
    lines = audit_records(network)
    assert all(set(line) == FIELDS for line in lines)
    sizes = {}
    for name, request, reply in network.transport.traffic:
        number = tuple(read_head(reply.head, Reply).number)
        sizes.setdefault((*number, name), []).append((request.size, reply.size))
    assert {(line["epoch"], line["sequence"], line["site"]) for line in lines} == set(sizes)
    for line in lines:
        sent = sizes[line["epoch"], line["sequence"], line["site"]]
        assert line["bytes_out"] == sum(out for out, _ in sent)
        if line["result"] == "accepted":
            assert line["bytes_in"] == sent[-1][1] and line["reason"] == ""
    started = [line["function"] for line in lines if line["phase"] == "start"]
    assert started == ["hello"] * 6 + ["check_model"] * 6 + ["agree"] * 6
    asked = [line for line in lines if line["round"] is not None]
    functions = {(line["phase"], line["function"]) for line in asked}
    assert functions == {
        ("train", "first_update"),
        ("train", "train_sent"),
        ("train", "train"),
        ("evaluate", "measure"),
    }  # the tables are too small to judge memberships on held-out rows
    results = {(line["site"], line["result"], line["reason"]) for line in asked}
    refused = "its upload cannot be read: "
    for site, result, reason in results:
        if site == "oak":
            assert (result, reason) == ("absent", "no answer")
        elif site == "fir":
            assert result == "refused" and reason.startswith(refused) and "red" not in reason
        else:
            assert (result, reason) == ("accepted", "")
    assert [line["function"] for line in lines[-6:]] == ["write_model"] * 6
    assert run.engine.messenger.audit.totals.exchanges == len({line["sequence"] for line in lines})


def test_the_audit_goes_on_after_a_restart_and_after_half_a_line(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA)
    run = network.begin()
    run.folder.append(run.step())
    run.save()
    with open(network.out / "audit.jsonl", "ab") as file:
        file.write(b'{"time": "2026')  # the server was killed while it wrote
    network.resume()
    text = (network.out / "audit.jsonl").read_text().splitlines()
    cut = [line for line in text if line == '{"time": "2026']
    whole = [json.loads(line) for line in text if line not in cut]
    assert len(cut) == 1 and {line["epoch"] for line in whole} == {1, 2}


def test_lines_are_on_the_disk_before_the_next_exchange(tmp_path):
    seen = []

    def fate(name, request, reply):
        if network.out.exists() and b'"do":"call"' in request.head:
            seen.append(max(line["sequence"] for line in audit_records(network)))
            assert seen[-1] == read_head(reply.head, Reply).number.sequence - 1
        return [(0.0, reply)]

    network = InProcessNetwork(tmp_path, IFCA, fate, options={"rounds": 1})
    network.run()
    assert len(set(seen)) > 3


def test_a_disk_without_room_for_the_audit_is_one_sentence(tmp_path, monkeypatch):
    network = InProcessNetwork(tmp_path, IFCA)
    run = network.begin()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coterie.network.audit.append_lines", full)
    with pytest.raises(CoterieError, match="the disk is full, .*audit.jsonl was not written"):
        run.train()


# ------------------------------------------------------------------------------ metrics
def read_metrics(text: str) -> dict[str, float]:
    """By name with labels, as Prometheus would read it."""
    values, declared = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            declared.add(line.split()[2])
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name.partition("{")[0] in declared
            values[name] = float(value)
    return values


def test_metrics_count_what_the_audit_says(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA, losing_oak_and_poisoning_fir)
    run = network.run()
    view = view_of(run, network)
    network.transport.away.add("elm")
    view.transport.refusals.add(TOO_LONG, "somebody")
    found = read_metrics(view.metrics_text())
    lines = audit_records(network)
    assert found["coterie_round"] == found["coterie_rounds"] == 3
    assert found["coterie_sites_connected"] == 5 and found["coterie_sites_registered"] == 6
    assert found["coterie_exchanges_total"] == len({line["sequence"] for line in lines})
    for result in ("accepted", "refused", "absent"):
        number = sum(line["result"] == result for line in lines)
        assert found[f'coterie_answers_total{{result="{result}"}}'] == number > 0
    for direction in ("in", "out"):
        size = sum(line[f"bytes_{direction}"] for line in lines)
        assert found[f'coterie_bytes_total{{direction="{direction}"}}'] == size
    refusals = {name: n for name, n in found.items() if "refused_answers" in name}
    assert sum(refusals.values()) == sum(line["result"] == "refused" for line in lines)
    assert found[f'coterie_refused_requests_total{{reason="{TOO_LONG}"}}'] == 1
    assert found["coterie_last_round_seconds"] == pytest.approx(run.history[-1]["seconds"])


def test_labels_are_escaped_and_few(tmp_path):
    reasons = {f"its head has {n} bytes": 2 for n in range(100)}
    assert group_reasons(reasons) == {"its head has N bytes": 200}
    letters = "abcdefghijklmnopqrstuvwxyz"
    many = group_reasons(dict.fromkeys(letters, 1))
    assert len(many) == MAX_REASONS + 1 and many[OTHER_REASON] == 6
    network = InProcessNetwork(tmp_path, IFCA)
    view = view_of(network.begin(), network)
    view.transport.refusals.counts = {'a"b\\c\nd': 1}
    line = 'coterie_refused_requests_total{reason="a\\"b\\\\c\\nd"} 1.0'
    assert line in view.metrics_text().splitlines()


# ------------------------------------------------------------------------------ the page
def test_the_page_shows_each_sites_state_and_last_words(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA, losing_oak_and_poisoning_fir)
    run = network.begin()
    for _ in range(2):
        run.folder.append(run.step())
        run.save()
    network.transport.away.add("elm")
    view = view_of(run, network)
    reports = view.reports()
    assert reports["elm"].state == "away" and not reports["elm"].is_healthy
    assert reports["ash"].state == "ready" and reports["ash"].is_healthy
    assert reports["ash"].message == "answered train of round 1 after 0.25 s"
    assert reports["oak"].message == "train of round 1: no answer" and not reports["oak"].is_healthy
    assert reports["fir"].message.startswith("train of round 1: its upload cannot be read")
    page = LivePage(view, "127.0.0.1", 0, TOKEN)
    try:
        assert ask(page.server, "/metrics", {}).status == 401
        assert ask(page.server, "/", {}).status == 401
        answer = ask(page.server, "/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert read_metrics(answer.text)["coterie_round"] == 1
        html = ask(page.server, "/").text
        assert "answered train of round 1 after 0.25 s" in html
        assert "6 sites" in html and "away" in html
        assert ask(page.server, "/metrics", method="POST").status == 405
    finally:
        page.close()
    assert not page.thread.is_alive()


def test_a_site_that_is_being_asked_is_working(tmp_path):
    states = []

    def fate(name, request, reply):
        if b'"do":"call"' in request.head and name == "oak":
            states.append({n: r.state for n, r in view.reports().items()})
        return [(0.0, reply)]

    network = InProcessNetwork(tmp_path, IFCA, fate, options={"rounds": 1})
    run = network.begin()
    view = view_of(run, network)
    run.step()
    assert states[0] == dict.fromkeys(NAMES, "working")
    assert {r.state for r in view.reports().values()} == {"ready"}


def test_the_token_stays_the_same_and_is_its_owners_alone(tmp_path):
    token = page_token(tmp_path)
    assert len(token) >= 20 and page_token(tmp_path) == token
    assert (tmp_path / "page-token").stat().st_mode & 0o77 == 0
    (tmp_path / "page-token").write_bytes(b"\xff\xfe")
    with pytest.raises(CoterieError, match="page-token cannot be read"):
        page_token(tmp_path)


def test_the_audit_and_the_log_of_a_run_begin_anew_before_they_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.network.audit.MAX_BYTES", 500)
    monkeypatch.setattr("coterie.runs.folder.LOG_BYTES", 200)
    network = InProcessNetwork(tmp_path, ct.IFCA(clusters=2), options={"rounds": 2})
    network.run()
    parts = [network.out / "audit.jsonl", *network.out.glob("audit-*.jsonl")]
    assert len(parts) > 2
    lines = [json.loads(line) for file in parts for line in file.read_text().splitlines()]
    asked = len(network.transport.traffic)
    assert len(lines) == asked, "no record is lost"
    with RunFolder.open(network.out)[0].log_file():
        for i in range(100):
            logging.getLogger("coterie").warning("line %d", i)
    kept = sum(file.stat().st_size for file in network.out.glob("log.txt*"))
    assert kept <= 500 and "line 99" in (network.out / "log.txt").read_text()
