"""Register a server of 0.2 with a platform, again until that works; the server runs whatever the platform answers."""

import asyncio
import ipaddress
import logging
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError as FuturesTimeout, as_completed
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener, urlopen

import aiohttp
import orjson

from osmosis.base.net import backoff_delay, is_loopback, parse_retry_after
from osmosis.compat.settings import RolloutServerSettings
from osmosis.errors import OsmosisError
from osmosis.records.protocol.v02 import RegisterRequest
from osmosis.serve.server.rollouts import ServerRuntime

log = logging.getLogger("osmosis.serve")

TIMEOUT_S = 15.0
HEARTBEAT_S = 60.0
RETRY_MAX_S = 60.0
_ANY_ADDRESS = {"0.0.0.0", "::", "[::]", ""}


@dataclass(frozen=True)
class RegistrationResult:
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
    platform_url: str
    token: str
    host: str  # As bound; an address of no machine (`0.0.0.0`, `::`) is replaced by the public one, or by loopback
    port: int
    agent_name: str
    api_key: str | None = None  # The rollout server's own key, for the platform's health check
    public_host: str | None = None


class Registrar:
    def __init__(self, registration: Registration, settings: RolloutServerSettings) -> None:
        self.registration = registration
        self.result: RegistrationResult | None = None
        self._settings = settings
        self._headers = {"Authorization": f"Bearer {registration.token}", "Content-Type": "application/json"}

    def attach(self, runtime: ServerRuntime) -> None:
        @asynccontextmanager
        async def registered() -> AsyncIterator[None]:
            try:
                yield
            finally:
                await self.deregister()

        runtime.background.append(self.run)
        runtime.around = registered

    async def run(self) -> None:
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
        registration = self.registration
        if registration.public_host:
            return registration.public_host
        if registration.host not in _ANY_ADDRESS:
            return registration.host
        if is_loopback(registration.platform_url):
            return "127.0.0.1"  # the platform is on this machine: no other address is surer to work
        try:
            return detect_public_ip()
        except PublicIPDetectionError as exc:
            log.warning("not registered: %s (%s)", exc, exc.hint)
            return None

    async def _register(self, session: aiohttp.ClientSession, host: str) -> bool:
        registration = self.registration
        body = RegisterRequest(
            host=host,
            port=registration.port,
            agent_loop_name=registration.agent_name,
            api_key=registration.api_key or None,
        )
        tries = 0
        while True:
            tries += 1
            wait: float | None = None
            try:
                async with session.post(
                    self._base + "/api/cli/rollout-server/register", data=body.to_line(), headers=self._headers
                ) as reply:
                    wait = parse_retry_after(reply.headers.get("Retry-After"))
                    result = read_registration(reply.status, await reply.read())
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
                result = RegistrationResult(False, status="unreachable", error=str(exc) or type(exc).__name__)
            self.result = result
            if result.success:
                state = "healthy" if result.is_healthy else f"{result.status}: {result.error or 'no reason given'}"
                log.info("registered with %s as %s (%s)", self._base, result.server_id, state)
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
    """Parse the platform's answer; `status` is `refused` when a retry cannot help, `error` when it can."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        data = None
    data = data if isinstance(data, dict) else {}
    if status >= 400:
        reason = data.get("message") or data.get("error") or body[:300].decode("utf-8", "replace")
        final = status < 500 and status not in (408, 429)
        return RegistrationResult(False, status="refused" if final else "error", error=f"HTTP {status} {reason}")
    check = data.get("health_check_result")
    check = check if isinstance(check, dict) else {}
    return RegistrationResult(
        True,
        server_id=None if data.get("id") is None else str(data["id"]),
        status=str(data.get("status", "unknown")),
        error=check.get("error"),
        server_info=check.get("server_info"),
    )


_CLOUD_TIMEOUT_S = 2.0
_CLOUD_TOTAL_S = 6.0
_PUBLIC_TOTAL_S = 10.0
_LABEL = re.compile(r"^(?!-)[A-Za-z0-9_-]{1,63}(?<!-)\Z")

_AWS = "http://169.254.169.254/latest"
_GCP = "http://metadata.google.internal/computeMetadata/v1/instance/network-interfaces/0/access-configs/0/external-ip"
_AZURE = (
    "http://169.254.169.254/metadata/instance/network/interface/0/ipv4/ipAddress/0/publicIpAddress"
    "?api-version=2021-02-01&format=text"
)
PUBLIC_SERVICES = (
    "https://checkip.amazonaws.com",
    "https://api.ipify.org",
    "https://icanhazip.com",
    "https://ifconfig.me/ip",
)


class PublicIPDetectionError(OsmosisError): ...


def validate_ipv4(value: str) -> bool:
    try:
        ipaddress.IPv4Address(value)
    except ValueError:
        return False
    return True


def is_private_ip(value: str) -> bool:
    try:
        return ipaddress.ip_address(value).is_private
    except ValueError:
        return False


def is_valid_hostname_or_ip(value: str) -> bool:
    host, colon, port = value.rpartition(":")
    if colon:
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            return False
    else:
        host = value
    if not host or len(host) > 253:
        return False
    if re.fullmatch(r"[0-9.]+", host):
        return validate_ipv4(host)
    return all(_LABEL.match(label) for label in host.split("."))


def detect_public_ip() -> str:
    gcp, azure = partial(_fetch, _GCP, {"Metadata-Flavor": "Google"}), partial(_fetch, _AZURE, {"Metadata": "true"})
    address = first_address({"aws": _from_aws, "gcp": gcp, "azure": azure}, _CLOUD_TOTAL_S)
    if address is None:
        address = first_address({url: partial(_ask_service, url) for url in PUBLIC_SERVICES}, _PUBLIC_TOTAL_S)
    if address is None:
        message = "cannot determine the public address of this machine"
        raise PublicIPDetectionError(message, hint="give the address that others can reach: --host <address>")
    return address


def first_address(sources: Mapping[str, Callable[[], str]], timeout_s: float) -> str | None:
    pool = ThreadPoolExecutor(max_workers=max(1, len(sources)), thread_name_prefix="osmosis-address")
    try:
        answers: list[Future[str]] = [pool.submit(source) for source in sources.values()]
        for answer in as_completed(answers, timeout=timeout_s):
            try:
                address = answer.result().strip()
            except (OSError, URLError, ValueError):
                continue
            if validate_ipv4(address):
                return address
    except FuturesTimeout:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return None


def _fetch(url: str, headers: dict[str, str], *, method: str = "GET") -> str:
    # Metadata addresses are this machine's own: a proxy must never see them.
    opener = build_opener(ProxyHandler({}))
    with opener.open(Request(url, headers=headers, method=method), timeout=_CLOUD_TIMEOUT_S) as reply:
        return str(reply.read(4096).decode("ascii", "replace"))


def _from_aws() -> str:
    token = _fetch(f"{_AWS}/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    return _fetch(f"{_AWS}/meta-data/public-ipv4", {"X-aws-ec2-metadata-token": token})


def _ask_service(url: str) -> str:
    with urlopen(Request(url, headers={"User-Agent": "osmosis"}), timeout=_PUBLIC_TOTAL_S) as reply:
        return str(reply.read(4096).decode("ascii", "replace"))
