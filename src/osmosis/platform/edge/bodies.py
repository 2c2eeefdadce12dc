"""How large a body may be, and who may send a large one.

A body is counted while it is read and refused the moment it is too large. Beyond `UNKNOWN_BYTES` nothing is read
before the request has shown a credential that is good now; a route checks it again, with its rules. Uploads and pushes
are streamed to disk under limits of their own and are let through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis.errors import AuthRequired, OsmosisError, TooLarge
from osmosis.platform import Platform
from osmosis.platform.api.deps import bearer
from osmosis.platform.api.error_bodies import error_response
from osmosis.platform.services import inference, job_queue, tokens

KIB, MIB = 1024, 1024 * 1024
UNKNOWN_BYTES = 64 * KIB
"""What is read of somebody who has not logged in."""
LINGER_BYTES = 8 * MIB
"""What is read and dropped after a refusal: most clients read the answer only when they have sent everything."""

STREAMED = re.compile(r"^/(git/|api/objects/|api/jobs/[^/]+/(artifacts/|checkpoints/.))")
"""Checked before the first byte is read, and counted where they are written."""
HOOKS = re.compile(r"^/hooks/")
"""Signed with a secret of their own, which only the whole body shows."""
LIMITS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"^/api/jobs/[^/]+/rollouts$"), 64 * MIB),  # one rollout with a long conversation
    (re.compile(r"^/api/jobs/"), 32 * MIB),
    (re.compile(r"^/api/cli/eval-runs/imports"), 64 * MIB),  # a manifest names every file
    (re.compile(r"^/api/cli/(device/|bootstrap$)"), UNKNOWN_BYTES),
    (re.compile(r"^/api/"), 4 * MIB),
    (re.compile(r"^/v1/"), 16 * MIB),  # a long conversation, with images
    (HOOKS, MIB),  # a push of many commits; its signature is over all of it
    (re.compile(r""), UNKNOWN_BYTES),
)
_JOB = re.compile(r"^/api/jobs/([^/]+)/")


def limit_of(path: str) -> int | None:
    """Bytes that a body sent to this path may have; None where it is streamed."""
    if STREAMED.match(path):
        return None
    return next(limit for pattern, limit in LIMITS if pattern.match(path))


class BodyLimits:
    """ASGI middleware; answers 413 or 401 itself, whatever the route makes of the interrupted body."""

    def __init__(self, app: ASGIApp, *, platform: Platform) -> None:
        self.app = app
        self._platform = platform

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = limit_of(scope["path"]) if scope["type"] == "http" else None
        if limit is None:
            await self.app(scope, receive, send)
            return
        body = _Body(self._platform, scope, receive, limit)
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and await body.refused(int(announced)):
            await body.refuse(send)
            return
        sender = _Sender(body, send)
        await self.app(scope, body.receive, sender.send)


@dataclass
class _Body:
    """The body of one request."""

    platform: Platform
    scope: Scope
    source: Receive
    limit: int
    size: int = 0
    known: bool = False
    refusal: OsmosisError | None = None

    async def receive(self) -> Message:
        message = await self.source()
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            if await self.refused(self.size) and self.refusal is not None:
                raise HTTPException(self.refusal.http_status, self.refusal.message)
        return message

    async def refused(self, size: int) -> bool:
        """Whether a body of this size is not taken of this caller; `refusal` then says why."""
        if self.refusal is None and size > self.limit:
            self.refusal = TooLarge(f"the request body is larger than {self.limit} bytes")
        elif self.refusal is None and size > UNKNOWN_BYTES and not self.known:
            try:
                await run_in_threadpool(_check_credential, self.platform, Request(self.scope))
                self.known = True
            except OsmosisError as error:
                self.refusal = error
        return self.refusal is not None

    async def refuse(self, send: Send) -> None:
        """The answer first, then what is still on its way is dropped, within bounds; then the connection ends."""
        assert self.refusal is not None
        answer = error_response(self.refusal)
        answer.headers["Connection"] = "close"
        start: Message = {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
        await send(start)
        await send({"type": "http.response.body", "body": bytes(answer.body), "more_body": True})
        enough = self.size + LINGER_BYTES
        while self.size < enough:
            message = await self.source()
            self.size += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass
class _Sender:
    """Puts the refusal in the place of what a route answers once its body was cut off."""

    body: _Body
    target: Send
    over: bool = False

    async def send(self, message: Message) -> None:
        if self.over:
            return
        if self.body.refusal is not None and message["type"] == "http.response.start":
            self.over = True
            await self.body.refuse(self.target)
            return
        await self.target(message)


def _check_credential(platform: Platform, request: Request) -> None:
    """AuthRequired or LeaseLost unless the bearer is a token, or for a job's path its lease, that is good now."""
    if request.url.path.startswith("/api/jobs/"):
        found = _JOB.match(request.url.path)
        with platform.db.read() as session:
            job_queue.known_lease(session, found[1] if found else "", bearer(request))
        return
    if request.url.path.startswith("/v1/"):
        with platform.db.read() as session:
            inference.asker(session, bearer(request), workspace=None, identity=None)
        return
    if HOOKS.match(request.url.path):
        return
    if not request.url.path.startswith("/api/"):
        raise AuthRequired("this request is too large for somebody who has not logged in")
    with platform.db.read() as session:
        tokens.authenticate(session, bearer(request))
