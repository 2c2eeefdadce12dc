"""What a sandbox's own network reaches: package indexes through a proxy, and endpoints that the operator allows."""

import asyncio
import base64
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from osmosis.base.net import is_loopback
from osmosis.sandbox.network import is_outside

HEAD_S = 30.0
CONNECT_S = 30.0
PLAIN = {"http": 80, "https": 443}


class Refusal(Exception):
    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class IndexProxy:
    """`hosts` are always allowed, others when `outside`. `environ` names the proxy in front of this one."""

    hosts: frozenset[str]
    outside: bool
    environ: Mapping[str, str]

    @contextlib.asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._answer, sock=listener.dup())
        try:
            yield
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.closing(writer),
            contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError),
        ):
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
                far, first = await self._connected(head)
            except Refusal as problem:
                writer.write(f"HTTP/1.1 {problem.status}\r\nContent-Length: 0\r\nX-Reason: {problem}\r\n\r\n".encode())
                await writer.drain()
                return
            except asyncio.LimitOverrunError:
                return
            with contextlib.closing(far[1]):
                if first:
                    far[1].write(first)
                else:
                    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                await pump_both((reader, writer), far)

    async def _connected(self, head: bytes) -> "tuple[Stream, bytes]":
        line, _, rest = head.partition(b"\r\n")
        method, _, target = line.decode("latin-1").rpartition(" ")[0].partition(" ")
        if method == "CONNECT":
            url = urlsplit(f"//{target}", scheme="https")
            return await self._to(url, tunnel=True), b""
        url = urlsplit(target)
        if url.scheme != "http":
            raise Refusal("400 Bad Request", "CONNECT or an http:// URL is needed")
        path = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
        fields = [
            field
            for field in rest.split(b"\r\n")
            if field and not field.lower().startswith((b"proxy-", b"connection:"))
        ]
        request = [f"{method} {path} HTTP/1.1".encode("latin-1"), *fields, b"Connection: close", b"", b""]
        return await self._to(url, tunnel=False), b"\r\n".join(request)

    async def _to(self, url: SplitResult, *, tunnel: bool) -> "Stream":
        try:
            host, port = (url.hostname or "").lower(), url.port or PLAIN[url.scheme]
        except ValueError as problem:
            raise Refusal("400 Bad Request", "the port is not a number") from problem
        ours = host in self.hosts
        if not ours and not self.outside:
            raise Refusal("403 Forbidden", f"{host} is not an index of this platform, and the run reaches nothing else")
        if upstream := self._upstream(host, "https" if tunnel else "http"):
            if not ours and not is_outside_name(host):
                raise Refusal("403 Forbidden", f"{host} is not an outside host")
            reader, writer = await _connect(upstream.hostname or "", upstream.port or PLAIN.get(upstream.scheme, 80))
            request = f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            if upstream.username is not None:
                login = f"{unquote(upstream.username)}:{unquote(upstream.password or '')}"
                request += f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n"
            writer.write(f"{request}\r\n".encode())
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), CONNECT_S)
            if answer.split(b" ", 2)[1:2] != [b"200"]:
                writer.close()
                raise Refusal("502 Bad Gateway", "the proxy of this machine refused")
            return reader, writer
        addresses = await self._addresses(host, port)
        if not ours:
            addresses = [address for address in addresses if is_outside(address)]
        if not addresses:
            raise Refusal("403 Forbidden", f"{host} is not an outside host")
        return await _connect(addresses[0], port)

    async def _addresses(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            addresses = await asyncio.wait_for(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), CONNECT_S)
        except (OSError, asyncio.TimeoutError, UnicodeError) as problem:
            raise Refusal("502 Bad Gateway", f"{host} cannot be resolved") from problem
        return [str(address[0]) for *_, address in addresses]

    def _upstream(self, host: str, scheme: str) -> SplitResult | None:
        lower = {name.lower(): value for name, value in self.environ.items() if value}
        named = lower.get(f"{scheme}_proxy") or lower.get("all_proxy")
        spared = [one.strip().lstrip(".") for one in lower.get("no_proxy", "").split(",") if one.strip()]
        if (
            not named
            or is_loopback(host)
            or any(one == "*" or host == one or host.endswith(f".{one}") for one in spared)
        ):
            return None
        return urlsplit(named if "://" in named else f"http://{named}")


def is_outside_name(host: str) -> bool:
    """Return whether a name that is resolved elsewhere may be an outside host; literal addresses are checked."""
    try:
        return is_outside(host)
    except ValueError:
        return not is_loopback(host)


async def _connect(host: str, port: int) -> "Stream":
    try:
        return await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
    except (OSError, asyncio.TimeoutError) as problem:
        raise Refusal("502 Bad Gateway", f"{host}:{port} cannot be reached") from problem


CHUNK = 65536
RELAY_CONNECT_S = 10.0


@contextlib.asynccontextmanager
async def relayed(listeners: Mapping[tuple[str, int], socket.socket]) -> AsyncIterator[None]:
    servers: list[asyncio.Server] = []
    try:
        for (host, port), listener in listeners.items():
            servers.append(await asyncio.start_server(functools.partial(relay, host, port), sock=listener.dup()))
        yield
    finally:
        for server in servers:
            server.close()


async def relay(host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        try:
            far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(host, port), RELAY_CONNECT_S)
        except (OSError, asyncio.TimeoutError):
            return  # the caller sees a closed connection, as of a server that is not there
        with contextlib.closing(far_writer):
            await pump_both((reader, writer), (far_reader, far_writer))


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def pump_both(first: Stream, other: Stream) -> None:
    await asyncio.gather(_pump(first[0], other[1]), _pump(other[0], first[1]))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(CHUNK):
            writer.write(part)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
