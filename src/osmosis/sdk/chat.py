"""A small chat-completions client for workflows, so that a rollout needs no vendor library.

It speaks to the one endpoint its rollout was given, repeats what is worth repeating, and says in
`ModelError.category` why a call failed. It does not stream and knows no provider.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from ..errors import ModelError
from ..llm.failures import category_of, error_text, parse_retry_after
from ..records.rollout import Category, Message, Usage
from ..records.wire02 import OpenAIFunctionToolSchema

MODEL_ID = "openai/osmosis-rollout"
"""The model name that rollouts ask for; the endpoint decides which model answers."""

ChatTransport = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Takes a chat-completions request body, returns the response body; raises `ModelError`."""

_RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MAX_WAIT_S = 60.0


@dataclass(slots=True)
class ChatCompletion:
    """One answer of the model."""

    message: Message
    """The assistant message, to be appended to the conversation as it is."""
    finish_reason: str | None
    usage: Usage
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """The whole response body."""

    @property
    def content(self) -> str:
        """The text of the answer; empty when there is none."""
        return text_of(self.message)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
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
    try:
        choice = body["choices"][0]
        message = dict(choice["message"])
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise ModelError(
            f"the model endpoint answered without choices[0].message: {str(body)[:200]}",
            category=Category.BAD_RESPONSE.value,
        ) from exc
    message.setdefault("role", "assistant")
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return ChatCompletion(
        message=message,
        finish_reason=choice.get("finish_reason"),
        usage=Usage(
            prompt_tokens=usage.get("prompt_tokens") or 0,
            completion_tokens=usage.get("completion_tokens") or 0,
            cached_tokens=details.get("cached_tokens") or 0,
        ),
        raw=body,
    )


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
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._transport = transport
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=10)
        self._max_attempts = max(1, max_attempts)
        self._session: aiohttp.ClientSession | None = None
        self.usage = Usage()
        self.num_calls = 0

    async def __aenter__(self) -> ChatClient:
        if self._transport is None:
            self._session = await _sessions.borrow()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            self._session = None
            await _sessions.give_back()

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[Any] | None = None,
        model: str = MODEL_ID,
        **params: Any,
    ) -> ChatCompletion:
        """One model call. `tools` takes OpenAI tool dicts, tool schemas or functions made with `@tool`;
        `params` are sampling parameters. `ModelError` when there is no usable answer."""
        body: dict[str, Any] = {"model": model, "messages": messages, **params}
        if tools:
            body["tools"] = [_tool_dict(one) for one in tools]
        answer = await (self._transport(body) if self._transport else self._post(body))
        completion = parse_completion(answer)
        self.num_calls += 1
        self.usage = self.usage + completion.usage
        return completion

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._session is None:
            raise RuntimeError("the chat client is not open: use `async with ctx.chat() as chat:`")
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._once(self._session, body)
            except ModelError as exc:
                retried = exc.status in _RETRIED_STATUS or exc.category == Category.CONNECTION.value
                if not retried or attempt >= self._max_attempts:
                    raise
                wait = min(0.5 * 2 ** (attempt - 1), 8.0) * random.uniform(0.5, 1.0)
                if exc.retry_after is not None:
                    wait = min(max(exc.retry_after, 0.0), _MAX_WAIT_S)
                await asyncio.sleep(wait)

    async def _once(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> dict[str, Any]:
        try:
            async with session.post(self.url, json=body, headers=self._headers, timeout=self._timeout) as reply:
                text = await reply.text()
                if reply.status >= 400:
                    raise status_error(reply.status, text, reply.headers.get("Retry-After"))
        except asyncio.TimeoutError as exc:
            raise ModelError(
                f"the model endpoint gave no answer within {self._timeout.total:g} s", category=Category.TIMEOUT.value
            ) from exc
        except aiohttp.ClientError as exc:
            raise ModelError(
                f"cannot reach the model endpoint: {exc or type(exc).__name__}", category=Category.CONNECTION.value
            ) from exc
        try:
            parsed = json.loads(text)
        except ValueError as exc:
            raise ModelError(
                f"the model endpoint did not answer with JSON: {text[:200]!r}", category=Category.BAD_RESPONSE.value
            ) from exc
        if not isinstance(parsed, dict):
            raise ModelError(
                f"the model endpoint did not answer with an object: {text[:200]!r}",
                category=Category.BAD_RESPONSE.value,
            )
        return parsed


def status_error(status: int, text: str, retry_after: str | None = None) -> ModelError:
    """The `ModelError` of an HTTP answer that is not a success; `retry_after` is the header as received."""
    said = error_text(text.encode())
    return ModelError(
        f"the model endpoint answered {status}: {said or 'nothing more'}",
        category=category_of(status, text[:4000]).value,
        status=status,
        retry_after=parse_retry_after(retry_after),
    )


def _tool_dict(one: Any) -> dict[str, Any]:
    if isinstance(one, dict):
        return one
    schema = one if isinstance(one, OpenAIFunctionToolSchema) else getattr(one, "schema", None)
    if isinstance(schema, OpenAIFunctionToolSchema):
        return schema.to_dict()
    raise TypeError(f"not a tool: {one!r}; give a tool schema, an OpenAI tool dict or a function made with @tool")


class _Sessions:
    """One connection pool per event loop, alive while any chat client is open."""

    def __init__(self) -> None:
        self._open: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, int]] = {}

    async def borrow(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        for dead in [other for other in self._open if other.is_closed()]:
            del self._open[dead]
        session, users = self._open.get(loop, (None, 0))
        if session is None or session.closed:
            session, users = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)), 0
        self._open[loop] = (session, users + 1)
        return session

    async def give_back(self) -> None:
        loop = asyncio.get_running_loop()
        session, users = self._open[loop]
        if users > 1:
            self._open[loop] = (session, users - 1)
            return
        del self._open[loop]
        await session.close()


_sessions = _Sessions()
