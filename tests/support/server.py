"""Runs an ASGI app, or one function that answers, on a real loopback port in the test's own event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from aiohttp import web
from starlette.types import ASGIApp

from osmosis.base.http_server import BoundedHttp


class _Server(uvicorn.Server):
    """uvicorn looks ten times a second whether it should end, and pauses when it does; tests have no time for that."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop = asyncio.Event()

    async def main_loop(self) -> None:
        await self.stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn keeps sets, not events
            await asyncio.sleep(0.002)
        await self.lifespan.shutdown()


@asynccontextmanager
async def running_app(
    app: ASGIApp, *, host: str = "127.0.0.1", http: type[asyncio.Protocol] = BoundedHttp
) -> AsyncIterator[str]:
    """The base URL of `app`, served by uvicorn with its lifespan; shut down gracefully at the end."""
    config = uvicorn.Config(app, host=host, port=0, http=http, log_config=None, access_log=False, lifespan="on")
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the app did not start")
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://{host}:{port}"
    finally:
        server.stop.set()
        await task


@asynccontextmanager
async def answering(
    handler: Callable[[web.Request], Awaitable[web.Response]], path: str = "/{tail:.*}"
) -> AsyncIterator[str]:
    """The base URL of a server where `handler` answers every request for `path`."""
    app = web.Application()
    app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
