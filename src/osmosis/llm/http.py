"""POST requests by HTTP/1.1 over kept connections; behind a proxy by aiohttp, which takes 0.09 s to import and 0.1 ms
of CPU a call: a fifth of an evaluation of 1000 rows."""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from email.message import Message
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

from osmosis.errors import ValidationError

if TYPE_CHECKING:
    import aiohttp

MAX_BODY = 256 * 1024 * 1024
MAX_HEADER = 256 * 1024
CONNECT_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 60.0
_READ_SIZE = 256 * 1024

OnData = Callable[[bytes], None]  # Receives the body of an answer with status 200 as it arrives; must not raise
Address = tuple[str, int, bool]  # Host, port, and whether it speaks TLS
Headers = dict[str, str]  # values by lower-case name; the last one of a name that is repeated


class ConnectionFailed(OSError):
    """There was no answer: refused, cut off, too large, or not HTTP."""


class _StaleConnection(ConnectionFailed): ...


@dataclass(slots=True)
class HttpReply:
    status: int
    body: bytes
    headers: Headers

    @property
    def charset(self) -> str | None:
        return _parse_charset(self.headers.get("content-type", ""))


@lru_cache(maxsize=64)
def _parse_charset(content_type: str) -> str | None:
    message = Message()
    message["content-type"] = content_type
    return message.get_content_charset()


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used_at: float = 0.0  # when its last answer was complete, on the monotonic clock; 0: never

    def is_usable(self) -> bool:
        is_old = time.monotonic() - self.used_at > KEEP_ALIVE_S
        return not (is_old or self.reader.at_eof() or self.writer.is_closing())


class Http1Pool:
    def __init__(self) -> None:
        self._idle: dict[Address, list[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def post(self, address: Address, head: bytes, payload: bytes, on_data: OnData | None = None) -> HttpReply:
        request = b"%sContent-Length: %d\r\n\r\n%s" % (head, len(payload), payload)
        while True:
            connection = await self._connect(address)
            try:
                reply, is_kept = await _exchange(connection, request, on_data)
            except _StaleConnection:
                connection.writer.close()
                if not connection.used_at:
                    raise
                continue  # the server closed the idle connection before it saw this request
            except BaseException:
                connection.writer.transport.abort()  # a late answer must not reach another call
                raise
            if is_kept:
                connection.used_at = time.monotonic()
                self._idle.setdefault(address, []).append(connection)
            else:
                connection.writer.close()
            return reply

    async def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.writer.transport.abort()  # close() would wait for the other side of TLS
        self._idle.clear()
        await asyncio.sleep(0)

    async def _connect(self, address: Address) -> _Connection:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.writer.close()
        host, port, is_tls = address
        if is_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        opening = asyncio.open_connection(host, port, limit=MAX_HEADER, ssl=self._tls if is_tls else None)
        return _Connection(*await asyncio.wait_for(opening, CONNECT_TIMEOUT_S))


async def _exchange(connection: _Connection, request: bytes, on_data: OnData | None) -> tuple[HttpReply, bool]:
    reader = connection.reader
    try:
        connection.writer.write(request)
        await connection.writer.drain()
        status, version, headers = await _read_head(reader)
        while 100 <= status < 200:
            if status == 101:
                raise ConnectionFailed("the server switches to another protocol")
            status, version, headers = await _read_head(reader)
    except ConnectionError as error:
        raise _StaleConnection(f"{type(error).__name__}: {error}") from error
    body = bytearray()
    try:
        async for part in _decode(_read_parts(reader, status, headers), headers):
            body += part
            if len(body) > MAX_BODY:
                raise ConnectionFailed(f"the answer is larger than {MAX_BODY} bytes")
            if on_data is not None and status == 200:
                on_data(part)
    except (asyncio.IncompleteReadError, ConnectionError, ValueError, zlib.error) as error:
        raise ConnectionFailed(f"the answer was closed early or cannot be decoded: {error}") from error
    has_end = "content-length" in headers or _is_chunked(headers) or status in (204, 304)
    is_kept = has_end and version == b"HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return HttpReply(status, bytes(body), headers), is_kept


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bytes, Headers]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        version, status, *_ = first.split(b" ", 2)
        if not version.startswith(b"HTTP/1."):
            raise ValueError(repr(first[:80]))
        headers = {}
        for line in lines:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(status), version, headers
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            raise _StaleConnection("the server closed the connection") from error
        reason = "closed early" if error.partial.startswith(b"HTTP/1.") else "not valid HTTP"
        raise ConnectionFailed(f"the answer is {reason}: {error.partial[:80]!r}") from error
    except asyncio.LimitOverrunError as error:
        raise ConnectionFailed(f"the headers are larger than {MAX_HEADER} bytes") from error
    except ValueError as error:
        raise ConnectionFailed(f"the answer is not valid HTTP: {error}") from error


def _is_chunked(headers: Headers) -> bool:
    return headers.get("transfer-encoding", "").lower().endswith("chunked")


async def _read_parts(reader: asyncio.StreamReader, status: int, headers: Headers) -> AsyncIterator[bytes]:
    if status in (204, 304):
        return
    if _is_chunked(headers):
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            if not 0 <= size <= MAX_BODY:
                raise ConnectionFailed(f"the answer is larger than {MAX_BODY} bytes")
            yield await reader.readexactly(size)
            await reader.readuntil(b"\r\n")
        trailer_size = 0
        while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
            trailer_size += len(trailer)
            if trailer_size > MAX_HEADER:
                raise ConnectionFailed(f"the headers after the answer are larger than {MAX_HEADER} bytes")
    elif "content-length" in headers:
        left = int(headers["content-length"])
        while left > 0:
            part = await reader.read(min(left, _READ_SIZE))
            if not part:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(part)
            yield part
    else:
        while part := await reader.read(_READ_SIZE):
            yield part


async def _decode(parts: AsyncIterator[bytes], headers: Headers) -> AsyncIterator[bytes]:
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        async for part in parts:
            yield part
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"content-encoding {encoding}")
    inflater = None
    async for part in parts:
        if inflater is None:
            # What is called deflate comes with the zlib header that RFC 9110 asks for, or without it.
            is_bare = encoding == "deflate" and part[0] & 0x0F != zlib.DEFLATED
            inflater = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32)
        inner = inflater.decompress(part, MAX_BODY + 1)
        if inner:
            yield inner
        if inflater.unconsumed_tail:
            raise ConnectionFailed(f"the answer is larger than {MAX_BODY} bytes")


