"""Bodies and errors of the model proxy: JSON in, JSON out, and refusals in the shape that OpenAI clients show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import orjson
from aiohttp import web
from pydantic import ValidationError as BadShape

from osmosis.base.json_types import JsonObject
from osmosis.records.base import Record
from osmosis.records.rollout import Category

REPEATED_ALREADY = 424
"""The model behind the gate failed after its own retries: a status that no client library tries again."""

Shape = TypeVar("Shape", bound=Record)


class EndpointError(Exception):
    """An error in the shape that OpenAI clients show: `{"error": {"message", "type", "code"}}`."""

    def __init__(self, status: int, message: str, code: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds; None: asking again would not help."""
        kind = "model_error" if status == REPEATED_ALREADY or status >= 500 else "invalid_request_error"
        self.body: JsonObject = {"error": {"message": message, "type": kind, "code": code}}


@web.middleware
async def answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every `EndpointError` as its answer."""
    try:
        return await handler(request)
    except EndpointError as exc:
        # Client libraries would retry what the proxy has already retried.
        return web.Response(
            body=orjson.dumps(exc.body),
            status=exc.status,
            content_type="application/json",
            headers={"Retry-After": f"{exc.retry_after:.0f}"} if exc.retry_after else {"x-should-retry": "false"},
        )


def json_response(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


async def json_object(request: web.Request) -> JsonObject:
    """The body, which must be a JSON object."""
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as exc:
        raise EndpointError(400, f"the body is not JSON: {exc}", Category.BAD_REQUEST.value) from exc
    if not isinstance(body, dict):
        raise EndpointError(400, "the body must be an object", Category.BAD_REQUEST.value)
    return body


def shaped(shape: type[Shape], body: bytes) -> Shape:
    """The body as this record."""
    try:
        return shape.model_validate_json(body)
    except BadShape as exc:
        raise EndpointError(422, str(exc), Category.BAD_REQUEST.value) from exc
