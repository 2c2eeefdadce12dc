from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

from osmosis.errors import ValidationError
from osmosis.llm.http1 import CONNECT_TIMEOUT_S, MAX_BODY, MAX_HEADER, ConnectionFailed, Http1Pool, HttpReply, OnData

# aiohttp takes 0.09 s to import, and only endpoints behind a proxy need it: see http1.py.
if TYPE_CHECKING:
    import aiohttp

__all__ = ["ConnectionFailed", "HttpEndpoint", "HttpPool", "HttpReply", "OnData", "read_body"]

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
