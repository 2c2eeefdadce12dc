"""Check that a rollout server answers and knows its own key. Whoever registers gives the address, so only
`http://host:port/platform/health` is requested, at an address that is resolved and checked first: no redirect, no
proxy, a bounded answer. Opens no database session."""

import asyncio
import ipaddress
import json
import math
import re
import socket
from dataclasses import dataclass, field

from osmosis.base.net import Address, embedded_address, is_loopback, is_public
from osmosis.errors import ValidationError
from osmosis.platform.settings import PlatformSettings

TIMEOUT_S = 5.0
MAX_BODY = 64 * 1024
MAX_FIELDS = 20
MAX_TEXT = 200
_LABEL = re.compile(r"^[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\Z")
_KEY = re.compile(r"^[\x21-\x7e]{1,1024}\Z")


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    host: str
    port: int
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", _plain_host(self.host))
        if not 1 <= self.port <= 65535:
            raise ValidationError(f"port {self.port} is not between 1 and 65535", field="port")
        if self.api_key is not None and not _KEY.match(self.api_key):
            message = "api_key must be printable ASCII without spaces, at most 1024 characters"
            raise ValidationError(message, field="api_key")

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    info: dict[str, object] | None = None
    error: str | None = None

    @property
    def status(self) -> str:
        return "healthy" if self.error is None else "unhealthy"


def takes_private(settings: PlatformSettings) -> bool:
    if settings.private_servers:
        return True
    return is_loopback(settings.host) and (not settings.public_url or is_loopback(settings.public_url))


async def check(target: ProbeTarget, *, private: bool) -> ProbeResult:
    try:
        return await asyncio.wait_for(_check(target, private), TIMEOUT_S)
    except (asyncio.TimeoutError, TimeoutError):
        return ProbeResult(error=f"no answer from {target.authority} within {TIMEOUT_S:g} s")


async def _check(target: ProbeTarget, private: bool) -> ProbeResult:
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ProbeResult(error=f"the host name {target.host} cannot be resolved")
    addresses = list(dict.fromkeys(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries))
    for address in addresses:
        _judge(target, address, private)
    health = ProbeResult(error=f"the host name {target.host} has no address")
    for address in addresses:
        health, reached = await _ask(target, address)
        if reached:
            break
    return health


def _judge(target: ProbeTarget, address: Address, private: bool) -> None:
    inner = embedded_address(address)
    odd = inner.is_multicast or inner.is_unspecified or inner.is_link_local
    if odd or (inner.is_reserved and not inner.is_loopback):
        message = f"{target.host} is not the address of a rollout server"
        raise ValidationError(message, hint="set the address that others can reach: OSMOSIS_PUBLIC_HOST", field="host")
    if not private and not is_public(address):
        message = f"{target.host} is a private address, and this platform connects only to public ones"
        hint = "set OSMOSIS_PUBLIC_HOST on the server, or start the platform with --private-servers"
        raise ValidationError(message, hint=hint, field="host")


async def _ask(target: ProbeTarget, address: Address) -> tuple[ProbeResult, bool]:
    import httpx  # only registrations need it

    where = f"[{address}]" if address.version == 6 else str(address)
    path = "/platform/health" if target.api_key else "/health"  # without a key the first does not exist
    headers = {"Host": target.authority, "Accept": "application/json", "Accept-Encoding": "identity"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    try:
        async with (
            httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, follow_redirects=False) as client,
            client.stream("GET", f"http://{where}:{target.port}{path}", headers=headers) as reply,
        ):
            body = b""
            async for part in reply.aiter_raw():
                body += part
                if len(body) > MAX_BODY:
                    return ProbeResult(error=f"{target.authority}{path} answered with more than {MAX_BODY} bytes"), True
            return _read(target, path, reply.status_code, body), True
    except httpx.ConnectError:
        return ProbeResult(error=f"no server is listening at {target.authority}"), False
    except httpx.HTTPError as exc:
        return ProbeResult(error=f"no answer from {target.authority} ({type(exc).__name__})"), False


def _read(target: ProbeTarget, path: str, status: int, body: bytes) -> ProbeResult:
    where = f"{target.authority}{path}"
    if status in (401, 403):
        return ProbeResult(error=f"{where} rejects the api_key it was registered with (HTTP {status})")
    if status != 200:
        return ProbeResult(error=f"{where} answered HTTP {status}")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        return ProbeResult(error=f"{where} did not answer with a health report")
    if data.get("status") not in ("healthy", "ok"):  # of generation 0.2, and of later ones
        return ProbeResult(error=f"{where} does not report that it is healthy")
    plain = {name: value for name, value in data.items() if _is_plain(name) and _is_plain(value)}
    info = dict(list(plain.items())[:MAX_FIELDS])
    if target.api_key:
        info = {name: value for name, value in info.items() if target.api_key not in f"{name} {value}"}
    return ProbeResult(info=info)


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and value.isprintable()
    return isinstance(value, int | float) and math.isfinite(value)


def _plain_host(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare)) if "%" not in bare else _no_host()
    except ValueError:
        pass
    labels = bare.removesuffix(".").split(".")
    last = labels[-1].lower()
    is_name = bare == text and len(bare) <= 253 and all(_LABEL.match(label) for label in labels)
    if not is_name or last.isdigit() or last.startswith("0x"):  # a resolver would read it as a number
        _no_host()
    return bare.lower()


def _no_host() -> str:
    hint = "give a name, an IPv4 or an IPv6 address, without scheme, port or path"
    raise ValidationError("host is not a plain host name or address", hint=hint, field="host")
