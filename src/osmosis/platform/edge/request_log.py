"""What surrounds every request: an id, the time it took, a line of the log when asked for.

The id is the caller's own (`X-Request-ID`) when it is a plain word, else a new one; answer, error body and log
carry it. A line of the log has the path without its query, for that may hold a signature.
"""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis.platform.upkeep.log_lines import FIELDS, request_id
from osmosis.platform.upkeep.measurements import UNMATCHED, Measurements

log = logging.getLogger("osmosis.platform.requests")

HEADER = "x-request-id"
_PLAIN = re.compile(r"^[A-Za-z0-9._-]{1,64}$")


class RequestLog:
    """ASGI middleware, around all others."""

    def __init__(self, app: ASGIApp, *, measurements: Measurements, lines: bool) -> None:
        self.app = app
        self._measurements = measurements
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        known = given if _PLAIN.match(given) else secrets.token_hex(8)
        request_id.set(known)  # to the end of this task, which answers nothing else
        began = time.perf_counter()
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = known
            await send(message)

        try:
            await self.app(scope, receive, sent)
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED)
        self._measurements.answered(scope["method"], route, status, seconds)
        if self._lines:
            client = scope.get("client")
            fields = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": round(seconds, 4)}
            fields["client"] = client[0] if client else ""
            log.info("%s %s: %d", scope["method"], scope["path"], status, extra={FIELDS: fields})
