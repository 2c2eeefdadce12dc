"""Tells a platform that a rollout server of generation 0.2 exists: registers it once it answers, again and again
until that works, keeps the entry alive, and takes it out on shutdown. The server runs on whatever the platform answers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import orjson

from osmosis.base.backoff import backoff_delay, parse_retry_after
from osmosis.base.net import is_loopback
from osmosis.records.wire02 import RegisterRequest

from .lifetime import ServerRuntime
from .public_address import PublicIPDetectionError, detect_public_ip
from .rollout_settings import RolloutServerSettings

log = logging.getLogger("osmosis.serve")

REGISTER_PATH = "/api/cli/rollout-server/register"
TIMEOUT_S = 15.0
HEARTBEAT_S = 60.0
RETRY_MAX_S = 60.0
_ANY_ADDRESS = {"0.0.0.0", "::", "[::]", ""}


@dataclass(frozen=True)
class RegistrationResult:
    """What the platform answered."""

    success: bool
    server_id: str | None = None
    status: str = "unknown"
    error: str | None = None
    server_info: dict[str, object] | None = None

    @property
    def is_healthy(self) -> bool:
        return self.success and self.status == "healthy"


@dataclass(frozen=True)
class Registration:
    """Who registers what, where."""

    platform_url: str
    token: str
    """Login token of the person."""
    host: str
    """As bound; an address of no machine (`0.0.0.0`, `::`) is replaced by the public one, or by loopback when the
    platform is there too."""
    port: int
    agent_name: str
    api_key: str | None = None
    """The rollout server's own key, for the platform's health check."""
    public_host: str | None = None
    """Reported instead of any detected address."""


class Registrar:
    """Runs one registration for the life of a server."""

    def __init__(self, registration: Registration, settings: RolloutServerSettings) -> None:
        self.registration = registration
        self.result: RegistrationResult | None = None
        self._settings = settings
        self._headers = {
            "Authorization": f"Bearer {registration.token}",
            "Content-Type": "application/json",
        }

    def attach(self, runtime: ServerRuntime) -> None:
        """Registers while the server lives; the entry is taken out before the server drains."""

        @asynccontextmanager
        async def registered() -> AsyncIterator[None]:
            try:
                yield
            finally:
                await self.deregister()

        runtime.background.append(self.run)
        runtime.around = registered

    async def run(self) -> None:
        """Registers, then keeps the entry alive; runs until cancelled."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
            if not await self._ready(session):
                log.warning("not registered: the server does not answer on its port")
                return
            host = await asyncio.to_thread(self._reported_host)
            if host is None:
                return
            if await self._register(session, host):
                await self._keep_alive(session, host)

    async def deregister(self) -> None:
        """Takes the entry out, within the shutdown time; never an error."""
        result, self.result = self.result, None
        if result is None or result.server_id is None:
            return
        limit = self._settings.registration_shutdown_timeout_seconds
        url = f"{self._base}/api/cli/rollout-server/{result.server_id}"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=min(limit, TIMEOUT_S))) as session,
                session.delete(url, headers=self._headers) as reply,
            ):
                if reply.status >= 400 and reply.status not in (404, 405):
                    log.warning("the platform answered %d to the deregistration", reply.status)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
            log.warning("not deregistered: %s", exc or type(exc).__name__)

    @property
    def _base(self) -> str:
        return self.registration.platform_url.rstrip("/")

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        bound = self.registration.host
        host = {"::": "[::1]", "[::]": "[::1]"}.get(bound, "127.0.0.1" if bound in _ANY_ADDRESS else bound)
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        url = f"http://{host}:{self.registration.port}/health"
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.registration_readiness_timeout_seconds
        while loop.time() < until:
            try:
                async with session.get(url) as reply:
                    if reply.status == 200:
                        return True
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                pass
            await asyncio.sleep(self._settings.registration_readiness_poll_interval_seconds)
        return False

    def _reported_host(self) -> str | None:
        asked = self.registration
        if asked.public_host:
            return asked.public_host
        if asked.host not in _ANY_ADDRESS:
            return asked.host
        if is_loopback(asked.platform_url):
            return "127.0.0.1"  # the platform is on this machine: no other address is surer to work
        try:
            return detect_public_ip()
        except PublicIPDetectionError as exc:
            log.warning("not registered: %s (%s)", exc, exc.hint)
            return None

    async def _register(self, session: aiohttp.ClientSession, host: str) -> bool:
        asked = self.registration
        body = RegisterRequest(
            host=host, port=asked.port, agent_loop_name=asked.agent_name, api_key=asked.api_key or None
        )
        tries = 0
        while True:
            tries += 1
            wait: float | None = None
            try:
                async with session.post(
                    self._base + REGISTER_PATH, data=body.to_line(), headers=self._headers
                ) as reply:
                    wait = parse_retry_after(reply.headers.get("Retry-After"))
                    result = read_registration(reply.status, await reply.read())
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
                result = RegistrationResult(False, status="unreachable", error=str(exc) or type(exc).__name__)
            self.result = result
            if result.success:
                said = "healthy" if result.is_healthy else f"{result.status}: {result.error or 'no reason given'}"
                log.info("registered with %s as %s (%s)", self._base, result.server_id, said)
                return True
            if result.status == "refused":
                log.error("the platform refused the registration: %s", result.error)
                return False
            delay = backoff_delay(tries, base_s=2.0, max_s=RETRY_MAX_S, asked_s=wait)
            log.warning("not registered yet (%s); retrying in %.0f s", result.error, delay)
            await asyncio.sleep(delay)

    async def _keep_alive(self, session: aiohttp.ClientSession, host: str) -> None:
        while self.result is not None:
            await asyncio.sleep(HEARTBEAT_S * random.uniform(0.9, 1.1))
            url = f"{self._base}/api/cli/rollout-server/{self.result.server_id}/heartbeat"
            try:
                async with session.post(url, headers=self._headers) as reply:
                    status = reply.status
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                continue
            if status in (404, 410):  # forgotten, or a platform without heartbeats: one new entry tells which
                before = self.result.server_id
                if not await self._register(session, host) or self.result.server_id == before:
                    return
            elif status == 405:
                return


def read_registration(status: int, body: bytes) -> RegistrationResult:
    """The platform's answer; `status` is `refused` when a retry cannot help, `error` when it can."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        data = None
    data = data if isinstance(data, dict) else {}
    if status >= 400:
        words = data.get("message") or data.get("error") or body[:300].decode("utf-8", "replace")
        final = status < 500 and status not in (408, 429)
        return RegistrationResult(False, status="refused" if final else "error", error=f"HTTP {status} {words}")
    check = data.get("health_check_result")
    check = check if isinstance(check, dict) else {}
    return RegistrationResult(
        True,
        server_id=None if data.get("id") is None else str(data["id"]),
        status=str(data.get("status", "unknown")),
        error=check.get("error"),
        server_info=check.get("server_info"),
    )
