"""The site's half of the Flower app that `coterie network new` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Message

from coterie.cli.flags import FlagValues, flags_of
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.engines.codec import BadBytes
from coterie.network.flower import encode_name, encode_packets, read_packet
from coterie.network.packets import Refused, pack_reply
from coterie.network.policy import PolicyFlags, policy_of


@dataclass(frozen=True, kw_only=True)
class NodeConfig(PolicyFlags):
    """The keys of `flower-supernode --node-config`; other keys may belong to other apps."""

    data: str | None = setting(None, "the site's table: a CSV, Excel or Parquet file")
    site: str | None = setting(None, "the site's name; none: that of the table")
    state: str = setting("coterie-site", "folder for the site's private state and its own model")

    @property
    def table(self) -> Path:
        """The site's table."""
        if self.data is None:
            raise CoterieError(
                "the node config names no table", "give --node-config 'data=\"patients.csv\"'"
            )
        return Path(self.data)

    @property
    def name(self) -> str:
        """The site's name."""
        return self.site or self.table.stem


def read_node_config(config: Mapping[str, Any]) -> NodeConfig:
    """Read the node config; unknown keys are ignored."""
    given = {key.replace("-", "_"): value for key, value in config.items()}
    known = {flag.key: flag for flag in flags_of(NodeConfig)}
    return FlagValues(known, {}, given, "the node config").make(NodeConfig)


def tell_name(message: Message, config: Mapping[str, Any]) -> Message:
    """Reply to a request for the site's name.

    Args:
        message: The request.
        config: The node config of the SuperNode.
    """
    return Message(encode_name(read_node_config(config).name), reply_to=message)


def answer(message: Message, config: Mapping[str, Any]) -> Message:
    """Reply to a request of the server, using the site's own table.

    A malformed request gets the reply `Refused`. Flower may start a process for each message, so
    nothing is kept in memory between two of them: private state is in the folder `state` of the
    node config.

    Args:
        message: The request.
        config: The node config of the SuperNode.
    """
    from coterie.network.site import NetworkSite

    node = read_node_config(config)
    site = NetworkSite(node.name, node.table, Path(node.state), policy_of(node))
    try:
        reply = site.handle(read_packet(message))
    except BadBytes as e:
        reply = pack_reply(None, Refused(str(e)))
    (content,) = encode_packets([reply])
    return Message(content, reply_to=message)
