"""The app of `coterie network new` on a Grid in this process."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity  # without it no Message can be made here
from made_network import NAMES, InProcessNetwork, write_tables

import coterie as ct
from coterie.network.flower_setup import write_app

RUN, SERVER = 7, 1
CONFIG = """
method = "{method}"
clusters = 2
rounds = 3
seed = 1
participation = 0.7
eval_every = 2
label = "outcome"
data = "folder:nowhere"
model = "mlp:4"
dtype = "float64"
"""
METHODS = {"ifca": ct.IFCA, "fedsoft": ct.FedSoft, "cgpfl": ct.CGPFL}


@dataclass
class FakeNode:
    """A SuperNode: a node config, and a name if its key was registered under one."""

    config: dict[str, Any]
    name: str = ""
    starts: int = 1
    online: bool = True


@dataclass
class FakeGrid(Grid):
    """Answers when it is asked for replies; time is a number.

    Like Flower's own Grid, `pull_messages` first deletes all replies that it returns and then
    decodes them: if one cannot be decoded, it raises, and the others of this call are lost.

    Attributes:
        client_app: The ClientApp of all nodes.
        nodes: Nodes by id.
        fate: From a node and a message, an error in place of its reply, or None.
        forge: From a node and its reply, what arrives instead. It raises what decoding would raise.
        fault: Raised by every request to the SuperLink.
    """

    client_app: Any
    nodes: dict[int, FakeNode]
    fate: Callable[[int, Message], Error | None] = lambda node, message: None
    forge: Callable[[int, Message], Message] = lambda node, reply: reply
    fault: Exception | None = None
    now: float = 0.0
    waiting: dict[str, Message] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)  # of all messages

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER, 0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    # -- a Grid
    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        if self.fault is not None:
            raise self.fault
        return [node for node, it in self.nodes.items() if it.online]

    def get_nodes(self) -> Iterable[Any]:
        return [
            SimpleNamespace(
                node_id=node,
                name=self.nodes[node].name,
                last_activated_at=f"start {self.nodes[node].starts}",
            )
            for node in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identifiers = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            self.waiting[message.object_id] = message
            self.kinds.append(message.metadata.message_type)
            identifiers.append(message.object_id)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        if self.fault is not None:
            raise self.fault
        answered = []
        for identifier in message_ids:
            message = self.waiting.get(identifier)
            if message is not None and self.nodes[message.metadata.dst_node_id].online:
                answered.append(self.waiting.pop(identifier))
        return [
            self.forge(message.metadata.dst_node_id, self._answer(message)) for message in answered
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        error = self.fate(node, message)
        if error is not None:
            return Message(error, reply_to=message)
        context = Context(RUN, node, self.nodes[node].config, RecordDict(), {})
        try:
            return self.client_app(message=message, context=context)
        except Exception as e:  # as Flower does
            return Message(Error(2, f"{type(e)}:<'{e}'>"), reply_to=message)


def new_app(folder: Path) -> tuple[Any, Any]:
    """(server app, client app) of `coterie network new`, freshly imported."""
    write_app(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "coterie_app"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        server = importlib.import_module("coterie_app.server_app").app
        client = importlib.import_module("coterie_app.client_app").app
    finally:
        sys.path.remove(str(folder))
    return server, client


class Place:
    """Tables of sites, a config file, the app, and a Grid whose nodes have the tables."""

    def __init__(self, base: Path, method: str = "ifca") -> None:
        self.base = base
        write_tables(base / "tables")
        (base / "net.toml").write_text(CONFIG.format(method=method))
        self.server_app, client_app = new_app(base / "app")
        nodes = {
            100 + i: FakeNode({"site": name, **self.node_config(name)})
            for i, name in enumerate(NAMES)
        }
        self.grid = FakeGrid(client_app, nodes)

    def node_config(self, name: str) -> dict[str, str | int]:
        return {
            "exact": 1,  # the seed of the run, to compare with the loop
            "data": str(self.base / "tables" / f"{name}.csv"),
            "state": str(self.base / "states" / name),
        }

    def run_config(self, **more: object) -> dict[str, object]:
        defaults = tomllib.loads((self.base / "app/pyproject.toml").read_text())
        given = {
            "config": str(self.base / "net.toml"),
            "sites": ",".join(NAMES),
            "out": str(self.base / "run"),
        }
        return {**defaults["tool"]["flwr"]["app"]["config"], **given, **more}

    def run(self, **more: object):
        """What `flwr run` does."""
        context = Context(7, 1, {}, RecordDict(), self.run_config(**more))
        self.server_app(grid=self.grid, context=context)
        return ct.load(self.base / "run")

    def loop(self, method: str = "ifca"):
        network = InProcessNetwork(self.base, METHODS[method](clusters=2))
        return network.in_the_loop(participation=0.7)
