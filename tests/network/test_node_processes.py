"""A simulation and its nodes: which have ended, and with which error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coterie.core.errors import CoterieError
from coterie.network.handshake import SitesFailed
from coterie.network.local_table import BAD_TABLE
from coterie.network.simulation import ChildProcesses, NodesEnded, quote_nodes
from coterie.network.states import SiteFolder


@pytest.fixture
def nodes(tmp_path):
    """The nodes of ash, which has ended with an error, and of elm, which lives."""
    nodes = ChildProcesses(tmp_path)
    for name, code in {"ash": "", "elm": "import time; time.sleep(60)"}.items():
        nodes.processes[name] = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE
        )
    nodes.log_of("ash").write_text("connected\ncoterie: the column a of client 'ash' is bad.\n")
    nodes.log_of("elm").write_text("connected\n")
    nodes.processes["ash"].wait()
    yield nodes
    nodes.stop()
    assert nodes.ended() == {"ash", "elm"}


def test_who_has_ended_and_with_which_error(nodes):
    assert nodes.ended() == {"ash"}
    assert nodes.errors() == {"the column a is bad.": ["ash"]}
    nodes.wait_for_end(["ash"], 60)  # at once


@pytest.mark.parametrize("text", ["", "connected\n", "coterie: wrong.\nconnected\n"])
def test_a_log_without_an_error_at_its_end_has_none(text, nodes):
    nodes.log_of("ash").write_text(text)
    assert nodes.errors() == {}


@pytest.mark.parametrize(
    "error, sentence",
    [
        (NodesEnded(["ash"]), "the nodes of ash ended before the run did; ash says: the column a"),
        (SitesFailed({"ash": BAD_TABLE}), "not all sites can join the run: ash says: the column"),
        (SitesFailed({"ash": BAD_TABLE, "elm": "no"}), "not all sites .* elm .no.; ash says: the"),
    ],
)
def test_the_error_of_a_node_is_quoted(error, sentence, nodes):
    with pytest.raises(CoterieError, match=sentence):
        raise quote_nodes(error, nodes)


def test_a_sites_folder_of_a_run_carries_its_name(tmp_path):
    names = ("Long Beach", "a/b", "a_b", "a:b", "é" * 300, "é" * 301)
    paths = [SiteFolder(tmp_path, "1f2e3d4c5b6a7988", name).path.name for name in names]
    assert paths[0] == "Long Beach-run-1f2e3d4c5b6a7988"
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert "/" not in path and len(path.encode()) < 255
