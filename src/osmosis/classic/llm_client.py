"""`ExternalLLMClient` of generation 0.2: any model behind the interface an agent loop's context asks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from osmosis.base.json_types import JsonObject
from osmosis.errors import ModelError
from osmosis.llm import ChatRequest, Model, open_model
from osmosis.llm.model import STREAMING
from osmosis.llm.provider_variables import key_variable
from osmosis.records.loop_request import RolloutMetrics
from osmosis.records.plan import ModelSpec
from osmosis.records.rollout import Message
from osmosis.sdk.agent_loop import CompletionsResult

from .errors import ProviderError


class ExternalLLMClient:
    """`async with ExternalLLMClient("openai/gpt-5-mini") as llm:`

    A name without provider is OpenAI's; with `api_base` it is sent as it stands and needs no key. A ready `Model`
    can be given instead of a name.
    """

    def __init__(
        self, model: str | Model = "gpt-5-mini", api_key: str | None = None, api_base: str | None = None
    ) -> None:
        if isinstance(model, str):
            self.spec = ModelSpec.parse(model, base_url=api_base)
            # The documented source of keys for code that gives none.
            key = api_key or os.environ.get(_variable(self.spec))
            self._model: Model | None = None
            self._open: Callable[[], Model] = lambda: open_model(self.spec, api_key=key)
        else:
            ready = model
            self.spec = ready.spec
            self._model = ready
            self._open = lambda: ready
        self.model = self.spec.name
        """The full name, provider included."""
        self._tools: list[JsonObject] | None = None
        self._metrics = RolloutMetrics()

    async def __aenter__(self) -> ExternalLLMClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def set_tools(self, tools: list[Any]) -> None:
        """The tools that go with every call from now on."""
        self._tools = [
            one if isinstance(one, dict) else one.model_dump(mode="json", exclude_none=True) for one in tools
        ]

    def clear_tools(self) -> None:
        self._tools = None

    def reset_metrics(self) -> None:
        self._metrics = RolloutMetrics()

    def get_metrics(self) -> RolloutMetrics:
        """The counters since the last reset; a copy."""
        return self._metrics.model_copy()

    async def chat_completions(self, messages: list[Message], **kwargs: Any) -> CompletionsResult:
        """One call; `ProviderError` with advice when there is no answer."""
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
        """Releases connections; may be called twice."""
        if self._model is not None:
            await self._model.close()
            self._model = None


def _variable(spec: ModelSpec) -> str:
    return "OPENAI_API_KEY" if spec.kind == "openai" else key_variable(spec.name.partition("/")[0])
