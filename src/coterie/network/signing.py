"""A node's signature on its requests, as Flower's Fleet asks for it.

Flower has such a class, too. It loads FastAPI and requests, 18 MB that a node does not need.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message


class Signature:
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
