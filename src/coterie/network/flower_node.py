"""A node that lives on: it speaks to the Fleet in our server, and hands packets to its site.

One process for all messages, in which torch is imported once. It runs no code that it is sent.
"""

from __future__ import annotations

import ctypes
import datetime
import email.utils
import logging
import ssl
import threading
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient

from coterie.core.errors import CoterieError
from coterie.network.packets import Packet
from coterie.network.records import RecordEncoder, read_packet
from coterie.network.site import NetworkSite

CLOCKS_AGREE = 5.0  # seconds; Flower refuses a node whose clock is further ahead
MAKE_KEYS = "make one with `coterie network certs`"


class ConnectionLost(Exception):
    """The server does not know this connection any more."""


# ------------------------------------------------------------------------------ what it is given
def check_address(server: str) -> str:
    """HOST:PORT, as it was given."""
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in server:
        raise CoterieError(
            f"the server is {server!r}", "give its host and port, such as server.example.org:8443"
        )
    return server


def read_key(file: Path) -> Any:
    """A node's private key."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(file.read_bytes(), None)
    except OSError as e:
        raise CoterieError(f"the key {file} cannot be read ({e.strerror})", MAKE_KEYS) from e
    except (ValueError, TypeError) as e:
        raise CoterieError(f"{file} is not a private key", MAKE_KEYS) from e


def read_authority(file: Path) -> bytes:
    """The certificate of the authority that signs the server's."""
    try:
        raw = file.read_bytes()
        ssl.create_default_context(cadata=raw.decode("ascii"))
    except OSError as e:
        if isinstance(e, ssl.SSLError):
            raise CoterieError(f"{file} is not a certificate", "give the server's ca.crt") from e
        raise CoterieError(f"{file} cannot be read ({e.strerror})", "give ca.crt") from e
    except ValueError as e:
        raise CoterieError(f"{file} is not a certificate", "give the server's ca.crt") from e
    return raw


# ------------------------------------------------------------------------------ why not
def is_refusal(error: Exception) -> bool:
    """Whether a server that is there does not want this node, or this node not the server."""
    if isinstance(error, httpx.HTTPStatusError):
        return 400 <= error.response.status_code < 500
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def why_not_connected(error: Exception) -> str:
    """Why there is no connection."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return why_not_trusted(text)
    if isinstance(error, httpx.HTTPStatusError) and is_refusal(error):
        return why_refused(error.response)
    if isinstance(error, httpx.ConnectError):
        return why_not_there(text)
    if isinstance(error, httpx.RemoteProtocolError):
        return "the server has hung up"
    if isinstance(error, ConnectionLost):
        return text
    return f"the connection was lost ({type(error).__name__})"


def why_not_trusted(text: str) -> str:
    """Why this node does not trust the server."""
    if "mismatch" in text or "not valid for" in text:
        return "the server's certificate is for another host than the one that --server names"
    if "expired" in text:
        return "the server's certificate has expired, or the clock of this machine is off"
    if "not yet valid" in text:
        return "the server's certificate is not yet valid, or the clock of this machine is off"
    return "the server's certificate is not signed by the authority that this node trusts"


def why_refused(response: httpx.Response) -> str:
    """Why the server does not want this node."""
    off = clock_difference(response)
    if response.status_code == 401 and off is not None and abs(off) > CLOCKS_AGREE:
        return f"the server refuses this node, whose clock is off by {abs(off):.0f} seconds"
    return "the server does not accept this node's key"


def why_not_there(text: str) -> str:
    """Why nobody answers."""
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text:
        return "the server speaks without TLS"
    if "Name or service not known" in text or "name resolution" in text:
        return "the server's host is not known here"
    return "the server is not there"


def clock_difference(response: httpx.Response) -> float | None:
    """Seconds by which this machine's clock is ahead of the server's; None if it is unknown."""
    try:
        there = email.utils.parsedate_to_datetime(response.headers["date"])
        return (datetime.datetime.now(datetime.UTC) - there).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None


class RequestSigner:
    """Adds to each request who sends it and when, signed with the node's key."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.public = b64encode(public_key_to_bytes(key.public_key())).decode()

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Sign the time, and send the request."""
        time = now().isoformat()
        signature = sign_message(self.key, time.encode())
        headers = context.request.headers
        headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = self.public
        headers[TIMESTAMP_HEADER] = time
        headers[FLEET_HTTP_SIGNATURE_HEADER] = b64encode(signature).decode()
        return call_next(context)


log = logging.getLogger("coterie")
BEAT = 10.0  # seconds between signs of life; the least that Flower allows
MOST_BYTES = 512 * 1024 * 1024  # of one message
LONGEST_PAUSE = 5.0  # seconds between attempts to connect
TO_LEAVE = 60.0  # seconds in which a server may hear that a site's owner has left


class NodeConnection:
    """One activation of a node at its server."""

    def __init__(self, server: str, key: Any, certificate: bytes | None) -> None:
        """certificate: of the authority that signed the server's; None: without TLS."""
        public = key.public_key()
        self.client = FleetHttpClient.from_server_address(
            server,
            certificate is None,
            certificate,
            interceptors=[RequestSigner(key)],
        )
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(public), heartbeat_interval=BEAT
        )
        self.node = Node(node_id=self.client.ActivateNode(request).node_id)
        TaskIdentity.node_id, TaskIdentity.task_id = self.node.node_id, 0
        self.gone = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=BEAT)
        while not self.gone.wait(BEAT / 2):
            try:
                if not self.client.SendNodeHeartbeat(request).success:
                    self.gone.set()
            except httpx.TransportError:
                continue  # whoever asks for messages notices
            except Exception:
                self.gone.set()

    def receive(self) -> Any:
        """The next message; None if none came while the server held the question open."""
        if self.gone.is_set():
            raise ConnectionLost("the server does not know this node any more")
        response = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        metadata = message_from_proto(response.messages_list[0]).metadata
        tree = response.message_object_trees[0]
        raw: dict[str, bytes] = {}
        for part in iterate_object_tree(tree):
            raw[part.object_id] = self._object(metadata.run_id, part.object_id)
            if sum(map(len, raw.values())) > MOST_BYTES:
                raise ConnectionLost("a message is too large")
        self.client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self.node, run_id=metadata.run_id, message_object_id=metadata.message_id
            )
        )
        message: Any = inflate_object_from_contents(tree.object_id, raw)
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def _object(self, run: int, name: str) -> bytes:
        while True:
            part = self.client.PullObject(
                PullObjectRequest(node=self.node, run_id=run, object_id=name)
            )
            if not part.object_found:
                raise ConnectionLost("a message was withdrawn")
            if part.object_available:
                return bytes(part.object_content)
            time.sleep(0.02)

    def reply(self, message: Any, packet: Packet, seconds: float) -> None:
        """Send the reply to a message."""
        TaskIdentity.run_id = message.metadata.run_id
        out = Message(RecordEncoder().wrap(packet), reply_to=message)
        out.metadata.__dict__["_message_id"] = out.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(out), get_all_nested_objects(out)
            response = self.client.PushMessages(
                PushMessagesRequest(
                    node=self.node,
                    messages_list=[message_to_proto(remove_content_from_message(out))],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[seconds],
                )
            )
            for name in response.objects_to_push:
                self.client.PushObject(
                    PushObjectRequest(
                        node=self.node,
                        run_id=out.metadata.run_id,
                        object_id=name,
                        object_content=objects[name].deflate(),
                        session_id=response.session_id,
                    )
                )

    def close(self, *, silently: bool = False) -> None:
        """Tell the server that this node leaves; silently: let it notice."""
        self.gone.set()
        if not silently:
            self._say_goodbye()
        self.client.close()

    def _say_goodbye(self) -> None:
        try:
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        except Exception:
            log.info("the server was not told that this node leaves")


