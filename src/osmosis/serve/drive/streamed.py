"""A model call answered while the model still writes, for agents that ask for a stream.

Until the first piece an error of the model is an HTTP status, as without a stream; after it, an error event. An agent
that hangs up cancels the model call, so that nothing is written for nobody.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from osmosis.base.tasks import end
from osmosis.llm.chat_format import EventStream, error_event
from osmosis.llm.model import Completion, Piece

from .gate_http import EndpointError


class Pieces:
    """What the model has said and nobody has sent yet."""

    def __init__(self) -> None:
        self._waiting: list[Piece] = []
        self._news = asyncio.Event()
        self._over = False

    def put(self, piece: Piece) -> None:
        self._waiting.append(piece)
        self._news.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._over = True
        self._news.set()

    async def take(self) -> list[Piece]:
        """Everything that waits, at least one piece; empty at the end."""
        await self._news.wait()
        taken, self._waiting = self._waiting, []
        if not self._over:
            self._news.clear()
        return taken


async def streamed(
    request: web.Request, answering: asyncio.Task[Completion], pieces: Pieces, *, model: str, with_usage: bool
) -> web.StreamResponse:
    """The answer as server-sent events. Raises what `answering` raises before its first piece; cancels it when the
    caller is cancelled."""
    answering.add_done_callback(lambda _: pieces.end())
    try:
        said = await pieces.take()
        # Without a piece it has failed, or comes whole.
        whole = None if said else await answering
        events = (
            EventStream(model=model) if whole is None else EventStream(model=whole.model or model, raw_id=whole.raw_id)
        )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        head = events.begin()
        while said:
            await response.write(head + b"".join(map(events.piece, said)))
            head = b""
            said = await pieces.take()
        try:
            last = b"".join(events.rest(await answering, with_usage=with_usage))
        except EndpointError as error:
            last = error_event(error.body)
        await response.write(head + last)
        await response.write_eof()
        return response
    finally:
        await end(answering)
