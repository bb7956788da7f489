"""The table [network] of a config file: what a server is told there counts as its flags do."""

from __future__ import annotations

import pytest
from made_network import write_tables

from coterie.cli import main
from coterie.cli.network_config import ServerFlags, read_network_flags
from coterie.cli.network_server import SimulateFlags, check_minimum_sites, wait_for_sites
from coterie.core.errors import CoterieError

CONFIG = 'method = "ifca"\nclusters = 2\nlabel = "outcome"\ndata = "folder:sites"\n'


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "sites", ("ash", "elm"))
    return tmp_path


def flags_for(place, table: str, *argv: str, command=("server", ServerFlags)):
    (place / "net.toml").write_text(f"{CONFIG}\n[network]\n{table}\n")
    name, cls = command
    flags, config = read_network_flags(name, cls, "", ["net.toml"], list(argv))
    assert config == "net.toml"
    return flags


def test_the_table_counts_over_defaults_and_flags_over_the_table(place):
    table = (
        'deadline = 7.5\nquorum = 1\nminimum-sites = 3\nport = 9000\nhost = "10.0.0.1"\npage = 80'
    )
    flags = flags_for(place, table, "--deadline", "9")
    assert (flags.deadline, flags.quorum, flags.minimum_sites) == (9.0, 1.0, 3)
    assert (flags.port, flags.host, flags.page, flags.wait) == (9000, "10.0.0.1", 80, 3600.0)
    assert flags.waiting().deadline == 9.0
    assert flags_for(place, "").deadline == 120.0


def test_a_simulation_obeys_how_to_wait_and_keeps_its_own_port(place):
    simulate = ("simulate", SimulateFlags)
    flags = flags_for(place, "deadline = 7\nport = 9000\npage = 80", command=simulate)
    assert flags.deadline == 7.0 and flags.port == 0


@pytest.mark.parametrize(
    "table, sentence",
    [
        ("dead_line = 5", "unknown key in [network] of net.toml 'dead_line': did you mean 'dead"),
        ("qorum = 0.5", "did you mean 'quorum'?"),
        ("quorum = 1.5", "quorum is 1.5: it must be ≤ 1."),
        ('deadline = "soon"', "deadline in [network] of net.toml is 'soon': it must be a number"),
        ("port = [1, 2]", "port in [network] of net.toml is [1, 2]: it must be a whole number"),
        ("resume = true", "give the flag --resume."),
        ("minimum_sites = 1\nminimum-sites = 2", "minimum_sites occurs twice in [network]"),
        ("wait = 2020-01-01", "network.wait in net.toml is a date or a time"),
    ],
)
@pytest.mark.parametrize("command", ["server", "simulate"])
def test_what_no_server_has_is_refused_with_the_nearest_name(
    command, table, sentence, place, capsys
):
    (place / "net.toml").write_text(f"{CONFIG}\n[network]\n{table}\n")
    if command == "simulate" and "port" in table:
        pytest.skip("a simulation has a port of its own")
    assert main(["network", command, "net.toml"]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said and len(said.splitlines()) == 1


def test_network_is_a_table(place, capsys):
    (place / "net.toml").write_text(f"network = 5\n{CONFIG}")
    assert main(["network", "server", "net.toml"]) == 2
    assert "network in net.toml is not a table: write [network]" in capsys.readouterr().err


# ------------------------------------------------------------------------------ enough sites
class Waited:
    """A post for whose sites the time is over."""

    def __init__(self, *missing: str) -> None:
        self.missing = list(missing)

    def __call__(self, experiment: str, epoch: int):
        return self

    def wait_for(self, names: list[str], seconds: float) -> list[str]:
        assert seconds == 5.0
        return self.missing


THREE = ["ash", "elm", "oak"]


def test_a_run_begins_with_enough_sites_when_the_time_is_over(caplog):
    flags = ServerFlags(wait=5.0, minimum_sites=2)
    assert wait_for_sites(flags, THREE, Waited()) == THREE
    assert wait_for_sites(flags, THREE, Waited("elm")) == ["ash", "oak"]
    assert "the run starts without elm." in caplog.text
    with pytest.raises(CoterieError, match="ash, elm did not connect"):
        wait_for_sites(flags, THREE, Waited("ash", "elm"))
    with pytest.raises(CoterieError, match="oak did not connect"):
        wait_for_sites(ServerFlags(wait=5.0), THREE, Waited("oak"))


def test_more_sites_than_have_certificates_are_not_waited_for():
    check_minimum_sites(ServerFlags(minimum_sites=3), 3)
    with pytest.raises(
        CoterieError, match="the run needs 4 sites, but 3 have a certificate in certs"
    ):
        check_minimum_sites(ServerFlags(minimum_sites=4), 3)
