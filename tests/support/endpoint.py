"""An OpenAI-compatible endpoint on a real loopback port for tests, answering as told: well, badly, late or never.

Runs in a thread with an event loop of its own, so that a process under test can be called beside it. Unless told
otherwise it answers like `offline/calculator`, seeded mistakes included.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from osmosis.base.jsonable import JsonObject
from osmosis.llm.model import ChatRequest
from osmosis.llm.offline import OfflineModel
from osmosis.records.run.plan import ModelSpec


@dataclass
class Reply:
    """What one request gets. `body` is sent as it is when bytes or text, else as JSON."""

    body: object = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    parts: Sequence[bytes] | None = None
    """Sent one after the other, as server-sent events, in place of `body`."""
    hang: bool = False
    """Never answer, or never end what `parts` began; the connection stays open."""
    cut: bool = False
    """Close the connection instead of answering."""


Decide = Callable[[JsonObject, int], "Reply | None"]
"""Of the request's body and its number (from 0); None answers as usual."""


def text_reply(text: str, *, prompt_tokens: int = 10, completion_tokens: int = 5) -> Reply:
    """A final answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return Reply({"id": "r", "model": "fake", "choices": [choice], "usage": usage})


class ModelEndpoint:
    """`with ModelEndpoint(decide) as endpoint:`; `endpoint.url` ends in `/v1`."""

    def __init__(self, decide: Decide | None = None, *, seed: int = 0) -> None:
        self.url = ""
        self.requests: list[JsonObject] = []
        """Every body received."""
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.models: list[str] = []
        """Names that `/v1/models` lists."""
        self._decide = decide
        self._model = OfflineModel(ModelSpec(name="offline/calculator", kind="offline", seed=seed))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="model-endpoint")
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> ModelEndpoint:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        for path in ("chat/completions", "messages", "responses"):
            app.router.add_post(f"/v1/{path}", self._answer)
        app.router.add_get("/v1/models", self._list_models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _list_models(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.requests)
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        reply = self._decide(body, number) if self._decide else None
        if reply is None:
            reply = await self._usual(body)
        await asyncio.sleep(reply.delay_s)
        if reply.parts is not None:
            return await self._stream(request, reply)
        if reply.hang:
            await asyncio.Event().wait()
        if reply.cut:
            request.transport.close()
            return web.Response()
        raw = reply.body if isinstance(reply.body, (bytes, str)) else json.dumps(reply.body)
        return web.Response(
            body=raw, status=reply.status, headers={"content-type": "application/json", **reply.headers}
        )

    async def _stream(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in reply.parts or ():
            await response.write(part)
        if reply.hang:
            await asyncio.Event().wait()
        if reply.cut:
            request.transport.close()
        return response

    async def _usual(self, body: JsonObject) -> Reply:
        done = await self._model.complete(ChatRequest(body["messages"], body.get("tools")))
        usage = {"prompt_tokens": done.usage.prompt_tokens, "completion_tokens": done.usage.completion_tokens}
        choice = {"index": 0, "message": done.message, "finish_reason": done.finish_reason}
        return Reply({"id": "r", "model": body.get("model"), "choices": [choice], "usage": usage})