class FlowerNode:
    """A site's process: connects, answers, and connects again whatever happens to the server."""

    def __init__(self, site: NetworkSite, server: str, key: Path, certificate: Path | None) -> None:
        self.site = site
        self.server = check_address(server)
        self.key = read_key(key)
        self.certificate = None if certificate is None else read_authority(certificate)
        self.connection: NodeConnection | None = None
        self.left_at: float | None = None  # when this node first saw that its owner has left
        self.told_left = False

    def live(self) -> None:
        """Answer until this machine's owner must mend something, or has left."""
        pause = 0.2
        told = ""
        while True:
            is_connected = False
            try:
                self._connect()
                is_connected = True
                pause, told = 0.2, ""
                while not self._may_end():
                    self._answer()
                return
            except (httpx.HTTPError, ConnectionLost, RuntimeError) as e:
                reason = why_not_connected(e)
                if self.connection is None and is_refusal(e):
                    raise CoterieError(reason, "see to keys, certificates and clocks") from e
                if self.connection is None and self.certificate is None:
                    reason += ", maybe because it speaks with TLS alone"
                if is_connected:
                    reason = f"the connection to {self.server} was lost: {reason}"
                if reason != told:
                    log.warning("%s: %s; trying again.", self.site.client, reason)
                    told = reason
                if self.connection is not None:
                    self.connection.gone.set()
                time.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
                if self._may_end():
                    return

    def _connect(self) -> None:
        again = "" if self.connection is None else " again"
        self.connection = NodeConnection(self.server, self.key, self.certificate)
        log.info("%s: connected to %s%s", self.site.client, self.server, again)

    def _may_end(self) -> bool:
        """Whether the owner has left, and the server was told so or does not ask."""
        if self.site.owner_status() != "left":
            return False
        if self.left_at is None:
            self.left_at = time.monotonic()
        return self.told_left or time.monotonic() - self.left_at > TO_LEAVE

    def _answer(self) -> None:
        connection = self.connection
        assert connection is not None
        message = connection.receive()
        if message is None:
            return
        began = time.perf_counter()
        packet = read_packet(message)
        has_left = self.site.participation.status == "left"
        reply = self.site.handle(packet)
        try:
            connection.reply(message, reply, time.perf_counter() - began)
        except httpx.HTTPStatusError as e:
            if not is_refusal(e):
                raise
            log.info("%s: the server no longer waits for an answer", self.site.client)
        self.told_left = has_left
        release_memory()
        if self.site.fault is not None:
            raise self.site.fault

    def close(self) -> None:
        """Leave.

        A node whose last reply said why it ends goes silently: of nodes that have said goodbye
        Flower gives no reply any more, also none that came before.
        """
        if self.connection is not None:
            ends_with_reply = self.site.fault is not None or self.told_left
            self.connection.close(silently=ends_with_reply)


def release_memory() -> None:
    """Return free memory to the system; glibc otherwise keeps the memory of large messages."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library
