"""A model of any provider that LiteLLM knows. The only file of the engine that imports LiteLLM.

LiteLLM's own retries, banners and remote price map are switched off: retries, errors and costs are ours, so
that every kind of model behaves the same.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

import orjson

from osmosis.errors import ModelError
from osmosis.records.plan import ModelSpec, Retry
from osmosis.records.rollout import Category

from .failures import HINTS, category_of, model_error, parse_retry_after
from .model import ChatRequest, Completion, Signals, sampling
from .openai_compatible import read_completion
from .pricing import price_of
from .retry import RetryingModel

_BY_CLASS = {
    "AuthenticationError": Category.AUTH,
    "PermissionDeniedError": Category.AUTH,
    "BudgetExceededError": Category.AUTH,
    "NotFoundError": Category.MODEL_NOT_FOUND,
    "ContextWindowExceededError": Category.CONTEXT_LENGTH,
    "Timeout": Category.TIMEOUT,
    "APIConnectionError": Category.CONNECTION,
    "RateLimitError": Category.RATE_LIMIT,
    "ServiceUnavailableError": Category.SERVER_ERROR,
    "InternalServerError": Category.SERVER_ERROR,
    "BadGatewayError": Category.SERVER_ERROR,
    "UnsupportedParamsError": Category.BAD_REQUEST,
    "BadRequestError": Category.BAD_REQUEST,
    "APIResponseValidationError": Category.BAD_RESPONSE,
    "JSONSchemaValidationError": Category.BAD_RESPONSE,
}


_NO_KEY = re.compile(r"missing credentials|api_key client option must be set|missing .{0,20}api key", re.I)
"""A key that is nowhere is an internal server error in some versions of LiteLLM, and would be tried again."""


class LiteLLMModel(RetryingModel):
    """`provider/model` through LiteLLM's chat completions."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        api_key: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        signals: Signals | None = None,
    ) -> None:
        super().__init__(spec, retry=retry, signals=signals)
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._price = price_of(spec)
        self._call = _load()

    async def once(self, request: ChatRequest) -> Completion:
        arguments = sampling(self.spec, request)
        arguments.update(model=self.spec.name, messages=request.messages, num_retries=0, max_retries=0)
        if request.tools:
            arguments["tools"] = request.tools
        if self._api_key:
            arguments["api_key"] = self._api_key
        if self.spec.base_url:
            arguments["api_base"] = self.spec.base_url
        if self._timeout_s:
            arguments["timeout"] = self._timeout_s
        try:
            reply = await self._call(**arguments)
        except (asyncio.CancelledError, ModelError):
            raise
        except Exception as error:  # every provider raises its own classes; all become ours
            raise _translate(error, self.spec.name) from error
        return read_completion(
            orjson.dumps(reply.model_dump(exclude_none=True)), model=self.spec.name, price=self._price
        )


def _load() -> Any:
    # LiteLLM fetches its price map over the network while it is imported unless told not to.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise model_error(Category.UNKNOWN, f"LiteLLM cannot be imported: {error}") from error
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm.acompletion


def _translate(error: Exception, model: str) -> ModelError:
    """By the class's name along its bases, then by its HTTP status."""
    text = str(error).strip() or type(error).__name__
    status = getattr(error, "status_code", None)
    category = next((_BY_CLASS[c.__name__] for c in type(error).__mro__ if c.__name__ in _BY_CLASS), None)
    if isinstance(status, int) and category in (None, Category.RATE_LIMIT, Category.BAD_REQUEST):
        category = category_of(status, text)
    category = Category.AUTH if _NO_KEY.search(text) else category or Category.UNKNOWN
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return ModelError(
        f"{model}: {text[:500]}",
        category=category.value,
        status=status if isinstance(status, int) else None,
        retry_after=parse_retry_after(headers.get("retry-after")),
        hint=HINTS.get(category),
    )
