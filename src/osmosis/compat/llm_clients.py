import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import backoff_delay, parse_retry_after
from osmosis.compat.dataset_reader import ProviderError
from osmosis.compat.settings import RolloutSettings, get_settings
from osmosis.errors import ModelError
from osmosis.llm import ChatRequest, Model, open_model
from osmosis.llm.model import STREAMING, Piece
from osmosis.llm.providers import key_variable
from osmosis.records.protocol.v02 import CompletionsRequest, LoopStatus, RolloutMetrics, RolloutResponse
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Message
from osmosis.sdk.agent_loop import CompletionsResult
from osmosis.sdk.messages import normalize_stop
from osmosis.sdk.types import (
    OsmosisRolloutError,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)

CONNECT_TIMEOUT_S = 10.0
_MAX_RETRY_AFTER_S = 60.0


class OsmosisLLMClient:
    """Asks the trainer that drives a loop: `async with OsmosisLLMClient(server_url, rollout_id, api_key=...) as llm:`.
    Times are seconds, more than zero (`ValueError`). A `session` that is passed in is shared and left open."""

    def __init__(
        self,
        server_url: str,
        rollout_id: str,
        api_key: str | None = None,
        timeout_seconds: float | None = None,
        max_retries: int | None = None,
        complete_rollout_retries: int | None = None,
        settings: RolloutSettings | None = None,
        *,
        session: aiohttp.ClientSession | None = None,
    ) -> None:
        defaults = (settings or get_settings()).client
        self.server_url = server_url.rstrip("/")
        self.rollout_id = rollout_id
        self.api_key = api_key
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.timeout_seconds = defaults.timeout_seconds if timeout_seconds is None else timeout_seconds
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be positive, got {timeout_seconds}")
        self.max_retries = defaults.max_retries if max_retries is None else max_retries
        self.complete_rollout_retries = (
            defaults.complete_rollout_retries if complete_rollout_retries is None else complete_rollout_retries
        )
        self._settings = defaults
        self._shared = session
        self._own: aiohttp.ClientSession | None = None
        self._metrics = RolloutMetrics()

    async def __aenter__(self) -> "OsmosisLLMClient":
        self._session()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._own is not None:
            await self._own.close()
            self._own = None

    async def chat_completions(self, messages: list[Message], **kwargs: Any) -> CompletionsResult:
        """Make one model call with the whole history; `kwargs` are sampling parameters. `OsmosisValidationError` for a
        refusal, `OsmosisServerError`, `OsmosisTimeoutError` or `OsmosisTransportError` once the retries are used up."""
        kwargs["stop"] = normalize_stop(kwargs.get("stop"))
        for name in ("temperature", "top_p", "max_tokens", "logprobs", "model"):
            if kwargs.get(name, 0) is None:
                del kwargs[name]
        # Tools reach the trainer in the init response; a second copy here would contradict it one day.
        kwargs.pop("tools", None)
        listener = kwargs.pop("on_piece", None)
        for name in STREAMING & kwargs.keys():
            del kwargs[name]
        try:
            request = CompletionsRequest(messages=messages, rollout_id=self.rollout_id, **kwargs)
        except ValidationError as exc:
            raise OsmosisValidationError(f"the model call is not valid: {exc}", 400) from exc
        try:
            body = request.model_dump(mode="json", exclude_none=True)
        except PydanticSerializationError as exc:
            raise OsmosisValidationError(f"the model call is not JSON: {exc}", 400) from exc
        started = time.monotonic()
        result = read_result(await self._deliver("/v1/chat/completions", body, self.max_retries))
        prompt, answer = (result.usage.get(key, 0) for key in ("prompt_tokens", "completion_tokens"))
        self._metrics = self._metrics.counting(prompt, answer, (time.monotonic() - started) * 1000)
        if listener is not None:  # this protocol does not stream: the answer is one piece
            listener(Piece({key: value for key, value in result.message.items() if key != "role"}))
        return result

    async def complete_rollout(
        self,
        status: str,
        final_messages: list[Message],
        finish_reason: str = "stop",
        error_message: str | None = None,
        metrics: RolloutMetrics | None = None,
        reward: float | None = None,
        extra_fields: dict[str, Any] | None = None,
    ) -> None:
        response = RolloutResponse(
            rollout_id=self.rollout_id,
            status=LoopStatus(status),
            final_messages=final_messages,
            finish_reason=finish_reason,
            error_message=error_message,
            metrics=metrics,
            reward=reward,
            extra_fields=extra_fields or {},
        )
        body = response.model_dump(mode="json", exclude_none=True)
        await self._deliver("/v1/rollout/completed", body, self.complete_rollout_retries)

    def get_metrics(self) -> RolloutMetrics:
        return self._metrics.model_copy()

    async def _deliver(self, path: str, body: dict[str, Any], retries: int) -> str:
        base_s, max_s = self._settings.retry_base_delay, self._settings.retry_max_delay
        for attempt in range(retries + 1):
            wait: float | None = None
            problem: OsmosisRolloutError
            try:
                status, text, header = await self._send(f"{self.server_url}{path}", body)
            except asyncio.TimeoutError:
                problem = OsmosisTimeoutError(f"{path} did not answer within {self.timeout_seconds:g} s")
            except (aiohttp.ClientError, OSError) as exc:
                problem = OsmosisTransportError(f"{path} cannot be reached: {exc or type(exc).__name__}")
            else:
                if 200 <= status < 300:
                    return text
                kind = OsmosisServerError if status >= 500 else OsmosisValidationError
                problem, wait = kind(f"{path} answered {status}: {text[:300]}", status), parse_retry_after(header)
                if isinstance(problem, OsmosisValidationError) and status not in (408, 429):
                    raise problem
            if attempt == retries:
                problem.message = f"{problem.message} ({attempt + 1} attempts)"
                raise problem
            # With "Retry-After: 0" all attempts would be used up within a millisecond.
            pause_s = wait or backoff_delay(attempt + 1, base_s=base_s, max_s=max_s)
            await asyncio.sleep(min(pause_s, _MAX_RETRY_AFTER_S))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _send(self, url: str, body: dict[str, Any]) -> tuple[int, str, str | None]:
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds, sock_connect=CONNECT_TIMEOUT_S)
        # A redirected POST would arrive as a GET, or carry the key to somebody else.
        async with self._session().post(
            url, json=body, headers=self._headers, timeout=timeout, allow_redirects=False
        ) as reply:
            return reply.status, await reply.text(), reply.headers.get("Retry-After")

    def _session(self) -> aiohttp.ClientSession:
        if self._shared is not None:
            return self._shared
        if self._own is None:
            self._own = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=self._settings.max_connections))
        return self._own


