"""Whose fault a failed call is: HTTP statuses and bodies become one `ModelError` with a category.

Knows no client library. A repeat is worth it only for the categories in `RETRYABLE`.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

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
    Category.CONNECTION: "check that the endpoint runs and that --base-url is right",
    Category.CONTEXT_LENGTH: "shorten the conversation or lower --max-tokens",
    Category.BAD_REQUEST: "a sampling parameter or a message is refused by this endpoint",
}

_CONTEXT = re.compile(r"context.{0,20}(length|window)|maximum context|too many tokens|prompt is too long", re.I)
_QUOTA = re.compile(r"insufficient_quota|billing|exceeded your current quota", re.I)
_MESSAGE_LIMIT = 500


def error_text(body: bytes) -> str:
    """The endpoint's own words, whatever shape its error body has; at most a few lines."""
    try:
        data: Any = orjson.loads(body)
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


def parse_retry_after(value: str | None) -> float | None:
    """Seconds from a `Retry-After` header: a number or an HTTP date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime

    from osmosis.records.base import utc_now

    try:
        return max(0.0, (parsedate_to_datetime(value) - utc_now()).total_seconds())
    except (TypeError, ValueError):
        return None


def model_error(category: Category, message: str, **details: Any) -> ModelError:
    """An error that is not an HTTP answer."""
    return ModelError(message, category=category.value, hint=HINTS.get(category), **details)
