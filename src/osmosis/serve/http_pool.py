"""One pool of aiohttp connections: for whoever drives a rollout server, and for agent loops that ask their trainer."""

from __future__ import annotations

import socket
from collections.abc import Callable

import aiohttp


def open_session(
    max_connections: int = 0, *, connecting: Callable[[], socket.socket] | None = None
) -> aiohttp.ClientSession:
    """At most `max_connections` (0 = as many as are needed); must be opened inside its event loop.

    `connecting` makes the sockets, for a server in a network of its own.
    """
    connector = aiohttp.TCPConnector(
        limit=max_connections,
        limit_per_host=0,
        keepalive_timeout=30.0,
        ttl_dns_cache=60,
        socket_factory=(lambda _: connecting()) if connecting else None,
    )
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
