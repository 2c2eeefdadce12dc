"""How a client's version stands to this platform: a header on every answer, a refusal for one that is too old.

Plain ASGI, so that streamed answers pass untouched.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis.errors import UpgradeRequired

from .error_bodies import error_response

OLDEST = (0, 2, 0)
OLDEST_CURRENT = (0, 2, 24)
PREFIX = "/api/cli/"


def version_status(version: str | None) -> tuple[str, str]:
    """`(status, message)`; status is `current`, `deprecated` or `unsupported`. No or an odd version is current."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if match is None:
        return "current", ""
    found = tuple(int(part or 0) for part in match.groups())
    if found < OLDEST:
        return "unsupported", f"this platform does not support clients of version {version}; it needs 0.2 or later"
    if found < OLDEST_CURRENT:
        return "deprecated", f"client {version} is older than 0.2.24 and may not understand some answers"
    return "current", ""


class ClientVersions:
    """Adds `X-Osmosis-Version-Status` (and `-Message`) to answers below `/api/cli/`."""

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
