"""The ASGI application: routers, error bodies, version headers, and the worker when it runs in this process.

Opening it migrates the database. It starts nothing but the worker and stops it on shutdown.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from osmosis._version import __version__
from osmosis.base.host_guard import HostGuard, HostNames
from osmosis.errors import NetworkError
from osmosis.records.contract.accounts import Health

from . import Platform, githost, readiness, web
from .api import ROUTERS
from .api.contract_route import ContractRoute
from .api.direct import DirectRoutes
from .api.error_bodies import handle_errors
from .api.versions import ClientVersions
from .edge.bodies import BodyLimits
from .edge.metrics_door import check_reader
from .edge.request_log import RequestLog
from .gitsync import syncing
from .hearing import Hearing
from .inference_proxy import InferenceProxy
from .objects.copies import publish_all
from .own_worker import Caretaker, own_worker
from .run_upload import finished_run
from .security.openid import OpenIdProvider
from .services import dataset_ingest, login_flows
from .settings import PlatformSettings
from .slow_work import in_turn
from .upkeep.daily import DailySweep
from .upkeep.measurements import Measurements

log = logging.getLogger(__name__)


async def _poll(platform: Platform) -> None:
    """Look at repositories elsewhere now and then; webhooks only make it sooner."""
    while True:
        await asyncio.sleep(platform.settings.remote_poll_s)
        try:
            for repository_id in await run_in_threadpool(syncing.due, platform.db):
                await in_turn("sync", repository_id, syncing.poll, platform.db, platform.settings, repository_id)
        except Exception:
            # The border of a task that must go on: one bad look is not the last.
            log.exception("polling the connected repositories failed")


def _take_up(platform: Platform) -> None:
    """What a former process left half done. In a thread where that asks an object store: one that does not answer keeps
    no platform from its start."""
    if not platform.objects.elsewhere:
        _take_up_now(platform)
        return
    threading.Thread(target=_take_up_now, args=(platform,), daemon=True, name="take-up").start()


def _take_up_now(platform: Platform) -> None:
    for finish in (dataset_ingest.forget_abandoned, dataset_ingest.recover, finished_run.recover):
        try:
            finish(platform)
        except NetworkError as error:
            log.warning("what was left half done waits for the next start: %s", error.message)


def create_app(settings: PlatformSettings) -> FastAPI:
    """The whole platform over one data folder."""
    platform = Platform.open(settings)
    login_flows.prepare(platform)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        _take_up(platform)
        publish_all(platform)
        caretaker = app.state.caretaker = Caretaker(platform)
        caretaker.start()
        hearing_all = asyncio.create_task(caretaker.hear())
        hearing = Hearing(settings.job_base_url, settings.lease_s)
        worker = own_worker(platform, spare=True, hearing=hearing) if settings.worker else None
        daily = DailySweep(platform)
        if worker is not None:
            worker.start()
            daily.start()
        polling = asyncio.create_task(_poll(platform)) if settings.remote_poll_s else None
        try:
            yield
        finally:
            hearing_all.cancel()
            if polling is not None:
                polling.cancel()
            daily.stop()
            if worker is not None:
                await run_in_threadpool(worker.stop)
            await app.state.inference.close()
            await run_in_threadpool(caretaker.stop)
            platform.db.close()

    app = FastAPI(title="osmosis platform", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.platform = platform
    app.state.openid = OpenIdProvider(settings.openid) if settings.openid else None
    app.state.inference = InferenceProxy(settings.inference_timeout_s)
    for router in ROUTERS:
        # as they are: include_router would build each of them again, at the first request
        app.router.routes.extend(router.routes)
    githost.mount(app)
    handle_errors(app)
    web.mount(app)  # which shows some errors as pages
    app.add_middleware(DirectRoutes, routes=app.router.routes)
    app.add_middleware(ClientVersions)
    app.add_middleware(BodyLimits, platform=platform)
    measurements = Measurements(platform)
    app.add_middleware(
        HostGuard,
        names=HostNames(settings.host_names),
        hint="start the platform with --allowed-host NAME, or with --public-url https://NAME",
        open_paths=("/health", "/ready"),
    )

    app.add_middleware(RequestLog, measurements=measurements, lines=settings.log_requests)

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        """For Prometheus and its like."""
        check_reader(request, settings)
        return Response(measurements.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def health() -> Health:
        return Health(status="healthy", version=__version__)

    app.router.add_api_route("/health", health, methods=["GET"], route_class_override=ContractRoute)

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
