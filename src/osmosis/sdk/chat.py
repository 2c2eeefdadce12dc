import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from osmosis.base.jsonable import JsonObject
from osmosis.dialects.chat import completion_body
from osmosis.errors import ModelError
from osmosis.llm.failures import RETRYABLE, RetryingModel
from osmosis.llm.http import HttpEndpoint, HttpPool
from osmosis.llm.model import STREAMING, ChatRequest, Completion, Piece
from osmosis.llm.openai_compatible import ask, completion_of, parse_body
from osmosis.llm.streaming import StreamedBody
from osmosis.records.protocol.v02 import OpenAIFunctionToolSchema
from osmosis.records.run.plan import ModelSpec, Retry
from osmosis.records.run.rollout import Category, Message, Usage

MODEL_ID = "openai/osmosis-rollout"

ChatTransport = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Takes a chat-completions request body, returns the response body; raises `ModelError`."""
Ask = Callable[[ChatRequest], Awaitable[Completion]]

_SPEC = ModelSpec(name=MODEL_ID, kind="openai")
_NAME = "the model endpoint"
_MAX_WAIT_S = 60.0


@dataclass(slots=True)
class ChatCompletion(Completion):
    body: JsonObject | None = field(default=None, repr=False)

    @classmethod
    def of(cls, done: Completion, body: JsonObject | None = None) -> "ChatCompletion":
        if isinstance(done, cls):
            return done
        return cls(**{field.name: getattr(done, field.name) for field in fields(done)}, body=body)

    @property
    def raw(self) -> JsonObject:
        if self.body is None:
            self.body = completion_body(self)
        return self.body

    @property
    def content(self) -> str:
        return text_of(self.message)

    @property
    def tool_calls(self) -> list[JsonObject]:
        return self.message.get("tool_calls") or []


def text_of(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def parse_completion(body: Any) -> ChatCompletion:
    return ChatCompletion.of(completion_of(body, model=_NAME), body)


def ask_transport(transport: ChatTransport) -> Ask:
    async def ask(request: ChatRequest) -> Completion:
        body: JsonObject = {"model": MODEL_ID, "messages": request.messages, **request.params}
        if request.tools:
            body["tools"] = request.tools
        if request.on_piece is not None:
            body["on_piece"] = request.on_piece
        return parse_completion(await transport(body))

    return ask


@lru_cache(maxsize=16)
def _retry(max_attempts: int) -> Retry:
    waits = _MAX_WAIT_S * (max_attempts - 1)
    return Retry(max_attempts=max_attempts, max_delay_s=8.0, rate_limit_budget_s=waits)


class _Endpoint(RetryingModel):
    def __init__(self, url: str, api_key: str | None, timeout_s: float, max_attempts: int, pool: HttpPool) -> None:
        super().__init__(_SPEC, retry=_retry(max_attempts))
        parts = urlsplit(url)
        headers = {"content-type": "application/json"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        # Reached directly, past any proxy, as the callbacks of the same rollout are.
        self._http = HttpEndpoint(url, headers, timeout_s=timeout_s, use_proxies=False, pool=pool)
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._limit = f"{timeout_s:g} s"

    def retries(self, error: ModelError) -> bool:
        # What the endpoint took in, it may have sampled: no second sample for an answer that was late or unreadable.
        answered = error.status is not None or error.category == Category.CONNECTION.value
        return answered and error.category in RETRYABLE

    async def once(self, request: ChatRequest) -> Completion:
        body = {**request.params, "messages": request.messages}
        if request.tools:
            body["tools"] = request.tools
        if request.on_piece is not None:
            stream = StreamedBody(request.tell)
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            raw = await ask(self._http, body, name=_NAME, origin=self._origin, limit=self._limit, on_data=stream.feed)
            if stream.began:
                return parse_completion(stream.body())
        else:
            raw = await ask(self._http, body, name=_NAME, origin=self._origin, limit=self._limit)
        return parse_completion(parse_body(raw, model=_NAME))


@dataclass(eq=False, repr=False)
class ChatClient:
    """`async with ctx.chat() as chat: answer = await chat.complete(messages, tools=[...])`."""

    url: str
    _: KW_ONLY
    api_key: str | None = None
    ask: Ask | None = None
    timeout_s: float = 600.0
    max_attempts: int = 4
    usage: Usage = field(default_factory=Usage, init=False)
    num_calls: int = field(default=0, init=False)
    _endpoint: _Endpoint | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.url = f"{self.url.rstrip('/')}/chat/completions"

    async def __aenter__(self) -> "ChatClient":
        if self.ask is None:
            pool = _pools.borrow()
            try:
                self._endpoint = _Endpoint(self.url, self.api_key, self.timeout_s, max(1, self.max_attempts), pool)
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
        """Call the model once and return its answer; `ModelError` when there is no usable one."""
        params = {name: value for name, value in params.items() if name not in STREAMING}
        offered = [_tool_dict(tool) for tool in tools] if tools else None
        if self.ask is not None:
            completion = ChatCompletion.of(await self.ask(ChatRequest(messages, offered, params, on_piece=on_piece)))
        elif self._endpoint is None:
            raise RuntimeError("the chat client is not open: use `async with ctx.chat() as chat:`")
        else:
            request = ChatRequest(messages, offered, {"model": model, **params}, on_piece=on_piece)
            completion = ChatCompletion.of(await self._endpoint.complete(request))
        self.num_calls += 1
        self.usage = self.usage + completion.usage
        return completion


def _tool_dict(tool: object) -> JsonObject:
    if isinstance(tool, dict):
        return tool
    schema = tool if isinstance(tool, OpenAIFunctionToolSchema) else getattr(tool, "schema", None)
    if isinstance(schema, OpenAIFunctionToolSchema):
        return schema.to_dict()
    raise TypeError(f"not a tool: {tool!r}; give a tool schema, an OpenAI tool dict or a function made with @tool")


class _Pools:
    def __init__(self) -> None:
        self._open: dict[asyncio.AbstractEventLoop, tuple[HttpPool, int]] = {}

    def borrow(self) -> HttpPool:
        loop = asyncio.get_running_loop()
        for dead in [other for other in self._open if other.is_closed()]:
            del self._open[dead]
        pool, users = self._open.get(loop) or (HttpPool(), 0)
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
    _pools.borrow()
    try:
        yield
    finally:
        await _pools.give_back()
