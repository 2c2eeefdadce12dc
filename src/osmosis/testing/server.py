"""Runs an ASGI app on a real loopback port for the length of a test, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def running_app(app: Any, *, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """The base URL of `app`, served by uvicorn with its lifespan; shut down gracefully at the end."""
    config = uvicorn.Config(app, host=host, port=0, log_config=None, access_log=False, lifespan="on")
    server = uvicorn.Server(config)
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
        server.should_exit = True
        await task