_URL_SAFE = "/?%:@!$&'()*+,;=~-._[]"


class HttpPool:
    def __init__(self) -> None:
        self.direct = Http1Pool()
        self._session: aiohttp.ClientSession | None = None

    def proxy_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,
                max_line_size=MAX_HEADER,
                max_field_size=MAX_HEADER,
            )
        return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self.direct.close()


class HttpEndpoint:
    """One URL that takes POST requests. It follows no redirect unless told to, and retries nothing."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        *,
        timeout_s: float | None,
        use_proxies: bool,
        pool: HttpPool | None = None,
    ) -> None:
        if any(mark in text for text in (url, *headers, *headers.values()) for mark in "\r\n"):
            message = "the endpoint's URL or key contains a line break"
            raise ValidationError(message, hint="check the variable it comes from")
        self._url = url
        self._headers = {**headers, "Accept": "application/json", "Accept-Encoding": "identity"}
        self._timeout_s = timeout_s
        self._use_proxies = use_proxies and _has_proxy(url)
        self._owns_pool = pool is None
        self._pool = pool or HttpPool()

    async def post(self, payload: bytes, *, on_data: OnData | None = None, redirects: int = 0) -> HttpReply:
        url = self._url
        while True:
            post = self._post_through_proxy if self._use_proxies else self._post_directly
            reply = await asyncio.wait_for(post(url, payload, on_data), self._timeout_s)
            location = _find_redirect(url, reply)
            if location is None or redirects <= 0:
                return reply
            url, redirects = location, redirects - 1

    async def _post_directly(self, url: str, payload: bytes, on_data: OnData | None) -> HttpReply:
        parts = urlsplit(url)
        target = quote(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", safe=_URL_SAFE)
        lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"]
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        if parts.username is not None and "authorization" not in self._headers:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            lines.append(f"Authorization: Basic {b64encode(login.encode()).decode()}")
        head = "".join(f"{line}\r\n" for line in lines).encode("utf-8")
        is_tls = parts.scheme == "https"
        address = (parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls)
        try:
            return await self._pool.direct.post(address, head, payload, on_data)
        except ConnectionFailed:
            raise
        except OSError as error:
            raise ConnectionFailed(f"{type(error).__name__}: {error}") from error

    async def _post_through_proxy(self, url: str, payload: bytes, on_data: OnData | None) -> HttpReply:
        import aiohttp

        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._pool.proxy_session().post(
                url, data=payload, headers=self._headers, timeout=timeout, allow_redirects=False
            ) as reply:
                body = await read_body(reply, on_data if reply.status == 200 else None)
                return HttpReply(reply.status, body, {name.lower(): text for name, text in reply.headers.items()})
        except (asyncio.TimeoutError, ConnectionFailed):
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._owns_pool:
            await self._pool.close()


def _find_redirect(url: str, reply: HttpReply) -> str | None:
    if reply.status not in (307, 308):
        return None
    location = urljoin(url, reply.headers.get("location", ""))
    before, after = urlsplit(url), urlsplit(location)
    is_safe = after.hostname == before.hostname and after.scheme in (before.scheme, "https")
    return location if is_safe else None


def _has_proxy(url: str) -> bool:
    from urllib.request import getproxies, proxy_bypass  # with the whole of http.client and email

    parts, proxies = urlsplit(url), getproxies()
    return bool(proxies.get(parts.scheme) or proxies.get("all")) and not proxy_bypass(parts.hostname or "")


async def read_body(reply: aiohttp.ClientResponse, on_data: OnData | None = None) -> bytes:
    body = bytearray()
    async for part in reply.content.iter_any():  # aiohttp decompresses what some servers compress uninvited
        body += part
        if len(body) > MAX_BODY:
            raise ConnectionFailed(f"the answer is larger than {MAX_BODY} bytes")
        if on_data is not None:
            on_data(part)
    return bytes(body)
