"""A small chat-completions client for workflows, so that a rollout needs no vendor library.

It speaks to the one endpoint its rollout was given over the wire and with the retries of `osmosis.llm`, and says in
`ModelError.category` why a call failed. It does not stream and knows no provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import field, fields
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import orjson

from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass
from osmosis.errors import ModelError
from osmosis.llm.failures import RETRYABLE
from osmosis.llm.model import STREAMING, ChatRequest, Completion, Piece
from osmosis.llm.openai_compatible import ask, completion_of, malformed
from osmosis.llm.retry import RetryingModel
from osmosis.llm.streaming import StreamedBody
from osmosis.llm.wire import Pool, open_wire
from osmosis.records.plan import ModelSpec, Retry
from osmosis.records.rollout import Category, Message, Usage
from osmosis.records.tool_schema import OpenAIFunctionToolSchema

MODEL_ID = "openai/osmosis-rollout"
"""The model name that rollouts ask for; the endpoint decides which model answers."""

ChatTransport = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Takes a chat-completions request body, returns the response body; raises `ModelError`."""

_SPEC = ModelSpec.made(name=MODEL_ID, kind="openai")
_NAME = "the model endpoint"
_MAX_WAIT_S = 60.0
"""How long one attempt may be put off by rate limits."""


@dataclass(slots=True)
class ChatCompletion(Completion):
    """One answer of the model; `message` is to be appended to the conversation as it is."""

    raw: JsonObject = field(default_factory=dict, repr=False)
    """The whole response body."""

    @property
    def content(self) -> str:
        """The text of the answer; empty when there is none."""
        return text_of(self.message)

    @property
    def tool_calls(self) -> list[JsonObject]:
        """The tool calls asked for, in order; empty when there are none."""
        return self.message.get("tool_calls") or []


def text_of(message: Message) -> str:
    """The text of a message whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def parse_completion(body: Any) -> ChatCompletion:
    """A chat-completions response as a `ChatCompletion`; `ModelError` (bad_response) when it is not one."""
    done = completion_of(body, model=_NAME)
    return ChatCompletion(**{one.name: getattr(done, one.name) for one in fields(done)}, raw=body)


@lru_cache(maxsize=16)
def _retry(max_attempts: int) -> Retry:
    waits = _MAX_WAIT_S * (max_attempts - 1)
    return Retry(max_attempts=max_attempts, max_delay_s=8.0, rate_limit_budget_s=waits)


class _Endpoint(RetryingModel):
    """One rollout's endpoint, over connections that all rollouts share."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float, max_attempts: int, pool: Pool) -> None:
        super().__init__(_SPEC, retry=_retry(max_attempts))
        parts = urlsplit(url)
        headers = {"content-type": "application/json"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        # Reached directly, past any proxy, as the callbacks of the same rollout are.
        self._wire = open_wire(url, headers, timeout_s=timeout_s, direct=True, pool=pool)
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._limit = f"{timeout_s:g} s"

    def retries(self, error: ModelError) -> bool:
        # What the endpoint took in, it may have sampled: no second sample for an answer that was late or unreadable.
        answered = error.status is not None or error.category == Category.CONNECTION.value
        return answered and error.category in RETRYABLE

    async def once(self, request: ChatRequest) -> Completion:
        body = {**request.params, "messages": request.messages}
        if request.on_piece is not None:
            stream = StreamedBody(request.tell)
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            raw = await ask(self._wire, body, name=_NAME, origin=self._origin, limit=self._limit, heard=stream.feed)
            if stream.began:
                return parse_completion(stream.body())
        else:
            raw = await ask(self._wire, body, name=_NAME, origin=self._origin, limit=self._limit)
        try:
            parsed = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise malformed(_NAME, raw, error) from error
        return parse_completion(parsed)


class ChatClient:
    """`async with ctx.chat() as chat: answer = await chat.complete(messages, tools=[...])`.

    `url` is the prefix to which `/chat/completions` is appended. `timeout_s` bounds one attempt.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        transport: ChatTransport | None = None,
        timeout_s: float = 600.0,
        max_attempts: int = 4,
    ) -> None:
        self.url = f"{url.rstrip('/')}/chat/completions"
        self._api_key = api_key
        self._transport = transport
        self._timeout_s = timeout_s
        self._max_attempts = max(1, max_attempts)
        self._endpoint: _Endpoint | None = None
        self.usage = Usage()
        self.num_calls = 0

    async def __aenter__(self) -> ChatClient:
        if self._transport is None:
            pool = _pools.borrow()
            try:
                self._endpoint = _Endpoint(self.url, self._api_key, self._timeout_s, self._max_attempts, pool)
            except BaseException:
                await _pools.give_back()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._endpoint is not None:
            self._endpoint = None
            await _pools.give_back()

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[Any] | None = None,
        model: str = MODEL_ID,
        on_piece: Callable[[Piece], None] | None = None,
        **params: object,
    ) -> ChatCompletion:
        """One model call. `tools` takes OpenAI tool dicts, tool schemas or functions made with `@tool`;
        `params` are sampling parameters. `on_piece` hears the answer while it is written (`piece.delta` is the wire
        form), where the model streams; the answer is whole either way. `ModelError` when there is no usable one."""
        params = {name: value for name, value in params.items() if name not in STREAMING}
        body: JsonObject = {"model": model, "messages": messages, **params}
        if tools:
            body["tools"] = [_tool_dict(one) for one in tools]
        if self._transport is not None:
            heard = {**body, "on_piece": on_piece} if on_piece is not None else body
            completion = parse_completion(await self._transport(heard))
        else:
            completion = await self._post(body, on_piece)
        self.num_calls += 1
        self.usage = self.usage + completion.usage
        return completion

    async def _post(self, body: JsonObject, on_piece: Callable[[Piece], None] | None) -> ChatCompletion:
        if self._endpoint is None:
            raise RuntimeError("the chat client is not open: use `async with ctx.chat() as chat:`")
        done = await self._endpoint.complete(ChatRequest(body["messages"], params=body, on_piece=on_piece))
        assert isinstance(done, ChatCompletion)
        return done


def _tool_dict(one: object) -> JsonObject:
    if isinstance(one, dict):
        return one
    schema = one if isinstance(one, OpenAIFunctionToolSchema) else getattr(one, "schema", None)
    if isinstance(schema, OpenAIFunctionToolSchema):
        return schema.to_dict()
    raise TypeError(f"not a tool: {one!r}; give a tool schema, an OpenAI tool dict or a function made with @tool")


class _Pools:
    """One pool of connections per event loop, alive while any chat client is open."""

    def __init__(self) -> None:
        self._open: dict[asyncio.AbstractEventLoop, tuple[Pool, int]] = {}

    def borrow(self) -> Pool:
        loop = asyncio.get_running_loop()
        for dead in [other for other in self._open if other.is_closed()]:
            del self._open[dead]
        pool, users = self._open.get(loop) or (Pool(), 0)
        self._open[loop] = (pool, users + 1)
        return pool

    async def give_back(self) -> None:
        loop = asyncio.get_running_loop()
        pool, users = self._open[loop]
        if users > 1:
            self._open[loop] = (pool, users - 1)
            return
        del self._open[loop]
        await pool.close()


_pools = _Pools()


@asynccontextmanager
async def connections_kept() -> AsyncIterator[None]:
    """Within the block connections outlive the clients that opened them: for whoever runs one rollout after another."""
    _pools.borrow()
    try:
        yield
    finally:
        await _pools.give_back()
