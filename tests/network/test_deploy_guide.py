"""docs/deploy.md word for word: each host is a network namespace with its own folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_network import write_tables

import coterie as ct
from coterie.runs.late_sites import read_late_sites
from machines import environment, namespaces_are_permitted, wait_for

ROOT = Path(__file__).parent.parent.parent
SITES = ("north", "south", "west")
BLOCK = re.compile(r"^```text\n# (.+?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, list[str]]]:
    """(where, commands) of each block of the guide, in its order."""
    text = (ROOT / "docs/deploy.md").read_text()
    return [(where, code.splitlines()) for where, code in BLOCK.findall(text)]


class Hosts:
    """A server and three sites, each with a network, a folder and a file of hosts of its own.

    Each site has a cable to the server, and none to another site.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.number = os.getpid() % 100_000
        self.processes: dict[str, subprocess.Popen] = {}
        for host in ("server", *SITES):
            (base / host).mkdir()
            self.ip("netns", "add", self.space(host))
            self.inside(host, "ip", "link", "set", "lo", "up")
        for i, site in enumerate(SITES):
            self.connect(site, f"10.77.{i}")

    def space(self, host: str) -> str:
        return f"coterie-{self.number}-{host}"

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def inside(self, host: str, *words: str) -> None:
        self.ip("netns", "exec", self.space(host), *words)

    def connect(self, site: str, net: str) -> None:
        ends = f"c{self.number}{site[0]}0", f"c{self.number}{site[0]}1"
        self.ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for end, host, number in zip(ends, ("server", site), (1, 2)):
            self.ip("link", "set", end, "netns", self.space(host))
            self.inside(host, "ip", "addr", "add", f"{net}.{number}/24", "dev", end)
            self.inside(host, "ip", "link", "set", end, "up")
        names = Path("/etc/netns") / self.space(site)
        names.mkdir(parents=True)
        (names / "hosts").write_text(f"127.0.0.1 localhost\n{net}.1 server.example.org\n")

    def cable(self, site: str, state: str) -> None:
        """Plug a site's cable, "up", or pull it, "down"."""
        self.inside(site, "ip", "link", "set", f"c{self.number}{site[0]}1", state)

    # -- commands
    def command(self, host: str, line: str) -> list[str]:
        words = line.split()
        assert words[0] == "coterie", line
        in_space = ["ip", "netns", "exec", self.space(host)]
        return [*in_space, sys.executable, "-m", "coterie", *words[1:]]

    def options(self, host: str) -> dict:
        return {"cwd": self.base / host, "env": environment()}

    def run(self, host: str, line: str) -> str:
        done = subprocess.run(
            self.command(host, line), capture_output=True, text=True, **self.options(host)
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        return done.stdout

    def start(self, host: str, line: str) -> None:
        """Start a server or a node; stop the earlier one of this host first."""
        if host in self.processes:
            self.processes[host].terminate()
            self.processes[host].wait(60)
        with open(self.base / host / "log", "ab") as log:
            self.processes[host] = subprocess.Popen(
                self.command(host, line), stdout=log, stderr=log, **self.options(host)
            )

    def copy(self, host: str, line: str) -> None:
        *files, target = line.split()[1:]
        assert target.endswith(":")
        for file in files:
            shutil.copy(self.base / host / file, self.base / target[:-1])

    def follow(self, where: str, lines: list[str]) -> None:
        """Do what a block of the guide says."""
        host = where.removeprefix("on the ").removeprefix("at the site ")
        for line in lines:
            if line.startswith("scp "):
                self.copy(host, line)
            elif line.startswith(("coterie network node", "coterie network server")):
                self.start(host, line)
            else:
                self.run(host, line)

    def log(self, host: str) -> str:
        return (self.base / host / "log").read_text()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for host in ("server", *SITES):
            subprocess.run(["ip", "netns", "del", self.space(host)], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / self.space(host), ignore_errors=True)


@pytest.fixture
def hosts(tmp_path):
    if not namespaces_are_permitted():
        pytest.skip("network namespaces are not permitted here")
    hosts = Hosts(tmp_path)
    write_tables(tmp_path / "tables", SITES)
    for site in SITES:
        shutil.copy(tmp_path / f"tables/{site}.csv", tmp_path / site / "patients.csv")
    yield hosts
    hosts.close()


FETCH = """
import sys, urllib.request
request = urllib.request.Request(
    "http://127.0.0.1:8800/metrics", headers={"Authorization": "Bearer " + sys.argv[1]}
)
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""


def fetch_metrics(hosts: Hosts) -> str:
    token = (hosts.base / "server/certs/page-token").read_text().strip()
    words = ["ip", "netns", "exec", hosts.space("server"), sys.executable, "-c", FETCH, token]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.network
def test_the_guide_leads_to_a_run_on_several_hosts(hosts):
    """Meanwhile a cable is pulled, and the server is killed and started by the same command."""
    places = [where for where, _ in blocks()]
    assert places.count("on the server") >= 5 and "net.toml" in places
    server = hosts.base / "server"
    start = ""
    for where, lines in blocks():
        if where == "on every host" or where.endswith("as root"):
            continue  # it would change this machine
        if where == "net.toml":
            (server / "net.toml").write_text("\n".join(lines) + "\n")
            continue
        if lines[0].startswith("coterie network status"):
            wait_for((server / "run/diary.jsonl").exists, 120, "the first round")
        if "--revoke west" in lines[0]:
            joined = lambda: "west" in read_late_sites(server / "run")
            wait_for(joined, 120, "the site that comes late")
        hosts.follow(where, lines)
        if lines[0].startswith("coterie network server"):
            start = lines[0]
    wait_for(lambda: "does not accept this site" in hosts.log("west"), 60, "the revocation")
    wait_for(lambda: hosts.log("south").count("south: connected") >= 2, 60, "the renewed site")
    assert hosts.processes["server"].poll() is None, "all this happens during the run"
    hosts.cable("south", "down")
    metrics = fetch_metrics(hosts)
    assert "coterie_sites_registered 2" in metrics and "coterie_rounds 500" in metrics
    hosts.processes["server"].kill()
    hosts.processes["server"].wait()
    hosts.cable("south", "up")
    hosts.start("server", start)
    assert hosts.processes["server"].wait(240) == 0, hosts.log("server")
    assert ct.load(server / "run").trained.round == 500
    for site in SITES:
        wait_for(
            lambda site=site: list((hosts.base / site).glob("coterie-site/*/model/card.json")),
            30, f"the model of {site}",
        )  # fmt: skip
    assert ct.load(server / "run").trained.roster.names == ("north", "south")
    west = read_late_sites(server / "run")["west"]
    assert west.group in (0, 1) and not west.fault
    lines = [json.loads(line) for line in (server / "run/audit.jsonl").read_text().splitlines()]
    assert {line["epoch"] for line in lines} == {1, 2}
    assert not list(server.rglob("patients*")), "the server has no table"


# ------------------------------------------------------------------------------ files
def flags_are_known(words: list[str]) -> None:
    """A command of ours names flags that exist, and all that must be given."""
    from coterie.cli.flags import Parser, flags_of
    from coterie.cli.network_config import ServerFlags
    from coterie.cli.network_site import NodeFlags

    kinds = {"server": ServerFlags, "node": NodeFlags}
    flags = [word for word in words if word.startswith("--")]
    assert flags, words
    rest = words[words.index(flags[0]) :]
    Parser("test", flags_of(kinds[words[0]])).parse(rest)


def test_the_services_of_compose_are_a_server_and_three_nodes_that_can_start():
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    assert set(services) == {"server", "north", "south", "west"}
    for name, service in services.items():
        words = service["command"].split()
        flags_are_known(words)
        inside = [volume.split(":")[1] for volume in service["volumes"]]
        for flag in ("--key", "--data", "--state", "--certs"):
            if flag in words:
                file = words[words.index(flag) + 1]
                assert f"/home/coterie/{file}" in inside, f"{file} of {name} is not mounted"
        if name != "server":
            assert words[words.index("--server") + 1] == "server:8443"
            assert service["volumes"][1].endswith(f"/certs/{name}.pem:/home/coterie/{name}.pem:ro")


@pytest.mark.parametrize("unit", ["coterie-server", "coterie-node"])
def test_units_of_systemd_name_flags_that_exist(unit, tmp_path):
    text = (ROOT / f"deploy/{unit}.service").read_text()
    (command,) = re.findall(r"^ExecStart=/opt/coterie/bin/coterie network (.+)$", text, re.M)
    flags_are_known(command.split())
    if shutil.which("systemd-analyze") is None:
        return
    here = text.replace("/opt/coterie/bin/coterie", sys.executable)
    here = here.replace("User=coterie", "User=root")
    (tmp_path / f"{unit}.service").write_text(here)
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / f"{unit}.service")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert unit not in checked.stderr, checked.stderr


def test_the_image_gets_what_it_installs():
    """What is copied is there, and not left out by .dockerignore."""
    text = (ROOT / "deploy/Dockerfile").read_text()
    let_in = (ROOT / ".dockerignore").read_text().split()
    for line in re.findall(r"^COPY (.+)$", text, re.M):
        for file in line.split()[:-1]:
            assert (ROOT / file).exists() and f"!{file}" in let_in
    extras = re.search(r"/build\[([\w,]+)\]", text)[1].split(",")
    known = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in known for extra in extras)
