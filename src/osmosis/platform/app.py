"""The ASGI application: routers, error bodies, version headers, and the worker when it runs in this process.

Every error leaves in the shape clients know (`error`, `message`, `code`, `issues`). Starts
nothing but the worker and stops it on shutdown.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from osmosis._version import __version__
from osmosis.errors import InternalError, OsmosisError, UpgradeRequired, ValidationError, from_wire

from . import ingest
from .api import routers
from .api.versions import version_status
from .context import Platform
from .services import startup
from .settings import PlatformSettings
from .worker import Worker

log = logging.getLogger("osmosis.platform")


def create_app(settings: PlatformSettings) -> FastAPI:
    """The whole platform over one data folder. Opening it migrates the database."""
    platform = Platform.open(settings)
    startup.prepare(platform)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        ingest.recover(platform)
        worker = Worker(platform) if settings.worker else None
        if worker is not None:
            worker.start()
        try:
            yield
        finally:
            if worker is not None:
                await run_in_threadpool(worker.stop)
            platform.db.close()

    app = FastAPI(title="osmosis platform", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.platform = platform
    for router in routers():
        app.include_router(router)
    _mount_siblings(app)
    _handle_errors(app)
    app.middleware("http")(_versions)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "healthy", "version": __version__}

    return app


def _mount_siblings(app: FastAPI) -> None:
    """The git host and the pages each offer `mount(app)`."""
    for name in ("githost", "web"):
        if find_spec(f"osmosis.platform.{name}") is None:
            continue
        module = __import__(f"osmosis.platform.{name}", fromlist=["mount"])
        if hasattr(module, "mount"):
            module.mount(app)


async def _versions(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Clients read how their version stands; one that is too old is told so instead of failing oddly."""
    if not request.url.path.startswith("/api/cli/"):
        return await call_next(request)
    status, message = version_status(request.headers.get("x-osmosis-cli-version"))
    if status == "unsupported":
        error = UpgradeRequired(message, hint="pip install -U osmosis-ai", status=status)
        response: Response = error_response(error)
    else:
        response = await call_next(request)
    response.headers["X-Osmosis-Version-Status"] = status
    if message:
        response.headers["X-Osmosis-Version-Message"] = message
    return response


def error_response(error: OsmosisError) -> JSONResponse:
    """The body and status of a known error."""
    headers = {}
    if (wait := error.details.get("retry_after")) is not None:
        headers["Retry-After"] = str(wait)
    return JSONResponse(error.to_wire(), status_code=error.http_status, headers=headers)


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(OsmosisError)
    async def known(request: Request, error: OsmosisError) -> JSONResponse:
        if error.http_status >= 500:
            log.error("%s %s: %s", request.method, request.url.path, error)
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        issues = [
            {"key": ".".join(str(part) for part in found["loc"][1:]) or str(found["loc"][0]), "message": found["msg"]}
            for found in error.errors()
        ]
        return error_response(ValidationError("the request is malformed", issues=issues))

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        message = error.detail if error.status_code != 404 else f"no such path: {request.url.path}"
        known_error = from_wire(error.status_code, {"message": str(message)})
        return JSONResponse(
            {"error": known_error.message, "message": known_error.message, "code": known_error.code},
            status_code=error.status_code,
            headers=error.headers,
        )

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(
            InternalError(
                f"the platform failed at {request.method} {request.url.path}: {type(error).__name__}",
                hint="see the platform's log: osmosis platform logs",
            )
        )
