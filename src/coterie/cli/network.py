"""`coterie network`: the same run on real sites."""

from __future__ import annotations

from collections.abc import Callable

from coterie.cli.flags import Parser
from coterie.cli.network_new import new
from coterie.cli.network_node import node
from coterie.cli.network_owner import leave, pause, unpause
from coterie.cli.network_server import server
from coterie.cli.network_simulate import simulate
from coterie.cli.network_tools import certs, describe, status
from coterie.errors import unknown

USAGE = """\
The same run on real sites, which keep their rows.

  coterie network simulate CONFIG       all of it on this machine, for a first try
  coterie network certs DIR             certificates of a server, and keys of its sites
  coterie network server CONFIG         a server, which waits for its sites and trains
  coterie network node --data FILE …    a site: answers a server, and keeps its rows
  coterie network describe CONFIG --data FILE
                                        what would leave a site before the first round
  coterie network peers CONFIG …        a method without a server, one process per client
  coterie network status RUN            round, groups, who answers and who does not
  coterie network pause                 let a site rest; `unpause` ends that, `leave` is for good
  coterie network new DIR               an app for those who already run Flower

CONFIG is a TOML file as for `coterie run --config`, with a key `method`.
"""


def network(words: list[str], argv: list[str]) -> int:
    """`coterie network COMMAND`"""
    if not words:
        Parser("coterie network COMMAND", [], USAGE).print_help()
        return 0
    from coterie.cli.network_peers import peers

    commands: dict[str, Callable[[list[str], list[str]], int]] = {
        "simulate": simulate,
        "certs": certs,
        "server": server,
        "node": node,
        "describe": describe,
        "status": status,
        "peers": peers,
        "pause": pause,
        "unpause": unpause,
        "leave": leave,
        "new": new,
    }
    if words[0] not in commands:
        raise unknown("command of coterie network", words[0], commands)
    return commands[words[0]](words[1:], argv)
