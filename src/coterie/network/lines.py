"""Which sites have hung up, by the connections of their open questions."""

from __future__ import annotations

import asyncio
from typing import Any

LONG_QUESTION = "/pull-messages"  # which a server holds open until it has a message


class Lines:
    """Notes whose connection broke while a question of theirs was open.

    So a node that is killed while it waits is missed at once, and not when its signs of life are.
    """

    def __init__(self) -> None:
        self.hung_up: set[str] = set()  # names of sites

    def heard(self, name: str) -> None:
        """Note that a site has asked something."""
        self.hung_up.discard(name)

    async def hold(self, name: str, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Let an application answer a site's question, and note if the site hangs up before."""
        is_answered = False
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())

        async def wait_for_end() -> Any:
            message = await receive()
            if not is_answered:
                self.hung_up.add(name)
            return message

        async def receive_again() -> Any:
            if messages:
                return messages.pop(0)
            return await asyncio.shield(ending)

        async def send_on(message: Any) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        ending = asyncio.create_task(wait_for_end())
        try:
            await app(scope, receive_again, send_on)
        finally:
            ending.cancel()
