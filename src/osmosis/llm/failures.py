"""Whose fault a failed call is: HTTP statuses and bodies become one `ModelError` with a category.

Knows no client library. Only the categories in `RETRYABLE` are worth a retry.
"""

from __future__ import annotations

import re

import orjson

from osmosis.base.backoff import parse_retry_after
from osmosis.errors import ModelError
from osmosis.records.rollout import Category

RETRYABLE = frozenset(
    c.value
    for c in (
        Category.RATE_LIMIT,
        Category.SERVER_ERROR,
        Category.CONNECTION,
        Category.TIMEOUT,
        Category.BAD_RESPONSE,
    )
)

HINTS = {
    Category.AUTH: "check the key: --api-key-env NAME names the variable that holds it",
    Category.MODEL_NOT_FOUND: "check --model and --base-url: the endpoint does not know this model",
    Category.CONNECTION: "check that the endpoint is running and that --base-url is right",
    Category.CONTEXT_LENGTH: "shorten the conversation or lower --max-tokens",
    Category.BAD_REQUEST: "the endpoint rejected the request: check the message above and the sampling parameters",
}

_BY_CLASS = {
    "APIConnectionError": Category.CONNECTION,
    "APIResponseValidationError": Category.BAD_RESPONSE,
    "APITimeoutError": Category.TIMEOUT,
    "BudgetExceededError": Category.AUTH,
    "ClientConnectionError": Category.CONNECTION,
    "ConnectError": Category.CONNECTION,
    "ConnectTimeout": Category.TIMEOUT,
    "ContextWindowExceededError": Category.CONTEXT_LENGTH,
    "JSONSchemaValidationError": Category.BAD_RESPONSE,
    "RateLimitError": Category.RATE_LIMIT,
    "ReadTimeout": Category.TIMEOUT,
    "RemoteProtocolError": Category.CONNECTION,
    "ServerTimeoutError": Category.TIMEOUT,
    "TimeoutException": Category.TIMEOUT,
}
"""Errors of OpenAI, LiteLLM, Anthropic, httpx, aiohttp and requests whose names tell more than their statuses."""

_NO_KEY = re.compile(r"missing credentials|api_key client option must be set|missing .{0,20}api key", re.I)
"""A key that is nowhere is an internal server error in some versions of LiteLLM, and would be tried again."""
_CONTEXT = re.compile(r"context.{0,20}(length|window)|maximum context|too many tokens|prompt is too long", re.I)
_QUOTA = re.compile(r"insufficient_quota|billing|exceeded your current quota", re.I)
_MESSAGE_LIMIT = 500


def error_text(body: bytes) -> str:
    """The endpoint's own words, whatever shape its error body has; at most a few lines."""
    try:
        data: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace").strip()[:_MESSAGE_LIMIT]
    if isinstance(data, dict):
        inner = data.get("error", data.get("detail", data.get("message", data)))
        if isinstance(inner, dict):
            inner = inner.get("message") or inner
        data = inner
    text = data if isinstance(data, str) else orjson.dumps(data).decode()
    return text.strip()[:_MESSAGE_LIMIT]


def category_of(status: int, text: str) -> Category:
    """The category of an HTTP answer that is not a success."""
    if status in (401, 403):
        return Category.AUTH
    if status == 404:
        return Category.MODEL_NOT_FOUND
    if status == 429:
        return Category.AUTH if _QUOTA.search(text) else Category.RATE_LIMIT
    if status == 529:
        return Category.RATE_LIMIT
    if status == 413 or (status in (400, 422) and _CONTEXT.search(text)):
        return Category.CONTEXT_LENGTH
    if status in (408, 504):
        return Category.TIMEOUT
    if status in (409, 425) or status >= 500:
        return Category.SERVER_ERROR
    return Category.BAD_REQUEST


def category_of_error(error: BaseException) -> Category | None:
    """The category of a vendor library's error, by its class and its HTTP status; None for any other error.

    No vendor is imported: OpenAI, LiteLLM, Anthropic, httpx, aiohttp and requests name their errors alike, and carry
    the status in one of three places.
    """
    names = [cls.__name__ for cls in type(error).__mro__]
    found = next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None)
    status = status_of(error)
    if found is None and status is None:
        return None
    text = _said(error)
    if status is not None and found in (None, Category.RATE_LIMIT):
        found = category_of(status, text)  # tells a used-up quota from a rate limit
    return Category.AUTH if _NO_KEY.search(text) else found


def status_of(error: BaseException) -> int | None:
    """The HTTP status of a refusal that an exception carries."""
    response = getattr(error, "response", None)
    for status in (
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
        getattr(error, "status", None),
    ):
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
            return status
    return None


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception's __str__ is anybody's code
        return ""


def http_error(status: int, body: bytes, *, model: str, retry_after: str | None = None) -> ModelError:
    """The error of an answer with this status and body; `retry_after` is the header as received."""
    text = error_text(body)
    category = category_of(status, _words(body))
    said = f": {text}" if text else ""
    return ModelError(
        f"{model} answered HTTP {status}{said}",
        category=category.value,
        status=status,
        retry_after=parse_retry_after(retry_after),
        hint=HINTS.get(category),
    )


def _words(body: bytes) -> str:
    """The body as text, bounded, for looking for words in it."""
    return body[:4000].decode("utf-8", "replace")


def model_error(category: Category, message: str) -> ModelError:
    """An error that is not an HTTP answer."""
    return ModelError(message, category=category.value, hint=HINTS.get(category))
