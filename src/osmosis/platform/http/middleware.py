"""Middleware around every request (request ids, log lines, client versions), and the readers of `/metrics`. A request's
id is the caller's `X-Request-ID` if it is a plain word. A log line has no query, which may hold a signature. Plain
ASGI, so that answers stream."""

import hmac
import logging
import re
import secrets
import time

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis.base.net import is_loopback, parse_host
from osmosis.errors import AuthRequired, NotFound, UpgradeRequired
from osmosis.platform.auth.dependencies import bearer
from osmosis.platform.http.errors import error_response
from osmosis.platform.maintenance.logging import FIELDS, request_id
from osmosis.platform.maintenance.metrics import UNMATCHED, PlatformMetrics
from osmosis.platform.settings import PlatformSettings

log = logging.getLogger("osmosis.platform.requests")

ID_HEADER = "x-request-id"
_PLAIN = re.compile(r"^[A-Za-z0-9._-]{1,64}\Z")


class RequestLog:
    def __init__(self, app: ASGIApp, *, measurements: PlatformMetrics, lines: bool) -> None:
        self.app = app
        self._measurements = measurements
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent_id = Headers(scope=scope).get(ID_HEADER, "")
        id_ = sent_id if _PLAIN.match(sent_id) else secrets.token_hex(8)
        request_id.set(id_)  # to the end of this task, which answers nothing else
        began = time.perf_counter()
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[ID_HEADER] = id_
            await send(message)

        try:
            await self.app(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", UNMATCHED)
            self._measurements.answered(scope["method"], route, status, seconds)
            if self._lines:
                client = scope.get("client")
                fields = {"method": scope["method"], "path": scope["path"], "status": status}
                fields |= {"seconds": round(seconds, 4), "client": client[0] if client else ""}
                log.info("%s %s: %d", scope["method"], scope["path"], status, extra={FIELDS: fields})


OLDEST = (0, 2, 0)
OLDEST_CURRENT = (0, 2, 24)
PREFIX = "/api/cli/"


def version_status(version: str | None) -> tuple[str, str]:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if match is None:
        return "current", ""
    client_version = tuple(int(part or 0) for part in match.groups())
    if client_version < OLDEST:
        return "unsupported", f"this platform does not support clients of version {version}; it needs 0.2 or later"
    if client_version < OLDEST_CURRENT:
        return "deprecated", f"client {version} is older than 0.2.24 and may not understand some answers"
    return "current", ""


class ClientVersions:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self.app(scope, receive, send)
            return
        status, message = version_status(Headers(scope=scope).get("x-osmosis-cli-version"))

        async def send_with_status(event: Message) -> None:
            if event["type"] == "http.response.start":
                headers = MutableHeaders(scope=event)
                headers["X-Osmosis-Version-Status"] = status
                if message:
                    headers["X-Osmosis-Version-Message"] = message
            await send(event)

        if status == "unsupported":
            error = UpgradeRequired(message, hint="pip install -U osmosis-ai", status=status)
            await error_response(error)(scope, receive, send_with_status)
        else:
            await self.app(scope, receive, send_with_status)


FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")


def check_reader(request: Request, settings: PlatformSettings) -> None:
    token = settings.metrics_token.get_secret_value()
    if token:
        if not hmac.compare_digest(bearer(request).encode(), token.encode()):
            raise AuthRequired("this is not the token of /metrics", hint="it is OSMOSIS_METRICS_TOKEN of the platform")
        return
    is_local = request.client is not None and is_loopback(request.client.host)
    public = bool(settings.public_url) and not is_loopback(parse_host(settings.public_url))
    if public or not is_local or any(name in request.headers for name in FORWARDED):
        message = "/metrics is read on this machine alone"
        raise NotFound(message, hint="start the platform with OSMOSIS_METRICS_TOKEN=SECRET")
