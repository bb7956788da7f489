"""Flower's Fleet inside our server: the one way by which sites reach it.

Only the Fleet's routes are served, so nobody can submit code. Nodes are known by their keys alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, FastAPI
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
)
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.protobuf.routing import ProtobufRoute
from flwr.supercore.protobuf.translation import (
    PROTOBUF_REQUEST_DEPENDENCY,
    ProtobufTranslationMiddleware,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.superlink.routers.fleet.middlewares import FleetEventLogMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from flwr.superlink.servicer.fleet import fleet_handlers
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from coterie.core.errors import CoterieError
from coterie.network.listening import Address, OpenPolls, Refusals, RequestGate, refuse_port_in_use
from coterie.network.packets import Packet
from coterie.network.records import RecordEncoder, read_packet


def fleet_app(
    factory: Any,
    own_routes: APIRouter,
    *,
    keys: Mapping[bytes, str],
    refusals: Refusals,
    lines: OpenPolls,
) -> FastAPI:
    """The application.

    factory: of Flower's state.  own_routes: count over those of Flower.  keys: the sites' names by
    public key.
    """
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[
            Middleware(RequestGate, keys=keys, refuse=refusals, lines=lines),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(FleetEventLogMiddleware),
        ],
    )
    app.state.linkstate_factory = factory
    app.state.enable_supernode_auth = True  # keys are registered here, never by nodes
    app.state.fleet_event_log_plugin = None
    app.include_router(own_routes)  # before Flower's, so that they count
    app.include_router(fleet_router)
    return app


log = logging.getLogger("coterie")
LONG_POLL = 10.0  # seconds that a node's question for messages is held open
PERIOD = 0.02  # seconds between looks for replies
LIFETIME = 7 * 24 * 3600.0  # seconds of a message; deadlines are our own


class FlowerServer:
    """A transport to persistent nodes."""

    def __init__(self, address: Address, keys: Mapping[str, bytes]) -> None:
        """keys: by name, the public key of each site's node, in PEM."""
        manager = get_federation_manager(is_simulation=False)
        _, self.factory = get_objectstore_linkstate_factories(FLWR_IN_MEMORY_DB_NAME, manager)
        self.state: Any = self.factory.state()
        self.names: dict[int, str] = {}
        self.nodes: dict[str, int] = {}
        self.keys: dict[bytes, str] = {}
        self.starts: dict[int, int] = {}  # how often each node has connected
        self.refusals = Refusals()
        self.lines = OpenPolls()
        # called when a node comes whose key is not known: it may have been registered meanwhile
        self.on_stranger: Callable[[], None] = lambda: None
        self.register(keys)
        self.pending: dict[str, int] = {}  # by message: the node that it was sent to
        self.half: dict[str, Any] = {}  # replies of which not all has come yet, by request
        self.waiting: dict[int, asyncio.Event] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self._begin_run()
        self._listen(address)

    def register(self, keys: Mapping[str, bytes]) -> None:
        """Let in those sites, too, that were not known before."""
        for name, key in keys.items():
            if name in self.nodes:
                continue
            node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
            self.names[node] = name
            self.starts[node] = 0
            self.nodes[name] = node
            self.keys[key] = name

    # -- a transport
    def connections(self) -> Mapping[str, Hashable]:
        """Who is connected now, by key."""
        online = self.state.get_nodes(self.run_id)
        connected = {self.names[node]: self.starts[node] for node in online if self.starts[node]}
        return {name: n for name, n in connected.items() if name not in self.lines.hung_up}

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Send a packet to each of these sites."""
        wrapper = RecordEncoder()
        messages = []
        for name, packet in packets.items():
            node = self.nodes[name]
            self._forget(node)
            content = wrapper.wrap(packet)
            messages.append(Message(content, dst_node_id=node, message_type="query", ttl=LIFETIME))
        self._store(messages)

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Replies that have come; waits for at most this long."""
        end = time.monotonic() + seconds
        while True:
            replies = self._replies()
            if replies or time.monotonic() >= end:
                return replies
            time.sleep(min(PERIOD, max(0.0, end - time.monotonic())))

    def close(self) -> None:
        """Stop listening; nobody's question is held open any longer."""
        self.server.should_exit = True
        for event in list(self.waiting.values()):
            self._wake(event)
        self.thread.join(5)

    # -- messages
    def _forget(self, node: int) -> None:
        """Drop what a node was asked before, and has not answered."""
        old = {message for message, of_node in self.pending.items() if of_node == node}
        for message in old:
            del self.pending[message]
            self.half.pop(message, None)
        if old:
            self.state.delete_messages(message_ins_ids=old)

    def _store(self, messages: list[Message]) -> None:
        """Let nodes find their messages; all are registered before any object is stored."""
        session = self.state.start_session(self.run_id)
        needed: dict[str, None] = {}
        objects: dict[str, Any] = {}
        with no_object_id_recompute():  # what is shared is hashed once
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                _, missing = self.state.store_message_and_object_tree(
                    remove_content_from_message(message), get_object_tree(message), session
                )
                needed.update(dict.fromkeys(missing))
                objects.update(get_all_nested_objects(message))
        for message in messages:
            self.pending[message.metadata.message_id] = message.metadata.dst_node_id
        for name in needed:
            self.state.store_object(self.run_id, session, name, objects[name].deflate())
        for message in messages:
            event = self.waiting.get(message.metadata.dst_node_id)
            if event is not None:
                self._wake(event)

    def _wake(self, event: asyncio.Event) -> None:
        """Let the question that waits for an event be answered."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(event.set)

    def _replies(self) -> list[tuple[str, Packet]]:
        asked = set(self.pending) - set(self.half)
        if asked:
            for reply in self.state.get_message_res(message_ids=asked, run_id=self.run_id):
                self.half[reply.metadata.reply_to_message_id] = reply
        packets = []
        for request, reply in list(self.half.items()):
            whole = self._whole(reply)
            if whole is None:
                continue
            node = self.pending.pop(request)
            del self.half[request]
            self.state.delete_messages(message_ins_ids={request})
            if not whole.has_error():
                packets.append((self.names[node], read_packet(whole)))
        return packets

    def _whole(self, reply: Any) -> Any:
        """A reply with its content; None while some of it is on its way."""
        if reply.has_error():
            return reply
        name = reply.metadata.message_id
        tree = self.state.object_store.get_object_tree(name)
        raw = {
            part.object_id: self.state.get_object(self.run_id, part.object_id)
            for part in iterate_object_tree(tree)
        }
        if not all(raw.values()):
            return None
        whole = inflate_object_from_contents(name, raw)
        self.state.object_store.delete(name)
        return whole

    # -- Flower's own needs
    def _begin_run(self) -> None:
        """Messages of Flower belong to a run, which has a task that is alive."""
        self.run_id = self.state.create_run(
            fab_id="coterie/network",
            fab_version="1.0.0",
            fab_hash=None,
            override_config={},
            federation_id=NOOP_FEDERATION_ID,
            federation_config=None,
            flwr_aid=NOOP_FLWR_AID,
            primary_task_type=TaskType.SERVER_APP,
        )
        self.task = self.state.get_run_info(run_ids=[self.run_id])[0].primary_task_id
        self.state.claim_task(self.task)
        self.state.activate_task(self.task)
        TaskIdentity.run_id = self.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        TaskIdentity.task_id = self.task
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            self.state.acknowledge_task_heartbeat(self.task)
            time.sleep(10)

    def _listen(self, address: Address) -> None:
        refuse_port_in_use(address)
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it quotes requests of strangers
        ssl = {}
        if address.certificate is not None:
            ssl = {"ssl_certfile": str(address.certificate), "ssl_keyfile": str(address.key)}
        config = uvicorn.Config(
            fleet_app(
                self.factory,
                self._own_routes(),
                keys=self.keys,
                refusals=self.refusals,
                lines=self.lines,
            ),
            host=address.host,
            port=address.port,
            access_log=False,
            log_level="error",
            **ssl,  # type: ignore[arg-type]
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            if not self.thread.is_alive():
                raise CoterieError(
                    f"the server cannot listen on {address.host}:{address.port}",
                    "check the address and the certificate",
                )
            time.sleep(0.02)

    def _own_routes(self) -> APIRouter:
        router = APIRouter(prefix="/v1/fleet", route_class=ProtobufRoute)
        router.add_api_route("/activate-node", self._activate, methods=["POST"])
        router.add_api_route("/pull-messages", self._wait_for_message, methods=["POST"])
        return router

    def _activate(
        self, request: Annotated[ActivateNodeRequest, PROTOBUF_REQUEST_DEPENDENCY]
    ) -> ActivateNodeResponse:
        """Take in a node; one that was killed need not wait until it is missed."""
        if request.public_key not in self.keys:
            self.on_stranger()
        node = self.state.get_node_id_by_public_key(request.public_key)
        if node is not None:
            self.state.deactivate_node(node)
        response = fleet_handlers.activate_node(request=request, state=self.state)
        self.starts[response.node_id] += 1
        self._tell_connected(response.node_id)
        return response

    def _tell_connected(self, node: int) -> None:
        if self.starts[node] == 1:
            log.info("%s has connected", self.names[node])
            return
        log.info("%s has connected again, now %d times", self.names[node], self.starts[node])

    async def _wait_for_message(
        self, request: Annotated[PullMessagesRequest, PROTOBUF_REQUEST_DEPENDENCY]
    ) -> PullMessagesResponse:
        """Give a node its next message, or hold its question open until there is one."""
        self.loop = asyncio.get_running_loop()
        event = self.waiting.setdefault(request.node.node_id, asyncio.Event())
        event.clear()
        response = self._pull(request)
        if response.messages_list or self.server.should_exit:
            return response
        try:
            await asyncio.wait_for(event.wait(), LONG_POLL)
        except TimeoutError:
            return response
        return self._pull(request)

    def _pull(self, request: PullMessagesRequest) -> PullMessagesResponse:
        return fleet_handlers.pull_messages(
            request=request, state=self.state, store=self.state.object_store
        )
