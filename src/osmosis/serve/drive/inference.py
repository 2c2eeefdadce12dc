"""The OpenAI-compatible endpoint of one model: `/v1/chat/completions`, plain or really streamed, and `/v1/models`.

What a deployment answers to its platform, and `osmosis model serve` to this machine. Everybody who asks shows the one
key. A parameter that the model cannot obey is refused by name, never dropped; whoever hangs up cancels the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import time
from collections.abc import Callable, Mapping

from aiohttp import web

from osmosis.base.json_types import JsonObject
from osmosis.errors import ModelError
from osmosis.llm.chat_format import completion_body
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.rollout import Category
from osmosis.serve.server.auth import token_of

from .gate_http import EndpointError, answer_errors, json_object, json_response
from .streamed import Pieces, streamed

MAX_BODY = 16 * 1024 * 1024
OBEYED = frozenset(
    {"temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "tool_choice", "logprobs"}
)
TAKEN = frozenset({"messages", "tools", "model", "stream", "stream_options"})
HARMLESS = frozenset({"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"})
"""They say who asks and how it is billed, which changes no answer here."""
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}
"""Values with which a parameter asks for nothing."""
RETRY_S = 5.0
_STATUS = {
    Category.BAD_REQUEST.value: 400,
    Category.CONTEXT_LENGTH.value: 400,
    Category.RATE_LIMIT.value: 429,
    Category.CONNECTION.value: 503,
    Category.SERVER_DIED.value: 503,
    Category.TIMEOUT.value: 504,
}


class InferenceEndpoint:
    """An HTTP server over one model: `start` returns its base URL, which ends with `/v1`.

    `answered` counts whole answers; `on_answer` hears of each.
    """

    def __init__(
        self, model: Model, *, name: str, key: str, on_answer: Callable[[], None] | None = None, time_limit_s: float
    ) -> None:
        self.name = name
        self.answered = 0
        self._model = model
        self._key = key
        self._on_answer = on_answer
        self._time_limit_s = time_limit_s
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._since = int(time.time())
        self._numbers = itertools.count()
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[answer_errors])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, backlog=1024).start()
        bound = self._runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{shown}:{bound[1]}/v1"

    async def drained(self, timeout_s: float) -> None:
        """Until nothing is in flight, or for that long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _models(self, request: web.Request) -> web.Response:
        self._check(request)
        row = {"id": self.name, "object": "model", "created": self._since, "owned_by": "osmosis"}
        return json_response({"object": "list", "data": [row]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        body = await json_object(request)
        asked = chat_request(body)
        asked.rollout_id = f"chat-{next(self._numbers)}"
        self._in_flight += 1
        self._idle.clear()
        try:
            if not body.get("stream"):
                return json_response(self._body(await self._complete(asked), body))
            options = body.get("stream_options")
            with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
            pieces = Pieces()
            asked.on_piece = pieces.put
            answering = asyncio.create_task(self._complete(asked))
            return await streamed(request, answering, pieces, model=self.name, with_usage=with_usage)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def _complete(self, asked: ChatRequest) -> Completion:
        try:
            done = await asyncio.wait_for(self._model.complete(asked), self._time_limit_s)
        except asyncio.TimeoutError:
            what = f"no answer within {self._time_limit_s:.0f} s: ask for fewer tokens (max_tokens)"
            raise EndpointError(504, what, Category.TIMEOUT.value) from None
        except ModelError as error:
            retry = error.retry_after or RETRY_S if error.category == Category.CONNECTION.value else None
            status = _STATUS.get(error.category, 500)
            raise EndpointError(status, error.message, error.category, retry_after=retry) from error
        self.answered += 1
        if self._on_answer is not None:
            self._on_answer()
        done.model = self.name
        return done

    def _body(self, done: Completion, asked: JsonObject) -> dict[str, object]:
        """Without the token ids and log-probabilities, unless they were asked for."""
        if not asked.get("logprobs"):
            done.token_ids = done.logprobs = done.prompt_token_ids = None
        return completion_body(done, model=self.name)

    def _check(self, request: web.Request) -> None:
        token = token_of(request.headers.get("Authorization", "").encode("utf-8", "surrogateescape"))
        if token is None or not hmac.compare_digest(token, self._key.encode()):
            raise EndpointError(401, "the key is missing or wrong: send it as Authorization: Bearer KEY", "auth")


def chat_request(body: JsonObject) -> ChatRequest:
    """The question in a body of chat completions. `EndpointError` for what no answer could obey."""
    messages, tools = body.get("messages"), body.get("tools") or None
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise _bad("messages must be a list of objects, at least one")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise _bad("tools must be a list of objects")
    params: JsonObject = {}
    for key, value in body.items():
        if value is None or key in TAKEN or key in HARMLESS:
            continue
        neutral = NEUTRAL.get(key)
        if (neutral is not None and value not in neutral) or (neutral is None and key not in OBEYED):
            raise _bad(_unsupported(key, value, neutral))
        if key in OBEYED:
            params[key] = value
    return ChatRequest(messages=messages, tools=tools, params=params)


def _unsupported(key: str, value: object, neutral: tuple[object, ...] | None) -> str:
    if neutral is None:
        return f"{key} is not supported: leave it out"
    return f"{key} = {str(value)[:100]} is not supported: leave it out (possible: {', '.join(map(str, neutral))})"


def _bad(message: str) -> EndpointError:
    return EndpointError(400, message, Category.BAD_REQUEST.value)
