"""Middleware that limits the size of bodies, and who may send a large one. A body is counted while it is read. Beyond
`UNKNOWN_BYTES` the request needs a valid credential. Uploads and pushes are streamed to disk under limits of their
own."""

import re
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis.errors import AuthRequired, OsmosisError, TooLarge
from osmosis.platform import Platform
from osmosis.platform.auth import tokens
from osmosis.platform.auth.dependencies import bearer
from osmosis.platform.http.errors import error_response
from osmosis.platform.models import inference
from osmosis.platform.scheduling import leases

KIB, MIB = 1024, 1024 * 1024
UNKNOWN_BYTES = 64 * KIB
LINGER_BYTES = 8 * MIB
"""Read and dropped after a refusal: most clients read the answer only once they have sent everything."""

STREAMED = re.compile(r"^/(git/|api/objects/|api/jobs/[^/]+/(artifacts/|checkpoints/.))")
"""Paths whose credential is checked before the first byte, and whose bytes are counted where they are written."""
HOOKS = re.compile(r"^/hooks/")
LIMITS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"^/api/jobs/[^/]+/rollouts\Z"), 64 * MIB),  # one rollout with a long conversation
    (re.compile(r"^/api/jobs/"), 32 * MIB),
    (re.compile(r"^/api/cli/eval-runs/imports"), 64 * MIB),  # a manifest names every file
    (re.compile(r"^/api/cli/(device/|bootstrap\Z)"), UNKNOWN_BYTES),
    (re.compile(r"^/api/"), 4 * MIB),
    (re.compile(r"^/v1(beta)?/"), 16 * MIB),  # a long conversation, with images
    (HOOKS, MIB),  # a push of many commits; its signature is over all of it
    (re.compile(r""), UNKNOWN_BYTES),
)
_JOB = re.compile(r"^/api/jobs/([^/]+)/")


def limit_of(path: str) -> int | None:
    if STREAMED.match(path):
        return None
    return next(limit for pattern, limit in LIMITS if pattern.match(path))


class BodyLimits:
    def __init__(self, app: ASGIApp, *, platform: Platform) -> None:
        self.app = app
        self._platform = platform

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = limit_of(scope["path"]) if scope["type"] == "http" else None
        if limit is None:
            await self.app(scope, receive, send)
            return
        body = _Body(self._platform, scope, receive, send, limit)
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and await body.refused(int(announced)):
            await body.refuse()
        else:
            await self.app(scope, body.receive, body.send)


@dataclass
class _Body:
    platform: Platform
    scope: Scope
    source: Receive
    target: Send
    limit: int
    size: int = 0
    known: bool = False
    refusal: OsmosisError | None = None
    over: bool = False

    async def receive(self) -> Message:
        message = await self.source()
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            if await self.refused(self.size) and self.refusal is not None:
                raise HTTPException(self.refusal.http_status, self.refusal.message)
        return message

    async def refused(self, size: int) -> bool:
        if self.refusal is None and size > self.limit:
            self.refusal = TooLarge(f"the request body is larger than {self.limit} bytes")
        elif self.refusal is None and size > UNKNOWN_BYTES and not self.known:
            try:
                await run_in_threadpool(_check_credential, self.platform, Request(self.scope))
                self.known = True
            except OsmosisError as error:
                self.refusal = error
        return self.refusal is not None

    async def refuse(self) -> None:
        assert self.refusal is not None
        answer, send = error_response(self.refusal), self.target
        answer.headers["Connection"] = "close"
        await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
        await send({"type": "http.response.body", "body": bytes(answer.body), "more_body": True})
        enough = self.size + LINGER_BYTES
        while self.size < enough:
            message = await self.source()
            self.size += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send(self, message: Message) -> None:
        if self.over:
            return
        if self.refusal is not None and message["type"] == "http.response.start":
            self.over = True
            await self.refuse()
        else:
            await self.target(message)


def _check_credential(platform: Platform, request: Request) -> None:
    if request.url.path.startswith("/api/jobs/"):
        match = _JOB.match(request.url.path)
        with platform.db.read() as session:
            leases.require_reader(session, match[1] if match else "", bearer(request))
        return
    if request.url.path.startswith("/v1"):
        with platform.db.read() as session:
            inference.identify_asker(session, inference.read_key(request), workspace=None, identity=None)
        return
    if HOOKS.match(request.url.path):
        return
    if not request.url.path.startswith("/api/"):
        raise AuthRequired("this request is too large for somebody who has not logged in")
    with platform.db.read() as session:
        tokens.authenticate(session, bearer(request))
