"""The commands of `coterie network`, a line each; nothing here loads torch."""

from __future__ import annotations

from coterie.cli.command import Command

COMMANDS = {
    "simulate": Command(
        "simulate CONFIG", "all of it on this machine, for a first try", "network_simulate.simulate"
    ),
    "certs": Command(
        "certs DIR", "certificates of a server, and keys of its sites", "network_tools.certs"
    ),
    "server": Command(
        "server CONFIG [--resume]",
        "a server, which waits for its sites and trains",
        "network_server.server",
    ),
    "node": Command(
        "node --data FILE …", "a site: answers a server, and keeps its rows", "network_node.node"
    ),
    "describe": Command(
        "describe CONFIG …",
        "what would leave a site before the first round",
        "network_tools.describe",
    ),
    "peers": Command(
        "peers CONFIG …",
        "a method without a server, one process per client",
        "network_peers.peers",
    ),
    "status": Command(
        "status RUN", "round, groups, who answers and who does not", "network_tools.status"
    ),
    "pause": Command("pause", "let a site rest", "network_owner.pause"),
    "unpause": Command("unpause", "let it take part again", "network_owner.unpause"),
    "leave": Command("leave", "let it leave for good", "network_owner.leave"),
    "new": Command("new DIR", "an app for those who already run Flower", "network_new.new"),
}


def list_commands() -> str:
    """All commands of a network, a line each."""
    return "\n".join(f"  coterie network {c.usage:<26} {c.help}" for c in COMMANDS.values())
