"""Endpoints that the operator allows: what connects to one inside a sandbox's network is connected to it outside.

Bytes are passed on as they are, both ways. Nothing else of the outside can be reached through a relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Mapping

CHUNK = 65536
CONNECT_S = 10.0


@contextlib.asynccontextmanager
async def relayed(listeners: Mapping[tuple[str, int], socket.socket]) -> AsyncIterator[None]:
    """Relays what arrives at each listening socket to the address and port it stands for."""
    servers: list[asyncio.Server] = []
    try:
        for (host, port), listener in listeners.items():
            servers.append(await asyncio.start_server(functools.partial(relay, host, port), sock=listener.dup()))
        yield
    finally:
        for server in servers:
            server.close()


async def relay(host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, until both sides have said all."""
    with contextlib.closing(writer):
        try:
            far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
        except (OSError, asyncio.TimeoutError):
            return  # the caller sees a closed connection, as of a server that is not there
        with contextlib.closing(far_writer):
            await pump_both((reader, writer), (far_reader, far_writer))


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def pump_both(one: Stream, other: Stream) -> None:
    """Passes bytes on in both directions, until both have ended."""
    await asyncio.gather(_pump(one[0], other[1]), _pump(other[0], one[1]))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(CHUNK):
            writer.write(part)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
