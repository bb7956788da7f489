"""The page of a server from its start on: who is expected, then the run; and what it exports."""

from __future__ import annotations

import urllib.request

import pytest
from made_network import NAMES, InProcessNetwork, distance

import coterie as ct
from coterie.network.connections import Refusals, free_port
from coterie.network.monitoring import WatchedServer
from coterie.network.server import export_models
from machines import small_config, start, wait_for, write_tables
from serving import ask, served

IFCA = ct.IFCA(clusters=2, local_steps=3)


def watched_server(network: InProcessNetwork) -> WatchedServer:
    network.transport.refusals = Refusals()
    network.transport.names = sorted(NAMES)
    return WatchedServer(network.transport, "ifca on 6 sites", "The run begins when all are there.")


def page_of(watched: WatchedServer) -> str:
    with served(watched) as server:
        answer = ask(server, "/")
    assert answer.status == 200
    return answer.text


def test_a_page_says_who_is_expected_and_who_is_there_then_shows_the_run(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA)
    network.transport.away.update({"oak", "elm"})
    watched = watched_server(network)
    page = page_of(watched)
    assert "<title>ifca on 6 sites</title>" in page
    assert "Waiting for sites: 4 of 6 are connected" in page
    assert "The run begins when all are there." in page
    assert "<td>ash</td><td>connected</td>" in page and "<td>oak</td><td>away</td>" in page
    assert not watched.poll()
    network.transport.away.clear()
    assert watched.poll(), "two have come"
    assert "All 6 sites are connected" in page_of(watched)
    run = network.begin()
    watched.show(run)
    run.folder.append(run.step())
    assert watched.poll()
    page = page_of(watched)
    assert "Waiting for sites" not in page and "ifca" in page and ">ready<" in page


def test_metrics_are_there_before_the_run(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA)
    network.transport.away.add("oak")
    text = watched_server(network).metrics_text().splitlines()
    assert "coterie_round -1.0" in text
    assert "coterie_sites_registered 6.0" in text and "coterie_sites_connected 5.0" in text


def test_a_run_that_goes_on_is_shown_while_its_sites_come_back(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA)
    network.run()
    network.transport.away.add("oak")
    watched = watched_server(network)
    watched.show_folder(network.out)
    page = page_of(watched)
    assert ">away<" in page and ">connected<" in page and "Waiting for sites" not in page


# ------------------------------------------------------------------------------ exported models
def test_the_groups_models_are_exported_again_by_a_server_that_is_started_again(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA)
    run = network.run()
    folder = export_models(run, network.out / "models")
    first = ct.load(folder).models
    again = export_models(network.resume(), network.out / "models")
    assert again == folder and ct.load(again).card.per == "cluster"
    assert distance(ct.load(again).models, first) == 0 and len(first) == 2
    assert ct.load(network.out).trained.round == 3, "the run is still one"


def test_a_method_without_groups_exports_nothing(tmp_path):
    network = InProcessNetwork(tmp_path, ct.Ditto(local_steps=3), options={"rounds": 1})
    assert export_models(network.run(), network.out / "models") is None
    assert not (network.out / "models").exists()


# ------------------------------------------------------------------------------ real processes
@pytest.mark.slow
@pytest.mark.network
def test_a_server_has_a_page_before_any_site_and_models_in_the_end(tmp_path):
    (tmp_path / "net.toml").write_text(small_config("ifca", 2, "clusters = 2"))
    write_tables(tmp_path / "sites", NAMES[:2])
    words = ("certs", "certs", "--host", "127.0.0.1", "--sites", "ash,birch")
    assert start(tmp_path, *words, log="certs.log").wait(60) == 0
    port, page = str(free_port()), str(free_port())
    server = start(
        tmp_path, "server", "net.toml", "--out", "run", "--host", "127.0.0.1", "--port", port,
        "--page", page, log="server.log",
    )  # fmt: skip
    nodes = []
    try:
        wait_for(lambda: "shown at" in (tmp_path / "server.log").read_text(), 90, "the page")
        shown = f"shown at http://127.0.0.1:{page}/ with the token in certs/page-token\n"
        assert shown in (tmp_path / "server.log").read_text()
        token = (tmp_path / "certs/page-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        asked = urllib.request.Request(f"http://127.0.0.1:{page}/", headers=headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert "Waiting for sites: 0 of 2 are connected" in answer.read().decode()
        for name in NAMES[:2]:
            node = start(
                tmp_path, "node", "--data", f"sites/{name}.csv", "--server", f"127.0.0.1:{port}",
                "--key", f"certs/{name}.pem", "--state", f"states/{name}", "--label", "outcome",
                log=f"{name}.log",
            )  # fmt: skip
            nodes.append(node)
        assert server.wait(240) == 0, (tmp_path / "server.log").read_text()
    finally:
        for process in (server, *nodes):
            process.kill()
            process.wait()
    assert "models of the groups in run/models" in (tmp_path / "server.log").read_text()
    assert ct.load(tmp_path / "run/models").card.per == "cluster"
