"""The ASGI application: routers, error bodies, version headers, and the worker when it runs in this process.

Opening it migrates the database. It starts nothing but the worker and stops it on shutdown.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from fastapi.concurrency import run_in_threadpool

from osmosis._version import __version__
from osmosis.base.host_guard import HostGuard, HostNames
from osmosis.records.contract.accounts import Health

from . import Platform, githost, readiness, web
from .api import ROUTERS
from .api.error_bodies import handle_errors
from .api.versions import ClientVersions
from .edge.bodies import BodyLimits
from .run_upload import finished_run
from .services import dataset_ingest, login_flows
from .settings import PlatformSettings
from .worker import Worker

log = logging.getLogger(__name__)


def create_app(settings: PlatformSettings) -> FastAPI:
    """The whole platform over one data folder."""
    platform = Platform.open(settings)
    login_flows.prepare(platform)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        dataset_ingest.forget_abandoned(platform)
        dataset_ingest.recover(platform)
        finished_run.recover(platform)
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
    for router in ROUTERS:
        # as they are: include_router would build each of them again, at the first request
        app.router.routes.extend(router.routes)
    githost.mount(app)
    web.mount(app)
    handle_errors(app)
    app.add_middleware(ClientVersions)
    app.add_middleware(BodyLimits, platform=platform)
    app.add_middleware(
        HostGuard,
        names=HostNames(settings.host_names),
        hint="start the platform with --allowed-host NAME, or with --public-url https://NAME",
        open_paths=("/health", "/ready"),
    )

    @app.get("/health")
    def health() -> Health:
        return Health(status="healthy", version=__version__)

    @app.get("/ready", responses={503: {"model": Health}})
    def ready(answer: Response) -> Health:
        """Whether requests can be served now: the database answers, at this version's tables, and files can be written.

        For load balancers and for whoever waits for a start; says to nobody why not.
        """
        problem = readiness.problem(platform)
        if problem:
            log.warning("not ready: %s", problem)
            answer.status_code = 503
        return Health(status="unready" if problem else "ready", version=__version__)

    return app
