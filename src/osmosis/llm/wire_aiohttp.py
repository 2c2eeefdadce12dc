"""The wire for TLS and proxies: one aiohttp session for a whole run. The only place where the models import aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
from yarl import URL

from .connection import MAX_BODY, ConnectionFailed, HttpReply
from .connections import CONNECT_TIMEOUT_S


def open_session(trust_env: bool) -> aiohttp.ClientSession:
    """As many connections as there are calls; cookies of one call are none of the next one's business."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ttl_dns_cache=300),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=trust_env,
    )


class AiohttpWire:
    """One POST target over one session: one of `shared`, by `trust_env`, where others use it, too; else its own."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        *,
        timeout_s: float | None,
        trust_env: bool,
        shared: dict[bool, aiohttp.ClientSession] | None = None,
    ) -> None:
        self._url = URL(url)
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        self._trust_env = trust_env
        self._own = shared is None
        self._sessions = {} if shared is None else shared

    async def post(self, payload: bytes, *, heard: Callable[[bytes], None] | None = None) -> HttpReply:
        try:
            async with self._open().post(
                self._url, data=payload, headers=self._headers, timeout=self._timeout, allow_redirects=False
            ) as reply:
                body = bytearray()
                async for part in reply.content.iter_any():  # unpacked by aiohttp where it is compressed all the same
                    body += part
                    if len(body) > MAX_BODY:
                        raise ConnectionFailed(f"the answer is larger than {MAX_BODY} bytes")
                    if heard is not None and reply.status == 200:
                        heard(part)
                return HttpReply(reply.status, bytes(body), reply.headers.get("retry-after"))
        except asyncio.TimeoutError:
            raise  # an OSError too, from Python 3.11 on
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._own and (session := self._sessions.pop(self._trust_env, None)) is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._trust_env not in self._sessions:
            self._sessions[self._trust_env] = open_session(self._trust_env)
        return self._sessions[self._trust_env]
