"""Bodies in, bodies out: what the routes of every generation share. Bodies are read bounded and validated straight
from bytes, after authentication; answers are bytes made by the records themselves.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import orjson
from pydantic import ValidationError as BadShape
from pydantic_core import PydanticSerializationError
from starlette.requests import Request
from starlette.responses import Response

from osmosis.records.base import Record
from osmosis.sdk.types import json_safe

from .queue import NotAccepted, QueueFull

Shape = TypeVar("Shape", bound=Record)


class HttpProblem(Exception):
    """An answer that is not a success: status, `detail`, headers."""

    def __init__(self, status: int, detail: object, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(str(detail))
        self.status = status
        self.detail = detail
        self.headers = headers or {}


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, at most `limit` bytes (413 beyond)."""
    said = request.headers.get("content-length", "0")
    if said.isdigit() and int(said) > limit:
        raise HttpProblem(413, f"the body is larger than {limit} bytes")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise HttpProblem(413, f"the body is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def parse(shape: type[Shape], body: bytes) -> Shape:
    """The body as a record; 422 with the list of what is wrong otherwise."""
    if b"NaN" in body or b"Infinity" in body:
        _refuse_constants(body)
    try:
        return shape.model_validate_json(body)
    except BadShape as exc:
        found = exc.errors(include_url=False, include_context=False, include_input=False)
        raise HttpProblem(422, [{**one, "loc": ["body", *one["loc"]]} for one in found]) from exc


def _refuse_constants(body: bytes) -> None:
    """422 for numbers that JSON does not have; the same letters inside a string are fine."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        finding = {"type": "json_invalid", "loc": ["body"], "msg": f"Invalid JSON: {exc}"}
        raise HttpProblem(422, [finding]) from exc


Handler = Callable[[Request], Awaitable[Response]]


def wire_text(record: Record) -> str:
    """A record as JSON, whatever user code put into it: what JSON cannot hold is left out, with a warning."""
    try:
        return record.model_dump_json(exclude_none=True)
    except PydanticSerializationError:
        safe = json_safe(record.model_dump(exclude_none=True, warnings=False), type(record).__name__)
        return json.dumps(safe, ensure_ascii=False)


def reply(record: Record, status: int = 200) -> Response:
    return Response(wire_text(record), status_code=status, media_type="application/json")


def reply_json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json", headers=headers)


async def answer_not_accepted(_: Request, exc: Exception) -> Response:
    """FastAPI exception handler for `NotAccepted`."""
    assert isinstance(exc, NotAccepted)
    full = isinstance(exc, QueueFull)
    said = "the queue is full" if full else "the server is shutting down"
    return reply_json({"detail": said}, 429 if full else 503, {"Retry-After": str(exc.retry_after_s)})


async def answer_problem(_: Request, exc: Exception) -> Response:
    """FastAPI exception handler for `HttpProblem`."""
    assert isinstance(exc, HttpProblem)
    return reply_json({"detail": exc.detail}, exc.status, exc.headers)
