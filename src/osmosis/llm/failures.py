import asyncio
import random
import re
import time

import orjson

from osmosis.base.net import backoff_delay, parse_retry_after
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Signals
from osmosis.records.run.plan import ModelSpec, Retry
from osmosis.records.run.rollout import Category

RETRYABLE = frozenset(
    c.value
    for c in (Category.RATE_LIMIT, Category.SERVER_ERROR, Category.CONNECTION, Category.TIMEOUT, Category.BAD_RESPONSE)
)

HINTS = {
    Category.AUTH: "check the key: --api-key-env, or api_key_env in a config, names the variable that holds it",
    Category.MODEL_NOT_FOUND: "check --model and --base-url (in a config: model_path, base_url); most end in /v1",
    Category.CONNECTION: "check that the endpoint is running and that --base-url, or base_url in a config, is right",
    Category.CONTEXT_LENGTH: "shorten the conversation or lower --max-tokens",
    Category.BAD_REQUEST: "the endpoint rejected the request: check the message above and the sampling parameters",
}

_BY_CLASS = {
    "APIConnectionError": Category.CONNECTION, "APIResponseValidationError": Category.BAD_RESPONSE,
    "APITimeoutError": Category.TIMEOUT, "BudgetExceededError": Category.AUTH,
    "ClientConnectionError": Category.CONNECTION, "ConnectError": Category.CONNECTION,
    "ConnectTimeout": Category.TIMEOUT, "ContextWindowExceededError": Category.CONTEXT_LENGTH,
    "JSONSchemaValidationError": Category.BAD_RESPONSE, "RateLimitError": Category.RATE_LIMIT,
    "ReadTimeout": Category.TIMEOUT, "RemoteProtocolError": Category.CONNECTION,
    "ServerTimeoutError": Category.TIMEOUT, "TimeoutException": Category.TIMEOUT,
}  # fmt: skip

_NO_KEY = re.compile(r"missing credentials|api_key client option must be set|missing .{0,20}api key", re.I)
"""Some versions of LiteLLM report a missing key as an internal server error, which would be tried again."""
_CONTEXT = re.compile(r"context.{0,20}(length|window|size)|maximum context|too many tokens|prompt is too long", re.I)
_QUOTA = re.compile(r"insufficient_quota|billing|exceeded your current quota", re.I)
_MESSAGE_LIMIT = 500


def error_text(body: bytes) -> str:
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
    names = [cls.__name__ for cls in type(error).__mro__]
    category = next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None)
    status = status_of(error)
    if category is None and status is None:
        return None
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception's __str__ is anybody's code
        text = ""
    if status is not None and category in (None, Category.RATE_LIMIT):
        category = category_of(status, text)  # tells a used-up quota from a rate limit
    return Category.AUTH if _NO_KEY.search(text) else category


def status_of(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (response, "status_code"), (error, "status")):
        status = getattr(holder, name, None)
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
            return status
    return None


def http_error(status: int, body: bytes, *, model: str, retry_after: str | None = None) -> ModelError:
    text = error_text(body)
    category = category_of(status, body[:4000].decode("utf-8", "replace"))
    detail = f": {text}" if text else ""
    return ModelError(
        f"{model} answered HTTP {status}{detail}",
        category=category.value,
        status=status,
        retry_after=parse_retry_after(retry_after),
        hint=HINTS.get(category),
    )


def reported_error(error: object, *, model: str) -> ModelError:
    code = str(error.get("code") or error.get("status") or "") if isinstance(error, dict) else ""
    text = orjson.dumps({"error": error}, default=str)
    status = int(code) if re.fullmatch("[45][0-9]{2}", code) else 429 if "rate_limit" in code else 502
    failure = http_error(status, text, model=model)
    failure.message = f"{model} answered with an error: {error_text(text)}"
    return failure


_FILTERS = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")


def is_filtered(status: int, body: bytes) -> bool:
    try:
        error = orjson.loads(body)["error"]
        return status == 400 and (error.get("code") in _FILTERS or error["innererror"].get("code") in _FILTERS)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return False


def model_error(category: Category, message: str) -> ModelError:
    return ModelError(message, category=category.value, hint=HINTS.get(category))


class RetryingModel:
    def __init__(self, spec: ModelSpec, *, retry: Retry | None = None, signals: Signals | None = None) -> None:
        self.spec = spec
        self.retry = retry or Retry()
        self.signals = signals
        self._closed_until = 0.0

    async def once(self, request: ChatRequest) -> Completion:
        raise ModelError(f"{type(self).__name__} makes no calls", category=Category.UNKNOWN.value)

    def retries(self, error: ModelError) -> bool:
        return error.category in RETRYABLE

    async def close(self) -> None: ...

    def hold(self, seconds: float) -> None:
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)

    async def complete(self, request: ChatRequest) -> Completion:
        retries = 0
        failures = 0
        waited = 0.0
        while True:
            now = time.monotonic()
            if self._closed_until > now:
                pause = self._closed_until - now + random.uniform(0.0, 0.25)
                waited += pause
                if request.on_wait is not None:
                    request.on_wait(pause)
                await asyncio.sleep(pause)
                continue
            try:
                completion = await self.once(request)
            except ModelError as error:
                if request.told or not self.retries(error):
                    raise
                retries += 1
                if error.category == Category.RATE_LIMIT.value:
                    # Zero is replaced by our growing delay: "Retry-After: 0" again and again would cause a retry storm.
                    delay = error.retry_after or self._delay(retries)
                    # Nobody waits longer than the budget: an endpoint that says "tomorrow" is asked once more.
                    delay = min(delay, self.retry.rate_limit_budget_s)
                    self._closed_until = max(self._closed_until, time.monotonic() + max(delay, 0.01))
                    if self.signals is not None:
                        self.signals.rate_limited(delay)
                    if waited >= self.retry.rate_limit_budget_s:
                        error.message += f" (after waiting {waited:.0f} s for rate limits)"
                        raise
                    continue
                failures += 1
                if failures >= self.retry.max_attempts:
                    error.message += f" (after {failures} attempts)"
                    raise
                await asyncio.sleep(self._delay(failures))
                continue
            completion.retries = retries
            if self.signals is not None:
                self.signals.answered(time.monotonic() - now)
            return completion

    def _delay(self, failures: int) -> float:
        return backoff_delay(failures, base_s=self.retry.base_delay_s, max_s=self.retry.max_delay_s)
