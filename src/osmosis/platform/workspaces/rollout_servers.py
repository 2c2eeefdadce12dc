"""Rollout servers of people and workspaces; an API key is sealed and sent to its server alone. Whoever registers gives
the address, so it is checked first, and only its health is asked: no redirect, no proxy, a bounded answer."""

import asyncio
import ipaddress
import json
import math
import re
import socket
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.net import Address, embedded_address, is_loopback, is_public
from osmosis.errors import NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.vault import Sealed, Vault
from osmosis.records.api.workers import ServerRow
from osmosis.records.base import utc_now

SILENT_AFTER = timedelta(minutes=3)
"""A server sends a heartbeat every minute; after this long without one it is shown as gone."""
FORGOTTEN_AFTER = timedelta(days=1)
MAX_NAME = 200
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


def check_name(name: str) -> None:
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        message = f"agent_loop_name must be a printable text of 1 to {MAX_NAME} characters"
        raise ValidationError(message, field="agent_loop_name")


def register(
    session: Session, vault: Vault, owner: tables.User, workspace_id: str | None, name: str, target: ProbeTarget,
    health: ProbeResult,
) -> tables.RolloutServer:  # fmt: skip
    check_name(name)
    now = utc_now()
    session.get_one(tables.User, owner.id, with_for_update=True)  # one registration of a person at a time
    table = tables.RolloutServer
    same = sa.and_(table.owner_id == owner.id, table.host == target.host, table.port == target.port)
    session.execute(sa.delete(table).where(sa.or_(same, table.last_seen < now - FORGOTTEN_AFTER)))
    row = table(
        id=tables.new_id(),
        owner_id=owner.id,
        workspace_id=workspace_id,
        host=target.host,
        port=target.port,
        agent_loop_name=name,
        last_seen=now,
        created_at=now,
    )
    if target.api_key:
        sealed = vault.seal(target.api_key, _about(row))
        row.key_id, row.nonce, row.ciphertext = sealed.key_id, sealed.nonce, sealed.ciphertext
    row.status, row.error = health.status, health.error
    session.add(row)
    session.flush()
    return row


def heartbeat(session: Session, user: tables.User, server_id: str) -> tables.RolloutServer:
    """Store a heartbeat; raise NotFound for a removed server, so that it registers again."""
    row = _own(session, user, server_id)
    row.last_seen = utc_now()
    return row


def target_of(vault: Vault, row: tables.RolloutServer) -> ProbeTarget:
    key = None
    if row.key_id is not None and row.nonce is not None and row.ciphertext is not None:
        key = vault.unseal(Sealed(row.key_id, row.nonce, row.ciphertext), _about(row))
    return ProbeTarget(row.host, row.port, key)


def note_health(session: Session, server_id: str, health: ProbeResult) -> None:
    row = session.get(tables.RolloutServer, server_id, with_for_update=True)
    if row is not None:
        row.status, row.error = health.status, health.error


def remove(session: Session, user: tables.User, server_id: str) -> None:
    session.delete(_own(session, user, server_id))


def select_servers(user: tables.User, workspace: tables.Workspace | None) -> sa.Select[tables.RolloutServer]:
    table = tables.RolloutServer
    mine: sa.ColumnElement[bool] = table.owner_id == user.id
    if workspace is not None:
        mine = sa.or_(table.workspace_id == workspace.id, sa.and_(mine, table.workspace_id.is_(None)))
    recent = table.last_seen >= utc_now() - FORGOTTEN_AFTER
    return sa.select(table).where(mine, recent).order_by(table.created_at.desc(), table.id)


def status_of(row: tables.RolloutServer, now: datetime | None = None) -> str:
    return "gone" if (now or utc_now()) - row.last_seen > SILENT_AFTER else row.status


def build_server(row: tables.RolloutServer) -> ServerRow:
    status = status_of(row)
    error, scope = row.error if status == "unhealthy" else None, "workspace" if row.workspace_id else "user"
    return ServerRow.from_row(row, status=status, error=error, has_api_key=row.key_id is not None, scope=scope)


def _own(session: Session, user: tables.User, server_id: str) -> tables.RolloutServer:
    row = session.get(tables.RolloutServer, server_id, with_for_update=True)
    if row is None or row.owner_id != user.id:
        raise NotFound(f"no rollout server {server_id}", hint="restart it: osmosis serve registers it")
    return row


def _about(row: tables.RolloutServer) -> str:
    return "|".join(("rollout-server", row.id, row.owner_id, row.host, str(row.port)))