def read_result(text: str) -> CompletionsResult:
    try:
        body = json.loads(text)
        choice = body["choices"][0]
        message = dict(choice["message"])
        usage = {key: int(value) for key, value in (body.get("usage") or {}).items() if isinstance(value, (int, float))}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise OsmosisServerError(f"the trainer did not answer with a chat completion: {text[:200]!r}", 200) from exc
    message.setdefault("role", "assistant")
    return CompletionsResult(
        message=message,
        token_ids=body.get("token_ids") or [],
        logprobs=body.get("logprobs") or [],
        usage=usage,
        finish_reason=choice.get("finish_reason") or "stop",
    )


class ExternalLLMClient:
    """`async with ExternalLLMClient("openai/gpt-5-mini") as llm:`. A name without provider is OpenAI's; with `api_base`
    it is sent as it stands and needs no key. A ready `Model` can be given."""

    def __init__(
        self, model: str | Model = "gpt-5-mini", api_key: str | None = None, api_base: str | None = None
    ) -> None:
        if isinstance(model, str):
            self.spec = ModelSpec.parse(model, base_url=api_base)
            # The documented source of keys for code that gives none.
            provider = self.spec.name.partition("/")[0]
            key = api_key or os.environ.get("OPENAI_API_KEY" if self.spec.kind == "openai" else key_variable(provider))
            self._model: Model | None = None
            self._open: Callable[[], Model] = lambda: open_model(self.spec, api_key=key)
        else:
            ready = model
            self.spec = ready.spec
            self._model = ready
            self._open = lambda: ready
        self.model = self.spec.name
        self._tools: list[JsonObject] | None = None
        self._metrics = RolloutMetrics()

    async def __aenter__(self) -> "ExternalLLMClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def set_tools(self, tools: list[Any]) -> None:
        self._tools = [
            tool if isinstance(tool, dict) else tool.model_dump(mode="json", exclude_none=True) for tool in tools
        ]

    def clear_tools(self) -> None:
        self._tools = None

    def reset_metrics(self) -> None:
        self._metrics = RolloutMetrics()

    def get_metrics(self) -> RolloutMetrics:
        return self._metrics.model_copy()

    async def chat_completions(self, messages: list[Message], **kwargs: Any) -> CompletionsResult:
        tools, listener = kwargs.pop("tools", self._tools), kwargs.pop("on_piece", None)
        params = {name: value for name, value in kwargs.items() if name not in STREAMING}
        started = time.monotonic()
        try:
            if self._model is None:
                self._model = self._open()
            done = await self._model.complete(ChatRequest(messages, tools or None, params, on_piece=listener))
        except ModelError as exc:
            raise ProviderError(exc.message, exc.category, exc.hint) from exc
        took_ms = (time.monotonic() - started) * 1000
        usage = done.usage
        self._metrics = self._metrics.counting(usage.prompt_tokens, usage.completion_tokens, took_ms)
        message = {key: value for key, value in done.message.items() if value is not None}
        return replace(CompletionsResult.of(done), message=message)

    async def close(self) -> None:
        if self._model is not None:
            await self._model.close()
            self._model = None
