"""Makes an ASGI app misbehave on purpose: wrong statuses, lost acknowledgements, slow answers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class Fault:
    """What happens to one request."""

    status: int | None = None
    """Answered instead of the app's own status."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"injected fault"
    after: bool = False
    """The app does its work first: only its answer is lost."""
    delay_s: float = 0.0


class Faulty:
    """`Faulty(app, decide)`: `decide(path, body)` returns a `Fault` or None for each POST."""

    def __init__(self, app: ASGIApp, decide: Callable[[str, bytes], Fault | None]) -> None:
        self.app = app
        self._decide = decide

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = await _body(receive)
        fault = self._decide(scope["path"], body)
        if fault is None:
            await self.app(scope, _replay(body, receive), send)
            return
        await asyncio.sleep(fault.delay_s)
        if fault.status is None or fault.after:
            await self.app(scope, _replay(body, receive), send if fault.status is None else _nowhere)
        if fault.status is not None:
            headers = [(name.lower().encode(), value.encode()) for name, value in fault.headers.items()]
            await send({"type": "http.response.start", "status": fault.status, "headers": headers})
            await send({"type": "http.response.body", "body": fault.body})


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _nowhere(_: Message) -> None:
    return None
