import asyncio
import hmac
import json
import re
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, TypeVar

import aiohttp
import orjson
import uvicorn
from fastapi import HTTPException, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic_core import PydanticSerializationError
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis.base.http_server import BoundedHttp
from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import end_tasks
from osmosis.records.base import Record, describe_fields
from osmosis.records.protocol.messages import ErrorReply
from osmosis.sdk.types import json_safe

T = TypeVar("T")
Shape = TypeVar("Shape", bound=Record)

Bearer = Literal["serverKey", "rolloutKey", "callbackKey"]

KEEP_ALIVE_S = 75  # Seconds; longer than clients keep idle connections
CLOSE_WITHIN_S = 2.0
_BEARERS: dict[Bearer, str] = {
    "serverKey": "The rollout server's API key, when it has one.",
    "rolloutKey": "Bearer token of one rollout's model endpoint: `llm_api_key`, or `api_key` in generation 0.2.",
    "callbackKey": "Bearer token of one rollout's callbacks: `controller_api_key`.",
}
_REASONS = {
    400: "The model rejected the request, or the request cannot be forwarded",
    401: "The bearer token is missing or wrong",
    403: "The lease token does not belong to this rollout",
    404: "Not found",
    409: "The id or key is already in use for another request",
    413: "The body is too large",
    422: "The body is not valid",
    424: "The model failed, after the proxy's own retries",
    429: "The queue is full; see Retry-After",
    500: "The agent's get_tools raised",
    503: "The server is shutting down; see Retry-After",
}


async def read_body(request: Request, limit: int) -> bytes:
    too_large = HTTPException(413, f"the body is larger than {limit} bytes")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def documented(shape: type[Shape]) -> type[Shape]:
    shape.model_config["defer_build"] = False  # FastAPI's checks warn unless it is built when the route is declared
    return describe_fields(shape)


class JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_bounded


class _JsonRequest(Request):
    def __init__(self, scope: Any, receive: Any) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
        super().__init__({**scope, "headers": [*headers, (b"content-type", b"application/json")]}, receive)

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await read_body(self, self.app.state.max_body_bytes)
        return self._body

    async def json(self) -> Any:
        return orjson.loads(await self.body())  # refuses NaN and Infinity, which JSON does not have


def encode_record(record: Record) -> str:
    try:
        return record.model_dump_json(exclude_none=True)
    except PydanticSerializationError:
        safe = json_safe(record.model_dump(exclude_none=True, warnings=False), type(record).__name__)
        return json.dumps(safe, ensure_ascii=False)


def reply(body: Record | object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = encode_record(body) if isinstance(body, Record) else orjson.dumps(body)
    return Response(content, status_code=status, media_type="application/json", headers=headers)


def operation_id(route: APIRoute) -> str:
    method = min(route.methods or {"get"}).lower()
    return re.sub(r"\W+", "_", f"{method}{route.path_format}").strip("_")


def errors(error: type[Record], *statuses: int) -> dict[int | str, JsonObject]:
    shape = documented(error)
    listed: dict[int | str, JsonObject] = {
        status: {"description": _REASONS[status], "model": shape} for status in statuses
    }
    # Without a default, FastAPI would document validation errors in a shape of its own.
    return {**listed, "default": {"description": "Any other error", "model": shape}}


def document(
    summary: str,
    response: type[Record],
    statuses: Sequence[int] = (),
    bearer: Bearer | None = "serverKey",
    error: type[Record] = ErrorReply,
) -> JsonObject:
    scheme = HTTPBearer(scheme_name=bearer, description=_BEARERS[bearer], auto_error=False) if bearer else None
    return {
        "summary": summary,
        "response_model": documented(response),
        "response_description": "Success",
        "responses": errors(error, *statuses),
        "dependencies": [Security(scheme)] if scheme else [],
    }


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.closing = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Wait to be closed; uvicorn's own loop looks ten times a second."""
        while not self.closing.is_set():
            await self.on_tick(0)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.closing.wait(), 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_WITHIN_S
        while self.server_state.tasks and loop.time() < until:  # noqa: ASYNC110 - uvicorn keeps sets, not events
            await asyncio.sleep(0.01)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        while self.server_state.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(app: ASGIApp, *listeners: socket.socket) -> AsyncIterator[None]:
    """Serve `app` on bound sockets in this event loop until the block ends; its lifespan is not run."""
    config = uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=1024,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(list(listeners)))
    try:
        while not server.started:
            if serving.done():
                serving.result()
            await asyncio.sleep(0.001)
        yield
    finally:
        server.closing.set()
        await serving


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


class Disconnected(Exception): ...


async def unless_disconnected(request: Request, answer: Awaitable[T]) -> T:
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.create_task(wait_disconnected(request))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise Disconnected
        return answering.result()
    finally:
        await end_tasks(leaving, answering)


async def wait_disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def open_session(
    max_connections: int = 0, *, connecting: Callable[[], socket.socket] | None = None
) -> aiohttp.ClientSession:
    """Open a client with at most `max_connections` (0 for no limit); `connecting` makes sockets for another network."""
    connector = aiohttp.TCPConnector(
        limit=max_connections,
        limit_per_host=0,
        keepalive_timeout=30.0,
        ttl_dns_cache=60,
        socket_factory=(lambda _: connecting()) if connecting else None,
    )
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


API_KEY_PREFIX = "osm_rollout_"
_BEARER = re.compile(rb"^\s*bearer\s+(\S+)\s*\Z", re.IGNORECASE)


def generate_api_key() -> str:
    return API_KEY_PREFIX + secrets.token_urlsafe(32)


def parse_bearer(header: bytes | None) -> bytes | None:
    if not header:
        return None
    if match := _BEARER.match(header):
        return match.group(1)
    bare = header.strip()
    return bare if bare and not re.search(rb"\s", bare) else None


def validate_api_key(provided: str | bytes | None, expected: str) -> bool:
    token = parse_bearer(provided.encode("utf-8", "surrogateescape") if isinstance(provided, str) else provided)
    return token is not None and hmac.compare_digest(token, expected.encode())


class BearerGuard:
    """ASGI middleware: answer 401 before the body is read for every path but the open ones, in constant time."""

    def __init__(self, app: ASGIApp, *, api_key: str, open_paths: frozenset[str] = frozenset({"/health"})) -> None:
        self.app = app
        self._key = api_key
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            await self.app(scope, receive, send)
            return
        header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        if validate_api_key(header, self._key):
            await self.app(scope, receive, send)
        else:
            await _answer(send, 401, "Invalid or missing API key", (b"www-authenticate", b"Bearer"))


class JsonOnly:
    """ASGI middleware of a server without a key: answer 415 to a body whose type is not JSON. A browser sends
    `text/plain` and forms to any address without asking it; JSON only after an answer that allows it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            headers = dict(scope["headers"])
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            empty = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
            if not empty and kind != b"application/json" and not kind.endswith(b"+json"):
                await _answer(send, 415, "send JSON, with the header Content-Type: application/json")
                return
        await self.app(scope, receive, send)


async def _answer(send: Send, status: int, detail: str, *more: tuple[bytes, bytes]) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
